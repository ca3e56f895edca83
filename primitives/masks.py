"""Which keys a query may attend: mask objects, their meaning and their cost bounds.

Query row i has position `pos + i`; keys are numbered from 0. Without a cache `pos = kv_len - q_len`, so a causal mask
is aligned bottom-right. A mask never has to speak of keys that are not written yet: attention adds that itself.
Masks are pytrees: their kind and static numbers are part of the compiled program, their arrays are traced.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from atbfn.primitives.errors import bad_type, bad_value

_BEYOND = 2**30  # more than any sequence has tokens, and far enough from the end of int32


def _mask(cls: type) -> type:
    fields = dataclasses.fields(cls)
    return jax.tree_util.register_dataclass(
        cls,
        data_fields=[f.name for f in fields if not f.metadata.get("static")],
        meta_fields=[f.name for f in fields if f.metadata.get("static")],
    )


def _query_positions(q_start: Any, q_size: int, pos: Any) -> jax.Array:
    """int32 [batch | 1, 1, q_size, 1]."""
    pos = jnp.asarray(pos, jnp.int32).reshape(-1, 1, 1, 1)
    return pos + q_start + jnp.arange(q_size, dtype=jnp.int32).reshape(1, 1, -1, 1)


def _key_positions(kv_start: Any, kv_size: int) -> jax.Array:
    """int32 [1, 1, 1, kv_size]."""
    return kv_start + jnp.arange(kv_size, dtype=jnp.int32).reshape(1, 1, 1, -1)


class Mask:
    """Base of all masks. `a & b` allows what both allow."""

    def __and__(self, other: Mask) -> Mask:
        if not isinstance(other, Mask):
            return NotImplemented
        return And((*_parts(self), *_parts(other)))

    def block(self, q_start: Any, q_size: int, kv_start: Any, kv_size: int, pos: Any) -> jax.Array:
        """What a block of queries may attend in a block of keys.

        Args:
          q_start, kv_start: first row and first key of the block, int or traced int32; the block lies in bounds.
          q_size, kv_size: static sizes.
          pos: int32 scalar or [batch], the position of query row 0.

        Returns:
          bool, broadcastable to [batch, heads, q_size, kv_size].
        """
        raise NotImplementedError

    def kv_bounds(self, q_lo: Any, q_hi: Any, kv_len: Any) -> tuple[Any, Any]:
        """A range `lo, hi` of key numbers outside which queries at positions `q_lo .. q_hi` attend nothing."""
        return 0, kv_len

    def validate(self, operator: str, batch: Any, num_heads: int, q_len: Any, kv_len: Any) -> None:
        """Raise if an array of the mask does not fit an attention of these sizes."""


def _parts(mask: Mask) -> tuple[Mask, ...]:
    return mask.masks if isinstance(mask, And) else (mask,)


@_mask
@dataclasses.dataclass(frozen=True)
class Full(Mask):
    """Every key."""

    def block(self, q_start: Any, q_size: int, kv_start: Any, kv_size: int, pos: Any) -> jax.Array:
        return jnp.ones((1, 1, 1, 1), bool)


@_mask
@dataclasses.dataclass(frozen=True)
class Causal(Mask):
    """Keys at or before the query's position, optionally only the last `window` of them and the first `global_tokens`.

    A query at position q attends key k when `k <= q` and (`q - k < window` or `k < global_tokens`): a window of 1 is
    the query itself.
    """

    window: int | None = dataclasses.field(default=None, metadata={"static": True})
    global_tokens: int = dataclasses.field(default=0, metadata={"static": True})

    def __post_init__(self) -> None:
        if self.window is not None and (not _is_int(self.window) or self.window < 1):
            bad_value(
                "Causal",
                "window",
                repr(self.window),
                "None or an int of at least 1",
                "pass how many keys each query sees, itself included",
            )
        if not _is_int(self.global_tokens) or self.global_tokens < 0:
            bad_value(
                "Causal",
                "global_tokens",
                repr(self.global_tokens),
                "an int of at least 0",
                "pass how many leading keys every query sees",
            )
        if self.global_tokens and self.window is None:
            bad_value(
                "Causal",
                "global_tokens",
                self.global_tokens,
                "0 when there is no window",
                "pass window= too: without one every earlier key is attended already",
            )

    def block(self, q_start: Any, q_size: int, kv_start: Any, kv_size: int, pos: Any) -> jax.Array:
        q = _query_positions(q_start, q_size, pos)
        k = _key_positions(kv_start, kv_size)
        allowed = k <= q
        if self.window is not None:
            allowed &= (q - k < min(self.window, _BEYOND)) | (k < min(self.global_tokens, _BEYOND))
        return allowed

    def kv_bounds(self, q_lo: Any, q_hi: Any, kv_len: Any) -> tuple[Any, Any]:
        low = 0 if self.window is None or self.global_tokens else jnp.maximum(q_lo - min(self.window, _BEYOND) + 1, 0)
        return low, jnp.minimum(q_hi + 1, kv_len)


@_mask
@dataclasses.dataclass(frozen=True)
class PrefixLM(Mask):
    """Causal, and the first `n` keys are open to every query. `n`: int, or int32 scalar or [batch]."""

    n: Any

    def block(self, q_start: Any, q_size: int, kv_start: Any, kv_size: int, pos: Any) -> jax.Array:
        k = _key_positions(kv_start, kv_size)
        return (k <= _query_positions(q_start, q_size, pos)) | (k < jnp.asarray(self.n).reshape(-1, 1, 1, 1))

    def kv_bounds(self, q_lo: Any, q_hi: Any, kv_len: Any) -> tuple[Any, Any]:
        return 0, jnp.minimum(jnp.maximum(q_hi + 1, jnp.max(jnp.asarray(self.n))), kv_len)

    def validate(self, operator: str, batch: Any, num_heads: int, q_len: Any, kv_len: Any) -> None:
        _check_integer(operator, "mask.n", self.n)
        _check_shape(
            operator, "mask.n", np.shape(self.n), [(), (1,), (batch,)], "PrefixLM takes one n or one per sequence"
        )


@_mask
@dataclasses.dataclass(frozen=True)
class BlockSparse(Mask):
    """Whole blocks switched on and off.

    Query position q attends key k when `blocks[head, q // block_size, k // block_size]`.
    `blocks`: bool [heads | 1, q_blocks, kv_blocks], numbered by absolute position.
    """

    blocks: Any
    block_size: int = dataclasses.field(metadata={"static": True})

    def __post_init__(self) -> None:
        if not _is_int(self.block_size) or self.block_size < 1:
            bad_value(
                "BlockSparse",
                "block_size",
                repr(self.block_size),
                "an int of at least 1",
                "pass the side of a block in tokens",
            )

    def block(self, q_start: Any, q_size: int, kv_start: Any, kv_size: int, pos: Any) -> jax.Array:
        q = _query_positions(q_start, q_size, pos)[:, 0, :, 0] // self.block_size  # [batch | 1, q]
        k = _key_positions(kv_start, kv_size)[0, 0, 0] // self.block_size  # [kv]
        blocks = jnp.asarray(self.blocks)
        columns = blocks.at[:, :, k].get(mode="fill", fill_value=False)  # [heads | 1, q_blocks, kv]
        # A query before position 0 (more queries than keys) lies in no block; it must not count from the end.
        rows = columns.at[:, q, :].get(  # [heads | 1, batch | 1, q, kv]
            mode="fill", fill_value=False, wrap_negative_indices=False
        )
        return jnp.moveaxis(rows, 1, 0)

    def validate(self, operator: str, batch: Any, num_heads: int, q_len: Any, kv_len: Any) -> None:
        _check_bool(operator, "mask.blocks", self.blocks)
        shape = np.shape(self.blocks)
        need = -(-kv_len // self.block_size) if _is_int(kv_len) else None
        if len(shape) != 3 or shape[0] not in (1, num_heads) or (need is not None and min(shape[1:]) < need):
            bad_value(
                operator,
                "mask.blocks",
                f"shape {shape}",
                f"[1 or {num_heads}, >= {need}, >= {need}] for {kv_len} positions in blocks of {self.block_size}",
                "cover every position with a block",
            )


@_mask
@dataclasses.dataclass(frozen=True)
class Segments(Mask):
    """Queries attend keys of their own segment. `q_ids` int [batch | 1, q_len], `kv_ids` int [batch | 1, kv_len]."""

    q_ids: Any
    kv_ids: Any

    def block(self, q_start: Any, q_size: int, kv_start: Any, kv_size: int, pos: Any) -> jax.Array:
        q = jax.lax.dynamic_slice_in_dim(jnp.asarray(self.q_ids), q_start, q_size, axis=1)
        k = jax.lax.dynamic_slice_in_dim(jnp.asarray(self.kv_ids), kv_start, kv_size, axis=1)
        return q[:, None, :, None] == k[:, None, None, :]

    def validate(self, operator: str, batch: Any, num_heads: int, q_len: Any, kv_len: Any) -> None:
        for name, ids, length in (("q_ids", self.q_ids, q_len), ("kv_ids", self.kv_ids, kv_len)):
            _check_integer(operator, f"mask.{name}", ids)
            _check_shape(
                operator,
                f"mask.{name}",
                np.shape(ids),
                [(1, length), (batch, length)],
                "give one segment number per token",
            )
        kinds = [jax.dtypes.canonicalize_dtype(ids.dtype) for ids in (self.q_ids, self.kv_ids)]
        if kinds[0] != kinds[1]:  # of numbers of two kinds, some would compare equal that are not
            bad_type(
                operator, "mask.kv_ids", f"dtype {kinds[1]}", f"{kinds[0]}, the dtype of mask.q_ids", "cast one of them"
            )


@_mask
@dataclasses.dataclass(frozen=True)
class Allowed(Mask):
    """An explicit mask: bool [batch | 1, heads | 1, q_len, kv_len], True where the query may attend the key.

    Rows and keys are by index: with a cache, kv_len is the cache's max_seq.
    """

    allowed: Any

    def block(self, q_start: Any, q_size: int, kv_start: Any, kv_size: int, pos: Any) -> jax.Array:
        rows = jax.lax.dynamic_slice_in_dim(jnp.asarray(self.allowed), q_start, q_size, axis=2)
        return jax.lax.dynamic_slice_in_dim(rows, kv_start, kv_size, axis=3)

    def validate(self, operator: str, batch: Any, num_heads: int, q_len: Any, kv_len: Any) -> None:
        _check_bool(operator, "mask.allowed", self.allowed)
        shapes = [(b, h, q_len, kv_len) for b in (1, batch) for h in (1, num_heads)]
        _check_shape(
            operator,
            "mask.allowed",
            np.shape(self.allowed),
            shapes,
            "broadcast or slice it to [batch | 1, heads | 1, q_len, kv_len]",
        )


@_mask
@dataclasses.dataclass(frozen=True)
class And(Mask):
    """What every one of `masks` allows; made by `a & b`."""

    masks: tuple[Mask, ...]

    def block(self, q_start: Any, q_size: int, kv_start: Any, kv_size: int, pos: Any) -> jax.Array:
        allowed = self.masks[0].block(q_start, q_size, kv_start, kv_size, pos)
        for mask in self.masks[1:]:
            allowed = allowed & mask.block(q_start, q_size, kv_start, kv_size, pos)
        return allowed

    def kv_bounds(self, q_lo: Any, q_hi: Any, kv_len: Any) -> tuple[Any, Any]:
        bounds = [mask.kv_bounds(q_lo, q_hi, kv_len) for mask in self.masks]
        low, high = bounds[0]
        for lo, hi in bounds[1:]:
            low, high = jnp.maximum(low, lo), jnp.minimum(high, hi)
        return low, high

    def validate(self, operator: str, batch: Any, num_heads: int, q_len: Any, kv_len: Any) -> None:
        for mask in self.masks:
            mask.validate(operator, batch, num_heads, q_len, kv_len)


def _is_int(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _check_array(operator: str, argument: str, array: Any) -> Any:
    """The dtype of an array, or of a single number."""
    if not isinstance(array, (jax.Array, np.ndarray, np.generic, int, float)):
        bad_type(operator, argument, type(array).__name__, "an array", "pass a jax or numpy array")
    return np.asarray(array).dtype if isinstance(array, (int, float)) else array.dtype


def _check_integer(operator: str, argument: str, array: Any) -> None:
    dtype = _check_array(operator, argument, array)
    if not jnp.issubdtype(dtype, jnp.integer):
        bad_type(operator, argument, f"dtype {dtype}", "an integer dtype", "convert it with .astype(jnp.int32)")
    if isinstance(array, jax.Array) or not np.size(array):
        return
    # A conversion to the dtype that JAX makes of it would wrap a larger number around without a word.
    info, values = np.iinfo(jax.dtypes.canonicalize_dtype(dtype)), np.asarray(array)
    if not info.min <= values.min() <= values.max() <= info.max:
        got = values.tolist() if values.size == 1 else f"numbers up to {values.max()}"
        bad_value(operator, argument, got, f"values that fit {info.dtype}", "number them from 0")


def _check_bool(operator: str, argument: str, array: Any) -> None:
    dtype = _check_array(operator, argument, array)
    if dtype != jnp.bool_:
        bad_type(
            operator,
            argument,
            f"dtype {dtype}",
            "bool, True where the query may attend",
            "compare or convert it first; additive masks are not masks here",
        )


def _check_shape(
    operator: str, argument: str, shape: tuple[Any, ...], allowed: list[tuple[Any, ...]], fix: str
) -> None:
    if shape not in allowed:
        choices = " or ".join(str(s) for s in dict.fromkeys(allowed))
        bad_value(operator, argument, f"shape {shape}", f"shape {choices}", fix)
