"""kv cache, FFN and attention of the reference, against plain loops over the formula."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

import atbfn
from atbfn.reference import masks
from atbfn.reference.attention import AttentionWeights, Rope, attention_with_kv_cache, flash_attention, self_attention
from atbfn.reference.ffn import fused_ffn
from atbfn.reference.kv_cache import fits, kv_cache_update
from atbfn.reference.norm import LayerNorm, RMSNorm, layernorm, normalize, rmsnorm
from atbfn.reference.rope import frequencies, rope, tables

RNG = np.random.default_rng(1)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape)


def test_kv_cache_update() -> None:
    k_cache, v_cache, k, v = normal(4, 2, 5, 3), normal(4, 2, 5, 3), normal(4, 2, 3, 3), normal(4, 2, 3, 3)
    pos, lengths = np.array([0, 3, 3, -1]), np.array([3, 2, 3, 1])
    steps = kv_cache_update(k_cache, v_cache, k, v, pos, lengths=lengths)
    np.testing.assert_array_equal(fits(pos, lengths, 4, 3, 5), [True, True, False, False])
    for cache, rows, out in ((k_cache, k, steps["k_cache"]), (v_cache, v, steps["v_cache"])):
        np.testing.assert_array_equal(out[0], np.concatenate([rows[0], cache[0, :, 3:]], axis=1))
        np.testing.assert_array_equal(out[1], np.concatenate([cache[1, :, :3], rows[1, :, :2]], axis=1))
        np.testing.assert_array_equal(out[2:], cache[2:])
    stack = np.stack([k_cache, k_cache])
    out = kv_cache_update(stack, stack, k, v, 1, layer=1)["k_cache"]
    np.testing.assert_array_equal(out[0], k_cache)
    np.testing.assert_array_equal(out[1, :, :, 1:4], k)
    np.testing.assert_array_equal(kv_cache_update(stack, stack, k, v, 1, layer=2)["k_cache"], stack)
    assert kv_cache_update(k_cache.astype(np.float16), v_cache, k, v, 0)["k_cache"].dtype == np.float16


def test_norms_are_told_apart_by_their_fields() -> None:
    x, gamma = normal(2, 5), normal(5)
    for ours, theirs in ((RMSNorm(gamma), atbfn.RMSNorm(gamma)), (LayerNorm(gamma), atbfn.LayerNorm(gamma))):
        np.testing.assert_array_equal(normalize(theirs, x), normalize(dataclasses.replace(ours, eps=theirs.eps), x))


@pytest.mark.parametrize("gated", [True, False])
def test_fused_ffn(gated: bool) -> None:
    x, residual = normal(2, 5), normal(2, 5)
    w_gate, w_up, w_down = normal(7, 5), normal(7, 5), normal(5, 7)
    b_gate, b_up, b_down = normal(7), normal(7), normal(5)
    norm, post_norm = RMSNorm(normal(5), 0.1), LayerNorm(normal(5), normal(5), 0.2)
    steps = fused_ffn(
        x,
        w_gate if gated else None,
        w_up,
        w_down,
        activation="relu",
        b_gate=b_gate if gated else None,
        b_up=b_up,
        b_down=b_down,
        norm=norm,
        residual=residual,
        post_norm=post_norm,
    )
    names = ["norm", "gate", "up", "act", "gated", "down", "summed", "out"]
    assert list(steps) == (names if gated else [n for n in names if n not in ("gate", "gated")])
    for r in range(2):
        n = rmsnorm(x[r], norm.gamma, eps=0.1)["normed"]
        inner = []
        for i in range(7):
            up = math.fsum(n * w_up[i]) + b_up[i]
            gate = math.fsum(n * w_gate[i]) + b_gate[i]
            inner.append(max(gate, 0) * up if gated else max(up, 0))
        summed = [math.fsum(inner * w_down[o]) + b_down[o] + residual[r, o] for o in range(5)]
        np.testing.assert_allclose(steps["summed"][r], summed)
        np.testing.assert_allclose(
            steps["out"][r], layernorm(summed, post_norm.gamma, post_norm.beta, eps=0.2)["normed"]
        )
    plain = fused_ffn(x, w_gate, w_up, w_down)
    assert list(plain) == ["gate", "up", "act", "gated", "down", "out"]
    np.testing.assert_array_equal(plain["down"], plain["out"])


@pytest.mark.parametrize("softcap", [None, 2.0])
def test_flash_attention_is_the_formula(softcap: float | None) -> None:
    q, k, v = normal(2, 4, 3, 5), normal(2, 2, 6, 5), normal(2, 2, 6, 5)
    mask = RNG.integers(0, 2, (2, 1, 3, 6)).astype(bool)
    mask[1, 0, 1] = False
    steps = flash_attention(q, k, v, mask, scale=0.7, softcap=softcap)
    for b, h, i in np.ndindex(2, 4, 3):
        weights, total = np.zeros(6), 0.0
        for j in np.flatnonzero(mask[b, 0, i]):
            score = 0.7 * math.fsum(q[b, h, i] * k[b, h // 2, j])
            score = score if softcap is None else softcap * math.tanh(score / softcap)
            np.testing.assert_allclose(steps["scores"][b, h, i, j], score)
            weights[j] = math.exp(score)
            total += weights[j]
        if total == 0:
            assert not steps["context"][b, h, i].any() and not steps["probs"][b, h, i].any()
            assert steps["lse"][b, h, i] == -np.inf
            continue
        np.testing.assert_allclose(steps["probs"][b, h, i], weights / total, atol=1e-15)
        np.testing.assert_allclose(steps["context"][b, h, i], weights @ v[b, h // 2] / total)
        np.testing.assert_allclose(steps["lse"][b, h, i], math.log(total))
    default = flash_attention(q, k, v, mask, softcap=softcap)
    np.testing.assert_array_equal(
        default["context"], flash_attention(q, k, v, mask, scale=5**-0.5, softcap=softcap)["context"]
    )


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_key_outside_the_mask_contributes_nothing(bad: float) -> None:
    q, k, v = normal(1, 1, 3, 4), normal(1, 1, 5, 4), normal(1, 1, 5, 4)
    mask = masks.causal(masks.positions(2, 3), np.arange(5))
    clean = flash_attention(q, k, v, mask)
    for array in (k, v):
        dirty = array.copy()
        dirty[0, 0, 4, 1] = bad
        out = flash_attention(q, dirty if array is k else k, dirty if array is v else v, mask)
        np.testing.assert_allclose(out["context"][0, 0, :2], clean["context"][0, 0, :2], rtol=1e-13)
        np.testing.assert_array_equal(out["lse"][0, 0, :2], clean["lse"][0, 0, :2])
    # The value of an attended key lands in its own column only, as the formula says.
    np.testing.assert_array_equal(out["context"][0, 0, 2, 1], bad)
    np.testing.assert_allclose(out["context"][0, 0, 2, [0, 2, 3]], clean["context"][0, 0, 2, [0, 2, 3]])


def test_large_scores_do_not_overflow() -> None:
    out = flash_attention(np.full((1, 1, 1, 1), 1e5), np.full((1, 1, 2, 1), 1e5), np.eye(2)[None, None], np.bool_(1))
    np.testing.assert_allclose(out["context"][0, 0, 0], [0.5, 0.5])
    np.testing.assert_allclose(out["lse"], 1e10 + math.log(2))


def layer(hidden: int = 6, heads: int = 4, kv_heads: int = 2, head_dim: int = 4) -> AttentionWeights:
    q, kv = heads * head_dim, kv_heads * head_dim
    shapes = [(q, hidden), (kv, hidden), (kv, hidden), (hidden, q), (q,), (kv,), (kv,), (hidden,)]
    return AttentionWeights(*(normal(*s) for s in shapes))


def test_steps_of_attention() -> None:
    weights, x = layer(), normal(1, 3, 6)
    cos, sin = tables(frequencies(4), 16)
    steps = attention_with_kv_cache(
        x,
        np.zeros((1, 2, 8, 4)),
        np.zeros((1, 2, 8, 4)),
        2,
        masks.full(masks.positions(2, 3), np.arange(8)),
        weights=weights,
        num_heads=4,
        num_kv_heads=2,
        rope=Rope(cos, sin),
        norm=RMSNorm(np.ones(6)),
        residual=x,
        post_norm=RMSNorm(np.ones(6)),
    )
    names = "norm q k v q_rope k_rope k_cache v_cache scores probs context proj summed out lse"
    assert list(steps) == names.split()
    np.testing.assert_allclose(steps["q_rope"], rope(steps["q"], 2, cos, sin)["out"])
    np.testing.assert_array_equal(steps["k_cache"][0, :, 2:5], steps["k_rope"][0])
    # Full() lets everything written be attended, unwritten keys stay out.
    assert (steps["probs"][..., :5] > 0).all() and not steps["probs"][..., 5:].any()


def test_chunks_and_decode_are_one_full_forward() -> None:
    weights, x = layer(), normal(2, 7, 6)
    cos, sin = tables(frequencies(4), 16)
    common = {"weights": weights, "num_heads": 4, "num_kv_heads": 2, "rope": Rope(cos, sin, "interleaved")}
    full = self_attention(x, masks.causal(masks.positions(0, 7), np.arange(7)), **common)["out"]
    caches = np.full((2, 2, 8, 4), np.nan), np.full((2, 2, 8, 4), np.nan)
    outs, pos = [], 0
    for chunk in (4, 2, 1):
        mask = masks.causal(masks.positions(pos, chunk), np.arange(8))
        steps = attention_with_kv_cache(x[:, pos : pos + chunk], *caches, pos, mask, **common)
        caches = steps["k_cache"], steps["v_cache"]
        outs.append(steps["out"])
        pos += chunk
    np.testing.assert_allclose(np.concatenate(outs, axis=1), full, rtol=1e-12)


def test_lengths_and_positions_outside() -> None:
    weights, x = layer(), normal(3, 3, 6)
    x[0, 1:] = np.nan  # beyond its length
    caches = np.zeros((3, 2, 4, 4)), np.zeros((3, 2, 4, 4))
    mask = masks.causal(masks.positions(np.array([3, 0, 2]), 3), np.arange(4))
    common = {"weights": weights, "num_heads": 4, "num_kv_heads": 2}
    lengths = np.array([1, 0, 3])
    steps = attention_with_kv_cache(x, *caches, np.array([3, 0, 2]), mask, lengths=lengths, residual=x, **common)
    assert np.isfinite(steps["out"][:2]).all() and np.isnan(steps["out"][2]).all()
    assert steps["out"][0, 0].any() and not steps["out"][0, 1:].any() and not steps["out"][1].any()
    assert not steps["k_cache"][1:].any() and not steps["k_cache"][0, :, :3].any()
    # Without a cache: the NaN rows beyond the length reach nothing, and a length of more than q_len is no length.
    own = self_attention(x, np.ones((1, 1, 3, 3), bool), lengths=np.array([1, 3, 4]), **common)["out"]
    alone = self_attention(x[:1, :1], np.ones((1, 1, 1, 1), bool), **common)["out"]
    np.testing.assert_allclose(own[0, 0], alone[0, 0])
    assert not own[0, 1:].any() and np.isnan(own[2]).all()


def test_a_row_that_attends_nothing_keeps_bias_and_residual() -> None:
    weights, x = layer(), normal(1, 2, 6)
    mask = np.array([[[[False, False], [True, True]]]])
    steps = self_attention(x, mask, weights=weights, num_heads=4, num_kv_heads=2, residual=x)
    np.testing.assert_allclose(steps["out"][0, 0], weights.b_o + x[0, 0])
    plain = dataclasses.replace(weights, b_o=None)
    steps = self_attention(x, mask, weights=plain, num_heads=4, num_kv_heads=2)
    assert not steps["out"][0, 0].any() and steps["lse"][0, 0, 0] == -np.inf


def test_realistic_sizes() -> None:
    q, k = normal(2, 32, 300, 16), normal(2, 8, 600, 16)
    steps = flash_attention(q, k, k, masks.causal(masks.positions(300, 300), np.arange(600)))
    np.testing.assert_allclose(steps["probs"].sum(-1), 1)
