"""Writing new keys and values into caches at their positions. Data movement: dtypes are kept, nothing is computed."""

from __future__ import annotations

from typing import Any

import numpy as np


def fits(pos: Any, lengths: Any, batch: int, q_len: int, max_seq: int) -> np.ndarray:
    """bool [batch]: 0 <= length <= q_len, and the rows pos .. pos + length - 1 lie inside the cache."""
    pos = np.broadcast_to(np.asarray(pos), (batch,)).astype(np.int64)
    lengths = np.broadcast_to(np.asarray(q_len if lengths is None else lengths), (batch,)).astype(np.int64)
    return (pos >= 0) & (lengths >= 0) & (lengths <= q_len) & (pos + lengths <= max_seq)


def kv_cache_update(
    k_cache: Any, v_cache: Any, k: Any, v: Any, pos: Any, *, lengths: Any = None, layer: int | None = None
) -> dict[str, np.ndarray]:
    """Steps: `k_cache`, `v_cache`, with rows `pos .. pos + length - 1` of each sequence replaced by those of k and v.

    Caches [batch, kv_heads, max_seq, head_dim], or [layers, batch, ...] with `layer`, of which one is written; k, v
    [batch, kv_heads, q_len, head_dim]; pos int scalar or [batch]; lengths int [batch] or None for q_len. A sequence
    that does not fit is left as it was, whole.
    """
    return {"k_cache": _write(k_cache, k, pos, lengths, layer), "v_cache": _write(v_cache, v, pos, lengths, layer)}


def _write(cache: Any, rows: Any, pos: Any, lengths: Any, layer: int | None) -> np.ndarray:
    out, rows = np.array(cache), np.asarray(rows)
    if layer is not None and not 0 <= layer < out.shape[0]:
        return out
    target = out if layer is None else out[layer]
    batch, _, q_len, _ = rows.shape
    starts = np.broadcast_to(np.asarray(pos), (batch,))
    counts = np.broadcast_to(np.asarray(q_len if lengths is None else lengths), (batch,))
    for b in np.flatnonzero(fits(pos, lengths, batch, q_len, target.shape[2])):
        start, count = int(starts[b]), int(counts[b])
        target[b, :, start : start + count] = rows[b, :, :count]
    return out
