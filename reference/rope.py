"""Rotary position embedding: Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021.

Pair j of a head is turned by the angle position * theta^(-2j / rotary_dim).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np


def frequencies(rotary_dim: int, theta: float = 10000.0) -> np.ndarray:
    """Radians per token of each pair, [rotary_dim // 2]."""
    return np.array([theta ** (-2 * j / rotary_dim) for j in range(rotary_dim // 2)], np.float64)


def llama3_frequencies(
    unscaled: np.ndarray, factor: float, low_freq_factor: float, high_freq_factor: float, original_max_positions: int
) -> np.ndarray:
    """Frequencies as Llama 3.1 scales them.

    A pair that turns at least `high_freq_factor` times within the original context keeps its frequency, one that turns
    at most `low_freq_factor` times has it divided by `factor`, and those between are mixed in proportion.
    """
    scaled = []
    for frequency in unscaled:
        turns = original_max_positions * frequency / (2 * math.pi)
        if turns >= high_freq_factor:
            scaled.append(frequency)
        elif turns <= low_freq_factor:
            scaled.append(frequency / factor)
        else:
            keep = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor)
            scaled.append((1 - keep) * frequency / factor + keep * frequency)
    return np.array(scaled, np.float64)


def tables(freqs: np.ndarray, max_positions: int) -> tuple[np.ndarray, np.ndarray]:
    """cos and sin of position * frequency, each [max_positions, rotary_dim // 2]."""
    angles = np.arange(max_positions)[:, None] * freqs
    return np.cos(angles), np.sin(angles)


def rope(x: Any, pos: Any, cos: Any, sin: Any, *, style: str = "half") -> dict[str, np.ndarray]:
    """Steps: `out`, x [batch, heads, q_len, head_dim] with row i turned for position pos + i.

    pos: int scalar or [batch]. cos, sin: [max_positions, rotary_dim // 2]; head elements from rotary_dim on stay as
    they are. style: "half" pairs j with j + rotary_dim / 2, "interleaved" pairs 2j with 2j + 1. Positions outside the
    tables give NaN.
    """
    x = np.asarray(x).astype(np.float64)
    cos, sin = np.asarray(cos).astype(np.float64), np.asarray(sin).astype(np.float64)
    batch, _, q_len, _ = x.shape
    half = cos.shape[1]
    if style == "half":
        first, second = np.arange(half), np.arange(half) + half
    elif style == "interleaved":
        first, second = 2 * np.arange(half), 2 * np.arange(half) + 1
    else:
        raise ValueError(f"rope: style: got {style!r}; expected 'half' or 'interleaved'")
    out = x.copy()
    starts = np.broadcast_to(np.asarray(pos), (batch,))
    with np.errstate(all="ignore"):
        for b in range(batch):
            for i in range(q_len):
                at = int(starts[b]) + i
                inside = 0 <= at < cos.shape[0]
                c, s = (cos[at], sin[at]) if inside else (np.full(half, np.nan),) * 2
                out[b, :, i, first] = (x[b, :, i, first].T * c - x[b, :, i, second].T * s).T
                out[b, :, i, second] = (x[b, :, i, second].T * c + x[b, :, i, first].T * s).T
    return {"out": out}
