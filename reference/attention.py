"""Scaled dot-product attention: Vaswani et al., 2017; grouped queries: Ainslie et al., "GQA", 2023.

context_i = sum_j softmax_j(cap(scale * q_i . k_j)) v_j over the keys j that query i may attend
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from atbfn.reference import kv_cache, masks, norm
from atbfn.reference.linear import linear
from atbfn.reference.rope import rope as rotate


@dataclasses.dataclass(frozen=True)
class AttentionWeights:
    """Projections [out_features, in_features] and biases [out_features]; biases may be None."""

    w_q: Any
    w_k: Any
    w_v: Any
    w_o: Any
    b_q: Any = None
    b_k: Any = None
    b_v: Any = None
    b_o: Any = None


@dataclasses.dataclass(frozen=True)
class Rope:
    """Tables of a rotary embedding, see `rope.rope`."""

    cos: Any
    sin: Any
    style: str = "half"


def flash_attention(
    q: Any, k: Any, v: Any, mask: np.ndarray, *, scale: float | None = None, softcap: float | None = None
) -> dict[str, np.ndarray]:
    """Steps: `scores probs` [batch, heads, q_len, kv_len], `context` of q's shape, `lse` [batch, heads, q_len].

    q [batch, heads, q_len, d]; k, v [batch, kv_heads, kv_len, d], head h using h // (heads // kv_heads).
    mask: bool [batch | 1, heads | 1, q_len, kv_len], all that limits who attends whom (see `masks`). A key outside it
    has score -inf and contributes nothing, whatever it holds. A query that may attend no key has probabilities and
    context 0 and lse -inf.
    """
    q, k, v = (np.asarray(x).astype(np.float64) for x in (q, k, v))
    heads_per_kv = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, heads_per_kv, axis=1), np.repeat(v, heads_per_kv, axis=1)
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    mask = np.broadcast_to(mask, (*q.shape[:3], k.shape[2]))
    attends = np.any(mask, axis=-1)
    with np.errstate(all="ignore"):
        scores = scale * (q @ np.swapaxes(k, -1, -2))
        if softcap is not None:
            scores = softcap * np.tanh(scores / softcap)
        scores = np.where(mask, scores, -np.inf)
        highest = np.max(scores, axis=-1, initial=-np.inf)
        shift = np.where(highest == -np.inf, 0, highest)
        weights = np.exp(scores - shift[..., None])
        weights = np.where(mask, weights, 0)
        total = np.sum(weights, axis=-1)
        probs = weights / np.where(attends, total, 1)[..., None]
        lse = np.where(attends, shift + np.log(total), -np.inf)
    return {"scores": scores, "probs": probs, "context": _weigh(probs, mask, v), "lse": lse}


def _weigh(probs: np.ndarray, mask: np.ndarray, v: np.ndarray) -> np.ndarray:
    """sum over the keys in the mask of probs * v."""
    if np.all(np.isfinite(v)):
        return probs @ v
    out = np.zeros((*probs.shape[:3], v.shape[-1]))
    with np.errstate(all="ignore"):
        for b, h, i in np.ndindex(probs.shape[:3]):
            keys = mask[b, h, i]
            out[b, h, i] = np.sum(probs[b, h, i, keys, None] * v[b, h, keys], axis=0)
    return out


def attention_with_kv_cache(
    x: Any,
    k_cache: Any,
    v_cache: Any,
    pos: Any,
    mask: np.ndarray,
    *,
    weights: AttentionWeights,
    num_heads: int,
    num_kv_heads: int | None = None,
    rope: Rope | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    lengths: Any = None,
    norm: norm.LayerNorm | norm.RMSNorm | None = None,
    residual: Any = None,
    post_norm: norm.LayerNorm | norm.RMSNorm | None = None,
    layer: int | None = None,
) -> dict[str, np.ndarray]:
    """Steps: `norm q k v q_rope k_rope k_cache v_cache scores probs context proj summed out`, and `lse`.

    x [batch, q_len, hidden]; caches [(layers,) batch, kv_heads, max_seq, head_dim]; pos int scalar or [batch]; mask
    bool [batch | 1, heads | 1, q_len, max_seq], to which this adds that only written keys and valid rows attend.
    Heads are split in `q k v` ... `v_cache`: [batch, heads, q_len, head_dim]. `context` too; `proj` and later steps are
    [batch, q_len, hidden]. Steps that the arguments leave out are missing. Rows of `out` beyond their length are 0; a
    sequence that does not fit into the cache has its cache unchanged and NaN in `out`.
    """
    x = np.asarray(x).astype(np.float64)
    batch, q_len, _ = x.shape
    k_cache, v_cache = (np.asarray(c).astype(np.float64) for c in (k_cache, v_cache))
    max_seq = k_cache.shape[-2]
    pos = np.broadcast_to(np.asarray(pos), (batch,)).astype(np.int64)
    steps = _project(x, pos, weights, num_heads, num_kv_heads, rope, norm)
    new_k, new_v = steps["k_rope" if rope is not None else "k"], steps["v"]
    steps |= kv_cache.kv_cache_update(k_cache, v_cache, new_k, new_v, pos, lengths=lengths, layer=layer)
    keys, values = steps["k_cache"], steps["v_cache"]
    ok = kv_cache.fits(pos, lengths, batch, q_len, max_seq)
    if layer is not None:
        ok = ok & (0 <= layer < keys.shape[0])
        keys, values = (keys[layer], values[layer]) if 0 <= layer < keys.shape[0] else (keys[0], values[0])
    return _attend(
        steps, keys, values, mask, pos, weights, scale, softcap, lengths, residual, post_norm, ok, rope is not None
    )


def self_attention(
    x: Any,
    mask: np.ndarray,
    *,
    weights: AttentionWeights,
    num_heads: int,
    num_kv_heads: int | None = None,
    rope: Rope | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    lengths: Any = None,
    norm: norm.LayerNorm | norm.RMSNorm | None = None,
    residual: Any = None,
    post_norm: norm.LayerNorm | norm.RMSNorm | None = None,
) -> dict[str, np.ndarray]:
    """`attention_with_kv_cache` without the cache: the keys are those of x itself, mask [.., .., q_len, q_len]."""
    x = np.asarray(x).astype(np.float64)
    batch, q_len, _ = x.shape
    pos = np.zeros(batch, np.int64)
    steps = _project(x, pos, weights, num_heads, num_kv_heads, rope, norm)
    keys, values = steps["k_rope" if rope is not None else "k"], steps["v"]
    ok = kv_cache.fits(pos, lengths, batch, q_len, q_len)
    return _attend(
        steps, keys, values, mask, pos, weights, scale, softcap, lengths, residual, post_norm, ok, rope is not None
    )


def _project(
    x: np.ndarray,
    pos: np.ndarray,
    weights: AttentionWeights,
    num_heads: int,
    num_kv_heads: int | None,
    rope: Rope | None,
    pre_norm: Any,
) -> dict[str, np.ndarray]:
    steps: dict[str, np.ndarray] = {}
    if pre_norm is not None:
        x = steps["norm"] = norm.normalize(pre_norm, x)
    num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
    steps["q"] = _split(linear(x, weights.w_q, weights.b_q)["out"], num_heads)
    steps["k"] = _split(linear(x, weights.w_k, weights.b_k)["out"], num_kv_heads)
    steps["v"] = _split(linear(x, weights.w_v, weights.b_v)["out"], num_kv_heads)
    if rope is not None:
        for name in ("q", "k"):
            steps[f"{name}_rope"] = rotate(steps[name], pos, rope.cos, rope.sin, style=rope.style)["out"]
    return steps


def _attend(
    steps: dict[str, np.ndarray],
    keys: np.ndarray,
    values: np.ndarray,
    mask: np.ndarray,
    pos: np.ndarray,
    weights: AttentionWeights,
    scale: float | None,
    softcap: float | None,
    lengths: Any,
    residual: Any,
    post_norm: Any,
    ok: np.ndarray,
    rotated: bool,
) -> dict[str, np.ndarray]:
    q = steps["q_rope" if rotated else "q"]
    batch, _, q_len, _ = q.shape
    counts = np.broadcast_to(np.asarray(q_len if lengths is None else lengths), (batch,)).astype(np.int64)
    valid = masks.valid_queries(counts, q_len)
    mask = mask & masks.written(pos + counts, np.arange(keys.shape[2])) & valid
    steps |= flash_attention(q, keys, values, mask, scale=scale, softcap=softcap)
    out = steps["proj"] = linear(_merge(steps["context"]), weights.w_o, weights.b_o)["out"]
    with np.errstate(all="ignore"):
        if residual is not None:
            out = steps["summed"] = out + np.asarray(residual).astype(np.float64)
        if post_norm is not None:
            out = norm.normalize(post_norm, out)
    out = np.where(valid[:, 0], out, 0)
    steps["out"] = np.where(ok[:, None, None], out, np.nan)
    steps["lse"] = steps.pop("lse")  # not a step: behind them
    return steps


def _split(x: np.ndarray, heads: int) -> np.ndarray:
    return np.swapaxes(x.reshape(*x.shape[:2], heads, x.shape[2] // heads), 1, 2)


def _merge(x: np.ndarray) -> np.ndarray:
    x = np.swapaxes(x, 1, 2)
    return x.reshape(*x.shape[:2], x.shape[2] * x.shape[3])
