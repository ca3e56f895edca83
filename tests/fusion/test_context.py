"""Precedence, nesting, threads and bad values of the configuration in force."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import atbfn.fusion
from atbfn.fusion import ConfigError, FusionConfig, layer, reload_config, resolve

VARIABLES = ("ATBFN_MODE", "ATBFN_TARGET", "ATBFN_CROSS_PRECISION", "ATBFN_CONFIG")


@pytest.fixture(autouse=True)
def clean_environment() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in VARIABLES:
            patch.delenv(name, raising=False)
        reload_config()
        yield
    reload_config()


def configure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str) -> Path:
    path = tmp_path / "atbfn.yaml"
    path.write_text(text)
    monkeypatch.setenv("ATBFN_CONFIG", str(path))
    reload_config()
    return path


def test_default() -> None:
    assert resolve("op") == atbfn.fusion.Resolved("fused", "auto", False, "")


LEVELS = ("file", "environment", "pattern", "context", "argument")


@pytest.mark.parametrize("given", [s for n in (1, 2, 3, 4, 5) for s in itertools.combinations(LEVELS, n)])
def test_precedence(given: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of every set of places that give the target, the highest one decides, and the mode is not touched."""
    targets = dict(zip(LEVELS, ("xla", "cpu", "ascendc", "torch_npu", "auto"), strict=True))
    text = f"target: {targets['file']}\n" if "file" in given else ""
    if "pattern" in given:
        text += f"layers:\n  decoder/3: {{target: {targets['pattern']}}}\n"
    if "environment" in given:
        monkeypatch.setenv("ATBFN_TARGET", targets["environment"])
    configure(monkeypatch, tmp_path, text)
    argument = targets["argument"] if "argument" in given else None
    context = targets["context"] if "context" in given else None
    highest = max(given, key=LEVELS.index)
    with layer("decoder/3"), atbfn.fusion(target=context):
        found = resolve("op", target=argument)
    assert found.target == targets[highest]
    assert found.mode == "fused"


def test_context_overrides_only_what_is_given() -> None:
    with atbfn.fusion(mode="step_by_step", cross_precision=True):
        with atbfn.fusion(target="xla"):
            assert resolve("op") == atbfn.fusion.Resolved("step_by_step", "xla", True, "")
            with atbfn.fusion(cross_precision=False, mode="fused_with_checkpoints"):
                assert resolve("op") == atbfn.fusion.Resolved("fused_with_checkpoints", "xla", False, "")
        assert resolve("op").target == "auto"
    assert resolve("op") == atbfn.fusion.Resolved("fused", "auto", False, "")


def test_one_context_entered_twice_is_left_twice() -> None:
    context = atbfn.fusion(mode="step_by_step")
    name = layer("a")
    with context, name:
        with context, name:
            assert resolve("op").mode == "step_by_step"
            assert resolve("op").path == "a/a"
        assert resolve("op").mode == "step_by_step"
        assert resolve("op").path == "a"
    assert resolve("op") == atbfn.fusion.Resolved("fused", "auto", False, "")
    with context:
        assert resolve("op").mode == "step_by_step"
    assert resolve("op").mode == "fused"


def test_context_is_left_on_an_exception() -> None:
    with pytest.raises(KeyError), atbfn.fusion(mode="step_by_step"), layer("a"):
        raise KeyError
    assert resolve("op") == atbfn.fusion.Resolved("fused", "auto", False, "")


def test_context_as_decorator() -> None:
    @atbfn.fusion(mode="step_by_step")
    def mode(depth: int) -> str:
        return mode(depth - 1) if depth else resolve("op").mode

    assert mode(2) == "step_by_step"
    assert resolve("op").mode == "fused"


def test_threads_do_not_see_each_other() -> None:
    """One object is active in two threads at once, entered and left crosswise; a third thread sees the default."""
    shared = atbfn.fusion(mode="step_by_step")
    entered, left, found = threading.Barrier(3), threading.Barrier(3), {}

    def inside(name: str) -> None:
        with atbfn.fusion(target="xla" if name == "a" else "cpu"), shared:
            entered.wait(10)
            found[name] = resolve("op")
            left.wait(10)
        found[name + " after"] = resolve("op")

    def outside() -> None:
        entered.wait(10)
        found["outside"] = resolve("op")
        left.wait(10)

    threads = [threading.Thread(target=inside, args=(name,)) for name in "ab"] + [threading.Thread(target=outside)]
    with atbfn.fusion(mode="fused_with_checkpoints"):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        assert resolve("op").mode == "fused_with_checkpoints"
    default = atbfn.fusion.Resolved("fused", "auto", False, "")
    assert found == {
        "a": atbfn.fusion.Resolved("step_by_step", "xla", False, ""),
        "b": atbfn.fusion.Resolved("step_by_step", "cpu", False, ""),
        "a after": default,
        "b after": default,
        "outside": default,
    }


def test_reload_changes_every_thread_but_no_active_context(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    with atbfn.fusion(mode="step_by_step"):
        monkeypatch.setenv("ATBFN_MODE", "fused_with_checkpoints")
        monkeypatch.setenv("ATBFN_TARGET", "xla")
        reload_config()
        assert resolve("op") == atbfn.fusion.Resolved("step_by_step", "xla", False, "")
        thread = threading.Thread(target=lambda: found.update(other=resolve("op").mode))
        thread.start()
        thread.join(10)
    assert found == {"other": "fused_with_checkpoints"}
    assert resolve("op").mode == "fused_with_checkpoints"


def test_a_failed_reload_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATBFN_MODE", "step_by_step")
    reload_config()
    monkeypatch.setenv("ATBFN_MODE", "stepwise")
    with pytest.raises(ConfigError, match=r"ATBFN_MODE: mode: got 'stepwise'; expected one of 'step_by_step', .*"):
        reload_config()
    assert resolve("op").mode == "step_by_step"


@pytest.mark.parametrize(("text", "value"), [("1", True), ("true", True), ("0", False), ("False", False), ("", False)])
def test_environment_flag(text: str, value: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATBFN_CROSS_PRECISION", text)
    reload_config()
    assert resolve("op").cross_precision is value


@pytest.mark.parametrize(
    ("variable", "text", "message"),
    [
        ("ATBFN_CROSS_PRECISION", "maybe", "ATBFN_CROSS_PRECISION: got 'maybe'; expected 1 or 0"),
        ("ATBFN_TARGET", "gpu", "ATBFN_TARGET: target: got 'gpu'; expected one of 'auto', 'xla'"),
        ("ATBFN_MODE", "fusd", "did you mean 'fused'\\?"),
        ("ATBFN_CONFIG", "/nowhere/at/all.yaml", "/nowhere/at/all.yaml: cannot be read: No such file"),
    ],
)
def test_bad_environment(variable: str, text: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, text)
    with pytest.raises(ConfigError, match=message):
        reload_config()


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"mode": "fusd"}, ValueError, "fusion: mode: got 'fusd'; expected one of .*; did you mean 'fused'\\?"),
        ({"mode": ["fused"]}, TypeError, r"fusion: mode: got \['fused'\] of type list; expected one of"),
        ({"target": {}}, TypeError, "fusion: target: got {} of type dict"),
        ({"target": "gpu"}, ValueError, "fusion: target: got 'gpu'"),
        ({"cross_precision": 1}, TypeError, "fusion: cross_precision: got 1 of type int; expected True or False"),
        ({"cross_precision": []}, TypeError, "fusion: cross_precision: got \\[\\]"),
        ({"layers": ["a"]}, TypeError, "fusion: layers: got \\['a'\\] of type list; expected a dict like"),
        ({"layers": {"a": "fused"}}, TypeError, "fusion: layers\\['a'\\]: got 'fused'; expected a dict of settings"),
        ({"layers": {"a": {}}}, TypeError, "fusion: layers\\['a'\\]: got {}; expected a dict of settings"),
        ({"layers": {"a": {"moed": "fused"}}}, ValueError, "got the setting 'moed'; .*did you mean 'mode'\\?"),
        ({"layers": {"a": {"mode": {1}}}}, TypeError, "fusion: layers\\['a'\\]: mode: got \\{1\\} of type set"),
        ({"layers": {"a//b": {"mode": "fused"}}}, ValueError, "got the pattern 'a//b'"),
    ],
)
def test_bad_context(given: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        atbfn.fusion(**given)


def test_bad_argument_names_the_operator() -> None:
    with pytest.raises(ValueError, match=r"fused_ffn: mode: got 'stepbystep'; .*did you mean 'step_by_step'"):
        resolve("fused_ffn", mode="stepbystep")
    with pytest.raises(TypeError, match="fused_ffn: target: got 3 of type int"):
        resolve("fused_ffn", target=3)  # type: ignore[arg-type]


def test_config_is_frozen_hashable_and_checked() -> None:
    assert hash(FusionConfig()) == hash(FusionConfig("fused", "auto", False))
    assert FusionConfig() != FusionConfig(target="xla")
    with pytest.raises(AttributeError):
        FusionConfig().mode = "fused"  # type: ignore[misc]
    with pytest.raises(TypeError, match="FusionConfig: mode: got \\['fused'\\]"):
        FusionConfig(mode=["fused"])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="FusionConfig: target: got 'XLA'"):
        FusionConfig(target="XLA")
