"""LayerNorm (Ba, Kiros, Hinton, 2016) and RMSNorm (Zhang, Sennrich, 2019), alone and after adding a residual."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class LayerNorm:
    """(x - mean) / sqrt(var + eps) * gamma + beta; gamma [hidden], beta [hidden] or None."""

    gamma: Any
    beta: Any = None
    eps: float = 1e-5


@dataclasses.dataclass(frozen=True)
class RMSNorm:
    """x / sqrt(mean(x^2) + eps) * gamma; gamma [hidden]."""

    gamma: Any
    eps: float = 1e-6


def normalize(norm: LayerNorm | RMSNorm, x: Any) -> np.ndarray:
    """The `normed` step of either norm. They are told apart by their fields, so that `atbfn.RMSNorm` is one too."""
    if hasattr(norm, "beta"):
        return layernorm(x, norm.gamma, norm.beta, eps=norm.eps)["normed"]
    return rmsnorm(x, norm.gamma, eps=norm.eps)["normed"]


def layernorm(x: Any, gamma: Any, beta: Any = None, *, eps: float) -> dict[str, np.ndarray]:
    """Steps: `mean`, `rstd` [...], `normed` [..., hidden]. The variance is the biased one."""
    x = np.asarray(x).astype(np.float64)
    with np.errstate(all="ignore"):
        mean = np.mean(x, axis=-1)
        rstd = 1 / np.sqrt(np.mean((x - mean[..., None]) ** 2, axis=-1) + eps)
        normed = (x - mean[..., None]) * rstd[..., None] * np.asarray(gamma).astype(np.float64)
        if beta is not None:
            normed = normed + np.asarray(beta).astype(np.float64)
    return {"mean": mean, "rstd": rstd, "normed": normed}


def rmsnorm(x: Any, gamma: Any, *, eps: float) -> dict[str, np.ndarray]:
    """Steps: `rstd` [...], `normed` [..., hidden]."""
    x = np.asarray(x).astype(np.float64)
    with np.errstate(all="ignore"):
        rstd = 1 / np.sqrt(np.mean(x**2, axis=-1) + eps)
        normed = x * rstd[..., None] * np.asarray(gamma).astype(np.float64)
    return {"rstd": rstd, "normed": normed}


def layernorm_residual(x: Any, residual: Any, gamma: Any, beta: Any = None, *, eps: float) -> dict[str, np.ndarray]:
    """Steps: `summed` [..., hidden] = x + residual, then `mean`, `rstd`, `normed` of it."""
    summed = _add(x, residual)
    return {"summed": summed, **layernorm(summed, gamma, beta, eps=eps)}


def rmsnorm_residual(x: Any, residual: Any, gamma: Any, *, eps: float) -> dict[str, np.ndarray]:
    """Steps: `summed` [..., hidden] = x + residual, then `rstd`, `normed` of it."""
    summed = _add(x, residual)
    return {"summed": summed, **rmsnorm(summed, gamma, eps=eps)}


def _add(x: Any, residual: Any) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.asarray(x).astype(np.float64) + np.asarray(residual).astype(np.float64)
