"""`linear` by one native kernel."""

from __future__ import annotations

import math

import jax

from atbfn.fusion.machine import this_machine, token_block
from atbfn.lowering.cpu import calls
from atbfn.primitives.linear import LinearArgs, LinearSpec
from atbfn.primitives.operator import Outputs

TARGET = "atbfn_linear"


def form(spec: LinearSpec, args: LinearArgs) -> Outputs:
    """The operator as one call."""
    x, w = args.x, args.w
    block = token_block(this_machine(), math.prod(x.shape[:-1]), calls.token_bytes(x.dtype, x.shape[-1]))
    out = jax.ShapeDtypeStruct((*x.shape[:-1], w.shape[0]), x.dtype)
    return Outputs((calls.call(TARGET, out, (x, w, args.b), block=block),))


def refuses(spec: LinearSpec, args: LinearArgs) -> str | None:
    """Why the kernel cannot do a call, or None."""
    if args.w.shape[1] == 0:
        return "there is nothing to sum over"
    return (
        calls.refuses_dtype(args.x)
        or calls.refuses_mixed(args.x, args.w)
        or calls.refuses_vectors(args.b)
        or calls.refuses_symbolic(args.x, args.w)
    )
