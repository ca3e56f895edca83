"""`flash_attention` by one native kernel."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from atbfn.fusion.machine import attention_blocking, this_machine
from atbfn.lowering.cpu import calls, masks
from atbfn.primitives.attention import FlashAttentionArgs, FlashAttentionSpec
from atbfn.primitives.operator import Outputs

TARGET = "atbfn_flash_attention"


def form(spec: FlashAttentionSpec, args: FlashAttentionArgs) -> Outputs:
    """The operator as one call."""
    q = args.q
    mask = masks.native_mask(args.mask)
    blocking = attention_blocking(this_machine(), q.shape[-1], q.dtype.itemsize)
    outs = (calls.shape(q), jax.ShapeDtypeStruct(q.shape[:3], jnp.float32))
    pos = jnp.asarray(args.pos, jnp.int32).reshape(-1)
    context, lse = calls.call(
        TARGET,
        outs,
        (q, args.k, args.v, pos, args.lengths, args.layer, *mask.operands),
        scale=float(spec.scale),
        softcap=float(spec.softcap or 0.0),
        mask=masks.settings_attribute(mask),
        columns=blocking.columns,
        keys=blocking.keys,
    )
    return Outputs((context, lse))


def refuses(spec: FlashAttentionSpec, args: FlashAttentionArgs) -> str | None:
    """Why the kernel cannot do a call, or None."""
    if spec.checks:
        return "the native kernel makes no check values"
    if args.q.shape[-1] == 0 or args.k.shape[-1] != args.v.shape[-1] or args.q.shape[1] % max(1, args.k.shape[-3]):
        return "the native kernel takes keys and values of one head_dim, above zero"
    return (
        calls.refuses_dtype(args.q)
        or calls.refuses_mixed(args.q, args.k, args.v)
        or calls.refuses_symbolic(args.q, args.k)
        or masks.refuses(args.mask)
    )
