"""The `cpu` target: lowerings that call the compiled kernels of this machine."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from atbfn.lowering.cpu import ffn, flash_attention, kv_cache, linear, native, norm
from atbfn.lowering.table import Implementation, register, set_unavailable
from atbfn.primitives import attention
from atbfn.primitives.kv_cache import KVCacheArgs, KVCacheSpec
from atbfn.primitives.operator import Outputs


def _write(
    k_cache: jax.Array,
    v_cache: jax.Array,
    k: jax.Array,
    v: jax.Array,
    pos: jax.Array,
    lengths: jax.Array | None,
    layer: jax.Array | None,
) -> tuple[jax.Array, jax.Array]:
    """`primitives.kv_cache.write` by the compiled kernel, which wants positions and lengths per sequence."""
    batch, _, q_len, _ = k.shape
    pos = jnp.broadcast_to(pos, (batch,))
    lengths = jnp.full((batch,), q_len, jnp.int32) if lengths is None else lengths
    return kv_cache.write(k_cache, v_cache, k, v, pos, lengths, layer)


def _kv_cache_update(spec: KVCacheSpec, args: KVCacheArgs) -> Outputs:
    return Outputs(_write(args.k_cache, args.v_cache, args.k, args.v, args.pos, args.lengths, args.layer))


def _refuses(spec: Any, args: Any) -> str | None:
    # XLA's own write is in place and free of a call for the wide dtypes this kernel does not take.
    if args.k_cache.dtype.itemsize not in (2, 4):
        return f"the cache write takes elements of 2 or 4 bytes, not {args.k_cache.dtype}"
    return None


def register_kernels() -> None:
    """Enter the compiled kernels into the table, or the reason why there are none."""
    reason = native.reason()
    if reason is not None:
        set_unavailable("cpu", reason)
        return
    platforms = ("cpu",)
    for operator, form, refuses in (
        ("fused_ffn", ffn.form, ffn.refuses),
        ("flash_attention", flash_attention.form, flash_attention.refuses),
        ("linear", linear.form, linear.refuses),
        ("norm", norm.form, norm.refuses),
        ("norm_residual", norm.residual_form, norm.refuses),
    ):
        register(operator, "cpu", Implementation(form, refuses, platforms))
    register("kv_cache_update", "cpu", Implementation(_kv_cache_update, _refuses, platforms))
    # The cache is written by the kernel; the products and the attention around it are XLA's.
    fused = functools.partial(attention.plain, write=_write)
    register("attention_with_kv_cache", "cpu", Implementation(fused, _refuses, platforms))
