"""`fused_ffn`: norm, gate and up products, activation, elementwise product, down product, residual, norm.

Gated form (SwiGLU and kin): Shazeer, "GLU Variants Improve Transformer", 2020.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from atbfn.primitives.activation import Activation, activate
from atbfn.primitives.checks import broken_ratio, finite_rows
from atbfn.primitives.linear import Product, product
from atbfn.primitives.norm import normalize, normalize_checked
from atbfn.primitives.operator import Operator, Out, Outputs, like, mesh_axes
from atbfn.primitives.precision import widen


@dataclasses.dataclass(frozen=True)
class FFNSpec:
    """Static settings of `fused_ffn`."""

    activation: Activation
    target: str
    checks: bool = False


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class FFNArgs:
    """Operands of `fused_ffn`; None where absent."""

    x: Any
    w_up: Any
    w_down: Any
    w_gate: Any = None
    b_gate: Any = None
    b_up: Any = None
    b_down: Any = None
    norm: Any = None
    residual: Any = None
    post_norm: Any = None


def check_nodes(args: FFNArgs) -> tuple[tuple[str, str], ...]:
    """Node and rule of each check value, in the order of the aux outputs."""
    nodes = []
    if args.norm is not None:
        nodes.append(("norm", "norm statistics"))
    if args.w_gate is not None:
        nodes.append(("gate", "finite"))
    nodes += [("up", "finite"), ("gated" if args.w_gate is not None else "act", "finite"), ("down", "finite")]
    if args.post_norm is not None:
        nodes.append(("out", "norm statistics"))
    nodes.append(("out", "finite"))
    return tuple(nodes)


def plain(spec: FFNSpec, args: FFNArgs, *, product: Product = product) -> Outputs:
    """The plain form, by any product."""
    dtype = args.x.dtype
    checks: list[jax.Array] = []
    expected = finite_rows(args.x) if spec.checks else None

    def check_finite(node: jax.Array) -> None:
        if expected is not None:
            checks.append(broken_ratio(node, expected))

    def normed(norm: Any, x: jax.Array) -> jax.Array:
        if not spec.checks:
            return normalize(norm, x)
        y, ratio = normalize_checked(norm, x)
        checks.append(ratio)
        return y

    x = args.x if args.norm is None else normed(args.norm, args.x).astype(dtype)
    if args.w_gate is not None:
        gate = product(x, args.w_gate, args.b_gate)
        check_finite(gate)
        up = product(x, args.w_up, args.b_up)
        check_finite(up)
        gated = (activate(gate, spec.activation) * up).astype(dtype)
    else:
        up = product(x, args.w_up, args.b_up)
        check_finite(up)
        gated = activate(up, spec.activation).astype(dtype)
    check_finite(gated)
    out = product(gated, args.w_down, args.b_down)
    check_finite(out)
    if args.residual is not None:
        out = out + widen(args.residual)
        if expected is not None:
            expected = expected & finite_rows(args.residual)
    if args.post_norm is not None:
        out = normed(args.post_norm, out)
    out = out.astype(dtype)
    check_finite(out)
    return Outputs((out,), tuple(checks))


def _shapes(spec: FFNSpec, args: FFNArgs) -> Outputs:
    row = Out(tuple(args.x.shape[:-1]), jnp.float32, mesh_axes(args.x)[:-1])
    return Outputs((like(args.x),), (row,) * len(check_nodes(args)) if spec.checks else ())


fused_ffn = Operator("fused_ffn", plain=plain, shapes=_shapes, rows=("x", "residual"))
