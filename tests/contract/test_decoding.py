"""Chunked prefill and then decode are one full forward, for every mask and sequences of different lengths."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest

import atbfn
from atbfn.reference import masks as ref_masks
from tests.contract.harness import ways
from tests.strategies import MASKS, Maker, mask_pair, rope_tables
from tests.tolerance import assert_discriminates, check

BATCH, HEADS, KV_HEADS, HEAD_DIM, HIDDEN, TOTAL, CHUNK, MAX_SEQ = 3, 4, 2, 8, 42, 15, 6, 17
LENGTHS = np.array([TOTAL, 9, 4])
"""A sequence that decodes, one that ends within the second chunk, one that ends within the first."""


def schedule() -> list[tuple[int, np.ndarray]]:
    """(q_len, rows per sequence) of each call: two chunks, then single tokens."""
    calls, done = [], np.zeros(BATCH, np.int64)
    for q_len in [CHUNK, CHUNK] + [1] * (TOTAL - 2 * CHUNK):
        counts = np.minimum(LENGTHS - done, q_len)
        calls.append((q_len, counts))
        done += counts
    assert (done == LENGTHS).all()
    return calls


@functools.cache
def attention(mode: str, target: str, cached: bool) -> Any:
    settings = {"num_heads": HEADS, "num_kv_heads": KV_HEADS, "mode": mode, "target": target}
    if cached:
        return jax.jit(lambda *args, **arrays: atbfn.attention_with_kv_cache(*args, **arrays, **settings))
    return jax.jit(lambda x, **arrays: atbfn.self_attention(x, **arrays, **settings))


def part(mask: atbfn.Mask, starts: np.ndarray, q_len: int) -> atbfn.Mask:
    """The mask for rows `starts .. starts + q_len - 1` of each sequence, over a cache of MAX_SEQ."""
    rows = np.minimum(starts[:, None] + np.arange(q_len), TOTAL - 1)
    if isinstance(mask, atbfn.Segments):
        kv_ids = np.pad(mask.kv_ids, ((0, 0), (0, MAX_SEQ - TOTAL)), constant_values=-1)
        return atbfn.Segments(np.take_along_axis(np.asarray(mask.q_ids), rows, axis=1), kv_ids)
    if isinstance(mask, atbfn.Allowed):
        allowed = np.broadcast_to(mask.allowed, (BATCH, *mask.allowed.shape[1:]))
        allowed = np.take_along_axis(allowed, rows[:, None, :, None], axis=2)
        return atbfn.Allowed(np.pad(allowed, ((0, 0), (0, 0), (0, 0), (0, MAX_SEQ - TOTAL)), constant_values=True))
    if isinstance(mask, atbfn.BlockSparse):
        # Blocks are numbered by absolute position: only the positions between TOTAL and MAX_SEQ are added.
        extra = -(-MAX_SEQ // mask.block_size) - mask.blocks.shape[1]
        return atbfn.BlockSparse(np.pad(mask.blocks, ((0, 0), (0, extra), (0, extra))), mask.block_size)
    if hasattr(mask, "masks"):
        first, second = mask.masks
        return part(first, starts, q_len) & part(second, starts, q_len)
    return mask


def cases() -> Iterator[tuple[str, str, str]]:
    """Every mask in the fused form; the other modes and targets treat masks alike and get every fourth."""
    every = {"fused": 1, "step_by_step": 4, "fused_with_checkpoints": 4}
    for mode, target in ways("attention_with_kv_cache"):
        for kind in MASKS[:: every[mode] if target == "xla" else 4]:
            yield mode, target, kind


@pytest.mark.parametrize("mode, target, kind", cases())
def test_chunks_then_decode_are_one_full_forward(mode: str, target: str, kind: str) -> None:
    make = Maker("float32", MASKS.index(kind))
    x = make.normal(BATCH, TOTAL, HIDDEN)
    q, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    weights = atbfn.AttentionWeights(*(make.weight(*s) for s in ((q, HIDDEN), (kv, HIDDEN), (kv, HIDDEN), (HIDDEN, q))))
    rope, _ = rope_tables(HEAD_DIM, MAX_SEQ, "half")
    mask, _ = mask_pair(kind, make.rng, BATCH, HEADS, TOTAL, TOTAL, 0)
    # A chunk sees no key of a later one. Masks that look ahead (Full, PrefixLM, ...) are compared with that in mind.
    seen = np.zeros((BATCH, 1, TOTAL, TOTAL), bool)
    caches = [np.full((BATCH, KV_HEADS, MAX_SEQ, HEAD_DIM), np.nan, np.float32) for _ in range(2)]
    pos, pieces = np.zeros(BATCH, np.int32), np.zeros((BATCH, TOTAL, HIDDEN), np.float32)
    for q_len, counts in schedule():
        chunk = np.full((BATCH, q_len, HIDDEN), np.nan, np.float32)
        for b, n in enumerate(counts):
            chunk[b, :n] = x[b, pos[b] : pos[b] + n]
            seen[b, 0, pos[b] : pos[b] + n, : pos[b] + n] = True
        out, *caches = attention(mode, target, True)(
            chunk,
            *caches,
            pos,
            lengths=counts.astype(np.int32),
            weights=weights,
            rope=rope,
            mask=part(mask, pos, q_len),
        )
        for b, n in enumerate(counts):
            pieces[b, pos[b] : pos[b] + n] = out[b, :n]
            assert not np.asarray(out)[b, n:].any()
        pos = (pos + counts).astype(np.int32)
    full = attention("fused" if target != "xla" else mode, "xla", False)(
        x, lengths=LENGTHS.astype(np.int32), weights=weights, rope=rope, mask=mask & atbfn.Allowed(seen)
    )
    full = np.asarray(full).astype(np.float64)
    assert ref_masks.valid_queries(LENGTHS, TOTAL)[:, 0].sum() == LENGTHS.sum()

    def same(result: np.ndarray) -> None:
        check(result, full, "attention", np.float32, unit_scale=1 / 8, what=f"{kind} {mode}")

    same(pieces)
    assert_discriminates(same, full.astype(np.float32), rows=full[:, ::-1], features=full[:, :, ::-1])
