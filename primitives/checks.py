"""The check values that a fused operator emits with checkpoints: violation over bound, per row.

A ratio of at most 1 passes; larger ones, infinities and NaN fail. Rows whose inputs hold a non-finite value are
not judged (ratio 0): nothing can be promised about them.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp


def finite_rows(*arrays: jax.Array | None) -> jax.Array:
    """bool [...]: rows in which every given array is finite along its last axis."""
    flags = [jnp.all(jnp.isfinite(a), axis=-1) for a in arrays if a is not None]
    result = flags[0]
    for flag in flags[1:]:
        result = result & flag
    return result


def finite_ratio(node: jax.Array, *inputs: jax.Array | None) -> jax.Array:
    """float32 [...]: infinite where the row of `node` is not finite although the rows of its inputs are."""
    return broken_ratio(node, finite_rows(*inputs))


def broken_ratio(node: jax.Array, expected_finite: jax.Array) -> jax.Array:
    """float32 [...]: infinite where a row of `node` was expected to be finite and is not."""
    broken = expected_finite & ~jnp.all(jnp.isfinite(node), axis=-1)
    return jnp.where(broken, jnp.inf, 0).astype(jnp.float32)


def norm_ratio(
    x: jax.Array, normalized: jax.Array, mean: jax.Array, rstd: jax.Array, expected_square: jax.Array, centered: bool
) -> jax.Array:
    """float32 [...]: how far the normalised row's moments are from what they must be, over the rounding bound.

    The mean square must be var / (var + eps), and the mean must be zero when centred. With unit roundoff u and n
    elements a sequential float32 sum errs by at most n u; the computed mean errs by that times |mean|, which the
    division by the deviation magnifies.
    """
    n = x.shape[-1]
    unit = (n + 16) * jnp.finfo(normalized.dtype).eps
    square = jnp.mean(jnp.square(normalized), axis=-1)
    ratio = jnp.abs(square - expected_square[..., 0]) / unit
    if centered:
        bound = unit * (1 + jnp.abs(mean[..., 0]) * rstd[..., 0])
        ratio = jnp.maximum(ratio, jnp.abs(jnp.mean(normalized, axis=-1)) / bound)
    return jnp.where(finite_rows(x), ratio, 0).astype(jnp.float32)


def position_ratio(ok: jax.Array) -> jax.Array:
    """float32 [batch]: infinite where a sequence's position lies outside the cache."""
    return jnp.where(ok, 0, jnp.inf).astype(jnp.float32)
