"""What the benchmarks share: forms of one computation, timed in turns, against the ceilings of the machine.

A form is one way to compute the same thing: ours or a peer's. All forms of a case read the same buffers (torch's
tensors are views of JAX's arrays), so all find them equally warm in the caches.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import math
import os
import pathlib
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

# Set by some environments for NumPy's sake, but torch's BLAS may read it too: peers run as they were shipped.
os.environ.pop("OPENBLAS_CORETYPE", None)

import jax
import numpy as np

OURS = "atbfn"
DTYPES = ("bfloat16", "float16", "float32")

# OpenMP threads of torch spin for some milliseconds after their work, on the cores that the next form needs.
REST_AFTER_TORCH = 0.03
SAMPLE_SECONDS = 0.01  # a sample repeats short calls for about this long
# A peer whose best sample is this many times slower than the fastest form is sampled three times: more rounds would not
# change the verdict. Three, and not fewer, for a peer that another program delayed must not be judged by that.
HOPELESS, HOPELESS_SAMPLES = 8.0, 3
CEILING_SECONDS = 0.02

# What can serve a dtype, for the ceiling: the fastest is taken. Products of float16 in AVX-512 add in float16.
PEAK_KINDS = {
    "bfloat16": ("amx_bf16", "avx512_bf16", "avx512_f32", "avx2_f32", "baseline_f32"),
    "float16": ("avx512_fp16", "avx512_f32", "avx2_f32", "baseline_f32"),
    "float32": ("avx512_f32", "avx2_f32", "baseline_f32"),
}

# Relative rms difference that two right answers may have. Peers round intermediates that a fused kernel does not.
AGREEMENT = {"bfloat16": 2.0**-6, "float16": 2.0**-9, "float32": 2.0**-12}


def threads() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclasses.dataclass
class Form:
    """One way to compute a case.

    Attributes:
      name: of the peer, or `OURS`.
      call: computes, waits for the end, and returns the outputs as a pytree of arrays.
      steps: how many steps one call makes; times are per step.
      torch: it runs on torch's threads.
      native: whether the compiled program calls our kernels; None for peers.
    """

    name: str
    call: Callable[[], Any]
    steps: int = 1
    torch: bool = False
    native: bool | None = None


@dataclasses.dataclass
class Work:
    """A case, built: its forms and what it costs at least.

    Attributes:
      forms: ours first.
      flops: useful floating-point operations of one step; masked scores are not counted.
      bytes: of the operands and results that a step must read or write once.
      tolerance: factor on `AGREEMENT`, for long chains of operators.
    """

    forms: list[Form]
    flops: float
    bytes: float
    tolerance: float = 1.0


@dataclasses.dataclass
class Row:
    """A measured case. Times are seconds per step, by form.

    `problems` says which forms are missing and why, such as a peer that cannot do the case. `failed` is set by those
    that must not be: ours does not run, or two results differ.
    """

    operator: str
    shape: str
    dtype: str
    flops: float = 0.0
    bytes: float = 0.0
    median: dict[str, float] = dataclasses.field(default_factory=dict)
    samples: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    native: bool | None = None
    peak: float = 0.0
    bandwidth: float = 0.0
    problems: list[str] = dataclasses.field(default_factory=list)
    failed: bool = False

    @property
    def ours(self) -> float:
        """Our seconds; NaN if we did not run."""
        return self.median.get(OURS, math.nan)

    def best(self, prefix: str = "") -> str | None:
        """The name of the fastest peer, among those whose name begins with `prefix`."""
        peers = [name for name in self.median if name != OURS and name.startswith(prefix)]
        return min(peers, key=lambda name: self.median[name]) if peers else None

    def ratio(self, prefix: str = "") -> float:
        """That peer's time over ours: above 1 we are faster."""
        best = self.best(prefix)
        return self.median[best] / self.ours if best else math.nan

    def json(self) -> dict[str, Any]:
        """Everything, with what follows from it."""
        derived = {
            "best_peer": self.best(),
            "ratio": self.ratio(),
            "best_jax": self.best("jax"),
            "ratio_to_jax": self.ratio("jax"),
            "fraction_of_peak": self.flops / self.ours / self.peak if self.peak else math.nan,
            "fraction_of_bandwidth": self.bytes / self.ours / self.bandwidth if self.bandwidth else math.nan,
        }
        return finite({**dataclasses.asdict(self), **derived})


def finite(value: Any) -> Any:
    """`value` with None for NaN, which JSON does not have."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# Ceilings


class Ceilings:
    """The machine's rates, measured by the compiled module; without it they are unknown, zero."""

    def __init__(self) -> None:
        try:
            self._kernels: Any = importlib.import_module("atbfn._kernels")
            self.kinds = tuple(self._kernels.matrix_peak_kinds())
        except (ImportError, AttributeError) as error:
            print(f"no ceilings: {error}; reinstall with a C++ compiler", file=sys.stderr)
            self._kernels, self.kinds = None, ()
        self._first = {
            kind: max(self._kernels.matrix_peak(kind, threads(), 0.05) for _ in range(3)) for kind in self.kinds
        }

    def kind(self, dtype: str) -> str | None:
        """The kind of multiply-add that is fastest for a dtype here."""
        usable = [kind for kind in PEAK_KINDS[dtype] if kind in self.kinds]
        return max(usable, key=lambda kind: self._first[kind], default=None)

    def peak(self, dtype: str) -> float:
        """Operations per second, now."""
        kind = self.kind(dtype)
        return self._kernels.matrix_peak(kind, threads(), CEILING_SECONDS) if kind else 0.0

    def bandwidth(self, size: float) -> float:
        """Bytes per second of reading a buffer of `size` bytes (at most 1 GiB), now."""
        if self._kernels is None:
            return 0.0
        return self._kernels.read_bandwidth(int(min(max(size, 4096), 2**30)), threads(), CEILING_SECONDS)

    def json(self) -> dict[str, Any]:
        """Every kind's peak, and the bandwidth at sizes from L2 to memory, each the best of three."""
        sizes = (2**20, 2**22, 2**24, 2**26, 2**27, 2**28, 2**30)
        return {"peak": self._first, "bandwidth": {size: max(self.bandwidth(size) for _ in range(3)) for size in sizes}}


# Comparing and timing


def leaves(outputs: Any) -> list[np.ndarray]:
    """The arrays of a pytree, JAX's or torch's, as float32."""

    def narrow(leaf: Any) -> np.ndarray:
        if hasattr(leaf, "detach"):
            return leaf.detach().float().numpy()
        return np.asarray(leaf).astype(np.float32)

    return [narrow(leaf) for leaf in jax.tree.leaves(outputs)]


def difference(ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray]) -> float:
    """The largest relative rms difference between outputs; infinite where shapes or finiteness differ."""
    if len(ours) != len(theirs):
        return math.inf
    worst = 0.0
    for a, b in zip(ours, theirs, strict=True):
        if a.shape != b.shape or not (np.isfinite(a).all() and np.isfinite(b).all()):
            return math.inf
        size = float(np.sqrt(np.mean(np.square(b, dtype=np.float64))))
        error = float(np.sqrt(np.mean(np.square(a - b, dtype=np.float64))))
        worst = max(worst, error / size if size else math.inf if error else 0.0)
    return worst


def short(error: BaseException) -> str:
    """One line about an exception."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200] if lines else ''}"


def sample(form: Form, repeats: int) -> float:
    """Seconds per step over `repeats` calls."""
    start = time.perf_counter()
    for _ in range(repeats):
        form.call()
    return (time.perf_counter() - start) / repeats / form.steps


def agreeing(work: Work, dtype: str, row: Row) -> list[Form]:
    """The forms that ran once, compiled thereby, and computed what ours did. The others are named in the row."""
    expected: list[np.ndarray] | None = None
    sound = []
    for form in work.forms:
        try:
            got = leaves(form.call())
        except Exception as error:
            row.problems.append(f"{form.name} does not run: {short(error)}")
            row.failed |= form.name == OURS
            continue
        if expected is None:
            expected = got  # ours, or the first peer's where ours does not run
        bound = AGREEMENT[dtype] * work.tolerance
        off = difference(expected, got)
        if off > bound:
            row.problems.append(f"{form.name} differs by {off:.2g} (rms, relative; bound {bound:.2g})")
            row.failed = True
            continue
        sound.append(form)
    return sound


def measure(row: Row, work: Work, ceilings: Ceilings, rounds: int) -> Row:
    """Compare the forms' results, then time them in turns: every round samples each form once, and the ceilings."""
    row.flops, row.bytes = work.flops, work.bytes
    forms = agreeing(work, row.dtype, row)
    row.native = next((form.native for form in forms if form.name == OURS), None)
    row.samples = {form.name: [] for form in forms}
    repeats: dict[str, int] = {}
    peaks, bandwidths = [], []
    for turn in range(rounds):
        peaks.append(ceilings.peak(row.dtype))
        bandwidths.append(ceilings.bandwidth(work.bytes))
        # Each round starts with another form, so none always follows the same neighbour.
        first = turn % len(forms) if forms else 0
        fastest = min((min(times) for times in row.samples.values() if times), default=math.inf)
        for form in forms[first:] + forms[:first]:
            times = row.samples[form.name]
            if form.name != OURS and len(times) >= HOPELESS_SAMPLES and min(times) > HOPELESS * fastest:
                continue
            once = sample(form, 1)  # wakes threads, and brings the operands to where repeated use keeps them
            if form.name not in repeats:
                repeats[form.name] = max(1, min(1000, round(SAMPLE_SECONDS / (once * form.steps))))
            times.append(once if once * form.steps > 0.1 else sample(form, repeats[form.name]))
            if form.torch:
                time.sleep(REST_AFTER_TORCH)
    row.median = {name: statistics.median(times) for name, times in row.samples.items() if times}
    row.peak = statistics.median(peaks) if peaks else 0.0
    row.bandwidth = statistics.median(bandwidths) if bandwidths else 0.0
    return row


# Machine and output


def machine(packages: Iterable[str]) -> dict[str, Any]:
    """What the figures belong to: versions, processor, and the environment that changes how peers run."""
    versions: dict[str, str | None] = {}
    for package in packages:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = None
    lines = _cpuinfo()
    prefixes = ("XLA_", "JAX_", "OMP_", "MKL_", "DNNL_", "ONEDNN_", "KMP_", "ATBFN_")
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": versions,
        "cpu": lines.get("model name", platform.processor()),
        "flags": lines.get("flags", lines.get("Features", "")).split(),
        "threads": threads(),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "environment": {key: value for key, value in os.environ.items() if key.startswith(prefixes)},
    }


def introduce(about: dict[str, Any]) -> None:
    """Print what `machine` found, and a warning where the figures will not be worth much."""
    print(f"{about['cpu']}, {about['threads']} threads, {about['versions']}")
    if about["load"] is not None and about["load"] > 0.5:
        print(
            f"WARNING: load average {about['load']:.1f}: other programs are running. Ratios mean little: threads that "
            "wait spinning (torch, llama.cpp) lose far more to a busy core than others do."
        )


def _cpuinfo() -> dict[str, str]:
    path = pathlib.Path("/proc/cpuinfo")
    if not path.exists():
        return {}
    pairs = (line.split(":", 1) for line in path.read_text().splitlines() if ":" in line)
    return {key.strip(): value.strip() for key, value in pairs}


def duration(seconds: float) -> str:
    """Three digits with the unit that fits."""
    if not math.isfinite(seconds):
        return "-"
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


class Progress:
    """One line on stderr: what is being measured, and how long the rest may take."""

    def __init__(self, total: int) -> None:
        self._total, self._done, self._start = total, 0, time.perf_counter()
        self._terminal = sys.stderr.isatty()

    def step(self, what: str) -> None:
        """`what` begins."""
        elapsed = time.perf_counter() - self._start
        left = f", about {elapsed / self._done * (self._total - self._done):.0f} s left" if self._done else ""
        self._done += 1
        line = f"[{self._done}/{self._total}] {what}{left}"
        print(f"\r\x1b[K{line}" if self._terminal else line, end="" if self._terminal else "\n", file=sys.stderr)
        sys.stderr.flush()

    def end(self) -> None:
        """Clear the line."""
        if self._terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
