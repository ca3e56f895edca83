"""Time of one cache write (one row, batch 1, 8 kv heads, head_dim 64) against max_seq, in microseconds.

    python benchmarks/kv_cache.py

The native write is compared with `jax.lax.dynamic_update_slice`, both on donated caches: called at top level, and per
step of a scan and of a while loop. An update in place takes the same time at every size.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from atbfn.lowering.cpu import kv_cache, native

HEADS, HEAD_DIM = 8, 64
STEPS = 50
SIZES = (1024, 4096, 16384, 65536)

Caches = tuple[jax.Array, jax.Array]
Write = Callable[[Caches, jax.Array, jax.Array], Caches]


def native_write(caches: Caches, row: jax.Array, pos: jax.Array) -> Caches:
    return kv_cache.write(*caches, row, row, pos[None], jnp.ones((1,), jnp.int32))


def xla_write(caches: Caches, row: jax.Array, pos: jax.Array) -> Caches:
    zero = jnp.int32(0)
    k_cache, v_cache = (jax.lax.dynamic_update_slice(c, row, (zero, zero, pos, zero)) for c in caches)
    return k_cache, v_cache


def top_level(write: Write) -> Callable[..., Caches]:
    return lambda k_cache, v_cache, row, pos: write((k_cache, v_cache), row, pos)


def in_scan(write: Write) -> Callable[..., Caches]:
    def run(k_cache: jax.Array, v_cache: jax.Array, row: jax.Array, pos: jax.Array) -> Caches:
        steps = pos + jnp.arange(STEPS, dtype=jnp.int32)
        return jax.lax.scan(lambda c, p: (write(c, row, p), None), (k_cache, v_cache), steps)[0]

    return run


def in_while(write: Write) -> Callable[..., Caches]:
    def run(k_cache: jax.Array, v_cache: jax.Array, row: jax.Array, pos: jax.Array) -> Caches:
        def body(carry: tuple[jax.Array, Caches]) -> tuple[jax.Array, Caches]:
            return carry[0] + 1, write(carry[1], row, carry[0])

        return jax.lax.while_loop(lambda carry: carry[0] < pos + STEPS, body, (pos, (k_cache, v_cache)))[1]

    return run


FORMS: dict[str, tuple[Callable[[Write], Callable[..., Caches]], int]] = {
    "top level": (top_level, 1),
    "scan": (in_scan, STEPS),
    "while": (in_while, STEPS),
}


def microseconds(fn: Callable[..., Caches], steps: int, dtype: Any, max_seq: int) -> float:
    """The median of 15 runs, after one to compile."""
    step = jax.jit(fn, donate_argnums=(0, 1))
    caches = (jnp.zeros((1, HEADS, max_seq, HEAD_DIM), dtype), jnp.ones((1, HEADS, max_seq, HEAD_DIM), dtype))
    row, pos = jnp.ones((1, HEADS, 1, HEAD_DIM), dtype), jnp.int32(3)
    caches = jax.block_until_ready(step(*caches, row, pos))
    times = []
    for _ in range(15):
        start = time.perf_counter()
        caches = jax.block_until_ready(step(*caches, row, pos))
        times.append((time.perf_counter() - start) / steps)
    return statistics.median(times) * 1e6


def main() -> None:
    print(f"jax {jax.__version__}, {jax.default_backend()}; microseconds per write of k and v")
    writes = {"dynamic_update_slice": xla_write}
    if native.available():
        writes["native"] = native_write
    else:
        print(f"no native write: {native.reason()}")
    print(f"{'dtype':10}{'where':11}{'write':22}" + "".join(f"{size:>10}" for size in SIZES))
    for dtype in (jnp.bfloat16, jnp.float16, jnp.float32):
        for where, (form, steps) in FORMS.items():
            for name, write in writes.items():
                times = [microseconds(form(write), steps, dtype, size) for size in SIZES]
                print(f"{jnp.dtype(dtype).name:10}{where:11}{name:22}" + "".join(f"{t:10.1f}" for t in times))


if __name__ == "__main__":
    main()
