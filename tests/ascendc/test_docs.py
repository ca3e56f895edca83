"""docs/ascendc.md: its program, its commands and what they print, its Python, and its table of rules."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from atbfn.ascendc import build

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "ascendc.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[str]:
    return [text for name, text in BLOCKS if name == language]


@pytest.fixture(scope="module")
def here(compiler: build.Compiler, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the page's program, and the commands `atbfn` and `python` of this environment."""
    folder = tmp_path_factory.mktemp("docs")
    (folder / "add.asc").write_text(blocks("cpp")[0])
    commands = folder / "bin"
    commands.mkdir()
    for name, arguments in (("atbfn", "-m atbfn"), ("python", "")):
        (commands / name).write_text(f'#!/bin/sh\nexec {sys.executable} {arguments} "$@"\n')
        (commands / name).chmod(0o755)
    shell(folder, "atbfn ascendc run add.asc")  # the emulator is built now, which the page's commands do not show
    return folder


def shell(folder: Path, command: str) -> str:
    environment = os.environ | {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "PYTHONUNBUFFERED": "1"}
    done = subprocess.run(
        command, shell=True, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    return done.stdout


def matches(expected: str, got: str) -> bool:
    """`...` in what is expected stands for anything within a line; how many spaces there are does not matter."""
    pattern = ".*".join(re.escape(re.sub(" +", " ", part)) for part in expected.split("..."))
    return re.fullmatch(pattern, re.sub(" +", " ", got)) is not None


def test_the_page_has_what_is_tested() -> None:
    assert {name for name, _ in BLOCKS} == {"sh", "console", "cpp", "python", "text"}
    assert len(blocks("cpp")) == len(blocks("python")) == len(blocks("text")) == 1


@pytest.mark.parametrize("block", blocks("console"), ids=lambda block: block.splitlines()[0][2:50])
def test_commands_print_what_the_page_says(here: Path, block: str) -> None:
    commands = re.split(r"^\$ (.*)\n", block, flags=re.MULTILINE)[1:]
    for command, expected in zip(commands[::2], commands[1::2], strict=True):
        got = shell(here, command)
        shown = [line.rstrip() for line in expected.rstrip("\n").split("\n")]
        lines = [line.rstrip() for line in got.rstrip("\n").split("\n")]
        assert len(shown) == len(lines) and all(map(matches, shown, lines)), f"{command}\n{got}"


def test_the_python_prints_what_the_page_says(here: Path) -> None:
    shell(here, "sed '/WaitFlag<HardEvent::MTE2_V>/d' add.asc > race.asc")
    (here / "page.py").write_text(blocks("python")[0])
    assert shell(here, "python page.py") == blocks("text")[0]


def test_the_table_has_every_rule() -> None:
    """The rules are the words in brackets at the end of the emulator's messages."""
    call = re.compile(
        r'(?:require\([^"]*|fail\(|Refuse\(|Message\([^"]*"(?:error|warning)"[^"]*)"([a-z]+(?:-[a-z]+)*)"'
    )
    rules = set()
    for path in build.emulator_root().rglob("*.*"):
        rules |= set(call.findall(path.read_text())) - {"error", "warning"}
    table = PAGE.partition("| rule | what it says |")[2].partition("\n\n")[0]
    told = {
        rule
        for row in table.splitlines()
        for rule in re.findall(r"`([a-z-]+)`", row.partition("|")[2].partition("|")[0])
    }
    assert {"race", "capacity", "uninitialised"} <= rules
    assert rules == told
