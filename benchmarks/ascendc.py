"""How long the Ascend C emulator takes: to compile a kernel, and to run a layer of a 7B model with every check on.

    python benchmarks/ascendc.py

The layer is [16, 4096] times [4096, 11008] in half on all 24 cube cores. Medians; everything on this machine's cores.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from atbfn.ascendc import build

PROGRAMS = Path(__file__).parent.parent / "tests" / "ascendc" / "programs"
ROUNDS = 7


def compile_seconds(name: str) -> list[float]:
    """Of a program that is not in the cache, with the runtime and the precompiled header that are."""
    seconds = []
    for _ in range(ROUNDS):
        stamp = {"ATBFN_BENCHMARK_STAMP": str(time.time_ns())}  # another macro: not the program that was kept
        began = time.perf_counter()
        build.build([PROGRAMS / name], defines=stamp)
        seconds.append(time.perf_counter() - began)
    return seconds


def launch_seconds(name: str) -> list[float]:
    """As the program itself measures it, strictly checked."""
    program = build.build([PROGRAMS / name]).path
    environment = {**os.environ, "ATBFN_ASCENDC_STRICT": "1"}
    seconds = []
    for _ in range(ROUNDS):
        done = subprocess.run([str(program), "time"], env=environment, capture_output=True, text=True, check=True)
        seconds.append(float(re.search(r"launch: ([\d.]+) s", done.stdout)[1]))  # type: ignore[index]
    return seconds


def main() -> None:
    print(build.compiler().version, f"{len(os.sched_getaffinity(0))} cores")
    with tempfile.TemporaryDirectory() as cache:
        os.environ["ATBFN_CACHE_DIR"] = cache
        began = time.perf_counter()
        build.build([PROGRAMS / "add_queues.asc"])
        print(f"{'emulator and first kernel, from nothing':44}{time.perf_counter() - began:7.1f} s")
        for name in ("add_queues.asc", "softmax.asc", "attention_tile.asc"):
            seconds = compile_seconds(name)
            print(f"{'compile ' + name:44}{statistics.median(seconds):7.2f} s (to {max(seconds):.2f})")
        seconds = launch_seconds("speed_matmul.asc")
        layer = "[16, 4096] x [4096, 11008] half, 24 cores"
        print(f"{layer:44}{statistics.median(seconds):7.2f} s (to {max(seconds):.2f})")


if __name__ == "__main__":
    main()
