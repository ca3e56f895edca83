"""The checks check: they accept rounding, and reject zeros, permutations, bias and misplaced NaN."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tests.tolerance import MINIMUM_FOR_BIAS, assert_discriminates, check, unit

G = np.random.default_rng(0).standard_normal((16, 64))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("op_class", ["matmul", "vector", "attention"])
def test_rounding_passes_and_wrong_results_do_not(op_class: str, dtype: type) -> None:
    check(G.astype(dtype), G, op_class, dtype)
    assert_discriminates(
        lambda a: check(a.astype(dtype), G, op_class, dtype), G, permuted=G[:, ::-1], slightly=G * (1 + 2.0**-6)
    )


def test_units() -> None:
    assert unit("matmul", np.float16) == 2**-8 and unit("matmul", np.float16, 2048) == 2**-7
    assert unit("matmul", ml_dtypes.bfloat16, 2048) == 2**-6 and unit("attention", ml_dtypes.bfloat16) == 2**-7
    assert [unit("matmul", np.float32, n) for n in (2047, 2048, 16384)] == [2**-11, 2**-10, 2**-9]
    assert unit("vector", np.float32, 10**6) == 2**-12 and unit("attention", np.float32, 10**6) == 2**-11
    assert unit("move", np.float32) == 0
    with pytest.raises(ValueError, match="op_class"):
        unit("other", np.float32)
    with pytest.raises(ValueError, match="dtype"):
        unit("matmul", np.float64)


def test_message_names_the_entry() -> None:
    bad = G.astype(np.float32)
    bad[3, 5] += 1
    with pytest.raises(AssertionError, match=r"1 of 1024 entries out of bounds; worst at \(3, 5\): got .*bound"):
        check(bad, G, "vector", np.float32)
    with pytest.raises(AssertionError, match="shape"):
        check(G[:1], G, "vector", np.float32)


def test_bias_within_the_bound_is_found() -> None:
    biased = (G + 0.5 * unit("matmul", np.float32)).astype(np.float32)
    with pytest.raises(AssertionError, match="biased"):
        check(biased, G, "matmul", np.float32)
    few = MINIMUM_FOR_BIAS // 64 - 1
    check(biased[:few], G[:few], "matmul", np.float32)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nonfinite_entries_match_in_kind_and_place(value: float) -> None:
    g = G.copy()
    g[2, 3] = value
    check(g.astype(np.float32), g, "matmul", np.float32)
    with pytest.raises(AssertionError, match=r"kind.*\(2, 3\)"):
        check(G.astype(np.float32), g, "matmul", np.float32)
    with pytest.raises(AssertionError, match="kind"):
        check(-g.astype(np.float32) if np.isinf(value) else G * np.nan, g, "matmul", np.float32)


def test_overflow_of_the_dtype() -> None:
    g = np.array([[1e6, -1e6, 1.0]])
    with np.errstate(over="ignore"):
        check(g.astype(np.float16), g, "matmul", np.float16)
    with pytest.raises(AssertionError, match="kind"):
        check(np.array([[65504, -np.inf, 1]], np.float16), g, "matmul", np.float16)


def test_data_movement_is_exact() -> None:
    g = G.astype(np.float16)
    check(g, g, "move", np.float16)
    with pytest.raises(AssertionError, match="out of bounds"):
        check(np.nextafter(g, np.float16(9)), g, "move", np.float16)


def test_outliers() -> None:
    bad = G.astype(np.float32)
    bad[3, 5] += 1.5 * unit("matmul", np.float32) * max(np.sqrt(np.mean(G[3] ** 2)), abs(G[3, 5]))
    with pytest.raises(AssertionError, match="out of bounds"):
        check(bad, G, "matmul", np.float32)
    check(bad, G, "matmul", np.float32, outliers=1 / 1000)
    bad[3, 6] = bad[3, 6] + 1
    with pytest.raises(AssertionError, match="out of bounds"):
        check(bad, G, "matmul", np.float32, outliers=1 / 100)
