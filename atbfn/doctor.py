"""`atbfn doctor`: what is installed, what works on this machine, and why the rest does not."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import sys
from pathlib import Path

import jax

from atbfn import lowering
from atbfn.fusion import resolve, sources
from atbfn.fusion.config import FIELDS
from atbfn.lowering.cpu import native
from atbfn.models import extras

# What a user may want; `all`, `test` and `dev` are made of these or are for contributors.
EXTRAS = ("models", "cli")

# The instruction sets that kernels choose between, under the names /proc/cpuinfo gives them.
INSTRUCTION_SETS = {
    "x86_64": ("avx2", "fma", "f16c", "avx512f", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16", "amx_fp16"),
    "aarch64": ("asimd", "fphp", "asimdhp", "asimddp", "bf16", "i8mm", "sve", "sve2", "svebf16", "sme"),
}


@dataclasses.dataclass(frozen=True)
class Row:
    """One finding. `ok` is False for what does not work, None for plain information."""

    name: str
    value: str
    ok: bool | None = None


@dataclasses.dataclass(frozen=True)
class Section:
    title: str
    rows: tuple[Row, ...]


def report() -> tuple[Section, ...]:
    """Everything that `run` prints."""
    return (
        Section("versions", (*_versions(), *_extras())),
        Section("machine", (*_devices(), _instruction_sets(), _kernels(), _emulator())),
        Section("targets", _targets()),
        Section("configuration", _configuration()),
        Section("bundled models", _models()),
    )


def run() -> int:
    """Print the report on stdout, as a table on a terminal if `rich` is installed, as aligned text otherwise.

    Returns:
      0 if operators can run here (the `xla` target works and JAX has a device), 1 if they cannot.
    """
    sections = report()
    if sys.stdout.isatty() and importlib.util.find_spec("rich") is not None:
        _print_rich(sections)
    else:
        print(plain(sections))
    needed = [row for section in sections for row in section.rows if row.name in ("xla", "devices")]
    return 1 if any(row.ok is False for row in needed) else 0


def plain(sections: tuple[Section, ...]) -> str:
    """The report as text, two aligned columns."""
    width = max(len(row.name) for section in sections for row in section.rows)
    lines = []
    for section in sections:
        lines.append(section.title)
        for row in section.rows:
            mark = {True: "+", False: "-", None: " "}[row.ok]
            lines.append(f"  {mark} {row.name:{width}}  {row.value}")
    return "\n".join(lines)


def _print_rich(sections: tuple[Section, ...]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    width = max(len(row.name) for section in sections for row in section.rows)
    table = Table(show_header=False, box=None)
    table.add_column(no_wrap=True, min_width=width)
    table.add_column(overflow="fold")
    for section in sections:
        table.add_row(Text(section.title, style="bold"))
        for row in section.rows:
            mark, style = {True: ("✓", "green"), False: ("✗", "yellow"), None: (" ", "")}[row.ok]
            # Text, not a plain string: rich would read "atbfn[models]" as markup.
            table.add_row(Text(f"{mark} {row.name}"), Text(row.value, style=style))
    Console().print(table)


def _versions() -> list[Row]:
    rows = [Row("python", f"{platform.python_version()} ({sys.executable})")]
    for name in ("atbfn", "jax", "jaxlib", "numpy"):
        rows.append(Row(name, importlib.metadata.version(name)))
    return rows


def _extras() -> list[Row]:
    rows = []
    for extra in EXTRAS:
        found, missing = [], []
        for package in _packages(extra):
            try:
                found.append(f"{package} {importlib.metadata.version(package)}")
            except importlib.metadata.PackageNotFoundError:
                missing.append(package)
        value = ", ".join(found)
        if missing:
            value = f'{value}{"; " if found else ""}missing {", ".join(missing)}: pip install "atbfn[{extra}]"'
        rows.append(Row(f"atbfn[{extra}]", value, not missing))
    return rows


def _packages(extra: str) -> list[str]:
    """The packages of an extra, as the installed distribution declares them."""
    requirements = importlib.metadata.requires("atbfn") or []
    chosen = [r for r in requirements if re.search(rf"""extra\s*==\s*["']{extra}["']""", r)]
    return [match[0] for r in chosen if (match := re.match(r"[\w.-]+", r))]


def _devices() -> list[Row]:
    try:
        devices = jax.devices()
    except RuntimeError as error:
        return [Row("devices", f"JAX has none: {error}", False)]
    kinds = [f"{device.platform}:{device.id} ({device.device_kind})" for device in devices]
    return [Row("devices", ", ".join(kinds), True), Row("cores", str(_cores()))]


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):  # what this process may use; not every system says
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _instruction_sets(cpuinfo: Path = Path("/proc/cpuinfo")) -> Row:
    machine = platform.machine()
    if not cpuinfo.exists():
        return Row("instruction sets", f"{machine}: not known, this system has no {cpuinfo}")
    flags = re.search(r"^(?:flags|Features)\s*:(.*)$", cpuinfo.read_text(), re.MULTILINE)
    present = set(flags[1].split()) if flags else set()
    known = INSTRUCTION_SETS.get(machine, ())
    return Row("instruction sets", f"{machine}: {' '.join(name for name in known if name in present) or 'baseline'}")


def _kernels() -> Row:
    reason = native.reason()
    if reason is not None:
        return Row("compiled kernels", f"not available: {reason}", False)
    build = importlib.import_module("atbfn._build_info")
    kernels = native.kernels()
    version = ".".join(map(str, kernels.ffi_api_version))
    built = f"{build.COMPILER}, jaxlib {build.JAXLIB} headers (FFI interface {version})"
    return Row("compiled kernels", f"{built}; using {kernels.isa()} of {kernels.isas()}", True)


def _emulator() -> Row:
    from atbfn.ascendc import build

    works, what = build.status()
    return Row("Ascend C emulator", what if works else f"not available: {what}", works)


def _targets() -> tuple[Row, ...]:
    rows = []
    for target in lowering.status():
        works = target.reason is None
        rows.append(Row(target.name, ", ".join(target.operators) if works else f"not here: {target.reason}", works))
    return tuple(rows)


def _configuration() -> tuple[Row, ...]:
    """The settings in force outside any layer, each with what set it; then the file's layer patterns."""
    path = os.environ.get(sources.FILE_VARIABLE)
    settings, patterns = sources.read_file(path) if path else ((), ())
    in_force = resolve("doctor")
    rows = []
    for field in FIELDS:
        variable = sources.VARIABLES[field]
        if os.environ.get(variable):
            source = f"environment variable {variable}"
        elif field in dict(settings):
            source = f"file {path}"
        else:
            source = "default"
        rows.append(Row(field, f"{getattr(in_force, field)} ({source})"))
    for pattern, given in patterns:
        rows.append(Row(f"layers {pattern}", f"{', '.join(f'{k}={v}' for k, v in given)} (file {path})"))
    return tuple(rows)


def _models() -> tuple[Row, ...]:
    rows = []
    for name, find in (("SmolLM2-135M-Instruct", extras.smollm2), ("all-MiniLM-L6-v2", extras.minilm)):
        try:
            rows.append(Row(name, str(find()), True))
        except FileNotFoundError as error:
            rows.append(Row(name, str(error), False))
    return tuple(rows)
