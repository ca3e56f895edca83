"""The masks of the reference, key by key from their definitions."""

from __future__ import annotations

import numpy as np
import pytest

from atbfn.reference import masks

Q_LEN, KV_LEN = 5, 9
STARTS = np.array([0, 4, -2])
Q_POS = masks.positions(STARTS, Q_LEN)
KV_POS = np.arange(KV_LEN)


@pytest.mark.parametrize("window, global_tokens", [(None, 0), (1, 0), (3, 0), (3, 2), (100, 1)])
def test_causal(window: int | None, global_tokens: int) -> None:
    allowed = masks.causal(Q_POS, KV_POS, window, global_tokens)
    assert allowed.shape == (3, 1, Q_LEN, KV_LEN)
    for b, _, i, k in np.ndindex(allowed.shape):
        q = STARTS[b] + i
        near = window is None or q - k < window or k < global_tokens
        assert allowed[b, 0, i, k] == (k <= q and near)


def test_a_window_of_one_is_the_query_itself() -> None:
    allowed = masks.causal(masks.positions(0, 4), np.arange(4), window=1)
    np.testing.assert_array_equal(allowed[0, 0], np.eye(4, dtype=bool))


@pytest.mark.parametrize("n", [0, 3, np.array([0, 2, 9])])
def test_prefix_lm(n: int | np.ndarray) -> None:
    allowed = masks.prefix_lm(Q_POS, KV_POS, n)
    per_sequence = np.broadcast_to(n, (3,))
    for b, _, i, k in np.ndindex(allowed.shape):
        assert allowed[b, 0, i, k] == (k <= STARTS[b] + i or k < per_sequence[b])


def test_block_sparse_numbers_blocks_by_absolute_position() -> None:
    blocks = np.random.default_rng(0).integers(0, 2, (2, 3, 3)).astype(bool)
    allowed = masks.block_sparse(Q_POS, KV_POS, blocks, 3)
    for b, h, i, k in np.ndindex(allowed.shape):
        q = STARTS[b] + i
        assert allowed[b, h, i, k] == (q >= 0 and blocks[h, q // 3, k // 3])


def test_segments_written_keys_and_valid_rows() -> None:
    q_ids, kv_ids = np.array([[0, 0, 1, 1, 2]]), np.array([[0, 1, 1, 2, 2, 3, 0, 0, 1]])
    allowed = masks.segments(q_ids, kv_ids)
    for _, _, i, k in np.ndindex(allowed.shape):
        assert allowed[0, 0, i, k] == (q_ids[0, i] == kv_ids[0, k])
    np.testing.assert_array_equal(masks.written([0, 2], np.arange(3))[:, 0, 0], [[0, 0, 0], [1, 1, 0]])
    np.testing.assert_array_equal(masks.valid_queries([0, 2], 3)[:, 0, :, 0], [[0, 0, 0], [1, 1, 0]])
    assert masks.full(Q_POS, KV_POS).all()
