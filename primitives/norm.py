"""LayerNorm and RMSNorm, alone and with a residual added first.

LayerNorm: Ba, Kiros, Hinton, "Layer Normalization", 2016. RMSNorm: Zhang, Sennrich, "Root Mean Square Layer
Normalization", 2019. Statistics are in the accumulator dtype and use the biased variance.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from atbfn.primitives.checks import finite_ratio, norm_ratio
from atbfn.primitives.errors import bad_value
from atbfn.primitives.operator import Operator, Out, Outputs, like, mesh_axes
from atbfn.primitives.precision import accumulator, widen

# Squares of values beyond 2**50 may overflow float32 once summed. Such rows are scaled by a power of two, which is
# exact, and eps with them; the quotient does not change.
_LARGE, _SHRINK = 2.0**50, 2.0**-80
# Without an eps to hide them, the squares of small values must not vanish either.
_SMALL, _GROW = 2.0**-30, 2.0**80


def _check_eps(kind: str, eps: Any) -> None:
    number = isinstance(eps, (int, float, np.floating, np.integer)) and not isinstance(eps, bool)
    if not number or not math.isfinite(eps) or eps < 0:
        bad_value(kind, "eps", repr(eps), "a finite float of at least 0", "pass the checkpoint's epsilon, e.g. 1e-5")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LayerNorm:
    """Parameters of (x - mean) / sqrt(var + eps) * gamma + beta.

    Args:
      gamma: [hidden]. float32 is fine with 16-bit inputs.
      beta: [hidden], or None for no shift.
      eps: static float, added to the variance.
    """

    gamma: Any
    beta: Any = None
    eps: float = dataclasses.field(default=1e-5, metadata={"static": True})

    def __post_init__(self) -> None:
        _check_eps("LayerNorm", self.eps)

    def statistics(self, x: jax.Array) -> Statistics:
        """Centre and scale of the rows of `x`, which is in an accumulator dtype."""
        return _statistics(x, self.eps, center=True)

    def scaled(self, normalized: jax.Array) -> jax.Array:
        """The normalised rows times gamma plus beta."""
        scaled = normalized * self.gamma.astype(normalized.dtype)
        return scaled if self.beta is None else scaled + self.beta.astype(normalized.dtype)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RMSNorm:
    """Parameters of x / sqrt(mean(x^2) + eps) * gamma.

    Args:
      gamma: [hidden]. float32 is fine with 16-bit inputs.
      eps: static float, added to the mean square.
    """

    gamma: Any
    eps: float = dataclasses.field(default=1e-6, metadata={"static": True})

    def __post_init__(self) -> None:
        _check_eps("RMSNorm", self.eps)

    def statistics(self, x: jax.Array) -> Statistics:
        """Scale of the rows of `x`, which is in an accumulator dtype; the mean is zero by definition."""
        return _statistics(x, self.eps, center=False)

    def scaled(self, normalized: jax.Array) -> jax.Array:
        """The normalised rows times gamma."""
        return normalized * self.gamma.astype(normalized.dtype)


Norm = LayerNorm | RMSNorm


@dataclasses.dataclass(frozen=True)
class Statistics:
    """normalized [..., hidden]; mean, rstd [..., 1]; expected_square [..., 1], what mean(normalized^2) must be."""

    normalized: jax.Array
    mean: jax.Array
    rstd: jax.Array
    expected_square: jax.Array


def _statistics(x: jax.Array, eps: float, *, center: bool) -> Statistics:
    largest = jax.lax.stop_gradient(jnp.max(jnp.abs(x), axis=-1, keepdims=True, initial=0))
    shrink = jnp.where(largest > _LARGE, jnp.asarray(_SHRINK, x.dtype), jnp.asarray(1, x.dtype))
    if eps == 0:
        shrink = jnp.where((largest > 0) & (largest < _SMALL), jnp.asarray(_GROW, x.dtype), shrink)
    small = x * shrink
    mean = jnp.mean(small, axis=-1, keepdims=True) if center else jnp.zeros_like(largest)
    centered = small - mean if center else small
    variance = jnp.mean(jnp.square(centered), axis=-1, keepdims=True)
    total = variance if eps == 0 else variance + jnp.asarray(eps, x.dtype) * jnp.square(shrink)
    rstd = jax.lax.rsqrt(total)
    return Statistics(centered * rstd, mean / shrink, rstd * shrink, variance / total)


def normalize(norm: Norm, x: jax.Array) -> jax.Array:
    """The norm of `x` in the accumulator dtype, not rounded."""
    return norm.scaled(norm.statistics(widen(x)).normalized)


def normalize_checked(norm: Norm, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """`normalize`, and the violation over its bound of the row statistics [...]: see `checks.norm_ratio`."""
    statistics = norm.statistics(widen(x))
    centered = isinstance(norm, LayerNorm)
    ratio = norm_ratio(x, statistics.normalized, statistics.mean, statistics.rstd, statistics.expected_square, centered)
    return norm.scaled(statistics.normalized), ratio


# The single operators `layernorm` and `rmsnorm`.


@dataclasses.dataclass(frozen=True)
class NormSpec:
    """Static settings of `norm` and `norm_residual`."""

    target: str
    checks: bool = False


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class NormArgs:
    """Operands of `norm`: x [..., hidden] and the norm's parameters."""

    x: Any
    norm: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class NormResidualArgs:
    """Operands of `norm_residual`: x, residual [..., hidden] and the norm's parameters."""

    x: Any
    residual: Any
    norm: Any


def _norm_plain(spec: NormSpec, args: NormArgs) -> Outputs:
    statistics = args.norm.statistics(widen(args.x))
    normed = args.norm.scaled(statistics.normalized).astype(args.x.dtype)
    return Outputs((normed, statistics.mean[..., 0], statistics.rstd[..., 0]))


def _norm_shapes(spec: NormSpec, args: NormArgs) -> Outputs:
    row = Out(tuple(args.x.shape[:-1]), accumulator(args.x.dtype), mesh_axes(args.x)[:-1])
    return Outputs((like(args.x), row, row))


def _norm_residual_plain(spec: NormSpec, args: NormResidualArgs) -> Outputs:
    dtype = args.x.dtype
    summed = widen(args.x) + widen(args.residual)
    if not spec.checks:
        return Outputs((normalize(args.norm, summed).astype(dtype), summed.astype(dtype)))
    normed, ratio = normalize_checked(args.norm, summed)
    normed, rounded = normed.astype(dtype), summed.astype(dtype)
    checks = (finite_ratio(rounded, args.x, args.residual), ratio, finite_ratio(normed, summed))
    return Outputs((normed, rounded), checks)


NORM_RESIDUAL_CHECKS = (("summed", "finite"), ("normed", "norm statistics"), ("normed", "finite"))
"""Node and rule of each check value of `norm_residual`, in the order of its aux outputs."""


def _norm_residual_shapes(spec: NormSpec, args: NormResidualArgs) -> Outputs:
    row = Out(tuple(args.x.shape[:-1]), jnp.float32, mesh_axes(args.x)[:-1])
    return Outputs((like(args.x), like(args.x)), (row,) * len(NORM_RESIDUAL_CHECKS) if spec.checks else ())


norm = Operator("norm", plain=_norm_plain, shapes=_norm_shapes, rows=("x",))
norm_residual = Operator(
    "norm_residual", plain=_norm_residual_plain, shapes=_norm_residual_shapes, rows=("x", "residual")
)
