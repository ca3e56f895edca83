"""`kv_cache_update`: new keys and values into the caches, in place when the caller donates them."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from atbfn import arguments
from atbfn.fusion import resolve
from atbfn.primitives.errors import bad_value
from atbfn.primitives.kv_cache import KVCacheArgs, KVCacheSpec
from atbfn.primitives.kv_cache import kv_cache_update as kv_cache_update_op


def kv_cache_update(
    k_cache: jax.Array,
    v_cache: jax.Array,
    k: jax.Array,
    v: jax.Array,
    pos: Any,
    *,
    lengths: Any = None,
    layer: Any = None,
    mode: str | None = None,
    target: str | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Write rows k, v at positions pos .. pos + q_len - 1 of each sequence.

    Args:
      k_cache, v_cache: [batch, kv_heads, max_seq, head_dim], or [layers, batch, kv_heads, max_seq, head_dim] with
        `layer`. Donate them (or keep them in a loop's carry) and nothing else of them is touched.
      k, v: [batch, kv_heads, q_len, head_dim], the caches' dtype.
      pos: int32 scalar or [batch], the position of row 0.
      lengths: int32 [batch] or None: how many of the rows to write per sequence.
      layer: int32 scalar, which layer of stacked caches to write.
      mode, target: override the surrounding configuration. A single operator runs alike in every mode.

    Returns:
      (k_cache, v_cache). A sequence whose traced position, length or layer lies outside the cache keeps its old rows.

    Raises:
      ValueError: shapes that do not fit, or a known position, length or layer outside the cache. TypeError: dtypes.
    """
    op = "kv_cache_update"
    how = resolve(op, mode=mode, target=target)
    k, v = arguments.array(op, "k", k, 4), arguments.array(op, "v", v, 4)
    batch, kv_heads, q_len, head_dim = k.shape
    arguments.shape(op, "v", v, batch=batch, kv_heads=kv_heads, q_len=q_len, head_dim=head_dim)
    k_cache, v_cache, layer = check_caches(op, k_cache, v_cache, layer, batch, kv_heads, head_dim)
    pos, lengths = check_positions(op, pos, lengths, batch, q_len, k_cache.shape[-2])
    operands = arguments.same_dtype(op, how.cross_precision, k_cache=k_cache, v_cache=v_cache, k=k, v=v)
    args = KVCacheArgs(**operands, pos=pos, lengths=lengths, layer=layer)
    new_k, new_v = arguments.bind(kv_cache_update_op, KVCacheSpec(how.target), args).main
    return new_k.astype(k_cache.dtype), new_v.astype(v_cache.dtype)


def check_caches(
    op: str, k_cache: Any, v_cache: Any, layer: Any, batch: Any, kv_heads: int, head_dim: int
) -> tuple[jax.Array, jax.Array, jax.Array | None]:
    """Both caches with the sizes of the rows, and the layer as int32."""
    rank = 4 if layer is None else 5
    checked = []
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        cache = arguments.array(op, name, cache)
        if cache.ndim != rank:
            fix = "pass layer= for stacked caches" if cache.ndim == 5 else "leave layer=None for caches of one layer"
            bad_value(
                op,
                name,
                f"shape {cache.shape}",
                f"{rank} dimensions, as layer is {'None' if layer is None else 'given'}",
                fix,
            )
        dims = {"batch": batch, "kv_heads": kv_heads, "max_seq": cache.shape[-2], "head_dim": head_dim}
        arguments.shape(op, name, cache, **({} if layer is None else {"layers": cache.shape[0]}), **dims)
        checked.append(cache)
    arguments.same_shape(op, "v_cache", checked[1], "k_cache", checked[0])
    if layer is not None:
        layer = arguments.integers(op, "layer", layer, [()])
        known = arguments.concrete(layer)
        if known is not None and not 0 <= known < checked[0].shape[0]:
            bad_value(
                op, "layer", int(known), f"0 .. {checked[0].shape[0] - 1}", "the caches are stacked as [layers, ...]"
            )
    return checked[0], checked[1], layer


def check_positions(
    op: str, pos: Any, lengths: Any, batch: Any, q_len: Any, max_seq: Any
) -> tuple[jax.Array, jax.Array | None]:
    """pos and lengths as int32, inside the cache as far as they are known now."""
    pos = arguments.integers(op, "pos", pos, [(), (batch,)])
    lengths = check_lengths(op, lengths, batch, q_len)
    if lengths is None and isinstance(q_len, int) and isinstance(max_seq, int) and q_len > max_seq:
        bad_value(
            op, "x", f"{q_len} new rows", f"at most max_seq={max_seq}", "allocate a longer cache or pass fewer tokens"
        )
    known_pos = arguments.concrete(pos)
    known_lengths = q_len if lengths is None else arguments.concrete(lengths)
    if known_pos is not None and known_pos.size:
        if known_pos.min() < 0:
            bad_value(op, "pos", known_pos.tolist(), "positions of at least 0", "positions are absolute")
        if isinstance(max_seq, int) and isinstance(known_lengths, (int, np.ndarray)):  # not symbolic, not traced
            last = known_pos.astype(np.int64) + known_lengths  # in int32 a large position would wrap around
            if last.size and last.max() > max_seq:
                bad_value(
                    op,
                    "pos",
                    f"{known_pos.tolist()} with {np.asarray(known_lengths).tolist()} new rows",
                    f"rows that end within max_seq={max_seq}",
                    "allocate a longer cache or pass fewer tokens",
                )
    return pos, lengths


def check_lengths(op: str, lengths: Any, batch: Any, q_len: Any) -> jax.Array | None:
    """lengths as int32 [batch], in 0 .. q_len as far as they are known now; None passes."""
    if lengths is None:
        return None
    lengths = arguments.integers(op, "lengths", lengths, [(batch,)])
    known = arguments.concrete(lengths)
    if known is not None and known.size and not (known.min() >= 0 and known.max() <= q_len):
        bad_value(
            op,
            "lengths",
            known.tolist(),
            f"values in 0 .. q_len={q_len}",
            "they count the valid rows of x per sequence",
        )
    return lengths
