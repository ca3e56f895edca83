"""softmax(x)_i = exp(x_i) / sum_j exp(x_j) over the last axis."""

from __future__ import annotations

from typing import Any

import numpy as np


def softmax(x: Any) -> dict[str, np.ndarray]:
    """Steps: `out`, of x's shape [..., n].

    The maximum is taken off first, so +inf in a row, or only -inf, gives a row of NaN: inf - inf.
    """
    x = np.asarray(x).astype(np.float64)
    with np.errstate(all="ignore"):
        weights = np.exp(x - np.max(x, axis=-1, keepdims=True, initial=-np.inf))
        return {"out": weights / np.sum(weights, axis=-1, keepdims=True)}
