"""The native cache write against a loop over rows in NumPy: exact, in place, and harmless out of range."""

from __future__ import annotations

import concurrent.futures
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atbfn.lowering.cpu import native
from atbfn.lowering.cpu.kv_cache import TARGET, write

# tests/packaging asserts that the kernels exist wherever a C++ compiler does, so this cannot hide a broken build.
pytestmark = pytest.mark.skipif(not native.available(), reason=f"no compiled kernels: {native.reason()}")

DTYPES = [jnp.bfloat16, jnp.float16, jnp.float32, jnp.int16, jnp.uint32]


def bits(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Any bit pattern, signalling NaNs included: data movement must not look at the values."""
    size = jnp.dtype(dtype).itemsize
    return rng.integers(0, 256, (*shape, size), dtype=np.uint8).view(dtype).reshape(shape)


def expected(
    cache: np.ndarray, rows: np.ndarray, pos: np.ndarray, lengths: np.ndarray, layer: int | None
) -> np.ndarray:
    out = cache.copy()
    target = out[None] if layer is None else out
    index = 0 if layer is None else layer
    if not 0 <= index < target.shape[0]:
        return out
    for b in range(rows.shape[0]):
        p, n = int(pos[b]), int(lengths[b])
        if 0 <= n <= rows.shape[2] and p >= 0 and p + n <= cache.shape[-2]:
            target[index, b, :, p : p + n] = rows[b, :, :n]
    return out


def same(actual: jax.Array, desired: np.ndarray) -> None:
    np.testing.assert_array_equal(np.asarray(actual).view(np.uint8), desired.view(np.uint8))


@st.composite
def calls(draw: st.DrawFn) -> dict[str, Any]:
    batch, heads, head_dim = draw(st.integers(0, 3)), draw(st.integers(1, 3)), draw(st.sampled_from([1, 3, 8]))
    max_seq, q_len = draw(st.sampled_from([1, 5, 16])), draw(st.sampled_from([1, 4, 7]))
    layers = draw(st.sampled_from([None, 1, 3]))
    int32 = st.integers(-(2**31), 2**31 - 1)
    one_of = st.one_of(st.integers(-2, max_seq + 2), st.integers(0, max_seq), int32)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    dtype = draw(st.sampled_from(DTYPES))
    lead = () if layers is None else (layers,)
    caches = [bits(rng, (*lead, batch, heads, max_seq, head_dim), dtype) for _ in range(2)]
    rows = [bits(rng, (batch, heads, q_len, head_dim), dtype) for _ in range(2)]
    pos = np.array(draw(st.lists(one_of, min_size=batch, max_size=batch)), np.int32)
    lengths = np.array(
        draw(st.lists(st.one_of(st.integers(-1, q_len + 1), int32), min_size=batch, max_size=batch)), np.int32
    )
    layer = None if layers is None else draw(st.integers(-1, layers))
    return {"caches": caches, "rows": rows, "pos": pos, "lengths": lengths, "layer": layer}


@given(calls(), st.booleans())
@settings(max_examples=60, deadline=None)
def test_writes_exactly_the_rows_that_fit(call: dict[str, Any], donate: bool) -> None:
    operands = (*call["caches"], *call["rows"], call["pos"], call["lengths"])
    given_ = [jnp.array(x) for x in operands]
    layer = None if call["layer"] is None else jnp.int32(call["layer"])
    result = jax.jit(write, donate_argnums=(0, 1) if donate else ())(*given_, layer)
    for got, cache, rows in zip(result, call["caches"], call["rows"], strict=True):
        same(got, expected(cache, rows, call["pos"], call["lengths"], call["layer"]))
    if not donate:
        for kept, cache in zip(given_[:2], call["caches"], strict=True):
            same(kept, cache)


def example(dtype: Any = jnp.bfloat16, layers: int | None = None, max_seq: int = 16) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(0)
    lead = () if layers is None else (layers,)
    cache, rows = (*lead, 2, 3, max_seq, 8), (2, 3, 4, 8)
    values = [rng.standard_normal(s).astype(dtype) for s in (cache, cache, rows, rows)]
    return (*values, np.array([3, 14], np.int32), np.array([4, 2], np.int32))


def test_distinct_buffers_are_copied_first() -> None:
    # Without aliases XLA gives the outputs memory of their own, which the handler must fill.
    k_cache, v_cache, k, v, pos, lengths = example()
    shapes = tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (k_cache, v_cache))
    call = jax.ffi.ffi_call(TARGET, shapes)
    got = jax.jit(lambda *a: call(*a, stacked=np.bool_(False)))(k_cache, v_cache, k, v, pos, lengths, np.int32(0))
    same(got[0], expected(k_cache, k, pos, lengths, None))
    same(got[1], expected(v_cache, v, pos, lengths, None))


@pytest.mark.parametrize("layers", [None, 3])
def test_vmap_over_any_operand_is_a_loop_of_calls(layers: int | None) -> None:
    k_cache, v_cache, k, v, pos, lengths = example(layers=layers)
    layer = None if layers is None else np.array([2, 0], np.int32)
    args = [np.stack([k_cache, v_cache]), v_cache, np.stack([k, v]), v, np.stack([pos, pos - 1]), lengths]
    axes = (0, None, 0, None, 0, None, None if layer is None else 0)
    k_out, v_out = jax.jit(jax.vmap(write, in_axes=axes))(*args, layer)
    for i in range(2):
        one = None if layer is None else int(layer[i])
        same(k_out[i], expected(args[0][i], args[2][i], args[4][i], lengths, one))
        same(v_out[i], expected(v_cache, v, args[4][i], lengths, one))


def test_scan_over_layers_with_the_stack_in_the_carry() -> None:
    k_cache, v_cache, k, v, pos, lengths = example(layers=3)

    def step(carry: Any, layer: jax.Array) -> tuple[Any, None]:
        return write(*carry, k, v, pos, lengths, layer), None

    (k_out, v_out), _ = jax.jit(lambda a, b: jax.lax.scan(step, (a, b), jnp.arange(3)))(k_cache, v_cache)
    for layer in range(3):
        k_cache, v_cache = expected(k_cache, k, pos, lengths, layer), expected(v_cache, v, pos, lengths, layer)
    same(k_out, k_cache)
    same(v_out, v_cache)


def test_many_threads_write_at_the_same_time() -> None:
    k_cache, v_cache, k, v, pos, lengths = example()
    step = jax.jit(write, donate_argnums=(0, 1))

    def work(seed: int) -> tuple[jax.Array, np.ndarray]:
        rng = np.random.default_rng(seed)
        cache, desired = (jnp.array(k_cache), jnp.array(v_cache)), k_cache
        for _ in range(50):
            at = rng.integers(0, 13, 2).astype(np.int32)
            rows = rng.standard_normal(k.shape).astype(k.dtype)
            cache = step(*cache, rows, v, at, lengths)
            desired = expected(desired, rows, at, lengths, None)
        return cache[0], desired

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for got, desired in pool.map(work, range(4)):
            same(got, desired)


def seconds_per_write(max_seq: int, loop: bool, dtype: Any) -> float:
    """The least time of one write of one row into donated caches."""
    cache = [jnp.zeros((1, 8, max_seq, 64), dtype) for _ in range(2)]
    row = jnp.ones((1, 8, 1, 64), dtype)
    length = jnp.ones((1,), jnp.int32)
    steps = 20

    def many(k_cache: jax.Array, v_cache: jax.Array) -> tuple[jax.Array, jax.Array]:
        def body(i: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            return write(*carry, row, row, i[None], length)

        return jax.lax.fori_loop(0, steps, body, (k_cache, v_cache))

    def one(k_cache: jax.Array, v_cache: jax.Array) -> tuple[jax.Array, jax.Array]:
        return write(k_cache, v_cache, row, row, jnp.zeros((1,), jnp.int32), length)

    step = jax.jit(many if loop else one, donate_argnums=(0, 1))
    cache = jax.block_until_ready(step(*cache))
    times = []
    for _ in range(15):
        start = time.perf_counter()
        cache = jax.block_until_ready(step(*cache))
        times.append((time.perf_counter() - start) / (steps if loop else 1))
    return min(times)


@pytest.mark.parametrize("loop", [False, True], ids=["top level", "loop"])
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_time_does_not_grow_with_the_cache(loop: bool, dtype: Any) -> None:
    # One copy of the two large bfloat16 caches (128 MiB) takes tens of milliseconds. Equal pointers prove nothing.
    small, large = seconds_per_write(1024, loop, dtype), seconds_per_write(65536, loop, dtype)
    assert large < 5 * small + 1e-3, f"{small * 1e6:.0f} us at 1024, {large * 1e6:.0f} us at 65536 positions"


def test_errors_name_the_argument_and_the_fix() -> None:
    k_cache, v_cache, k, v, pos, lengths = (jnp.array(x) for x in example())
    with pytest.raises(ValueError, match=r"k_cache: got shape \(2, 3, 16, 8\).*exactly when layer is given"):
        write(k_cache, v_cache, k, v, pos, lengths, 0)
    with pytest.raises(ValueError, match=r"v: got shape \(2, 3, 4, 7\); expected \[2, 3, q_len, 8\]"):
        write(k_cache, v_cache, k, v[..., :7], pos, lengths)
    with pytest.raises(TypeError, match="k: got float32; expected bfloat16; cast the rows"):
        write(k_cache, v_cache, k.astype(jnp.float32), v, pos, lengths)
    with pytest.raises(TypeError, match="expected 2 or 4 bytes"):
        write(k_cache.astype(jnp.int8), v_cache, k.astype(jnp.int8), v, pos, lengths)
    with pytest.raises(ValueError, match=r"pos: got int32\[\]; expected int32\[2\]; broadcast it"):
        write(k_cache, v_cache, k, v, pos[0], lengths)
    with pytest.raises(ValueError, match=r"lengths: got float32\[2\]; expected int32\[2\]"):
        write(k_cache, v_cache, k, v, pos, lengths.astype(jnp.float32))
