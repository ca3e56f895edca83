"""Which precision a step is computed in: 16-bit inputs accumulate in float32, wider ones in their own dtype."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

FLOATS = (jnp.float16, jnp.bfloat16, jnp.float32, jnp.float64)


def accumulator(dtype: Any) -> Any:
    """The dtype that sums, norms, softmax and activations of `dtype` inputs are computed in."""
    dtype = jnp.dtype(dtype)  # not `promote_types`, which JAX's strict promotion forbids
    return dtype if dtype.itemsize > 4 else jnp.dtype(jnp.float32)


def widen(x: jax.Array) -> jax.Array:
    """`x` in its accumulator dtype."""
    return x.astype(accumulator(x.dtype))


def contract(subscripts: str, a: jax.Array, b: jax.Array) -> jax.Array:
    """An einsum of two arrays of one dtype, accumulated and returned in the accumulator dtype.

    float32 asks for full float32 products: a device's default (TF32, bfloat16 passes) would miss the bounds.
    """
    return jnp.einsum(
        subscripts, a, b, precision=jax.lax.Precision.HIGHEST, preferred_element_type=accumulator(a.dtype)
    )
