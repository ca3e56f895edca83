"""Time of one decode step against the cache's size: flat, because a donated cache is written in place.

    python benchmarks/decode.py [--layers 4] [--position 500] [--json FILE]

One step is `attention_with_kv_cache` on every layer of stacked caches (SmolLM2-135M's heads: 9 query, 3 key and value,
head_dim 64), at one position, so that only the cache's allocation grows. "call" is one jitted call per step with
donated caches, "loop" the same step inside one jitted `lax.while_loop`. Sizes are interleaved, medians of rounds.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import atbfn

SIZES = (1024, 4096, 16384, 65536)
HEADS, KV_HEADS, HEAD_DIM, HIDDEN = 9, 3, 64, 576
LOOP_STEPS = 20

Step = Callable[[jax.Array, jax.Array, jax.Array, Any], tuple[jax.Array, jax.Array, jax.Array]]


def _weights(dtype: Any) -> atbfn.AttentionWeights:
    keys = jax.random.split(jax.random.key(0), 4)
    sizes = (HEADS * HEAD_DIM, HIDDEN), (KV_HEADS * HEAD_DIM, HIDDEN), (KV_HEADS * HEAD_DIM, HIDDEN), (HIDDEN, HIDDEN)
    drawn = (jax.random.normal(k, s, jnp.float32) * HIDDEN**-0.5 for k, s in zip(keys, sizes, strict=True))
    return atbfn.AttentionWeights(*(w.astype(dtype) for w in drawn))


def _step(weights: atbfn.AttentionWeights, layers: int, target: str) -> Step:
    def step(x: jax.Array, k: jax.Array, v: jax.Array, pos: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
        def layer(carry: tuple[jax.Array, ...], index: jax.Array) -> tuple[tuple[jax.Array, ...], None]:
            x, k, v = carry
            heads = {"num_heads": HEADS, "num_kv_heads": KV_HEADS}
            out, k, v = atbfn.attention_with_kv_cache(x, k, v, pos, weights=weights, **heads, layer=index)
            return (out, k, v), None

        with atbfn.fusion(target=target):
            return jax.lax.scan(layer, (x, k, v), jnp.arange(layers, dtype=jnp.int32))[0]

    return step


def _loop(step: Step) -> Step:
    def run(x: jax.Array, k: jax.Array, v: jax.Array, pos: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
        def body(carry: tuple[Any, ...]) -> tuple[Any, ...]:
            i, x, k, v = carry
            return (i + 1, *step(x, k, v, pos))

        return jax.lax.while_loop(lambda carry: carry[0] < LOOP_STEPS, body, (0, x, k, v))[1:]

    return run


def measure(dtype: Any, target: str, layers: int, position: int, rounds: int) -> dict[str, dict[int, float]]:
    """Median milliseconds per step, by way of calling and max_seq."""
    step = _step(_weights(dtype), layers, target)
    call, loop = (jax.jit(fn, donate_argnums=(1, 2)) for fn in (step, _loop(step)))
    ways = {"call": (call, 1), "loop": (loop, LOOP_STEPS)}
    x, pos = jnp.ones((1, 1, HIDDEN), dtype), jnp.int32(position)
    caches = {
        (way, size): tuple(jnp.zeros((layers, 1, KV_HEADS, size, HEAD_DIM), dtype) for _ in "kv")
        for way in ways
        for size in SIZES
    }
    times: dict[tuple[str, int], list[float]] = {key: [] for key in caches}
    for turn in range(rounds + 1):
        for (way, size), (k, v) in caches.items():
            fn, steps = ways[way]
            repeats = 1 if way == "loop" else LOOP_STEPS
            start = time.perf_counter()
            for _ in range(repeats):
                _, k, v = fn(x, k, v, pos)
            jax.block_until_ready(k)
            caches[way, size] = (k, v)
            if turn:  # the first turn compiles
                times[way, size].append((time.perf_counter() - start) / (repeats * steps) * 1e3)
    return {way: {size: statistics.median(times[way, size]) for size in SIZES} for way in ways}


def main() -> None:
    """Print the table, and write it as JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--position", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    print(f"python {sys.version.split()[0]}, jax {jax.__version__}; ms per step of {options.layers} layers")
    print(f"{'dtype':10}{'target':8}{'way':6}" + "".join(f"{size:>10}" for size in SIZES) + "   last / first")
    rows = []
    for dtype in ("float32", "float16", "bfloat16"):
        for target in ("xla", "auto"):
            found = measure(jnp.dtype(dtype), target, options.layers, options.position, options.rounds)
            for way, by_size in found.items():
                growth = by_size[SIZES[-1]] / by_size[SIZES[0]]
                cells = "".join(f"{ms:10.3f}" for ms in by_size.values())
                print(f"{dtype:10}{target:8}{way:6}{cells}{growth:12.2f}x", flush=True)
                rows.append({"dtype": dtype, "target": target, "way": way, "ms": by_size, "growth": growth})
    if options.json:
        options.json.write_text(json.dumps({"jax": jax.__version__, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
