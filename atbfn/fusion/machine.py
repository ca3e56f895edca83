"""This machine's caches and cores, and how the native kernels cut their work to fit them.

Sizes are read from the system; a machine that does not tell gets those of the smallest servers in use. Nothing here
knows a model: every block is a function of the operands' shapes and the caches.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from pathlib import Path

KB = 1024

_TILE, _GROUP = 16, 32  # what the kernels' packed operands are made of: tokens, features


@dataclasses.dataclass(frozen=True)
class Machine:
    """Sizes in bytes, of one core's own caches.

    Attributes:
      l1: first data cache.
      l2: second cache.
      cores: how many cores this process may use.
    """

    l1: int
    l2: int
    cores: int


@functools.cache
def this_machine() -> Machine:
    """The machine that this process runs on. Linux tells the caches in /sys; 32 KiB and 1 MiB where nothing does."""
    sizes = _cache_sizes(Path("/sys/devices/system/cpu/cpu0/cache"))
    return Machine(sizes.get(1, 32 * KB), sizes.get(2, 1024 * KB), len(os.sched_getaffinity(0)))


def _cache_sizes(folder: Path) -> dict[int, int]:
    """Bytes by level, of caches that hold data."""
    sizes: dict[int, int] = {}
    units = {"K": KB, "M": KB * KB}
    for index in sorted(folder.glob("index*")):
        try:
            if (index / "type").read_text().strip() == "Instruction":
                continue
            level, text = int((index / "level").read_text()), (index / "size").read_text().strip()
            sizes[level] = int(text[:-1]) * units[text[-1]] if text[-1] in units else int(text)
        except (OSError, ValueError):
            continue
    return sizes


@dataclasses.dataclass(frozen=True)
class FFNBlocking:
    """How the fused FFN is cut: `tokens` at a time, `chunk` intermediate features at a time."""

    tokens: int
    chunk: int


def _fit(length: int, most: int, multiple: int) -> int:
    """The size of equal pieces of at most `most`, a multiple of `multiple`, that `length` is cut into."""
    most = max(multiple, most // multiple * multiple)
    each = _ceil(length, _ceil(length, most))
    return max(multiple, _ceil(each, multiple) * multiple)


def _ceil(n: int, by: int) -> int:
    return -(-n // by)


def token_block(machine: Machine, tokens: int, token_bytes: int) -> int:
    """How many tokens' packed rows, of `token_bytes` each, to keep in the second cache: half of it.

    More tokens per pass over the weights read them less often from memory; what is left holds the weights of this
    moment and the next.
    """
    return _fit(max(tokens, 1), machine.l2 * 3 // 4 // max(1, token_bytes), _TILE)


def ffn_blocking(machine: Machine, tokens: int, intermediate: int, token_bytes: int, feature_bytes: int) -> FFNBlocking:
    """Blocks of `fused_ffn`, whose activated chunk takes three eighths of the second cache, beside the weights.

    Args:
      token_bytes: of one token's packed row of x.
      feature_bytes: of one packed element.
    """
    block = token_block(machine, tokens, token_bytes)
    chunk = _fit(intermediate, machine.l2 * 3 // 8 // max(1, min(block, max(tokens, 1)) * feature_bytes), _GROUP)
    return FFNBlocking(block, chunk)


@dataclasses.dataclass(frozen=True)
class AttentionBlocking:
    """How attention over many queries is cut: query rows (over all heads of a key head) and keys at a time."""

    columns: int
    keys: int


def attention_blocking(machine: Machine, head_dim: int, itemsize: int) -> AttentionBlocking:
    """Blocks of attention. A block of keys and the transposed values each take a sixteenth of the second cache; so do
    the sums of the query rows, in float32, in an eighth."""
    head_dim = max(1, head_dim)
    keys = machine.l2 // 16 // (head_dim * itemsize)
    columns = machine.l2 // 8 // (head_dim * 4)
    triple = 3 * _TILE  # what the kernels multiply together
    return AttentionBlocking(
        max(triple, min(columns // triple, 8) * triple), max(2 * _GROUP, min(keys, 1024) // _GROUP * _GROUP)
    )
