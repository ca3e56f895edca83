"""How close a result must be to its float64 reference: the table of units, the check, and the check of the check."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

CLASSES = ("matmul", "vector", "attention", "move")
"""matmul: linear, layernorm, rope, gelu, ffn. vector: rmsnorm, norm + residual, swiglu. move: copies, exact."""

MINIMUM_FOR_BIAS = 512
"""Entries from which on the mean error is judged.

Errors without bias, uniform within +-e, have a mean of deviation e / sqrt(3 n): with 512 entries e / 39, and e / 8 is
five deviations away, where chance does not reach in all of the suite's checks. With fewer entries the mean says
nothing beside what the bound on each entry says already.
"""


SHORT_ROW = 16
"""Rows of fewer entries are judged by the rms of the whole result, or their own where that is larger.

The rms of a row stands for the size of the terms that were added up to its entries. In a row of one to a few entries
all of them may have cancelled, and no arithmetic of 16 bits computes a cancelled sum to a relative bound.
"""


def unit(op_class: str, dtype: Any, reduction: int = 1) -> float:
    """The unit e of the bound: an entry passes when it is within e * max(rms of its row, its own magnitude).

    Args:
      op_class: one of `CLASSES`.
      dtype: float16, bfloat16 or float32: of the inputs.
      reduction: the longest sum behind one entry.
    """
    if op_class not in CLASSES:
        raise ValueError(f"unit: op_class: got {op_class!r}; expected one of {CLASSES}")
    kind = jnp.dtype(dtype).name
    if kind not in ("float16", "bfloat16", "float32"):
        raise ValueError(f"unit: dtype: got {kind}; expected float16, bfloat16 or float32")
    if op_class == "move":
        return 0.0
    if op_class == "vector":
        return {"float16": 2.0**-9, "bfloat16": 2.0**-7, "float32": 2.0**-12}[kind]
    e = {"float16": 2.0**-8, "bfloat16": 2.0**-7, "float32": 2.0**-11}[kind]
    if kind == "float32":
        if op_class == "attention":
            return e
        return e * (4 if reduction >= 16384 else 2 if reduction >= 2048 else 1)
    return e * (2 if reduction >= 2048 else 1)


def check(
    actual: Any,
    reference: Any,
    op_class: str,
    dtype: Any,
    *,
    reduction: int = 1,
    gradient: bool = False,
    unit_scale: float = 1.0,
    outliers: float = 0.0,
    what: str = "result",
) -> None:
    """Assert that `actual` is `reference` within the table; rows are the last axis.

    NaN and infinities must stand exactly where the reference has them; so must the infinities of reference values
    beyond the dtype's range. The mean signed error, beyond that of rounding the reference, must be within an
    eighth of the unit (see `MINIMUM_FOR_BIAS`).

    Rows shorter than `SHORT_ROW` are judged by the larger of their own rms and that of the whole array.

    Args:
      actual: array of the operator; its dtype says what it can represent.
      reference: float64 array of the same shape.
      op_class, dtype, reduction: see `unit`.
      gradient: allow twice the bound.
      unit_scale: factor on the unit, for comparisons that must be tighter than the table.
      outliers: share of the entries (but always one) that may be off by up to twice the bound; 0 for none.
      what: name used in the message.
    """
    actual = np.asarray(actual)
    reference = np.asarray(reference).astype(np.float64)
    assert actual.shape == reference.shape, f"{what}: shape {actual.shape}, expected {reference.shape}"
    if actual.size == 0:
        return
    e = unit(op_class, dtype, reduction) * (2 if gradient else 1) * unit_scale
    got = actual.astype(np.float64)
    _same_kind(got, reference, actual.dtype, e, what)
    finite = np.isfinite(reference) & np.isfinite(got)
    scale = np.maximum(_row_rms(reference, finite), np.abs(np.where(finite, reference, 0)))
    with np.errstate(invalid="ignore"):
        error = np.where(finite, got - reference, 0)
    bound = e * scale + (_smallest(actual.dtype) if e else 0)
    bad = np.abs(error) > bound
    if outliers and np.count_nonzero(bad) <= max(1, outliers * bad.size):
        bad = np.abs(error) > 2 * bound
    if np.any(bad):
        index = np.unravel_index(np.argmax(np.where(bad, np.abs(error) / bound, 0)), bad.shape) if e else _first(bad)
        raise AssertionError(
            f"{what}: {np.count_nonzero(bad)} of {bad.size} entries out of bounds; worst at {_where(index)}: "
            f"got {got[index]:.9g}, expected {reference[index]:.9g}, off by {abs(error[index]):.3g}, "
            f"bound {bound[index]:.3g} ({op_class}, {jnp.dtype(dtype).name}, unit {e:.3g})"
        )
    if e and np.count_nonzero(finite) >= MINIMUM_FOR_BIAS:
        # Rounding the reference is no bias of the operator, though it is one: of many equal entries, for one.
        rounded = reference[finite].astype(actual.dtype).astype(np.float64)
        normalised = (got[finite] - rounded) / np.maximum(scale[finite], np.finfo(np.float64).tiny)
        # Entries that are small beside what the dtype can represent have errors of flushing, not of arithmetic.
        normalised = normalised[bound[finite] > 2 * _smallest(actual.dtype)]
        mean = float(np.mean(normalised)) if normalised.size >= MINIMUM_FOR_BIAS else 0.0
        assert abs(mean) <= e / 8, (
            f"{what}: biased: mean signed error {mean:.3g} over {normalised.size} entries, bound {e / 8:.3g} "
            f"({op_class}, {jnp.dtype(dtype).name}, unit {e:.3g})"
        )


def assert_discriminates(check_fn: Callable[[Any], None], reference: Any, **wrong: Any) -> None:
    """Assert that `check_fn` rejects zeros, and each of the wrong results given by name.

    Args:
      check_fn: `check_fn(result)` raises AssertionError for a result that is not good enough.
      reference: what it accepts; must hold a finite entry that is not zero, for zeros would be right otherwise.
      wrong: results that a broken operator could have computed (weights or keys in another order, ...).
    """
    reference = np.asarray(reference)
    assert np.any(np.isfinite(reference.astype(np.float64)) & (reference != 0)), "nothing but zeros is expected here"
    for name, result in {"zeros": np.zeros_like(reference), **wrong}.items():
        try:
            check_fn(result)
        except AssertionError:
            continue
        raise AssertionError(f"the check accepts {name}: it shows nothing")


def _same_kind(got: np.ndarray, reference: np.ndarray, dtype: Any, e: float, what: str) -> None:
    # A reference beyond the dtype's range must come out infinite; near its end either is right.
    largest = float(jnp.finfo(dtype).max) if jnp.issubdtype(dtype, jnp.floating) else np.inf
    near_end = np.isfinite(reference) & (np.abs(reference) * (1 + 2 * e + 1e-6) >= largest)
    beyond = np.isfinite(reference) & (np.abs(reference) * (1 - 2 * e - 1e-6) > largest)
    expected = np.where(beyond, np.copysign(np.inf, reference), reference)
    bad = (np.isnan(got) != np.isnan(expected)) | (np.isposinf(got) != np.isposinf(expected))
    bad |= np.isneginf(got) != np.isneginf(expected)
    bad &= ~(near_end & ~beyond & ~np.isnan(got))
    if np.any(bad):
        index = _first(bad)
        raise AssertionError(
            f"{what}: {np.count_nonzero(bad)} of {bad.size} entries differ in kind (finite, infinite, NaN); first at "
            f"{_where(index)}: got {got[index]}, expected {expected[index]}"
        )


def _row_rms(reference: np.ndarray, finite: np.ndarray) -> np.ndarray:
    if reference.ndim == 0:
        return np.abs(np.where(finite, reference, 0))
    squares = np.where(finite, reference, 0) ** 2
    rows = np.sum(squares, axis=-1, keepdims=True) / np.maximum(np.sum(finite, axis=-1, keepdims=True), 1)
    if reference.shape[-1] < SHORT_ROW:
        rows = np.maximum(rows, np.sum(squares) / max(np.sum(finite), 1))
    return np.sqrt(rows)


def _smallest(dtype: Any) -> float:
    # XLA flushes float32 subnormals on CPU, bfloat16 has the same range, and float16 ones are kept.
    info = jnp.finfo(dtype)
    return float(info.smallest_subnormal if jnp.dtype(dtype).name == "float16" else info.tiny)


def _first(bad: np.ndarray) -> tuple[Any, ...]:
    return np.unravel_index(int(np.argmax(bad)), bad.shape)


def _where(index: tuple[Any, ...]) -> tuple[int, ...]:
    return tuple(int(i) for i in index)
