"""`kv_cache_update`: write new keys and values into the caches at their positions.

A sequence whose new rows do not all fit into `0 .. max_seq - 1` is left as it was.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from atbfn.primitives.operator import Operator, Outputs, like


def fits(pos: jax.Array, q_len: Any, max_seq: Any, lengths: jax.Array | None) -> jax.Array:
    """bool, scalar or [batch]: the rows written at `pos` lie inside the cache, and lengths lie in 0 .. q_len."""
    # pos + length of a position near the end of int32 would wrap around, and seem to fit.
    if lengths is None:
        return (pos >= 0) & (pos <= max_seq - q_len)
    return (pos >= 0) & (lengths >= 0) & (lengths <= q_len) & (pos <= max_seq - lengths)


def write(
    k_cache: jax.Array,
    v_cache: jax.Array,
    k: jax.Array,
    v: jax.Array,
    pos: jax.Array,
    lengths: jax.Array | None,
    layer: jax.Array | None,
) -> tuple[jax.Array, jax.Array]:
    """The caches [(layers,) batch, kv_heads, max_seq, head_dim] with rows k, v [batch, kv_heads, q_len, head_dim].

    pos int32 scalar or [batch]; lengths int32 [batch] or None; layer int32 scalar, or None for unstacked caches.
    """
    return _write_one(k_cache, k, pos, lengths, layer), _write_one(v_cache, v, pos, lengths, layer)


def _write_one(
    cache: jax.Array, rows: jax.Array, pos: jax.Array, lengths: jax.Array | None, layer: jax.Array | None
) -> jax.Array:
    max_seq, q_len = cache.shape[-2], rows.shape[-2]
    ok = fits(pos, q_len, max_seq, lengths)
    if layer is not None:
        ok = ok & (layer >= 0) & (layer < cache.shape[0])
    if pos.ndim == 0 and lengths is None:
        if q_len > max_seq:  # nothing fits, and a slice longer than the cache cannot be cut
            return cache
        return _write_slice(cache, rows, pos, layer, ok)
    offsets = jnp.arange(q_len, dtype=jnp.int32)
    valid = ok.reshape(-1, 1)
    if lengths is not None:
        valid = valid & (offsets < lengths[:, None])
    # A row that is not to be written is sent past the end, where the scatter drops it.
    index = jnp.where(valid, pos.reshape(-1, 1) + offsets, max_seq)
    index = jnp.broadcast_to(index, (rows.shape[0], q_len))

    def scatter(one: jax.Array, where: jax.Array, new: jax.Array) -> jax.Array:
        return one.at[:, where, :].set(new, mode="drop")

    if layer is None:
        return jax.vmap(scatter)(cache, index, rows)

    def scatter_layer(one: jax.Array, where: jax.Array, new: jax.Array) -> jax.Array:
        return one.at[layer, :, where, :].set(jnp.swapaxes(new, 0, 1), mode="drop")

    return jax.vmap(scatter_layer, in_axes=(1, 0, 0), out_axes=1)(cache, index, rows)


def _write_slice(
    cache: jax.Array, rows: jax.Array, pos: jax.Array, layer: jax.Array | None, ok: jax.Array
) -> jax.Array:
    # One contiguous window for all sequences: XLA updates it in place. What was there is written back when the
    # position does not fit, for dynamic_update_slice would clamp it and overwrite other rows.
    zero = jnp.zeros((), jnp.int32)
    start = (zero, zero, pos, zero) if layer is None else (layer, zero, zero, pos, zero)
    rows = rows if layer is None else rows[None]
    old = jax.lax.dynamic_slice(cache, start, rows.shape)
    return jax.lax.dynamic_update_slice(cache, jnp.where(ok, rows, old), start)


@dataclasses.dataclass(frozen=True)
class KVCacheSpec:
    """Static settings of `kv_cache_update`."""

    target: str


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class KVCacheArgs:
    """Operands of `kv_cache_update`; None where absent."""

    k_cache: Any
    v_cache: Any
    k: Any
    v: Any
    pos: Any
    lengths: Any = None
    layer: Any = None


def _plain(spec: KVCacheSpec, args: KVCacheArgs) -> Outputs:
    return Outputs(write(args.k_cache, args.v_cache, args.k, args.v, args.pos, args.lengths, args.layer))


kv_cache_update = Operator(
    "kv_cache_update",
    plain=_plain,
    shapes=lambda spec, args: Outputs((like(args.k_cache), like(args.v_cache))),
)
