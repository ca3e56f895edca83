"""`rope`: rotary position embedding of queries or keys."""

from __future__ import annotations

from typing import Any

import jax

from atbfn import arguments
from atbfn.fusion import resolve
from atbfn.primitives.errors import bad_type, bad_value
from atbfn.primitives.rope import Rope, RopeArgs, RopeSpec
from atbfn.primitives.rope import rope as rope_op


def rope(x: jax.Array, pos: Any, table: Rope, *, mode: str | None = None, target: str | None = None) -> jax.Array:
    """Rotate the pairs of every head by the angles of its position (Su et al., 2021).

    Args:
      x: [batch, heads, q_len, head_dim], float16, bfloat16 or float32.
      pos: int32 scalar or [batch], the position of row 0; row i has position pos + i.
      table: the angles, from `Rope.create`.
      mode, target: override the surrounding configuration. A single operator runs alike in every mode.

    Returns:
      x's shape and dtype. Rows whose traced position lies outside the table are NaN.

    Raises:
      ValueError: shapes that do not fit, or a known position outside the table. TypeError: dtypes that do not fit.
    """
    op = "rope"
    how = resolve(op, mode=mode, target=target)
    x = arguments.array(op, "x", x, 4)
    table_checked = arguments.check_rope(op, "table", table, x, x.shape[-1], None, how.cross_precision)
    if table_checked is None:
        bad_type(op, "table", "None", "atbfn.Rope", "build it with Rope.create(head_dim, max_positions)")
    pos = arguments.integers(op, "pos", pos, [(), (x.shape[0],)])
    known = arguments.concrete(pos)
    positions = table_checked.cos.shape[0]
    if known is not None and known.size and not (known.min() >= 0 and int(known.max()) + x.shape[2] <= positions):
        bad_value(
            op,
            "pos",
            known.tolist(),
            f"positions whose {x.shape[2]} rows lie in 0 .. {positions - 1}",
            "build a longer table with Rope.create",
        )
    return arguments.bind(rope_op, RopeSpec(how.target), RopeArgs(x, pos, table_checked)).main[0]
