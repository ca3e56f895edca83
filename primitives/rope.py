"""Rotary position embedding: Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from atbfn.primitives.errors import bad_type, bad_value
from atbfn.primitives.operator import Operator, Outputs, like
from atbfn.primitives.precision import widen


class Scaling(Protocol):
    """How a longer context was obtained: LinearScaling, Llama3Scaling, or what a checkpoint brings."""

    def apply(self, frequencies: np.ndarray) -> np.ndarray:
        """Scaled frequencies, in radians per token like the ones given."""
        ...


def _check_factor(kind: str, factor: float) -> None:
    if not (factor > 0 and math.isfinite(factor)):
        bad_value(kind, "factor", factor, "a positive number", "pass the checkpoint's rope_scaling values")


@dataclasses.dataclass(frozen=True)
class LinearScaling:
    """Positions divided by `factor` (position interpolation: Chen et al., 2023)."""

    factor: float

    def __post_init__(self) -> None:
        _check_factor("LinearScaling", self.factor)

    def apply(self, frequencies: np.ndarray) -> np.ndarray:
        """Scaled frequencies in radians per token."""
        return frequencies / self.factor


@dataclasses.dataclass(frozen=True)
class Llama3Scaling:
    """The scaling of Llama 3.1: low frequencies are divided by `factor`, high ones kept, a ramp between them.

    Args:
      factor: divisor of the low frequencies.
      low_freq_factor, high_freq_factor: wavelengths above `original_max_positions / low_freq_factor` are low
        frequencies, those below `original_max_positions / high_freq_factor` are high ones.
      original_max_positions: the context length that the model was first trained with.
    """

    factor: float = 8.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 8192

    def __post_init__(self) -> None:
        _check_factor("Llama3Scaling", self.factor)
        if not self.high_freq_factor > self.low_freq_factor:
            bad_value(
                "Llama3Scaling",
                "high_freq_factor",
                self.high_freq_factor,
                f"more than low_freq_factor ({self.low_freq_factor})",
                "pass the checkpoint's rope_scaling values",
            )

    def apply(self, frequencies: np.ndarray) -> np.ndarray:
        """Scaled frequencies in radians per token."""
        wavelengths = 2 * math.pi / frequencies
        ramp = (self.original_max_positions / wavelengths - self.low_freq_factor) / (
            self.high_freq_factor - self.low_freq_factor
        )
        keep = np.clip(ramp, 0.0, 1.0)
        return keep * frequencies + (1 - keep) * frequencies / self.factor


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Rope:
    """Tables of a rotary embedding.

    Args:
      cos, sin: float32 [max_positions, rotary_dim // 2]. rotary_dim may be less than head_dim: the rest of each head
        passes through.
      style: "half" pairs element i with i + rotary_dim / 2 (as in HF Llama checkpoints), "interleaved" pairs 2 i with
        2 i + 1 (as in the paper).
    """

    cos: Any
    sin: Any
    style: str = dataclasses.field(default="half", metadata={"static": True})

    def __post_init__(self) -> None:
        if self.style not in ("half", "interleaved"):
            bad_value("Rope", "style", repr(self.style), "'half' or 'interleaved'", "HF Llama checkpoints use 'half'")

    @classmethod
    def create(
        cls,
        head_dim: int,
        max_positions: int,
        *,
        theta: float = 10000.0,
        scaling: Scaling | None = None,
        style: str = "half",
        rotary_dim: int | None = None,
    ) -> Rope:
        """Tables for positions 0 .. max_positions - 1, computed in float64 and stored in float32.

        Args:
          head_dim: size of a head, even.
          max_positions: at least the cache's max_seq.
          theta: base of the geometric series of wavelengths.
          scaling: how a longer context was obtained; None for none.
          style: see `Rope`.
          rotary_dim: how many leading elements of a head rotate; None for all.

        Raises:
          ValueError: rotary_dim is odd or larger than head_dim, or theta or max_positions is not positive.
        """
        rotary_dim = head_dim if rotary_dim is None else rotary_dim
        for name, value in (("head_dim", head_dim), ("max_positions", max_positions), ("rotary_dim", rotary_dim)):
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
                bad_type("Rope.create", name, type(value).__name__, "an int", "pass the model's number")
        if rotary_dim % 2 or not 0 < rotary_dim <= head_dim:
            bad_value(
                "Rope.create",
                "rotary_dim",
                rotary_dim,
                f"an even number of at most head_dim={head_dim}",
                "rotation works on pairs",
            )
        if not 0 < theta < math.inf:
            bad_value("Rope.create", "theta", theta, "a positive number", "pass the checkpoint's rope_theta")
        if max_positions < 1:
            bad_value("Rope.create", "max_positions", max_positions, "at least 1", "pass the cache's max_seq")
        frequencies = theta ** (-np.arange(0, rotary_dim, 2, dtype=np.float64) / rotary_dim)
        if scaling is not None:
            frequencies = np.asarray(scaling.apply(frequencies))
            if frequencies.shape != (rotary_dim // 2,) or not np.isfinite(frequencies).all():
                bad_value(
                    "Rope.create",
                    "scaling",
                    f"{scaling}, which gives frequencies that are not finite, or not {rotary_dim // 2} of them",
                    "one finite frequency for each pair",
                    "pass the checkpoint's rope_scaling values",
                )
        angles = np.outer(np.arange(max_positions, dtype=np.float64), frequencies)
        return cls(jnp.asarray(np.cos(angles), jnp.float32), jnp.asarray(np.sin(angles), jnp.float32), style)


def rotate(x: jax.Array, pos: jax.Array, table: Rope) -> jax.Array:
    """`x` [batch, heads, q_len, head_dim] rotated for positions pos + i, in the accumulator dtype, not rounded.

    Positions outside the table give NaN: nothing passes as a plausible number.
    """
    half = table.cos.shape[-1]
    positions = jnp.asarray(pos, jnp.int32).reshape(-1, 1) + jnp.arange(x.shape[-2], dtype=jnp.int32)
    wide = widen(x)

    def rows(angles: Any) -> jax.Array:  # [batch | 1, 1, q_len, half]
        return (
            jnp.asarray(angles)
            .at[positions]
            .get(mode="fill", fill_value=jnp.nan, wrap_negative_indices=False)[:, None]
            .astype(wide.dtype)
        )

    cos, sin = rows(table.cos), rows(table.sin)
    turned, rest = wide[..., : 2 * half], wide[..., 2 * half :]
    if table.style == "half":
        a, b = turned[..., :half], turned[..., half:]
        out = jnp.concatenate([a * cos - b * sin, b * cos + a * sin, rest], axis=-1)
    else:
        a, b = turned[..., 0::2], turned[..., 1::2]
        pairs = jnp.stack([a * cos - b * sin, b * cos + a * sin], axis=-1).reshape(turned.shape)
        out = jnp.concatenate([pairs, rest], axis=-1)
    return out


@dataclasses.dataclass(frozen=True)
class RopeSpec:
    """Static settings of `rope`."""

    target: str


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RopeArgs:
    """Operands of `rope`: x [batch, heads, q_len, head_dim], pos int32 scalar or [batch], the tables."""

    x: Any
    pos: Any
    table: Any


def _plain(spec: RopeSpec, args: RopeArgs) -> Outputs:
    return Outputs((rotate(args.x, args.pos, args.table).astype(args.x.dtype),))


rope = Operator("rope", plain=_plain, shapes=lambda spec, args: Outputs((like(args.x),)))
