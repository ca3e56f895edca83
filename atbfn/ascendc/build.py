"""Compiles Ascend C with the machine's own C++ compiler against the emulator's headers and runtime.

A program goes through the preprocessor first; what that wrote is rewritten to plain C++ (see `rewrite`) and compiled.
The runtime, the precompiled header of `kernel_operator.h` and finished programs are kept in a cache.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import functools
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from atbfn.ascendc.errors import CompileError, EmulatorUnavailable
from atbfn.ascendc.rewrite import KEEP_MARKS, Kernel, Program, RewriteError, Source, rewrite
from atbfn.fusion.chips import ChipProfile, chip_profile

SANITIZERS = ("address", "undefined", "thread")
OLDEST_GCC = 12
# What was not used for so many days is removed. Precompiled headers are large (50 MB).
CACHE_DAYS = {"header": 2, "object": 7, "runtime": 7, "prologue": 30, "program": 30, "text": 30}

# -fno-gnu-unique: several compiled kernels live in one process, each with its own copy of the runtime.
_COMMON = ("-std=c++17", "-fPIC", "-pthread", "-ffp-contract=off", "-fno-gnu-unique")
_RUNTIME = ("-O2", "-Wall", "-Wextra")
_PROGRAM = ("-O1", "-Wno-attributes", "-Wno-psabi")
_X86_FLAGS = ("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512dq")
# Which value of the older macro each architecture has.
_CCE_AICORE = {1001: 100, 2002: 200, 2201: 220, 3510: 310}
# A source that has none of these words is host code only, and is compiled without the kernel header.
_DEVICE_WORDS = re.compile(r"kernel_operator|__global__|__aicore__|AscendC|GM_ADDR|<<<|basic_api|asc_simd")


@dataclasses.dataclass(frozen=True)
class Compiler:
    """A C++ compiler: its path, and what it says about itself (`gcc 12.2.0 x86_64-linux-gnu`)."""

    path: str
    version: str


@dataclasses.dataclass(frozen=True)
class Built:
    """A compiled program.

    Attributes:
      path: the executable, or the shared library.
      messages: what the compiler warned about; "" when the program came from the cache.
      kernels: those found in the sources.
      cached: nothing had to be compiled.
    """

    path: Path
    messages: str
    kernels: tuple[Kernel, ...]
    program: Program
    cached: bool


@functools.cache
def compiler() -> Compiler:
    """The compiler to use: `$CXX`, or `g++`, or the newest `g++-N`.

    Raises:
      EmulatorUnavailable: there is none, or it is not GCC of at least version 12.
    """
    chosen = os.environ.get("CXX")
    candidates = [chosen] if chosen else ["g++", *(f"g++-{n}" for n in range(19, OLDEST_GCC - 1, -1))]
    wrong = ""
    for candidate in candidates:
        path = shutil.which(candidate)
        if path is None:
            continue
        macros = subprocess.run(
            [path, "-x", "c++", "-dM", "-E", os.devnull], capture_output=True, text=True, errors="replace", check=False
        ).stdout
        known = dict(
            re.findall(r"^#define (__GNUC__|__GNUC_MINOR__|__GNUC_PATCHLEVEL__|__clang__) (\d+)", macros, re.M)
        )
        if "__clang__" in known or "__GNUC__" not in known:
            wrong = f"{path} is not GCC"
        elif int(known["__GNUC__"]) < OLDEST_GCC:
            wrong = f"{path} is GCC {known['__GNUC__']}"
        else:
            number = ".".join(known.get(f"__GNUC{part}__", "0") for part in ("", "_MINOR", "_PATCHLEVEL"))
            return Compiler(path, f"gcc {number} {platform.machine()}")
    reason = wrong or (f"CXX is {chosen}, which does not exist" if chosen else "no g++ was found")
    raise EmulatorUnavailable(
        f"the Ascend C emulator compiles kernels with GCC {OLDEST_GCC} or newer: {reason}; install g++ (Debian: apt "
        "install g++) or set CXX"
    )


def emulator_root() -> Path:
    """The folder with the emulator's `include` and `runtime`.

    Raises:
      EmulatorUnavailable: the installation lacks it.
    """
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "_emulator", package.parent / "kernels" / "emulator"):
        if (folder / "include" / "kernel_operator.h").is_file():
            return folder
    raise EmulatorUnavailable(f"the Ascend C emulator's sources are not installed beside {package}")


def cache_dir() -> Path:
    """`$ATBFN_CACHE_DIR`, else `$XDG_CACHE_HOME/atbfn`, else `~/.cache/atbfn`."""
    if chosen := os.environ.get("ATBFN_CACHE_DIR"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "atbfn"


def status() -> tuple[bool, str]:
    """Whether kernels can be compiled here, and with what, or why not."""
    try:
        found = compiler()
        return True, f"{found.path} ({found.version}), sources in {emulator_root()}"
    except EmulatorUnavailable as error:
        return False, str(error)


# ------------------------------------------------------------------------------------------------------------- pieces


@functools.cache
def _machine_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> tuple[str, ...]:
    """Instruction sets of this processor that half arithmetic is much faster with."""
    if platform.machine() != "x86_64" or not cpuinfo.exists():
        return ()
    flags = re.search(r"^flags\s*:(.*)$", cpuinfo.read_text(), re.MULTILINE)
    present = set(flags[1].split()) if flags else set()
    return tuple(f"-m{flag}" for flag in _X86_FLAGS if flag in present)


def _sanitize_flags(sanitize: str | None) -> tuple[str, ...]:
    if sanitize is None:
        return ()
    if sanitize not in SANITIZERS:
        raise ValueError(f"sanitize: got {sanitize!r}; expected one of {', '.join(SANITIZERS)}")
    extra = ("-fno-sanitize-recover=all",) if sanitize == "undefined" else ()
    return (f"-fsanitize={sanitize}", "-fno-omit-frame-pointer", "-g1", *extra)


def digest(*parts: object) -> str:
    """A name for a cache entry that depends on all of these."""
    whole = hashlib.sha256()
    for part in parts:
        data = part if isinstance(part, bytes) else str(part).encode("utf-8", "surrogateescape")
        whole.update(len(data).to_bytes(8, "little") + data)
    return whole.hexdigest()[:20]


@functools.cache
def _sources_hash(folder: Path, newest: float) -> str:
    """Of every source under the folder; `newest` makes a long-lived process see changes."""
    files = sorted(path for path in folder.rglob("*") if path.suffix in (".h", ".cc"))
    return digest(*(part for path in files for part in (path.relative_to(folder), path.read_bytes())))


def _key(folder: Path, *flags: object) -> str:
    newest = max(path.stat().st_mtime for path in folder.rglob("*"))
    return digest(_sources_hash(folder, newest), compiler(), flags)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One process at a time builds in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def once(target: Path, make: Callable[[Path], object]) -> Path:
    """`target`, made by `make(temporary path)` if it is not there: by one process, and never half."""
    if target.exists():
        _touch(target)
        return target
    with _locked(target.parent):
        if not target.exists():
            with tempfile.TemporaryDirectory(dir=target.parent) as folder:
                temporary = Path(folder) / target.name
                make(temporary)
                temporary.rename(target)
    return target


def _touch(path: Path) -> None:
    with contextlib.suppress(OSError):  # a cache that may be read only
        os.utime(path)


def prune(folder: Path | None = None) -> None:
    """Removes from the cache what was not used for long."""
    for group, days in CACHE_DAYS.items():
        limit = time.time() - days * 86400
        for entry in ((folder or cache_dir()) / group).glob("*"):
            with contextlib.suppress(OSError):
                if max(path.stat().st_mtime for path in (entry, *entry.iterdir())) < limit:
                    shutil.rmtree(entry)


def _run(command: Sequence[str]) -> tuple[int, str]:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    return done.returncode, done.stdout.decode("utf-8", "replace")


def _jobs() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _say(text: str, end: str = "\n") -> None:
    print(text, end=end, file=sys.stderr, flush=True)


def runtime(sanitize: str | None = None) -> Path:
    """The runtime as a static library, built when it is not in the cache yet.

    Raises:
      EmulatorUnavailable: there is no compiler, no source, or the runtime does not compile.
    """
    root = emulator_root()
    flags = (*_COMMON, *_RUNTIME, *_machine_flags(), *_sanitize_flags(sanitize))
    folder = cache_dir() / "runtime" / _key(root, flags)

    def make(library: Path) -> None:
        prune()
        began = time.perf_counter()
        sources = sorted((root / "runtime").glob("*.cc"))
        terminal = sys.stderr.isatty()
        what = f"atbfn: building the Ascend C emulator{f' ({sanitize} sanitizer)' if sanitize else ''}, once"
        _say(what + " ...", end="" if terminal else "\n")
        objects = []
        with ThreadPoolExecutor(_jobs()) as pool:
            for built in pool.map(lambda source: _object(root, source, flags), sources):
                objects.append(built)
                if terminal:
                    _say(f"\r{what} ... {len(objects)}/{len(sources)} files", end="")
        status, output = _run([shutil.which("gcc-ar") or "ar", "rcs", str(library), *map(str, objects)])
        if status != 0:
            raise EmulatorUnavailable(f"the emulator's runtime does not link: {output}")
        took = f"{time.perf_counter() - began:.0f} s"
        _say(f"\r{what} ... done in {took}" if terminal else f"atbfn: done in {took}")

    return once(folder / "libatbfn_emulator.a", make)


def _object(root: Path, source: Path, flags: tuple[str, ...]) -> Path:
    """One file of the runtime, compiled. Files that did not change are not compiled again when others do."""
    command = [compiler().path, *flags, "-I", str(root / "include")]
    status, text = _run([*command, "-E", str(source)])

    def make(path: Path) -> None:
        status, output = _run([*command, "-c", str(source), "-o", str(path)])
        if status != 0:
            raise EmulatorUnavailable(f"the emulator's runtime does not compile:\n{output}")

    if status != 0:
        raise EmulatorUnavailable(f"the emulator's runtime does not compile:\n{text}")
    return once(cache_dir() / "object" / digest(text, compiler(), flags) / f"{source.stem}.o", make)


def _program_flags(sanitize: str | None) -> tuple[str, ...]:
    return (*_COMMON, *_PROGRAM, *_machine_flags(), *_sanitize_flags(sanitize))


def _header(chip: ChipProfile, flags: tuple[str, ...]) -> Path:
    """`kernel_operator.h` for one architecture, precompiled: the path to include."""
    root = emulator_root()
    folder = cache_dir() / "header" / _key(root / "include", root, chip.arch, flags)
    plain = folder / "atbfn_kernel.h"
    text = f"#define __NPU_ARCH__ {chip.arch}\n"
    text += f'#define __CCE_AICORE__ {_CCE_AICORE[chip.arch]}\n#include "kernel_operator.h"\n'
    once(plain, lambda path: path.write_text(text))

    def make(path: Path) -> None:
        command = [
            compiler().path,
            *flags,
            "-I",
            str(root / "include"),
            "-x",
            "c++-header",
            str(plain),
            "-o",
            str(path),
        ]
        status, output = _run(command)
        if status != 0:
            raise EmulatorUnavailable(f"the emulator's headers do not compile:\n{output}")

    once(folder / "atbfn_kernel.h.gch", make)
    return plain


def chip_text(chip: ChipProfile) -> str:
    """C++ that tells the runtime which chip it is."""

    def number(value: float | int | None) -> str:
        return "0" if value is None else repr(value)

    fields = [f'"{chip.name}"', number(chip.arch)]
    fields += [number(chip.ub), number(chip.ub_reserved), number(chip.l1), number(chip.l1_reserved)]
    fields += [number(size) for size in (chip.l0a, chip.l0b, chip.l0c, chip.bt, chip.fb, chip.l2)]
    fields += [number(chip.cube_cores), number(chip.vector_cores), "true" if chip.unified else "false"]
    fields += [number(chip.clock_hz), number(chip.hbm_bytes_per_s), number(chip.l2_bytes_per_s)]
    fields += [number(chip.cube_macs_per_cycle_f16), number(chip.vector_bytes_per_cycle)]
    fields += [number(chip.mte_bytes_per_cycle)]
    return (
        '#include "atbfn/chip.h"\nnamespace {\n'
        f"const ::atbfn::emulator::Chip atbfn_chip{{{', '.join(fields)}}};\n"
        "[[maybe_unused]] const bool atbfn_chip_set = ::atbfn::emulator::SetChip(atbfn_chip);\n}\n"
    )


def _defines(defines: Mapping[str, object]) -> tuple[list[str], str]:
    """Reserved names go to the compiler, before any header; the user's own after ours, which they must not break."""
    flags, text = [], ""
    for name, value in defines.items():
        if not re.fullmatch(r"[^\W\d]\w*(\([\w\s,.]*\))?", name):
            raise ValueError(f"defines: got {name!r}; expected the name of a macro")
        if name in ("__NPU_ARCH__", "__CCE_AICORE__"):
            raise ValueError(f"defines: {name} follows from the chip; choose that")
        shown = "1" if value is None or value is True else "0" if value is False else str(value)
        if "\n" in shown:
            raise ValueError(f"defines: {name} has a value of several lines")
        if name.startswith("_"):
            flags.append(f"-D{name}={shown}")
        else:
            text += f"#define {name} {shown}\n"
    return flags, text


# ----------------------------------------------------------------------------------------------------------- programs


def preprocess(
    source: Path | str,
    chip: ChipProfile,
    *,
    flags: tuple[str, ...],
    defines: Mapping[str, object],
    includes: Sequence[str | Path],
) -> str:
    """What the preprocessor makes of one source, with the marks of kernels left in.

    Raises:
      CompileError: it cannot; the text is what it said.
    """
    root = emulator_root()
    try:
        text = Path(source).read_text(encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise CompileError(f"{source}: error: {error.strerror or error}") from None
    reserved, macros = _defines(defines)
    host_only = _DEVICE_WORDS.search(text) is None
    output = ""
    for with_header in (False, True) if host_only else (True,):
        prologue = chip_text(chip) + (KEEP_MARKS if with_header else "") + macros
        held = cache_dir() / "prologue" / digest(prologue) / "atbfn_prologue.h"
        once(held, functools.partial(Path.write_text, data=prologue))
        command = [compiler().path, *flags, *reserved, "-x", "c++", "-E", "-fpch-preprocess"]
        if with_header:
            command += ["-include", str(_header(chip, (*flags, *reserved)))]
        else:
            command += [f"-D__NPU_ARCH__={chip.arch}"]
        command += ["-include", str(held), "-I", str(root / "include")]
        for folder in includes:
            command += ["-I", str(folder)]
        done = subprocess.run([*command, *_colour(), str(source)], capture_output=True, check=False)
        if done.returncode != 0:
            raise CompileError(_tidy(done.stderr.decode("utf-8", "replace")))
        output = done.stdout.decode("utf-8", "surrogateescape")
        if "ascendc/types.h" not in output:  # with the precompiled header it is not in the output
            break
    return output


def _colour() -> list[str]:
    return ["-fdiagnostics-color=always"] if sys.stderr.isatty() and not os.environ.get("NO_COLOR") else []


def _tidy(output: str) -> str:
    """The compiler's messages without what only says how we called it."""
    lines = [line for line in output.splitlines() if "included from <command-line>" not in line]
    return "\n".join(lines)


def build(
    sources: Sequence[Path | str],
    *,
    chip: str | ChipProfile = "910b",
    defines: Mapping[str, object] | None = None,
    includes: Sequence[str | Path] = (),
    sanitize: str | None = None,
    entry: Callable[[Program], str] | None = None,
    check: bool = False,
) -> Built:
    """Compiles a program.

    Args:
      sources: its files. Paths appear in messages, and to the program, as they are given.
      chip: a name that `chip_profile` knows, or a profile.
      defines: macros and their values (None: 1).
      includes: more folders with headers; those beside a source are found anyway.
      sanitize: one of `SANITIZERS`.
      entry: C++ to append to the first source, from the program; the result is then a shared library.
      check: only see whether it compiles; nothing is kept, and `path` is the first source.

    Raises:
      CompileError: it does not compile, or a launch or a kernel's kind cannot be understood.
      EmulatorUnavailable: this machine cannot compile kernels.
      ValueError: an argument makes no sense.
    """
    if not sources:
        raise ValueError("sources: got none; expected at least one file")
    profile = chip_profile(chip) if isinstance(chip, str) else chip
    flags = _program_flags(sanitize)
    defines = dict(defines or {})
    reserved, _ = _defines(defines)
    root = emulator_root()
    with ThreadPoolExecutor(max(2, _jobs())) as pool:
        library = None if check else pool.submit(runtime, sanitize)
        texts = list(
            pool.map(
                lambda s: preprocess(s, profile, flags=flags, defines=defines, includes=includes),
                sources,
            )
        )
        try:
            units = [Source(t, str(s), (str(root),)) for t, s in zip(texts, sources, strict=True)]
            program = Program(units)
            rewritten = rewrite(program)
            if entry is not None:
                rewritten[0] += entry(program)
        except RewriteError as error:
            raise CompileError(str(error)) from None
        kernels = tuple(program.kernels)
        if check:
            messages = _compile(rewritten, flags + tuple(reserved), pool, None)
            return Built(Path(sources[0]), messages, kernels, program, False)
        assert library is not None
        archive = library.result()
        key = digest(*rewritten, flags, reserved, archive.parent.name, compiler(), entry is not None)
        target = cache_dir() / "program" / key / ("kernel.so" if entry is not None else "program")
        messages, cached = "", True

        def make(path: Path) -> None:
            nonlocal messages, cached
            cached = False
            objects = [path.parent / f"{index}.o" for index in range(len(rewritten))]
            messages = _compile(rewritten, flags + tuple(reserved), pool, objects)
            link = [compiler().path, *flags, *_colour(), *map(str, objects)]
            if entry is None:
                link.append(str(archive))
            else:  # with all of the runtime: Python calls functions that the program does not
                link += ["-shared", "-Wl,--whole-archive", str(archive), "-Wl,--no-whole-archive"]
            status, output = _run([*link, "-o", str(path)])
            if status != 0:
                raise CompileError(_link_error(output))

        return Built(once(target, make), messages, kernels, program, cached)


def _compile(texts: Sequence[str], flags: Sequence[str], pool: ThreadPoolExecutor, objects: list[Path] | None) -> str:
    with tempfile.TemporaryDirectory() as folder:
        commands = []
        for index, text in enumerate(texts):
            unit = Path(folder) / f"{index}.ii"
            unit.write_text(text, encoding="utf-8", errors="surrogateescape")
            goal = ["-fsyntax-only"] if objects is None else ["-c", "-o", str(objects[index])]
            commands.append([compiler().path, *flags, *_colour(), "-fpreprocessed", "-x", "c++", str(unit), *goal])
        results = list(pool.map(_run, commands))
    messages = "".join(_tidy(output) + "\n" for _, output in results if output.strip())
    if any(status != 0 for status, _ in results):
        raise CompileError(messages.rstrip("\n"))
    return messages


def _link_error(output: str) -> str:
    if "undefined reference to `main'" in output or "undefined reference to 'main'" in output:
        return (
            "error: the program has no main(); `atbfn ascendc check` only compiles, and atbfn.ascendc.run() runs a "
            "kernel from Python"
        )
    return output
