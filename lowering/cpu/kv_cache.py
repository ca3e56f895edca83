"""Writes rows into key and value caches in place, for every 16 and 32 bit dtype."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from atbfn.lowering.cpu import native
from atbfn.primitives.errors import bad_type, bad_value
from atbfn.primitives.kv_cache import KVCacheArgs, KVCacheSpec
from atbfn.primitives.operator import Outputs

TARGET = "atbfn_kv_cache_write"


def form(spec: KVCacheSpec, args: KVCacheArgs) -> Outputs:
    """The operator as one call, which wants positions and lengths per sequence."""
    batch, _, q_len, _ = args.k.shape
    pos = jnp.broadcast_to(args.pos, (batch,))
    lengths = jnp.full((batch,), q_len, jnp.int32) if args.lengths is None else args.lengths
    return Outputs(write(args.k_cache, args.v_cache, args.k, args.v, pos, lengths, args.layer))


def refuses(spec: KVCacheSpec, args: KVCacheArgs) -> str | None:
    """Why the kernel cannot do a call, or None."""
    # XLA's own write is in place and free of a call for the wide dtypes this kernel does not take.
    if args.k_cache.dtype.itemsize not in (2, 4):
        return f"the cache write takes elements of 2 or 4 bytes, not {args.k_cache.dtype}"
    return None


def write(
    k_cache: jax.Array,
    v_cache: jax.Array,
    k: jax.Array,
    v: jax.Array,
    pos: jax.Array,
    lengths: jax.Array,
    layer: jax.Array | int | None = None,
) -> tuple[jax.Array, jax.Array]:
    """The caches with rows `k[b, :, :lengths[b]]`, `v[b, :, :lengths[b]]` at `pos[b]`, in place.

    The caches are reused when nothing else reads them afterwards (donated at top level, or carried through a loop),
    and copied once otherwise. A batch row whose range `[pos, pos + length)` is not inside `[0, max_seq)`, whose length
    is not in `[0, q_len]`, or whose layer does not exist keeps its cache as it was.

    Args:
      k_cache, v_cache: `[batch, kv_heads, max_seq, head_dim]`, or `[layers, batch, kv_heads, max_seq, head_dim]` with
        `layer`. Any dtype of 2 or 4 bytes. The two may differ in `head_dim`.
      k, v: `[batch, kv_heads, q_len, head_dim]` in the dtype of their cache.
      pos: int32 `[batch]`, the position of the first row of each sequence.
      lengths: int32 `[batch]`, how many rows of each sequence to write.
      layer: int32 scalar, the layer to write in stacked caches; None when they are not stacked.

    Returns:
      The updated `(k_cache, v_cache)`.

    Raises:
      RuntimeError: the compiled kernels are not available here (`native.reason()` says why).
      ValueError, TypeError: shapes or dtypes that do not fit each other.
    """
    if (why := native.reason()) is not None:
        raise RuntimeError(f"kv_cache_update: target: got 'cpu'; expected compiled kernels; use target='xla': {why}")
    stacked = layer is not None
    _check("k", k_cache, k, pos, lengths, stacked)
    _check("v", v_cache, v, pos, lengths, stacked)
    call = jax.ffi.ffi_call(
        TARGET,
        (jax.ShapeDtypeStruct(k_cache.shape, k_cache.dtype), jax.ShapeDtypeStruct(v_cache.shape, v_cache.dtype)),
        input_output_aliases={0: 0, 1: 1},
        # The handler folds leading dimensions itself, so vmap stays one call.
        vmap_method="broadcast_all",
    )
    index = jnp.asarray(0 if layer is None else layer, jnp.int32)
    k_cache, v_cache = call(k_cache, v_cache, k, v, pos, lengths, index, stacked=np.bool_(stacked))
    return k_cache, v_cache


def _check(name: str, cache: jax.Array, rows: jax.Array, pos: jax.Array, lengths: jax.Array, stacked: bool) -> None:
    op, rank = "kv_cache_update", 5 if stacked else 4
    if cache.ndim != rank or rows.ndim != 4:
        fix = "stack caches as [layers, batch, kv_heads, max_seq, head_dim] exactly when layer is given"
        bad_value(op, f"{name}_cache", f"shape {cache.shape} and rows {rows.shape}", f"{rank} dimensions and 4", fix)
    batch, heads, _, head_dim = cache.shape[-4:]
    if (rows.shape[0], rows.shape[1], rows.shape[3]) != (batch, heads, head_dim):
        fits = f"[{batch}, {heads}, q_len, {head_dim}]"
        bad_value(op, name, f"shape {rows.shape}", fits, f"the rows must fit their cache {cache.shape}")
    if rows.dtype != cache.dtype:
        bad_type(op, name, rows.dtype, str(cache.dtype), "cast the rows to the cache's dtype")
    if cache.dtype.itemsize not in (2, 4):
        bad_type(op, f"{name}_cache", cache.dtype, "2 or 4 bytes", "use target='xla'")
    for what, index in (("pos", pos), ("lengths", lengths)):
        if index.shape != (batch,) or index.dtype != jnp.int32:
            came = f"{index.dtype}{list(index.shape)}"
            bad_value(op, what, came, f"int32[{batch}]", "broadcast it to one entry per batch row")
