"""`layernorm`, `rmsnorm`, and both with a residual added first."""

from __future__ import annotations

import jax

from atbfn import arguments
from atbfn.fusion import resolve
from atbfn.primitives.activation import PairArgs, PairSpec, add
from atbfn.primitives.norm import NORM_RESIDUAL_CHECKS, LayerNorm, NormArgs, NormResidualArgs, NormSpec, RMSNorm
from atbfn.primitives.norm import norm as norm_op
from atbfn.primitives.norm import norm_residual as norm_residual_op
from atbfn.primitives.tag import Call


def layernorm(
    x: jax.Array,
    gamma: jax.Array,
    beta: jax.Array | None = None,
    *,
    eps: float = 1e-5,
    mode: str | None = None,
    target: str | None = None,
) -> jax.Array:
    """(x - mean) / sqrt(var + eps) * gamma + beta over the last axis (Ba et al., 2016).

    Args:
      x: [..., hidden], float16, bfloat16 or float32; statistics are float32, the variance is the biased one.
      gamma, beta: [hidden], x's dtype or float32; beta may be None.
      eps: added to the variance.
      mode, target: override the surrounding configuration. A single operator runs alike in every mode.

    Returns:
      x's shape and dtype.

    Raises:
      ValueError: shapes that do not fit, or an eps that is negative or not finite. TypeError: unsupported dtypes.
    """
    return _single("layernorm", x, LayerNorm(gamma, beta, eps), mode, target)


def rmsnorm(
    x: jax.Array, gamma: jax.Array, *, eps: float = 1e-6, mode: str | None = None, target: str | None = None
) -> jax.Array:
    """x / sqrt(mean(x^2) + eps) * gamma over the last axis (Zhang and Sennrich, 2019).

    Args:
      x: [..., hidden], float16, bfloat16 or float32; statistics are float32.
      gamma: [hidden], x's dtype or float32.
      eps: added to the mean square.
      mode, target: override the surrounding configuration. A single operator runs alike in every mode.

    Returns:
      x's shape and dtype.

    Raises:
      ValueError: shapes that do not fit, or an eps that is negative or not finite. TypeError: unsupported dtypes.
    """
    return _single("rmsnorm", x, RMSNorm(gamma, eps), mode, target)


def layernorm_residual(
    x: jax.Array,
    residual: jax.Array,
    gamma: jax.Array,
    beta: jax.Array | None = None,
    *,
    eps: float = 1e-5,
    mode: str | None = None,
    target: str | None = None,
) -> tuple[jax.Array, jax.Array]:
    """summed = x + residual, and its LayerNorm. Steps: summed, mean, rstd, normed.

    Args:
      x, residual: [..., hidden], float16, bfloat16 or float32.
      gamma, beta: [hidden], x's dtype or float32; beta may be None.
      eps: added to the variance.
      mode, target: override the surrounding configuration.

    Returns:
      (normed, summed), both of x's shape and dtype.

    Raises:
      ValueError: shapes that do not fit, or an eps that is negative or not finite. TypeError: dtypes that do not fit.
    """
    return _with_residual("layernorm_residual", x, residual, LayerNorm(gamma, beta, eps), mode, target)


def rmsnorm_residual(
    x: jax.Array,
    residual: jax.Array,
    gamma: jax.Array,
    *,
    eps: float = 1e-6,
    mode: str | None = None,
    target: str | None = None,
) -> tuple[jax.Array, jax.Array]:
    """summed = x + residual, and its RMSNorm. Steps: summed, rstd, normed.

    Args:
      x, residual: [..., hidden], float16, bfloat16 or float32.
      gamma: [hidden], x's dtype or float32.
      eps: added to the mean square.
      mode, target: override the surrounding configuration.

    Returns:
      (normed, summed), both of x's shape and dtype.

    Raises:
      ValueError: shapes that do not fit, or an eps that is negative or not finite. TypeError: dtypes that do not fit.
    """
    return _with_residual("rmsnorm_residual", x, residual, RMSNorm(gamma, eps), mode, target)


def _single(op: str, x: jax.Array, norm: LayerNorm | RMSNorm, mode: str | None, target: str | None) -> jax.Array:
    how = resolve(op, mode=mode, target=target)
    x = arguments.rows(op, "x", x)
    checked = arguments.check_norm(op, None, norm, x, how.cross_precision)
    return arguments.bind(norm_op, NormSpec(how.target), NormArgs(x, checked)).main[0]


def _with_residual(
    op: str,
    x: jax.Array,
    residual: jax.Array,
    norm: LayerNorm | RMSNorm,
    mode: str | None,
    target: str | None,
) -> tuple[jax.Array, jax.Array]:
    how = resolve(op, mode=mode, target=target)
    x, residual = arguments.rows(op, "x", x), arguments.array(op, "residual", residual)
    arguments.same_shape(op, "residual", residual, "x", x)
    norm = arguments.check_norm(op, None, norm, x, how.cross_precision)
    dtype = x.dtype
    operands = arguments.same_dtype(op, how.cross_precision, x=x, residual=residual)
    x, residual = operands["x"], operands["residual"]
    call = Call(how.path, op)
    if how.mode == "step_by_step":
        summed = call.step("summed", arguments.bind(add, PairSpec(how.target), PairArgs(x, residual)).main[0])
        normed, mean, rstd = arguments.bind(norm_op, NormSpec(how.target), NormArgs(summed, norm)).main
        statistics = {"mean": mean, "rstd": rstd} if isinstance(norm, LayerNorm) else {"rstd": rstd}
        normed = call.step("normed", normed, also=statistics)
    else:
        spec = NormSpec(how.target, checks=how.mode == "fused_with_checkpoints")
        outs = arguments.bind(norm_residual_op, spec, NormResidualArgs(x, residual, norm))
        normed, summed = outs.main
        if spec.checks:
            checks = zip(NORM_RESIDUAL_CHECKS, outs.aux, strict=True)
            normed = call.check(normed, [(node, rule, ratio) for (node, rule), ratio in checks])
    return normed.astype(dtype), summed.astype(dtype)
