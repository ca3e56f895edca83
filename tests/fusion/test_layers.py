"""Layer names and the patterns that settings are attached to."""

from __future__ import annotations

import re

import pytest

import atbfn.fusion
from atbfn.fusion import layer, resolve


def mode_in(name: str, layers: dict, **settings: str) -> str:
    with atbfn.fusion(layers=layers, **settings), layer(name):
        return resolve("op").mode


def test_names_nest() -> None:
    with layer("decoder"), layer("3/mlp"):
        assert resolve("op").path == "decoder/3/mlp"
    assert resolve("op").path == ""


@pytest.mark.parametrize(
    ("name", "pattern", "matches"),
    [
        ("decoder/3", "decoder/3", True),
        ("decoder/3", "decoder/4", False),
        ("decoder/3", "encoder/3", False),
        ("decoder/3", "decoder", True),
        ("decoder/3/mlp", "decoder/3", True),
        ("decoder/3", "decoder/3/mlp", False),
        ("decoder/33", "decoder/3", False),
        ("decoder/3", "decoder/[0-3]", True),
        ("decoder/4", "decoder/[0-3]", False),
        ("decoder/14", "decoder/1?", True),
        ("decoder/3/mlp", "*/*/mlp", True),
        ("decoder/3/mlp", "*/mlp", False),
        ("decoder/*", "decoder/*", True),
        ("decoder/*/mlp", "decoder", True),
        ("decoder/*", "decoder/[0-9]*", True),
        ("decoder/*", "decoder/final", False),
        ("decoder/*", "encoder/3", False),
        ("decoder/*/mlp", "decoder/3/attention", False),
    ],
)
def test_matching(name: str, pattern: str, matches: bool) -> None:
    assert mode_in(name, {pattern: {"mode": "step_by_step"}}) == ("step_by_step" if matches else "fused")


@pytest.mark.parametrize("pattern", ["decoder/3", "decoder/[0-3]", "decoder/1*", "*/3"])
def test_a_pattern_that_tells_apart_layers_of_a_scan_raises(pattern: str) -> None:
    said = f"fused_ffn: layers: the pattern '{pattern}'"
    fix = "write the pattern as 'decoder/*', or unroll the layers"
    with (
        atbfn.fusion(layers={pattern: {"mode": "step_by_step"}}),
        layer("decoder/*"),
        pytest.raises(ValueError, match=f"{re.escape(said)}.*{re.escape(fix)}"),
    ):
        resolve("fused_ffn")


def test_it_does_not_raise_where_the_pattern_has_no_say() -> None:
    layers = {"decoder/3": {"mode": "step_by_step"}}
    with atbfn.fusion(layers=layers), layer("decoder/*"):
        assert resolve("op", mode="fused").mode == "fused"
        with atbfn.fusion(mode="fused_with_checkpoints"):
            assert resolve("op").mode == "fused_with_checkpoints"


def test_the_later_of_two_matching_patterns_counts() -> None:
    steps, checks = {"mode": "step_by_step"}, {"mode": "fused_with_checkpoints"}
    assert mode_in("a/1", {"a/*": steps, "a/1": checks}) == "fused_with_checkpoints"
    assert mode_in("a/1", {"a/1": checks, "a/*": steps}) == "step_by_step"


def test_patterns_are_above_the_settings_of_their_own_context() -> None:
    assert mode_in("a/1", {"a/1": {"mode": "step_by_step"}}, mode="fused_with_checkpoints") == "step_by_step"
    assert mode_in("a/2", {"a/1": {"mode": "step_by_step"}}, mode="fused_with_checkpoints") == "fused_with_checkpoints"


def test_inner_contexts_are_above_outer_ones() -> None:
    layers = {"a/1": {"mode": "step_by_step", "target": "xla"}}
    with atbfn.fusion(layers=layers), layer("a/1"), atbfn.fusion(mode="fused"):
        assert (resolve("op").mode, resolve("op").target) == ("fused", "xla")
        with atbfn.fusion(layers={"a": {"mode": "fused_with_checkpoints"}}):
            assert (resolve("op").mode, resolve("op").target) == ("fused_with_checkpoints", "xla")
    with atbfn.fusion(mode="fused"), atbfn.fusion(layers=layers), layer("a/1"):
        assert resolve("op").mode == "step_by_step"


@pytest.mark.parametrize("name", ["", "/a", "a/", "a//b", "a/layer*", "a/[0-3]", "a/?"])
def test_bad_names(name: str) -> None:
    with pytest.raises(ValueError, match=r"layer: name: got .*; expected components separated by '/'"):
        layer(name)


def test_a_name_must_be_a_string() -> None:
    with pytest.raises(TypeError, match="layer: name: got 3 of type int; expected a string like 'decoder/3'"):
        layer(3)  # type: ignore[arg-type]
