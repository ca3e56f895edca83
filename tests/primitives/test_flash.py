"""The chunked attention against a dense softmax in float64, its gradients, its non-finite rules and its memory."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from atbfn.primitives import flash, masks
from atbfn.primitives.flash import FlashSpec

UNITS = {"float32": 2.0**-11, "bfloat16": 2.0**-7, "float16": 2.0**-8}
SPEC = FlashSpec(0.4)
forward = jax.jit(flash.forward, static_argnames=("spec", "dynamic"))
backward = jax.jit(flash.backward, static_argnames=("spec",))


def rand(seed: int, *shape: int, dtype: Any = jnp.float32) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


def qkv(b: int, h: int, kv: int, q_len: int, kv_len: int, d: int = 8, dtype: Any = jnp.float32) -> tuple[Any, ...]:
    return (
        rand(1, b, h, q_len, d, dtype=dtype),
        rand(2, b, kv, kv_len, d, dtype=dtype),
        rand(3, b, kv, kv_len, d, dtype=dtype),
    )


def allowed_keys(predicate: Any, b: int, h: int, q_len: int, kv_len: int, pos: Any, lengths: Any = None) -> np.ndarray:
    """bool [b, h, q_len, kv_len] from predicate(batch, head, row, position, key), written without the masks."""
    out = np.zeros((b, h, q_len, kv_len), bool)
    pos = np.broadcast_to(np.asarray(pos), (b,))
    for n in range(b):
        length = q_len if lengths is None else int(lengths[n])
        limit = int(pos[n]) + length
        row, key = np.arange(length)[:, None], np.arange(max(min(limit, kv_len), 0))[None, :]
        for head in range(h):
            out[n, head, :length, : key.size] = predicate(n, head, row, row + int(pos[n]), key)
    return out


def dense(q: Any, k: Any, v: Any, allowed: np.ndarray, spec: FlashSpec = SPEC) -> tuple[np.ndarray, np.ndarray]:
    """float64 context and log-sum-exp."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
    s = np.einsum("bhqd,bhkd->bhqk", q, k) * spec.scale
    if spec.softcap is not None:
        s = spec.softcap * np.tanh(s / spec.softcap)
    s = np.where(allowed, s, -np.inf)
    some = allowed.any(-1)
    top = np.where(some, s.max(-1), 0)
    e = np.exp(s - top[..., None])
    total = np.where(some, e.sum(-1), 1)
    context = np.einsum("bhqk,bhkd->bhqd", e / total[..., None], v)
    return context, np.where(some, top + np.log(total), -np.inf)


def close(actual: Any, golden: np.ndarray, unit: float, rows: int = 1) -> None:
    """|a - g| <= unit * max(rms of g's row, |g|); and zeros would not pass."""
    actual, golden = np.asarray(actual, np.float64), np.asarray(golden, np.float64)
    rms = np.sqrt(np.mean(np.square(golden), axis=tuple(range(-rows, 0)), keepdims=True))
    bound = unit * np.maximum(rms, np.abs(golden))
    assert actual.shape == golden.shape
    error = np.abs(actual - golden)
    assert (error <= bound).all(), f"worst {np.max(error / np.maximum(bound, 1e-300))} bounds"
    assert (np.abs(golden) > bound).any(), "zeros would pass"


def run(q: Any, k: Any, v: Any, mask: Any, pos: Any, lengths: Any = None, layer: Any = None, spec: Any = SPEC) -> Any:
    """The forward, asserting that both ways to loop give the same numbers."""
    args = (q, k, v, mask, jnp.asarray(pos, jnp.int32), lengths, layer)
    fast, slow = (forward(*args, spec=spec, dynamic=dynamic) for dynamic in (True, False))
    for a, b in zip(jax.tree.leaves(fast[:2]), jax.tree.leaves(slow[:2]), strict=True):
        np.testing.assert_allclose(np.asarray(a, np.float64), np.asarray(b, np.float64), rtol=2e-6, atol=2e-6)
    return fast


def check(q: Any, k: Any, v: Any, mask: Any, pos: Any, allowed: np.ndarray, unit: float = 2.0**-11, **kw: Any) -> None:
    context, lse, _ = run(q, k, v, mask, pos, **kw)
    assert context.dtype == q.dtype and lse.dtype == jnp.float32
    golden, golden_lse = dense(q, k, v, allowed, kw.get("spec", SPEC))
    close(context, golden, unit)
    empty = np.isneginf(golden_lse)
    assert (np.isneginf(lse) == empty).all() and (np.asarray(context, np.float64)[empty] == 0).all()
    np.testing.assert_allclose(np.asarray(lse)[~empty], golden_lse[~empty], rtol=2e-6, atol=2e-6)


def causal(n: int, head: int, row: Any, q: Any, key: Any) -> Any:
    return key <= q


@pytest.mark.parametrize(
    "heads, kv_heads, q_len, kv_len",
    [(2, 2, 1, 7), (4, 2, 7, 13), (3, 1, 13, 131), (2, 1, 131, 600), (2, 2, 600, 601), (4, 2, 1, 2500)],
)
def test_sizes_and_groups(heads: int, kv_heads: int, q_len: int, kv_len: int) -> None:
    q, k, v = qkv(2, heads, kv_heads, q_len, kv_len)
    pos = kv_len - q_len
    check(q, k, v, masks.Causal(), pos, allowed_keys(causal, 2, heads, q_len, kv_len, pos))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_dtypes(dtype: str) -> None:
    q, k, v = qkv(1, 2, 1, 20, 1100, d=16, dtype=dtype)
    allowed = allowed_keys(causal, 1, 2, 20, 1100, 1000)
    check(q, k, v, masks.Causal(), 1000, allowed, UNITS[dtype], spec=FlashSpec(0.25, 3.0))


BLOCKS = np.random.default_rng(7).random((4, 16, 16)) < 0.4
IDS = np.random.default_rng(8).integers(0, 3, (2, 1200))
BOOLS = np.random.default_rng(9).random((2, 1, 300, 1200)) < 0.1
MASKS = {
    "full": (masks.Full(), lambda n, h, r, q, k: np.ones((len(r), k.size), bool)),
    "window": (masks.Causal(window=37), lambda n, h, r, q, k: (k <= q) & (q - k < 37)),
    "global": (masks.Causal(window=5, global_tokens=3), lambda n, h, r, q, k: (k <= q) & ((q - k < 5) | (k < 3))),
    "prefix": (masks.PrefixLM(950), lambda n, h, r, q, k: (k <= q) | (k < 950)),
    "prefixes": (
        masks.PrefixLM(jnp.array([3, 1000], jnp.int32)),
        lambda n, h, r, q, k: (k <= q) | (k < [3, 1000][n]),
    ),
    "blocks": (
        masks.BlockSparse(jnp.asarray(BLOCKS), 75),
        lambda n, h, r, q, k: BLOCKS[h][q // 75, k // 75],
    ),
    "segments": (
        masks.Segments(jnp.asarray(IDS[:, :300]), jnp.asarray(IDS)),
        lambda n, h, r, q, k: IDS[n][r] == IDS[n][k],
    ),
    "allowed": (masks.Allowed(jnp.asarray(BOOLS)), lambda n, h, r, q, k: BOOLS[n, 0][r, k]),
    "and": (
        masks.Causal(window=200) & masks.Allowed(jnp.asarray(BOOLS)),
        lambda n, h, r, q, k: (k <= q) & (q - k < 200) & BOOLS[n, 0][r, k],
    ),
}


@pytest.mark.parametrize("name", MASKS)
def test_masks_positions_lengths(name: str) -> None:
    mask, predicate = MASKS[name]
    q, k, v = qkv(2, 4, 2, 300, 1200)
    pos, lengths = np.array([0, 870]), np.array([257, 300], np.int32)
    allowed = allowed_keys(predicate, 2, 4, 300, 1200, pos, lengths)
    check(q, k, v, mask, pos, allowed, lengths=jnp.asarray(lengths))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_layer_of_a_stack(dtype: str) -> None:
    q, k, v = qkv(1, 2, 1, 3, 1100, dtype=dtype)
    other = jnp.full_like(k, jnp.nan)
    stack_k, stack_v = jnp.stack([other, k]), jnp.stack([other, v])
    allowed = allowed_keys(causal, 1, 2, 3, 1100, 700)
    plain = run(q, k, v, masks.Causal(), 700)
    stacked = run(q, stack_k, stack_v, masks.Causal(), 700, layer=jnp.int32(1))
    assert (plain[0] == stacked[0]).all() and (plain[1] == stacked[1]).all()
    close(plain[0], dense(q, k, v, allowed)[0], UNITS[dtype])


def test_layer_gradient_is_zero_elsewhere() -> None:
    q, k, v = qkv(1, 2, 1, 3, 9)
    context, lse, _ = run(q, k, v, masks.Causal(), 6)
    ones, none = jnp.ones_like(context), jnp.zeros_like(lse)
    tail = (context, lse, ones, none)
    plain = backward(q, k, v, masks.Causal(), jnp.int32(6), None, None, *tail, spec=SPEC)
    stack = [jnp.stack([x * jnp.nan, x]) for x in (k, v)]
    grads = backward(q, *stack, masks.Causal(), jnp.int32(6), None, jnp.int32(1), *tail, spec=SPEC)
    for a, b in zip(plain[1:], grads[1:], strict=True):
        assert (b[0] == 0).all() and (b[1] == a).all() and (a != 0).any()


def dense_jnp(q: Any, k: Any, v: Any, allowed: Any, spec: FlashSpec) -> tuple[jax.Array, jax.Array]:
    group = q.shape[1] // k.shape[1]
    k, v = jnp.repeat(k, group, 1), jnp.repeat(v, group, 1)
    s = jnp.einsum("bhqd,bhkd->bhqk", q, k, precision="highest") * spec.scale
    if spec.softcap is not None:
        s = spec.softcap * jnp.tanh(s / spec.softcap)
    some = allowed.any(-1)
    s = jnp.where(allowed, s, jnp.where(some[..., None], -jnp.inf, 0.0))
    p = jnp.where(allowed, jax.nn.softmax(s, axis=-1), 0)
    lse = jnp.where(some, jax.nn.logsumexp(s, axis=-1), 0)
    return jnp.einsum("bhqk,bhkd->bhqd", p, v, precision="highest"), lse


@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize("q_len, kv_len, window", [(7, 13, None), (300, 1100, 90)])
def test_gradients(q_len: int, kv_len: int, window: int | None, softcap: float | None) -> None:
    spec, pos, lengths = FlashSpec(0.4, softcap), np.array([0, kv_len - q_len]), np.array([q_len - 2, q_len])
    q, k, v = qkv(2, 4, 2, q_len, kv_len)
    mask = masks.Causal(window=window)

    def rule(n: int, head: int, row: Any, q: Any, key: Any) -> Any:
        return (key <= q) & (q - key < (window or kv_len))

    allowed = jnp.asarray(allowed_keys(rule, 2, 4, q_len, kv_len, pos, lengths))
    context, lse, _ = run(q, k, v, mask, pos, jnp.asarray(lengths), spec=spec)
    d_context, d_lse = rand(4, *context.shape), rand(5, *lse.shape)
    tail = (jnp.asarray(pos), jnp.asarray(lengths), None, context, lse, d_context, d_lse)
    grads = jax.jit(lambda q, k, v: flash.backward(q, k, v, mask, *tail, spec=spec))(q, k, v)
    golden = jax.vjp(lambda *x: dense_jnp(*x, allowed, spec), q, k, v)[1]((d_context, d_lse))
    auto = jax.jit(
        lambda *x: jax.vjp(lambda *y: flash.forward(*y, mask, *tail[:3], spec=spec, dynamic=False)[:2], *x)[1](
            (d_context, jnp.where(jnp.isneginf(lse), 0, d_lse))
        )
    )(q, k, v)
    for a, b, g in zip(grads, auto, golden, strict=True):
        close(a, np.asarray(g), 2.0**-10)
        close(b, np.asarray(g), 2.0**-10)


def test_second_order() -> None:
    q, k, v = qkv(1, 2, 1, 3, 5, d=2)
    spec, pos = FlashSpec(0.4, 2.0), jnp.int32(2)

    def context(q: Any, k: Any, v: Any) -> Any:
        return forward(q, k, v, masks.Causal(), pos, None, None, spec=spec, dynamic=False)[:2]

    check_grads(context, (q, k, v), order=2, modes=("fwd", "rev"), atol=2e-2, rtol=2e-2)
    o, lse = context(q, k, v)

    def grads(*args: Any) -> Any:
        return backward(*args[:3], masks.Causal(), pos, None, None, *args[3:], spec=spec)

    args = (q, k, v, o, lse, rand(4, *o.shape), rand(5, *lse.shape))
    check_grads(grads, args, order=1, modes=("fwd", "rev"), atol=2e-2, rtol=2e-2)


# Non-finite numbers.


def test_masked_nonfinite_contributes_nothing() -> None:
    q, k, v = qkv(1, 2, 1, 6, 6)
    for bad in (jnp.nan, jnp.inf, -jnp.inf):
        k_bad, v_bad = k.at[0, 0, 4, 1].set(bad), v.at[0, 0, 4, 2].set(bad)
        clean = run(q, k, v, masks.Causal(), 0)
        dirty = run(q, k_bad, v_bad, masks.Causal(), 0)
        assert (clean[0][:, :, :4] == dirty[0][:, :, :4]).all() and (clean[1][:, :, :4] == dirty[1][:, :, :4]).all()
        tail = (jnp.int32(0), None, None)
        ct = jnp.zeros_like(q).at[:, :, :4].set(1.0)
        d_clean = backward(q, k, v, masks.Causal(), *tail, *clean[:2], ct, clean[1] * 0, spec=SPEC)
        d_dirty = backward(q, k_bad, v_bad, masks.Causal(), *tail, *dirty[:2], ct, clean[1] * 0, spec=SPEC)
        assert (d_clean[0][:, :, :4] == d_dirty[0][:, :, :4]).all()
        assert np.isfinite(d_clean[0]).all() and not np.isfinite(d_dirty[0][:, :, 4:]).all()


def test_unwritten_nonfinite_contributes_nothing_in_second_order() -> None:
    q, k, v = qkv(1, 2, 1, 3, 9)
    k_bad, v_bad = k.at[:, :, 6:].set(jnp.nan), v.at[:, :, 6:].set(jnp.inf)

    def loss(q: Any, k: Any, v: Any) -> Any:
        o, lse, _ = forward(q, k, v, masks.Causal(), jnp.int32(3), None, None, spec=SPEC, dynamic=False)
        grads = backward(q, k, v, masks.Causal(), jnp.int32(3), None, None, o, lse, jnp.cos(o), jnp.sin(lse), spec=SPEC)
        return sum(jnp.sum(jnp.sin(g)) for g in grads)

    clean, dirty = (jax.grad(loss, (0, 1, 2))(q, *kv) for kv in ((k, v), (k_bad, v_bad)))
    for a, b in zip(clean, dirty, strict=True):
        np.testing.assert_array_equal(a, b)
        assert (a != 0).any()


@pytest.mark.parametrize("kv_len", [6, 1300])
def test_attended_nonfinite_values(kv_len: int) -> None:
    q, k, v = qkv(1, 2, 1, 4, kv_len)
    at = kv_len - 3  # rows 1.. see it
    v = v.at[0, 0, at, 0].set(jnp.nan).at[0, 0, at, 1].set(jnp.inf).at[0, 0, at, 2].set(-jnp.inf)
    v = v.at[0, 0, at, 3].set(jnp.inf).at[0, 0, at - 1, 3].set(-jnp.inf)
    o = np.asarray(run(q, k, v, masks.Causal(), kv_len - 4)[0])
    assert np.isfinite(o[:, :, 0, :3]).all() and np.isneginf(o[:, :, 0, 3]).all()
    assert np.isnan(o[:, :, 1:, 0]).all() and np.isposinf(o[:, :, 1:, 1]).all() and np.isneginf(o[:, :, 1:, 2]).all()
    assert np.isnan(o[:, :, 1:, 3]).all() and np.isfinite(o[:, :, :, 4:]).all()


def test_nonfinite_scores() -> None:
    q, k, v = qkv(1, 1, 1, 3, 3)
    q = jnp.abs(q)
    for bad, rest in ((jnp.nan, jnp.nan), (jnp.inf, jnp.nan)):
        o, lse, _ = run(q, k.at[0, 0, 1, 0].set(bad), v, masks.Causal(), 0)
        assert np.isfinite(o[0, 0, 0]).all() and np.isnan(o[0, 0, 1:]).all() and np.isnan(lse[0, 0, 1:]).all(), rest
    # One score of -inf is a probability of zero; only such scores are 0 / 0.
    o, lse, _ = run(q, k.at[0, 0, 1, 0].set(-jnp.inf), v, masks.Causal(), 0)
    assert np.isfinite(o).all() and np.isfinite(lse).all()
    o, lse, _ = run(q, k.at[0, 0, 0, 0].set(-jnp.inf), v, masks.Causal(), 0)
    assert np.isnan(o[0, 0, 0]).all() and np.isneginf(lse[0, 0, 0]) and np.isfinite(o[0, 0, 1:]).all()


def test_empty_rows_have_zero_gradients() -> None:
    q, k, v = qkv(1, 2, 1, 4, 8)
    open_keys = np.ones((1, 1, 4, 8), bool)
    open_keys[:, :, 1] = False
    mask, pos, lengths = masks.Allowed(jnp.asarray(open_keys)), jnp.int32(4), jnp.array([3], jnp.int32)
    o, lse, _ = run(q.at[:, :, 3].set(jnp.nan), k, v, mask, pos, lengths)
    assert (o[:, :, 1::2] == 0).all() and np.isneginf(lse[:, :, 1::2]).all() and np.isfinite(o).all()
    ct = jnp.ones_like(o).at[:, :, 1].set(jnp.nan)
    tail = (mask, pos, lengths, None, o, lse, ct, jnp.ones_like(lse))
    grads = backward(q.at[:, :, 3].set(jnp.nan), k, v, *tail, spec=SPEC)
    assert all(np.isfinite(g).all() for g in grads) and (grads[0][:, :, 1::2] == 0).all()
    assert (grads[1][:, :, 7] == 0).all() and (grads[2] != 0).any()


def test_nonfinite_gradients_appear() -> None:
    q, k, v = qkv(1, 1, 1, 4, 4)
    o, lse, _ = run(q, k, v, masks.Causal(), 0)
    ct = jnp.ones_like(o).at[0, 0, 2, 1].set(jnp.inf)
    d_q, d_k, d_v = backward(q, k, v, masks.Causal(), jnp.int32(0), None, None, o, lse, ct, lse * 0, spec=SPEC)
    assert np.isposinf(d_v[0, 0, :3, 1]).all() and np.isfinite(d_v[0, 0, 3]).all() and np.isfinite(d_v[..., 2:]).all()
    assert np.isnan(d_q[0, 0, 2]).all() and np.isfinite(d_q[0, 0, [0, 1, 3]]).all()
    assert np.isnan(d_k[0, 0, :3]).all() and np.isfinite(d_k[0, 0, 3]).all()


# Check values.


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_checks_pass(dtype: str) -> None:
    q, k, v = qkv(1, 2, 1, 300, 1200, dtype=dtype)
    lengths = jnp.array([290], jnp.int32)
    spec = FlashSpec(2.0, checks=True)
    context, _, checks = run(q, k, v, masks.Causal(), 900, lengths, spec=spec)
    plain = run(q, k, v, masks.Causal(), 900, lengths, spec=FlashSpec(2.0))
    assert plain[2] == {} and (context == plain[0]).all()
    assert set(checks) == {"probs", "lse"}
    for ratio in checks.values():
        assert ratio.shape == (1, 2, 300) and ratio.dtype == jnp.float32
        assert (ratio <= 1).all() and (ratio[:, :, 290:] == 0).all()
    assert (checks["probs"] > 0).any()


def test_checks_judge_only_what_inputs_explain() -> None:
    spec = FlashSpec(1.0, checks=True)
    q, k, v = qkv(1, 1, 1, 3, 3)
    for dirty in (k.at[0, 0, 1, 0].set(jnp.nan), k):
        checks = run(q.at[0, 0, 2, 0].set(jnp.inf), dirty, v, masks.Causal(), 0, spec=spec)[2]
        assert all((c <= 1).all() for c in checks.values())
    # Finite inputs whose scores overflow are a failure.
    checks = run(q.at[0, 0, 2].set(1e30), k.at[0, 0, 2].set(1e30), v, masks.Causal(), 0, spec=spec)[2]
    assert all((c[0, 0, :2] <= 1).all() and not c[0, 0, 2] <= 1 for c in checks.values())


def test_check_values_fail_on_wrong_sums() -> None:
    one = jnp.ones((1,), jnp.float32)
    end = {"some": one > 0, "count": 8 * one, "again": 1.01 * one, "top": one}
    probs, lse = flash._check_values(end, one, one, one < 0, jnp.float32)
    assert probs[0] > 1 and lse[0] <= 1
    for wrong in (0.99, 1.01 + math.log(8), jnp.nan):
        assert not flash._check_values(end, one, wrong * one, one < 0, jnp.float32)[1][0] <= 1


# Transformations and memory.


def _context(q: Any, k: Any, v: Any, pos: Any, *, dynamic: bool) -> Any:
    return forward(q, k, v, masks.Causal(), pos, None, None, spec=SPEC, dynamic=dynamic)[:2]


def test_vmap_over_everything() -> None:
    q, k, v = (jnp.stack([x, x[::-1] + 0.5]) for x in qkv(2, 2, 1, 3, 1100))
    v = v.at[1, :, :, 0, 0].set(jnp.nan)
    pos = jnp.array([[5, 700], [1090, 3]], jnp.int32)
    for dynamic in (True, False):
        fn = functools.partial(_context, dynamic=dynamic)
        batched = jax.jit(jax.vmap(fn))(q, k, v, pos)
        for i in range(2):
            single = fn(q[i], k[i], v[i], pos[i])
            for a, b in zip(single, batched, strict=True):
                np.testing.assert_allclose(a, b[i], rtol=1e-5, atol=1e-6)
        assert np.isnan(batched[0][1, ..., 0]).all() and np.isfinite(batched[0][..., 1:]).all()


def _temp_mib(fn: Any, *args: Any) -> float:
    return jax.jit(fn).lower(*args).compile().memory_analysis().temp_size_in_bytes / 2**20


def test_memory_never_holds_the_scores() -> None:
    """At 2048 squared the scores alone are 16 MiB; a dense second derivative holds several of them."""
    x, row = (jax.ShapeDtypeStruct((1, 1, 2048, *tail), jnp.float32) for tail in ((16,), ()))
    rest = (masks.Causal(), jnp.int32(0), None, None)

    def fwd(q: Any, k: Any, v: Any) -> Any:
        return flash.forward(q, k, v, *rest, spec=SPEC, dynamic=False)[:2]

    def bwd(q: Any, k: Any, v: Any, *tail: Any) -> Any:
        return flash.backward(q, k, v, *rest, *tail, spec=SPEC)

    def tangent(primals: Any, tangents: Any) -> Any:
        return jax.jvp(fwd, primals, tangents)[1]

    primals, all_of_bwd = (x, x, x), (x, x, x, x, row, x, row)
    assert _temp_mib(fwd, *primals) < 4
    assert _temp_mib(bwd, *all_of_bwd) < 6
    assert _temp_mib(lambda a, ct: jax.vjp(bwd, *a)[1](ct), all_of_bwd, primals) < 10
    assert _temp_mib(lambda a, t, ct: jax.vjp(tangent, a, t)[1](ct), primals, primals, (x, row)) < 12


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_decode_does_not_touch_the_whole_cache(dtype: str) -> None:
    """No copy or conversion of the cache: temporaries do not grow with its length."""
    q = jax.ShapeDtypeStruct((1, 2, 1, 16), dtype)

    def fn(q: Any, k: Any, v: Any, pos: Any, layer: Any) -> Any:
        return flash.forward(q, k, v, masks.Causal(), pos, None, layer, spec=SPEC, dynamic=True)[:2]

    scalar = jax.ShapeDtypeStruct((), jnp.int32)
    sizes = []
    for kv_len in (2**13, 2**16):
        cache = jax.ShapeDtypeStruct((2, 1, 1, kv_len, 16), dtype)
        sizes.append(_temp_mib(fn, q, cache, cache, scalar, scalar))
    assert sizes[1] < 1.1 * sizes[0] + 0.01


def test_inside_shard_map() -> None:
    """Loop carries keep the mesh axes they vary over; one device is enough to have them checked."""
    q, k, v = qkv(1, 2, 1, 3, 1100)
    pos = jnp.array([700], jnp.int32)
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("x",))
    split = jax.sharding.PartitionSpec("x")

    def both(q: Any, k: Any, v: Any, pos: Any) -> Any:
        rest = (masks.Causal(), pos, None, None)
        o, lse, _ = flash.forward(q, k, v, *rest, spec=SPEC, dynamic=True)
        static = flash.forward(q, k, v, *rest, spec=SPEC, dynamic=False)[0]
        return o, static, flash.backward(q, k, v, *rest, o, lse, o, lse, spec=SPEC)

    sharded = jax.jit(jax.shard_map(both, mesh=mesh, in_specs=split, out_specs=split))(q, k, v, pos)
    for a, b in zip(jax.tree.leaves(sharded), jax.tree.leaves(jax.jit(both)(q, k, v, pos)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)
