"""`fused_ffn` by one native kernel."""

from __future__ import annotations

import math

from atbfn.fusion.machine import ffn_blocking, this_machine
from atbfn.lowering.cpu import calls
from atbfn.primitives.ffn import FFNArgs, FFNSpec
from atbfn.primitives.operator import Outputs

TARGET = "atbfn_fused_ffn"


def form(spec: FFNSpec, args: FFNArgs) -> Outputs:
    """The operator as one call."""
    x, hidden, intermediate = args.x, args.x.shape[-1], args.w_up.shape[0]
    blocking = ffn_blocking(
        this_machine(),
        math.prod(x.shape[:-1]),
        intermediate,
        calls.token_bytes(x.dtype, hidden),
        calls.token_bytes(x.dtype, 1024) // 1024,
    )
    operands = (
        x,
        args.w_gate,
        args.w_up,
        args.w_down,
        args.b_gate,
        args.b_up,
        args.b_down,
        *calls.norm_operands(args.norm),
        args.residual,
        *calls.norm_operands(args.post_norm),
    )
    out = calls.call(
        TARGET,
        calls.shape(x),
        operands,
        activation=calls.activation_number(spec.activation),
        norm=calls.norm_kind(args.norm),
        eps=calls.norm_eps(args.norm),
        post=calls.norm_kind(args.post_norm),
        post_eps=calls.norm_eps(args.post_norm),
        block=blocking.tokens,
        chunk=blocking.chunk,
    )
    return Outputs((out,))


def refuses(spec: FFNSpec, args: FFNArgs) -> str | None:
    """Why the kernel cannot do a call, or None."""
    if spec.checks:
        return "the native kernel makes no check values"
    if spec.activation not in calls.ACTIVATIONS:
        return f"the native kernel has the activations {', '.join(calls.ACTIVATIONS)}, not a function"
    if args.w_up.shape[0] == 0:
        return "there is nothing between the two products"
    vectors = (
        args.b_gate,
        args.b_up,
        args.b_down,
        *calls.norm_operands(args.norm),
        *calls.norm_operands(args.post_norm),
    )
    return (
        calls.refuses_dtype(args.x)
        or calls.refuses_mixed(args.x, args.w_gate, args.w_up, args.w_down, args.residual)
        or calls.refuses_vectors(*vectors)
        or calls.refuses_symbolic(args.x, args.w_up)
    )
