"""y = x w^T + b."""

from __future__ import annotations

from typing import Any

import numpy as np


def linear(x: Any, w: Any, b: Any = None) -> dict[str, np.ndarray]:
    """Steps: `out` [..., out_features], for x [..., in_features], w [out_features, in_features], b [out_features]."""
    x, w = np.asarray(x).astype(np.float64), np.asarray(w).astype(np.float64)
    with np.errstate(all="ignore"):
        out = x @ w.T
        return {"out": out if b is None else out + np.asarray(b).astype(np.float64)}
