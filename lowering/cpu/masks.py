"""Masks as the native attention takes them: an interval of keys for each row, and at most one of each kind of array."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from atbfn.primitives.masks import Allowed, And, BlockSparse, Causal, Full, Mask, PrefixLM, Segments

_BEYOND = 2**30  # as in primitives.masks: more than any sequence has tokens


@dataclasses.dataclass(frozen=True)
class NativeMask:
    """`settings` are static: causal, window (0 none), global_tokens, block_size. The arrays are None where absent."""

    settings: tuple[int, int, int, int]
    prefix: Any = None
    q_ids: Any = None
    kv_ids: Any = None
    blocks: Any = None
    allowed: Any = None

    @property
    def operands(self) -> tuple[Any, ...]:
        """In the order of the handlers."""
        return (self.prefix, self.q_ids, self.kv_ids, self.blocks, self.allowed)


def _parts(mask: Mask) -> tuple[Mask, ...]:
    return mask.masks if isinstance(mask, And) else (mask,)


def refuses(mask: Mask) -> str | None:
    """Why the kernels cannot take a mask, or None. Looks at its kinds and shapes only."""
    parts = _parts(mask)
    for kind in (BlockSparse, Segments, Allowed):
        if sum(isinstance(part, kind) for part in parts) > 1:
            return f"the native attention takes one {kind.__name__} mask, not several joined with &"
    windows = [part for part in parts if isinstance(part, Causal) and part.window is not None]
    if len({(part.window, part.global_tokens) for part in windows}) > 1:
        return "the native attention takes one window, not several joined with &"
    for part in parts:
        if type(part) not in (Causal, Full, PrefixLM, BlockSparse, Segments, Allowed):
            return f"the native attention does not know {type(part).__name__}"
        if isinstance(part, Segments) and part.q_ids.dtype.itemsize > 4:
            return "the native attention takes segment numbers of at most 32 bits"
    return None


def native_mask(mask: Mask) -> NativeMask:
    """The mask of a call that was not refused."""
    parts = _parts(mask)
    found = NativeMask((0, 0, 0, 1))
    causal, window, leading, block_size = 0, 0, 0, 1
    prefix: Any = None
    for part in parts:
        if isinstance(part, Causal):
            causal = 1
            if part.window is not None:
                window, leading = min(part.window, _BEYOND), min(part.global_tokens, _BEYOND)
        elif isinstance(part, PrefixLM):
            n = jnp.asarray(part.n, jnp.int32).reshape(-1)
            prefix = n if prefix is None else jnp.minimum(prefix, n)
        elif isinstance(part, BlockSparse):
            block_size = min(part.block_size, _BEYOND)
            found = dataclasses.replace(found, blocks=jnp.asarray(part.blocks))
        elif isinstance(part, Segments):
            q_ids, kv_ids = (jnp.asarray(x).astype(jnp.int32) for x in (part.q_ids, part.kv_ids))
            found = dataclasses.replace(found, q_ids=q_ids, kv_ids=kv_ids)
        elif isinstance(part, Allowed):
            found = dataclasses.replace(found, allowed=jnp.asarray(part.allowed))
    if prefix is not None and not causal:
        # Keys at or before the query and those of the prefix: an open end further on. Joined with a causal mask the
        # prefix allows nothing more.
        found = dataclasses.replace(found, prefix=prefix)
        causal = 1
    return dataclasses.replace(found, settings=(causal, window, leading, block_size))


def settings_attribute(mask: NativeMask) -> Any:
    """The static settings as an attribute of a call."""
    return np.asarray(mask.settings, np.int64)
