"""`attention_with_kv_cache` and `self_attention` by one native kernel, projections to output, the cache in place."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from atbfn.fusion.machine import attention_blocking, this_machine, token_block
from atbfn.lowering.cpu import calls, masks
from atbfn.primitives.attention import AttentionArgs, AttentionSpec
from atbfn.primitives.operator import Outputs

TARGET = "atbfn_attention"

_K_CACHE, _V_CACHE = 9, 10  # where the caches are among the operands


def form(spec: AttentionSpec, args: AttentionArgs) -> Outputs:
    """The operator as one call, whose caches are its own outputs."""
    x, w, machine = args.x, args.weights, this_machine()
    head_dim = w.w_q.shape[0] // spec.num_heads
    mask = masks.native_mask(args.mask)
    blocking = attention_blocking(machine, head_dim, x.dtype.itemsize)
    row = (x.shape[0], spec.num_heads, x.shape[1])
    outs = [calls.shape(x)]
    aliases = {}
    if args.k_cache is not None:
        outs += [calls.shape(args.k_cache), calls.shape(args.v_cache)]
        aliases = {_K_CACHE: 1, _V_CACHE: 2}
    outs += [jax.ShapeDtypeStruct((*row, head_dim), x.dtype), jax.ShapeDtypeStruct(row, jnp.float32)]
    rope = (None, None) if args.rope is None else (args.rope.cos, args.rope.sin)
    operands = (
        x,
        *(w.w_q, w.w_k, w.w_v, w.w_o),
        *(w.b_q, w.b_k, w.b_v, w.b_o),
        args.k_cache,
        args.v_cache,
        jnp.asarray(args.pos, jnp.int32).reshape(-1),
        args.lengths,
        args.layer,
        *rope,
        *calls.norm_operands(args.norm),
        args.residual,
        *calls.norm_operands(args.post_norm),
        *mask.operands,
    )
    results = calls.call(
        TARGET,
        tuple(outs),
        operands,
        aliases,
        heads=spec.num_heads,
        kv_heads=spec.num_kv_heads,
        scale=float(spec.scale),
        softcap=float(spec.softcap or 0.0),
        mask=masks.settings_attribute(mask),
        interleaved=args.rope is not None and args.rope.style == "interleaved",
        norm=calls.norm_kind(args.norm),
        eps=calls.norm_eps(args.norm),
        post=calls.norm_kind(args.post_norm),
        post_eps=calls.norm_eps(args.post_norm),
        block=token_block(
            machine, math.prod(x.shape[:-1]), calls.token_bytes(x.dtype, max(x.shape[-1], row[1] * head_dim))
        ),
        columns=blocking.columns,
        keys=blocking.keys,
    )
    return Outputs(tuple(results[:-2]), tuple(results[-2:]))


def refuses(spec: AttentionSpec, args: AttentionArgs) -> str | None:
    """Why the kernel cannot do a call, or None."""
    if spec.checks:
        return "the native kernel makes no check values"
    w = args.weights
    if 0 in w.w_q.shape:
        return "there is nothing to project"
    vectors = (w.b_q, w.b_k, w.b_v, w.b_o, *calls.norm_operands(args.norm), *calls.norm_operands(args.post_norm))
    if args.rope is not None and any(t.dtype != jnp.float32 for t in (args.rope.cos, args.rope.sin)):
        return "the native kernel takes rotary tables in float32"
    return (
        calls.refuses_dtype(args.x)
        or calls.refuses_mixed(args.x, w.w_q, w.w_k, w.w_v, w.w_o, args.k_cache, args.v_cache, args.residual)
        or calls.refuses_vectors(*vectors)
        or calls.refuses_symbolic(args.x, args.k_cache)
        or masks.refuses(args.mask)
    )
