"""Norms of rows whose squares leave the range of float32."""

from __future__ import annotations

import numpy as np
import pytest

import atbfn


@pytest.mark.parametrize("eps", [0.0, 1e-6])
@pytest.mark.parametrize("size", [1e-33, 1e-25, 1e-12, 1.0, 1e30])
def test_rows_of_any_size(size: float, eps: float) -> None:
    x = (np.random.default_rng(0).normal(size=(3, 7)) * size).astype(np.float32)
    wide, gamma = x.astype(np.float64), np.ones(7, np.float32)
    expected = wide / np.sqrt(np.mean(wide**2, axis=-1, keepdims=True) + eps)
    np.testing.assert_allclose(atbfn.rmsnorm(x, gamma, eps=eps), expected, rtol=1e-5)
    centered = wide - wide.mean(axis=-1, keepdims=True)
    expected = centered / np.sqrt(np.mean(centered**2, axis=-1, keepdims=True) + eps)
    np.testing.assert_allclose(atbfn.layernorm(x, gamma, eps=eps), expected, rtol=1e-3)
