"""`linear`: y = x w^T + b, weights `[out_features, in_features]` as checkpoints store them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from atbfn.primitives.operator import Operator, Out, Outputs, mesh_axes
from atbfn.primitives.precision import contract, widen


def product(x: jax.Array, w: jax.Array, b: jax.Array | None = None) -> jax.Array:
    """x w^T + b in the accumulator dtype, not rounded. x [..., in], w [out, in], b [out]."""
    y = contract("...i,oi->...o", x, w)
    return y if b is None else y + widen(b)


Product = Callable[[jax.Array, jax.Array, jax.Array | None], jax.Array]
"""`product` or a target's form of it, differentiable at least once in reverse mode."""


@dataclasses.dataclass(frozen=True)
class LinearSpec:
    """Static settings of `linear`."""

    target: str


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LinearArgs:
    """Operands of `linear`."""

    x: Any
    w: Any
    b: Any = None


def plain(spec: LinearSpec, args: LinearArgs, *, product: Product = product) -> Outputs:
    """The plain form, by any product."""
    return Outputs((product(args.x, args.w, args.b).astype(args.x.dtype),))


def _shapes(spec: LinearSpec, args: LinearArgs) -> Outputs:
    axes = (*mesh_axes(args.x)[:-1], mesh_axes(args.w)[0])
    return Outputs((Out((*args.x.shape[:-1], args.w.shape[0]), args.x.dtype, axes),))


linear = Operator("linear", plain=plain, shapes=_shapes, rows=("x",))
