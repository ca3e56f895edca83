"""Ascend C kernels on a CPU: compile them, run them with the chip's limits enforced and races found, count their bytes.

    result = atbfn.ascendc.run("add.asc", "add", [x, y, np.zeros_like(x)], blocks=8, outputs=[2])
    result.outputs[0], result.counters["bytes"]["HBM"]

`atbfn ascendc run` does the same for whole programs with a `main`; see `docs/ascendc.md`.
"""

from __future__ import annotations

from atbfn.ascendc.errors import AscendCError, CompileError, EmulatorUnavailable
from atbfn.ascendc.launch import Result, run

__all__ = ["AscendCError", "CompileError", "EmulatorUnavailable", "Result", "run"]
