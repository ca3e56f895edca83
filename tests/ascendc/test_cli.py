"""`atbfn ascendc`, as a user calls it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from atbfn import doctor
from atbfn.ascendc import build

pytest.importorskip("rich")
typer_testing = pytest.importorskip("typer.testing")

from atbfn.ascendc import cli  # noqa: E402 - needs the packages above


def ascendc(*arguments: object) -> subprocess.CompletedProcess[str]:
    """In a process of its own, in the current folder, where the programs' output goes the way it does for users."""
    code = "from atbfn.ascendc.cli import app; app(prog_name='atbfn ascendc')"
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def here(sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for source in sources.glob("*.asc"):
        shutil.copy(source, tmp_path)
    return tmp_path


def test_run(here: Path) -> None:
    done = ascendc("run", "add.asc")
    assert (done.returncode, done.stdout) == (0, "correct: 4096 elements\n")
    assert list(here.glob("*.json")) == []


def test_launches_in_all_forms(here: Path) -> None:
    done = ascendc("run", "forms.asc", "--json")
    assert done.stderr == "111135\n" and done.returncode == 0
    launches = json.loads(done.stdout)
    text = Path("forms.asc").read_text().splitlines()
    assert len(launches) == 12
    for launch in launches:
        name = launch["kernel"].partition("<")[0]
        assert name in text[launch["line"] - 1] or "LAUNCH" in text[launch["line"] - 1]


def test_arguments_macros_and_the_status_reach_and_leave_the_program(here: Path) -> None:
    done = ascendc("run", "-DTILE=32", "add.asc", "--", "--report", "two")
    assert (done.returncode, done.stdout) == (3, "correct: 512 elements --report two\n")
    assert ascendc("run", "add.asc", "-D", "TILE=64").stdout == "correct: 1024 elements\n"


def test_report(here: Path) -> None:
    done = ascendc("run", "add.asc", "--report")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "correct: 4096 elements"
    assert re.fullmatch(r"add<TILE> \(add.asc:\d+\)|add<256> \(add.asc:\d+\)", lines[1])
    assert re.fullmatch(r"Ascend910B1, 4 blocks on 4 AIV cores, .* simulated", lines[2])
    assert any(re.match(r"UB +.* 3 KB +184 KB +2 %", line) for line in lines)
    assert any(re.match(r"MTE2 +32 ", line) for line in lines)
    assert "timeline: add.timeline.json (open it at ui.perfetto.dev)" in done.stderr
    assert json.loads((here / "add.timeline.json").read_text())["traceEvents"]


def test_json(here: Path) -> None:
    done = ascendc("run", "add.asc", "--json", "--trace", "here.json", "--chip", "910b3")
    (launch,) = json.loads(done.stdout)
    assert (launch["chip"], launch["line"]) == ("Ascend910B3", 97)
    assert "correct: 4096 elements" in done.stderr
    assert json.loads((here / "here.json").read_text())["traceEvents"]


def test_a_refused_kernel_ends_the_program(here: Path) -> None:
    text = Path("add.asc").read_text()
    Path("add.asc").write_text(text.replace("        inX.EnQue(x);\n", ""))
    done = ascendc("run", "add.asc")
    assert done.returncode == 1 and "correct" not in done.stdout
    assert re.match(r"add.asc:\d+: error: DeQue", done.stderr)
    assert "inX" in done.stderr and re.search(r"^ *\d+ \| ", done.stderr, re.MULTILINE)


def test_strict(here: Path) -> None:
    text = Path("add.asc").read_text()
    again = "        AscendC::Add(z, x, y, tile);\n        AscendC::Adds(z, z, static_cast<half>(0), tile);\n"
    Path("add.asc").write_text(text.replace("        AscendC::Add(z, x, y, tile);\n", again))
    done = ascendc("run", "add.asc")
    assert done.returncode == 0 and "warning" in done.stderr and "correct" in done.stdout
    done = ascendc("run", "--strict", "add.asc")
    assert done.returncode == 1 and re.match(r"add.asc:53: error: Adds", done.stderr)


def test_threads_and_seed(here: Path) -> None:
    assert ascendc("run", "add.asc", "--threads", 3, "--seed", 7).stdout == "correct: 4096 elements\n"


def test_a_crash_is_told(here: Path) -> None:
    Path("crash.cpp").write_text("#include <csignal>\nint main() { raise(SIGTERM); }\n")
    done = ascendc("run", "crash.cpp")
    assert done.returncode == 128 + 15 and "the program was ended by signal 15" in done.stderr


def test_compiler_errors(here: Path) -> None:
    Path("wrong.asc").write_text('#include "kernel_operator.h"\nint a = b;\n')
    for command in ("run", "check"):
        done = ascendc(command, "wrong.asc")
        assert done.returncode == 1
        assert done.stderr.startswith("wrong.asc:2:9: error:"), done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "add.asc", "--chip", "b200"), "atbfn: error: chip: got 'b200'; expected one of"),
        (("run", "nowhere.asc"), "nowhere.asc: error: No such file or directory"),
        (("check", "add.asc", "-D1x=2"), "atbfn: error: defines: got '1x'; expected the name of a macro"),
        (("run", "scale.asc"), "error: the program has no main()"),
    ],
)
def test_mistakes_end_in_one_line(here: Path, arguments: tuple[str, ...], message: str) -> None:
    done = ascendc(*arguments)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(message)


def test_check(here: Path) -> None:
    done = ascendc("check", "add.asc")
    assert (done.returncode, done.stdout) == (0, "add.asc:71: kernel add: vector cores\n")
    assert ascendc("check", "scale.asc").stdout == "scale.asc:12: kernel ops::scale: vector cores\n"


def test_it_is_part_of_the_command_and_loads_without_models(here: Path) -> None:
    code = (
        "import sys\nfrom atbfn.__main__ import main\nsys.argv = ['atbfn', 'ascendc', 'check', 'scale.asc']\n"
        "try:\n    main()\nexcept SystemExit as end:\n"
        "    print(end.code, 'atbfn.cli' in sys.modules, 'atbfn.models' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 False False"
    from atbfn.cli import app

    assert "ascendc" in typer_testing.CliRunner().invoke(app, ["--help"]).stdout
    assert "check" in typer_testing.CliRunner().invoke(cli.app, ["--help"]).stdout


@pytest.mark.slow
@pytest.mark.parametrize("sanitizer", ["address", "undefined", "thread"])
def test_sanitizers(here: Path, sanitizer: str) -> None:
    done = ascendc("run", "add.asc", "--sanitize", sanitizer)
    assert (done.returncode, done.stdout) == (0, "correct: 4096 elements\n"), done.stderr


def test_doctor_says_whether_it_works(monkeypatch: pytest.MonkeyPatch, compiler: build.Compiler) -> None:
    def row() -> doctor.Row:
        (found,) = [r for s in doctor.report() for r in s.rows if r.name == "Ascend C emulator"]
        return found

    assert row().ok and compiler.path in row().value and "gcc" in row().value
    build.compiler.cache_clear()
    monkeypatch.setenv("CXX", "nowhere-g++")
    try:
        assert row().ok is False and "CXX is nowhere-g++" in row().value
    finally:
        build.compiler.cache_clear()
    assert os.environ["CXX"] == "nowhere-g++"
