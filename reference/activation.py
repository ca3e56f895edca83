"""The elementwise functions between the two halves of an FFN."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

_erfc = np.vectorize(math.erfc, otypes=[np.float64])


def silu(x: np.ndarray) -> np.ndarray:
    """x * sigmoid(x), with the exponential of a negative number on both sides so that it cannot overflow.

    Elfwing, Uchibe, Doya, "Sigmoid-weighted linear units", 2017.
    """
    small = np.exp(-np.abs(x))
    return x * np.where(x >= 0, 1 / (1 + small), small / (1 + small))


def gelu(x: np.ndarray) -> np.ndarray:
    """x * Phi(x), Phi the normal distribution function: Hendrycks, Gimpel, "Gaussian Error Linear Units", 2016."""
    # erfc, because 1 + erf cancels for negative x.
    return 0.5 * x * _erfc(-x / math.sqrt(2.0))


def gelu_tanh(x: np.ndarray) -> np.ndarray:
    """The approximation of the same paper, x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3)))."""
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def relu(x: np.ndarray) -> np.ndarray:
    """max(x, 0); NaN stays NaN."""
    return np.maximum(x, 0)


def identity(x: np.ndarray) -> np.ndarray:
    """x."""
    return x


FUNCTIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "silu": silu,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "relu": relu,
    "identity": identity,
}


def activation(x: Any, function: str | Callable[[np.ndarray], np.ndarray]) -> dict[str, np.ndarray]:
    """Steps: `out`, of x's shape. `function`: a name of `FUNCTIONS`, or a function of a float64 array."""
    x = np.asarray(x).astype(np.float64)
    function = FUNCTIONS[function] if isinstance(function, str) else function
    with np.errstate(all="ignore"):
        return {"out": function(x)}
