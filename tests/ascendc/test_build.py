"""Compiling: what is built once, what the compiler says, and what a machine without a compiler says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from atbfn.ascendc import build
from atbfn.ascendc.errors import CompileError, EmulatorUnavailable
from atbfn.ascendc.rewrite import Program
from atbfn.fusion.chips import CHIPS, chip_profile

KERNEL = """#include "kernel_operator.h"
__global__ __vector__ void nothing(GM_ADDR x) {}
"""
MAIN = "int main() { nothing<<<1, nullptr, nullptr>>>(nullptr); return %s; }\n"


def program(folder: Path, text: str, name: str = "program.asc") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def status_of(built: build.Built) -> int:
    return subprocess.run([str(built.path)], check=False).returncode


@pytest.fixture
def fresh() -> Iterator[None]:
    """The compiler is looked for again, in the test and after it."""
    build.compiler.cache_clear()
    yield
    build.compiler.cache_clear()


def test_a_program_is_compiled_once(tmp_path: Path, compiler: build.Compiler) -> None:
    text = (
        KERNEL + f'// {time.time_ns()}\nstatic const char* unique = "{time.time_ns()}";\n' + MAIN % "unique != nullptr"
    )
    source = program(tmp_path, text)
    first, second = build.build([source]), build.build([source])
    assert (first.cached, second.cached) == (False, True)
    assert first.path == second.path and status_of(second) == 1
    source.write_text(text.replace("unique != nullptr", "2"))
    third = build.build([source])
    assert not third.cached and status_of(third) == 2


def test_a_changed_header_is_noticed(tmp_path: Path, compiler: build.Compiler) -> None:
    source = program(tmp_path, '#include "number.h"\n' + KERNEL + MAIN % "NUMBER")
    for number in (3, 4):
        (tmp_path / "number.h").write_text(f"#define NUMBER {number}\n")
        assert status_of(build.build([source])) == number


def test_defines_and_include_folders(tmp_path: Path, compiler: build.Compiler) -> None:
    (tmp_path / "headers").mkdir()
    (tmp_path / "headers" / "number.h").write_text("constexpr int base = 40;\n")
    source = program(tmp_path, "#include <number.h>\n" + KERNEL + MAIN % "base + EXTRA + PLUS(1)")
    built = build.build([source], defines={"EXTRA": 2, "PLUS(x)": "(x)"}, includes=[tmp_path / "headers"])
    assert status_of(built) == 43


@pytest.mark.parametrize("name", ["T", "M", "N", "dst", "src", "count", "ADD", "chip"])
def test_macros_of_the_user_do_not_reach_our_headers(tmp_path: Path, compiler: build.Compiler, name: str) -> None:
    source = program(tmp_path, KERNEL + MAIN % name)
    assert status_of(build.build([source], defines={name: 16})) == 16


@pytest.mark.parametrize(("name", "value"), [("1x", 1), ("a-b", 1), ("__NPU_ARCH__", 2201), ("A", "1\n2")])
def test_what_cannot_be_defined(tmp_path: Path, compiler: build.Compiler, name: str, value: object) -> None:
    with pytest.raises(ValueError, match=r"defines"):
        build.build([program(tmp_path, KERNEL + MAIN % 0)], defines={name: value})


@pytest.mark.parametrize("chip", CHIPS, ids=lambda chip: chip.name)
def test_the_chip_reaches_the_program(tmp_path: Path, compiler: build.Compiler, chip: object) -> None:
    text = KERNEL + (
        "#include <cstdio>\nint main() {\n  const auto& c = ::atbfn::emulator::CurrentChip();\n"
        '  std::printf("%s %d %d %u %u %u %u %u %u %u %u %u %.0f %.0f", c.name, c.arch, __NPU_ARCH__, c.ub, '
        "c.ub_reserved, c.l1, c.l1_reserved, c.l0a, c.l0b, c.l0c, c.bt, c.fb, double(c.l2), c.hbm_bytes_per_s);\n}\n"
    )
    profile = chip_profile(chip.name)  # type: ignore[attr-defined]
    built = build.build([program(tmp_path, text)], chip=profile)
    said = subprocess.run([str(built.path)], capture_output=True, text=True, check=True).stdout.split()
    numbers = [
        profile.arch,
        profile.arch,
        profile.ub,
        profile.ub_reserved,
        profile.l1,
        profile.l1_reserved,
        profile.l0a,
    ]
    numbers += [profile.l0b, profile.l0c, profile.bt, profile.fb, profile.l2 or 0, int(profile.hbm_bytes_per_s or 0)]
    assert said == [profile.name, *map(str, numbers)]


def test_several_sources_share_their_kernels(tmp_path: Path, compiler: build.Compiler) -> None:
    kernel = program(tmp_path, KERNEL, "kernel.asc")
    main = "#include <cstdint>\n" + '#include "acl/acl.h"\n__global__ void nothing(uint8_t* x);\n' + MAIN % 5
    assert status_of(build.build([program(tmp_path, main, "main.cpp"), kernel])) == 5


def test_a_host_source_without_kernels_is_compiled_without_their_header(
    tmp_path: Path, compiler: build.Compiler
) -> None:
    host = program(tmp_path, "typedef int half; enum pipe_t { S };\nhalf two() { return 2; }\n", "host.cpp")
    main = program(tmp_path, KERNEL + "int two();\n" + MAIN % "two()", "main.asc")
    assert status_of(build.build([main, host])) == 2


def test_a_launch_in_a_header_and_in_a_macro(tmp_path: Path, compiler: build.Compiler) -> None:
    (tmp_path / "launch.h").write_text("#define LAUNCH(k, ...) k<<<1, nullptr, nullptr>>>(__VA_ARGS__)\n" + KERNEL)
    source = program(tmp_path, '#include "launch.h"\nint main() { LAUNCH(nothing, nullptr); }\n')
    built = build.build([source])
    assert status_of(built) == 0 and built.kernels[0].file.endswith("launch.h")


def test_errors_name_the_users_file_and_line(
    tmp_path: Path, compiler: build.Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "part.h").write_text("\nint broken = ;\n")
    for text, place in (
        (KERNEL + "\nint x = unknown;\n", "wrong.asc:4:9: error:"),
        (KERNEL + '#include "part.h"\n', "part.h:2:14: error:"),
        ('#include "nowhere.h"\n' + KERNEL, "wrong.asc:1:10: fatal error:"),
        (KERNEL + "void f()\n{\n nothing\n <<<1, 0, 0>>>(1,\n 2); }\n", "wrong.asc:6:"),
        (KERNEL + "void f() { other<<<1, 0, 0>>>(1); }\n", "wrong.asc:3: error: kernel `other` is launched here but"),
    ):
        (tmp_path / "wrong.asc").write_text(text)
        with pytest.raises(CompileError) as caught:
            build.build(["wrong.asc"])
        assert place in str(caught.value)
        assert "atbfn_prologue" not in str(caught.value) and "<command-line>" not in str(caught.value)


def test_a_program_without_main_says_what_else_to_do(tmp_path: Path, compiler: build.Compiler) -> None:
    source = program(tmp_path, KERNEL)
    with pytest.raises(CompileError, match=r"no main\(\); `atbfn ascendc check`"):
        build.build([source])
    assert build.build([source], check=True).kernels[0].name == "nothing"


def test_a_missing_file(tmp_path: Path, compiler: build.Compiler) -> None:
    with pytest.raises(CompileError, match=r"nowhere.asc: error: No such file"):
        build.build([tmp_path / "nowhere.asc"])
    with pytest.raises(ValueError, match="sources: got none"):
        build.build([])


def test_warnings_are_passed_on(tmp_path: Path, compiler: build.Compiler) -> None:
    source = program(tmp_path, KERNEL + f"int tiny{time.time_ns()}() {{ signed char c = 300; return c; }}\n" + MAIN % 0)
    built = build.build([source])
    assert "program.asc:3" in built.messages and "warning" in built.messages
    assert build.build([source]).messages == ""


def test_kinds_and_kernels_are_told(tmp_path: Path, compiler: build.Compiler) -> None:
    text = '#include "kernel_operator.h"\n' + (
        "__global__ __aicore__ void a(GM_ADDR x) { if ASCEND_IS_AIC { return; } if ASCEND_IS_AIV { return; } }\n"
        "template <class T> __global__ __mix__(1, 1) void b(__gm__ T* x) {}\n"
        'extern "C" __global__ __aicore__ void c(GM_ADDR x) { KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_MIX_AIV_1_0); }\n'
    )
    built = build.build([program(tmp_path, text)], check=True)
    kinds = {k.name: k.kind or built.program.infer(k.body) for k in built.kernels if k.body}
    assert kinds == {"a": "Mix12", "b": "Mix11", "c": "Mix01"}
    assert [k.template for k in built.kernels] == [False, True, False]


def test_an_entry_makes_a_shared_library(tmp_path: Path, compiler: build.Compiler) -> None:
    import ctypes

    def entry(program: Program) -> str:
        assert [kernel.name for kernel in program.kernels] == ["nothing"]
        return 'extern "C" int answer() { return 42; }\n'

    built = build.build([program(tmp_path, KERNEL)], entry=entry)
    assert built.path.suffix == ".so" and ctypes.CDLL(str(built.path)).answer() == 42


def test_a_kernel_compiles_in_two_seconds(tmp_path: Path, sources: Path) -> None:
    text = (sources / "add.asc").read_text()
    build.build([program(tmp_path, text)])  # the runtime and the header are there now
    source = program(tmp_path, text.replace("correct:", f"correct {time.time_ns()}:"))
    began = time.perf_counter()
    assert not build.build([source]).cached
    assert time.perf_counter() - began < 2 * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def test_only_one_of_several_processes_makes_a_thing(tmp_path: Path) -> None:
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom atbfn.ascendc import build\n"
        "def make(path):\n"
        "    with open(sys.argv[1] + '/made', 'a') as f: f.write('x')\n"
        "    path.write_text('half'); time.sleep(0.3); path.write_text('whole')\n"
        "print(build.once(Path(sys.argv[1]) / 'here' / 'thing', make).read_text())\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with ThreadPoolExecutor(4) as pool:
        said = list(
            pool.map(lambda _: subprocess.run(command, capture_output=True, text=True, check=True).stdout, range(4))
        )
    assert said == ["whole\n"] * 4
    assert (tmp_path / "made").read_text() == "x"


def test_what_fails_to_be_made_leaves_nothing(tmp_path: Path) -> None:
    def fail(path: Path) -> None:
        path.write_text("half")
        raise CompileError("no")

    with pytest.raises(CompileError):
        build.once(tmp_path / "here" / "thing", fail)
    assert [path.name for path in (tmp_path / "here").iterdir()] == ["lock"]


def test_pruning_removes_what_was_not_used(tmp_path: Path) -> None:
    for name, age in (("old", 40), ("new", 1)):
        thing = tmp_path / "program" / name / "program"
        thing.parent.mkdir(parents=True)
        thing.write_text("x")
        past = time.time() - age * 86400
        os.utime(thing, (past, past))
        os.utime(thing.parent, (past, past))
    build.prune(tmp_path)
    assert [path.name for path in (tmp_path / "program").iterdir()] == ["new"]


def test_the_cache_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("ATBFN_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert build.cache_dir() == Path.home() / ".cache" / "atbfn"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert build.cache_dir() == tmp_path / "x" / "atbfn"
    monkeypatch.setenv("ATBFN_CACHE_DIR", str(tmp_path / "y"))
    assert build.cache_dir() == tmp_path / "y"


@pytest.mark.parametrize(
    ("macros", "reason"),
    [
        ("#define __GNUC__ 11\n#define __GNUC_MINOR__ 4\n", "is GCC 11"),
        ("#define __GNUC__ 4\n#define __clang__ 1\n", "is not GCC"),
        ("", "is not GCC"),
    ],
)
def test_an_unsuitable_compiler(
    macros: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh: None
) -> None:
    fake = tmp_path / "fake-g++"
    fake.write_text(f"#!/bin/sh\ncat <<'END'\n{macros}END\n")
    fake.chmod(0o755)
    monkeypatch.setenv("CXX", str(fake))
    with pytest.raises(EmulatorUnavailable, match=re.escape(f"GCC 12 or newer: {fake} {reason}; install g++")):
        build.compiler()
    works, what = build.status()
    assert not works and reason in what


def test_no_compiler(monkeypatch: pytest.MonkeyPatch, fresh: None, tmp_path: Path) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EmulatorUnavailable, match=r"no g\+\+ was found"):
        build.compiler()
    monkeypatch.setenv("CXX", "nowhere-g++")
    with pytest.raises(EmulatorUnavailable, match=r"CXX is nowhere-g\+\+, which does not exist"):
        build.compiler()


def test_an_unknown_sanitizer(tmp_path: Path, compiler: build.Compiler) -> None:
    with pytest.raises(ValueError, match="sanitize: got 'memory'; expected one of address, undefined, thread"):
        build.build([program(tmp_path, KERNEL + MAIN % 0)], sanitize="memory")
