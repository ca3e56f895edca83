"""Which keys a query may attend, as boolean arrays [batch | 1, heads | 1, q_len, kv_len].

`q_pos` int [batch | 1, q_len] are the positions of the queries, `kv_pos` int [kv_len] those of the keys.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def positions(pos: Any, q_len: int) -> np.ndarray:
    """int [batch | 1, q_len]: pos + i, for pos scalar or [batch]."""
    return np.reshape(np.asarray(pos, np.int64), (-1, 1)) + np.arange(q_len)


def full(q_pos: np.ndarray, kv_pos: np.ndarray) -> np.ndarray:
    """Every key."""
    return np.ones((1, 1, q_pos.shape[1], kv_pos.shape[0]), bool)


def causal(q_pos: np.ndarray, kv_pos: np.ndarray, window: int | None = None, global_tokens: int = 0) -> np.ndarray:
    """Keys at or before the query; with a window, of those the last `window` ones and those below `global_tokens`."""
    q, k = q_pos[:, None, :, None], kv_pos[None, None, None, :]
    if window is None:
        return k <= q
    return (k <= q) & ((q - k < window) | (k < global_tokens))


def prefix_lm(q_pos: np.ndarray, kv_pos: np.ndarray, n: Any) -> np.ndarray:
    """Causal, and the first n keys for every query; n int or [batch]."""
    return causal(q_pos, kv_pos) | (kv_pos[None, None, None, :] < np.reshape(np.asarray(n), (-1, 1, 1, 1)))


def block_sparse(q_pos: np.ndarray, kv_pos: np.ndarray, blocks: Any, block_size: int) -> np.ndarray:
    """blocks bool [heads | 1, q_blocks, kv_blocks] of absolute positions; positions that no block covers: False."""
    blocks = np.asarray(blocks)
    out = np.zeros((q_pos.shape[0], blocks.shape[0], q_pos.shape[1], kv_pos.shape[0]), bool)
    for b, i in np.ndindex(q_pos.shape):
        row = q_pos[b, i] // block_size
        for j, position in enumerate(kv_pos):
            column = position // block_size
            if 0 <= row < blocks.shape[1] and 0 <= column < blocks.shape[2]:
                out[b, :, i, j] = blocks[:, row, column]
    return out


def segments(q_ids: Any, kv_ids: Any) -> np.ndarray:
    """Keys of the query's own segment; q_ids int [batch | 1, q_len], kv_ids int [batch | 1, kv_len]."""
    return np.asarray(q_ids)[:, None, :, None] == np.asarray(kv_ids)[:, None, None, :]


def written(end: Any, kv_pos: np.ndarray) -> np.ndarray:
    """Keys that exist: those below `end`, int or [batch], which is pos + length."""
    return kv_pos[None, None, None, :] < np.reshape(np.asarray(end), (-1, 1, 1, 1))


def valid_queries(lengths: Any, q_len: int) -> np.ndarray:
    """Rows below each sequence's length, [batch, 1, q_len, 1]."""
    return np.arange(q_len)[None, None, :, None] < np.reshape(np.asarray(lengths), (-1, 1, 1, 1))
