"""`linear`: a matrix product with weights as checkpoints store them."""

from __future__ import annotations

import jax

from atbfn import arguments
from atbfn.fusion import resolve
from atbfn.primitives.linear import LinearArgs, LinearSpec
from atbfn.primitives.linear import linear as linear_op


def linear(
    x: jax.Array, w: jax.Array, b: jax.Array | None = None, *, mode: str | None = None, target: str | None = None
) -> jax.Array:
    """x w^T + b.

    Args:
      x: [..., in_features], float16, bfloat16 or float32.
      w: [out_features, in_features], x's dtype.
      b: [out_features], or None.
      mode, target: override the surrounding configuration. A single operator runs alike in every mode.

    Returns:
      [..., out_features] in x's dtype; products are accumulated in float32 and rounded once.

    Raises:
      ValueError: shapes that do not fit. TypeError: dtypes that do not. Each names the argument and the fix.
    """
    op = "linear"
    how = resolve(op, mode=mode, target=target)
    x, w = arguments.rows(op, "x", x), arguments.array(op, "w", w, 2)
    arguments.shape(op, "w", w, out_features=w.shape[0], in_features=x.shape[-1])
    if b is not None:
        b = arguments.array(op, "b", b, 1)
        arguments.shape(op, "b", b, out_features=w.shape[0])
    operands = arguments.same_dtype(op, how.cross_precision, x=x, w=w, b=b)
    return arguments.bind(linear_op, LinearSpec(how.target), LinearArgs(**operands)).main[0].astype(x.dtype)
