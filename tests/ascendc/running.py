"""Builds programs and runs them, as `atbfn ascendc run` does."""

from __future__ import annotations

import functools
import os
import subprocess
from pathlib import Path

from atbfn.ascendc import build as _build


@functools.cache
def build(source: Path, sanitize: str | None = None, chip: str = "910b", **defines: str) -> Path:
    """The compiled program. `defines` are macros."""
    return _build.build([source], defines=defines, sanitize=sanitize, chip=chip).path


def run(
    program: Path,
    *args: str,
    strict: bool = False,
    threads: int | None = None,
    seed: int | None = None,
    report: Path | None = None,
    trace: Path | None = None,
    timeout: float = 120,
) -> subprocess.CompletedProcess[str]:
    """Runs it, with the emulator's options."""
    options = {
        "STRICT": "1" if strict else "",
        "THREADS": "" if threads is None else str(threads),
        "SEED": "" if seed is None else str(seed),
        "REPORT": "" if report is None else str(report),
        "TRACE": "" if trace is None else str(trace),
    }
    environment = {k: v for k, v in os.environ.items() if not k.startswith("ATBFN_ASCENDC_")}
    environment |= {f"ATBFN_ASCENDC_{name}": value for name, value in options.items() if value}
    return subprocess.run(
        [str(program), *args], env=environment, capture_output=True, text=True, timeout=timeout, check=False
    )
