"""`layernorm`, `rmsnorm` and their forms with a residual, by native kernels."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from atbfn.lowering.cpu import calls
from atbfn.primitives.norm import NormArgs, NormResidualArgs, NormSpec
from atbfn.primitives.operator import Outputs

TARGET, RESIDUAL_TARGET = "atbfn_norm", "atbfn_norm_residual"


def form(spec: NormSpec, args: NormArgs) -> Outputs:
    """`norm` as one call."""
    row = jax.ShapeDtypeStruct(args.x.shape[:-1], jnp.float32)
    settings: dict[str, Any] = {"center": calls.norm_kind(args.norm) == 2, "eps": calls.norm_eps(args.norm)}
    operands = (args.x, *calls.norm_operands(args.norm), None)
    return Outputs(tuple(calls.call(TARGET, (calls.shape(args.x), row, row), operands, **settings)))


def residual_form(spec: NormSpec, args: NormResidualArgs) -> Outputs:
    """`norm_residual` as one call."""
    settings: dict[str, Any] = {"center": calls.norm_kind(args.norm) == 2, "eps": calls.norm_eps(args.norm)}
    outs = (calls.shape(args.x), calls.shape(args.x))
    operands = (args.x, *calls.norm_operands(args.norm), args.residual)
    return Outputs(tuple(calls.call(RESIDUAL_TARGET, outs, operands, **settings)))


def refuses(spec: NormSpec, args: NormArgs | NormResidualArgs) -> str | None:
    """Why the kernels cannot do a call, or None."""
    if spec.checks:
        return "the native kernel makes no check values"
    return (
        calls.refuses_dtype(args.x)
        or calls.refuses_mixed(args.x, getattr(args, "residual", None))
        or calls.refuses_vectors(*calls.norm_operands(args.norm))
    )
