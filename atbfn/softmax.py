"""`softmax` over the last axis."""

from __future__ import annotations

import jax

from atbfn import arguments
from atbfn.fusion import resolve
from atbfn.primitives.softmax import SoftmaxArgs, SoftmaxSpec
from atbfn.primitives.softmax import softmax as softmax_op


def softmax(x: jax.Array, *, mode: str | None = None, target: str | None = None) -> jax.Array:
    """exp(x) / sum(exp(x)) over the last axis, with the row's maximum subtracted first.

    Args:
      x: [..., n], float16, bfloat16 or float32; computed in float32.
      mode, target: override the surrounding configuration. A single operator runs alike in every mode.

    Returns:
      x's shape and dtype.

    Raises:
      TypeError: an unsupported dtype. ValueError: a scalar.
    """
    op = "softmax"
    how = resolve(op, mode=mode, target=target)
    x = arguments.rows(op, "x", x)
    return arguments.bind(softmax_op, SoftmaxSpec(how.target), SoftmaxArgs(x)).main[0]
