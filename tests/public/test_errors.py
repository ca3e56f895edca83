# ruff: noqa: E501  (a table of one-line cases)
"""Bad input: each mistake raises one kind of error that names operator, argument, what came and was expected, the fix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import atbfn

B, T, HIDDEN, INNER = 2, 3, 8, 12
HEADS, KV_HEADS, DIM, MAX_SEQ = 4, 2, 4, 10
X = jnp.ones((B, T, HIDDEN))
W_UP, W_DOWN = jnp.ones((INNER, HIDDEN)), jnp.ones((HIDDEN, INNER))
GAMMA = jnp.ones(HIDDEN)
CACHE = jnp.zeros((B, KV_HEADS, MAX_SEQ, DIM))
STACK = jnp.zeros((2, B, KV_HEADS, MAX_SEQ, DIM))
WEIGHTS = atbfn.AttentionWeights(
    jnp.ones((HEADS * DIM, HIDDEN)),
    jnp.ones((KV_HEADS * DIM, HIDDEN)),
    jnp.ones((KV_HEADS * DIM, HIDDEN)),
    jnp.ones((HIDDEN, HEADS * DIM)),
)
Q, K = jnp.ones((B, HEADS, T, DIM)), jnp.ones((B, KV_HEADS, 5, DIM))
ROPE = atbfn.Rope.create(DIM, MAX_SEQ)


def ffn(**changes: Any) -> Any:
    operands = {"x": X, "w_gate": W_UP, "w_up": W_UP, "w_down": W_DOWN, **changes}
    return atbfn.fused_ffn(operands.pop("x"), operands.pop("w_gate"), operands.pop("w_up"), operands.pop("w_down"), **operands)  # fmt: skip


def attend(**changes: Any) -> Any:
    operands = {
        "x": X, "k_cache": CACHE, "v_cache": CACHE, "pos": 0, "weights": WEIGHTS, "num_heads": HEADS,
        "num_kv_heads": KV_HEADS, **changes,
    }  # fmt: skip
    first = [operands.pop(name) for name in ("x", "k_cache", "v_cache", "pos")]
    return atbfn.attention_with_kv_cache(*first, **operands)


def flash(**changes: Any) -> Any:
    operands = {"q": Q, "k": K, "v": K, **changes}
    return atbfn.flash_attention(operands.pop("q"), operands.pop("k"), operands.pop("v"), **operands)


def weights(**changes: Any) -> atbfn.AttentionWeights:
    return atbfn.AttentionWeights(**{**{n: getattr(WEIGHTS, n) for n in ("w_q", "w_k", "w_v", "w_o")}, **changes})


CASES: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    # ranks and shapes
    "x scalar": (lambda: ffn(x=jnp.float32(1)), ValueError, r"fused_ffn: x: got 0 dimensions.*expected 1"),
    "w_up transposed": (lambda: ffn(w_up=W_DOWN), ValueError, r"fused_ffn: w_up: got shape \(8, 12\).*hidden=8.*\[out_features, in_features\]"),
    "w_gate differs": (lambda: ffn(w_gate=jnp.ones((5, HIDDEN))), ValueError, r"fused_ffn: w_gate: got shape \(5, 8\); expected \[intermediate=12, hidden=8\]"),
    "w_down transposed": (lambda: ffn(w_down=W_UP), ValueError, r"fused_ffn: w_down: got shape \(12, 8\); expected \[hidden=8, intermediate=12\]"),
    "w_up rank": (lambda: ffn(w_up=jnp.ones(INNER)), ValueError, r"fused_ffn: w_up: got 1 dimensions"),
    "bias size": (lambda: ffn(b_down=jnp.ones(INNER)), ValueError, r"fused_ffn: b_down: got shape \(12,\); expected \[hidden=8\]"),
    "b_gate without gate": (lambda: ffn(w_gate=None, b_gate=jnp.ones(INNER)), ValueError, r"fused_ffn: b_gate.*None when w_gate is None"),
    "residual shape": (lambda: ffn(residual=X[:1]), ValueError, r"fused_ffn: residual: got shape \(1, 3, 8\); expected \(2, 3, 8\)"),
    "norm size": (lambda: ffn(norm=atbfn.RMSNorm(jnp.ones(3))), ValueError, r"fused_ffn: norm.gamma: got shape \(3,\); expected \[hidden=8\]"),
    "norm kind": (lambda: ffn(norm=GAMMA), TypeError, r"fused_ffn: norm: got .*Array.*LayerNorm\(\.\.\.\), RMSNorm"),
    "gamma size": (lambda: atbfn.layernorm(X, jnp.ones(3)), ValueError, r"layernorm: gamma: got shape \(3,\); expected \[hidden=8\]"),
    "beta size": (lambda: atbfn.layernorm_residual(X, X, GAMMA, jnp.ones(3)), ValueError, r"layernorm_residual: beta"),
    "norm residual shape": (lambda: atbfn.rmsnorm_residual(X, X[0], GAMMA), ValueError, r"rmsnorm_residual: residual: got shape \(3, 8\)"),
    "attention rank": (lambda: attend(x=X[0]), ValueError, r"attention_with_kv_cache: x: got 2 dimensions, shape \(3, 8\); expected 3"),
    "cache rank": (lambda: attend(k_cache=CACHE[0]), ValueError, r"attention_with_kv_cache: k_cache: got shape \(2, 10, 4\); expected 4 dimensions"),
    "stack without layer": (lambda: attend(k_cache=STACK, v_cache=STACK), ValueError, r"k_cache.*pass layer= for stacked caches"),
    "layer without stack": (lambda: attend(layer=0), ValueError, r"k_cache.*expected 5 dimensions, as layer is given"),
    "cache heads": (lambda: attend(k_cache=jnp.zeros((B, HEADS, MAX_SEQ, DIM))), ValueError, r"k_cache: got shape \(2, 4, 10, 4\); expected \[batch=2, kv_heads=2"),
    "caches differ": (lambda: attend(v_cache=CACHE[:, :, :5]), ValueError, r"v_cache: got shape \(2, 2, 5, 4\).*shape of k_cache"),
    "w_k size": (lambda: attend(weights=weights(w_k=WEIGHTS.w_q)), ValueError, r"weights.w_k: got shape \(16, 8\); expected \[num_kv_heads\*head_dim=8, hidden=8\]"),
    "w_o transposed": (lambda: attend(weights=weights(w_o=WEIGHTS.w_q)), ValueError, r"weights.w_o: got shape \(16, 8\); expected \[hidden=8, num_heads\*head_dim=16\]"),
    "weights kind": (lambda: attend(weights=(1, 2)), TypeError, r"weights: got tuple; expected atbfn.AttentionWeights"),
    "flash k heads": (lambda: flash(k=K[:, :1], v=K), ValueError, r"flash_attention: v: got shape"),
    "flash head_dim": (lambda: flash(k=K[..., :3], v=K), ValueError, r"flash_attention: k: got shape \(2, 2, 5, 3\).*head_dim=4"),
    "cache rows": (lambda: atbfn.kv_cache_update(CACHE, CACHE, K, K[:, :, :2], 0), ValueError, r"kv_cache_update: v: got shape"),
    "rope rank": (lambda: atbfn.rope(X, 0, ROPE), ValueError, r"rope: x: got 3 dimensions"),
    "linear size": (lambda: atbfn.linear(X, W_DOWN), ValueError, r"linear: w: got shape \(8, 12\); expected \[out_features=8, in_features=8\]"),
    "softmax scalar": (lambda: atbfn.softmax(jnp.float32(1)), ValueError, r"softmax: x: got 0 dimensions"),
    # heads
    "num_heads": (lambda: attend(num_heads=3, num_kv_heads=3), ValueError, r"weights.w_q.*rows that num_heads=3 divides"),
    "num_heads zero": (lambda: attend(num_heads=0), ValueError, r"num_heads: got 0; expected an int of at least 1"),
    "num_heads float": (lambda: attend(num_heads=4.0), ValueError, r"num_heads: got 4\.0"),
    "groups": (lambda: attend(num_kv_heads=3), ValueError, r"num_kv_heads: got 3 key and value heads for 4 query heads.*divides"),
    "flash groups": (lambda: flash(k=jnp.ones((B, 3, 5, DIM)), v=jnp.ones((B, 3, 5, DIM))), ValueError, r"flash_attention: k: got 3 key and value heads for 4"),
    # dtypes
    "integer x": (lambda: ffn(x=jnp.ones((B, HIDDEN), jnp.int32)), TypeError, r"fused_ffn: x: got dtype int32; expected float16, bfloat16, float32"),
    "bool x": (lambda: atbfn.softmax(jnp.ones(3, bool)), TypeError, r"softmax: x: got dtype bool"),
    "complex x": (lambda: atbfn.linear(X.astype(complex), W_UP), TypeError, r"linear: x: got dtype complex64"),
    "float8 x": (lambda: atbfn.softmax(X.astype(jnp.float8_e4m3fn)), TypeError, r"softmax: x: got dtype float8_e4m3fn"),
    "mixed": (lambda: ffn(w_up=W_UP.astype(jnp.bfloat16)), TypeError, r"fused_ffn: w_up: got dtype bfloat16; expected float32.*cross_precision"),
    "mixed cache": (lambda: attend(k_cache=CACHE.astype(jnp.float16), v_cache=CACHE.astype(jnp.float16)), TypeError, r"k_cache: got dtype float16; expected float32"),
    "half norm": (lambda: ffn(norm=atbfn.RMSNorm(GAMMA.astype(jnp.float16))), TypeError, r"norm.gamma: got dtype float16; expected float32"),
    "list": (lambda: atbfn.linear([[1.0]], W_UP), TypeError, r"linear: x: got list; expected an array"),
    "none": (lambda: ffn(w_down=None), TypeError, r"fused_ffn: w_down: got NoneType; expected an array"),
    "object array": (lambda: atbfn.softmax(np.array([None])), TypeError, r"softmax: x: got dtype object"),
    # positions
    "pos negative": (lambda: attend(pos=-1), ValueError, r"pos: got -1; expected positions of at least 0"),
    "pos past end": (lambda: attend(pos=8), ValueError, r"pos: got 8 with 3 new rows; expected rows that end within max_seq=10"),
    "pos one of batch": (lambda: attend(pos=np.array([0, 9])), ValueError, r"pos: got \[0, 9\] with 3 new rows"),
    "pos float": (lambda: attend(pos=jnp.float32(1)), TypeError, r"pos: got dtype float32; expected int32"),
    "pos shape": (lambda: attend(pos=np.array([0, 1, 2])), ValueError, r"pos: got shape \(3,\); expected a scalar or shape \(2,\)"),
    "pos bool": (lambda: attend(pos=True), TypeError, r"pos: got bool"),
    "pos huge": (lambda: attend(pos=2**40), ValueError, r"pos: got 1099511627776; expected values that fit int32"),
    "pos at the end of int32": (lambda: attend(pos=2**31 - 1), ValueError, r"pos: got 2147483647 with 3 new rows"),
    "update at the end of int32": (lambda: atbfn.kv_cache_update(CACHE, CACHE, K, K, 2**31 - 1), ValueError, r"pos: got 2147483647"),
    "pos huge array": (lambda: attend(pos=np.array([2**40, 0])), ValueError, r"pos: got .*1099511627776.*fit int32"),
    "too many rows": (lambda: attend(x=jnp.ones((B, 11, HIDDEN))), ValueError, r"got 11 new rows; expected at most max_seq=10"),
    "lengths too long": (lambda: attend(lengths=np.array([4, 1])), ValueError, r"lengths: got \[4, 1\]; expected values in 0 \.\. q_len=3"),
    "lengths negative": (lambda: attend(lengths=np.array([-1, 1])), ValueError, r"lengths: got \[-1, 1\]"),
    "lengths scalar": (lambda: attend(lengths=2), ValueError, r"lengths: got shape \(\); expected shape \(2,\)"),
    "layer outside": (lambda: attend(k_cache=STACK, v_cache=STACK, layer=2), ValueError, r"layer: got 2; expected 0 \.\. 1"),
    "rope short": (lambda: attend(rope=atbfn.Rope.create(DIM, 4)), ValueError, r"rope: got tables for 4 positions; expected at least 10; build it with Rope.create\(head_dim, 10\)"),
    "rope wide": (lambda: attend(rope=atbfn.Rope.create(8, MAX_SEQ)), ValueError, r"rope: got tables for rotary_dim=8; expected at most head_dim=4"),
    "rope pos": (lambda: atbfn.rope(Q, 8, ROPE), ValueError, r"rope: pos: got 8; expected positions whose 3 rows lie in 0 \.\. 9"),
    "rope pos at the end of int32": (lambda: atbfn.rope(Q, 2**31 - 1, ROPE), ValueError, r"rope: pos: got 2147483647"),
    "rope kind": (lambda: attend(rope=(1, 2)), TypeError, r"rope: got tuple; expected atbfn.Rope or None"),
    "rope style": (lambda: atbfn.Rope(jnp.ones((2, 2)), jnp.ones((2, 2)), "neox"), ValueError, r"Rope: style: got 'neox'; expected 'half' or 'interleaved'"),
    "rope odd": (lambda: atbfn.Rope.create(5, 4), ValueError, r"rotary_dim: got 5; expected an even number"),
    # numbers
    "eps nan": (lambda: atbfn.LayerNorm(GAMMA, eps=float("nan")), ValueError, r"LayerNorm: eps: got nan; expected a finite float of at least 0"),
    "eps negative": (lambda: atbfn.rmsnorm(X, GAMMA, eps=-1.0), ValueError, r"RMSNorm: eps: got -1\.0"),
    "eps array": (lambda: atbfn.rmsnorm(X, GAMMA, eps=jnp.float32(1)), ValueError, r"RMSNorm: eps: got"),
    "scale nan": (lambda: flash(scale=float("nan")), ValueError, r"flash_attention: scale: got nan; expected a finite number"),
    "scale huge": (lambda: flash(scale=1e39), ValueError, r"scale: got 1e\+39; expected a number that float32 can hold"),
    "softcap huge": (lambda: flash(softcap=1e39), ValueError, r"softcap: got 1e\+39; expected a number that float32 can hold"),
    "softcap tiny": (lambda: flash(softcap=1e-42), ValueError, r"softcap: got 1e-42; expected a number that float32 can hold"),
    "rope factor": (lambda: atbfn.LinearScaling(0.0), ValueError, r"LinearScaling: factor: got 0\.0; expected a positive number"),
    "rope factor nan": (lambda: atbfn.Llama3Scaling(factor=float("nan")), ValueError, r"Llama3Scaling: factor: got nan"),
    "softcap zero": (lambda: flash(softcap=0.0), ValueError, r"softcap: got 0\.0; expected a number above 0; leave it None"),
    # masks
    "mask none": (lambda: flash(mask=None), TypeError, r"flash_attention: mask: got None; expected a mask object"),
    "mask array": (lambda: flash(mask=jnp.ones((T, 5), bool)), TypeError, r"mask: got .*(Array|Tracer).*Allowed\(array\)"),
    "mask class": (lambda: flash(mask=atbfn.Causal), TypeError, r"mask: got type"),
    "allowed shape": (lambda: flash(mask=atbfn.Allowed(jnp.ones((T, 5), bool))), ValueError, r"mask.allowed: got shape \(3, 5\)"),
    "allowed dtype": (lambda: flash(mask=atbfn.Allowed(jnp.ones((1, 1, T, 5)))), TypeError, r"mask.allowed: got dtype float32; expected bool"),
    "segments shape": (lambda: flash(mask=atbfn.Segments(jnp.ones((B, 5), int), jnp.ones((B, 5), int))), ValueError, r"mask.q_ids: got shape \(2, 5\)"),
    "segments dtype": (lambda: flash(mask=atbfn.Segments(jnp.ones((B, T)), jnp.ones((B, 5), int))), TypeError, r"mask.q_ids: got dtype float32"),
    "segments list": (lambda: flash(mask=atbfn.Segments([[0] * T], [[0] * 5])), TypeError, r"mask.q_ids: got list; expected an array"),
    "segments huge": (lambda: flash(mask=atbfn.Segments(np.full((1, T), 2**32), np.zeros((1, 5), int))), ValueError, r"mask.q_ids: got numbers up to 4294967296; expected values that fit int32"),
    "prefix huge": (lambda: flash(mask=atbfn.PrefixLM(2**40)), ValueError, r"mask.n: got 1099511627776; expected values that fit int32"),
    "allowed list": (lambda: flash(mask=atbfn.Allowed([[True]])), TypeError, r"mask.allowed: got list"),
    "window": (lambda: atbfn.Causal(window=0), ValueError, r"Causal: window: got 0; expected None or an int of at least 1"),
    "global without window": (lambda: atbfn.Causal(global_tokens=2), ValueError, r"Causal: global_tokens: got 2.*pass window="),
    "block size": (lambda: atbfn.BlockSparse(jnp.ones((1, 2, 2), bool), 0), ValueError, r"BlockSparse: block_size: got 0"),
    "blocks short": (lambda: flash(mask=atbfn.BlockSparse(jnp.ones((1, 1, 1), bool), 2)), ValueError, r"mask.blocks: got shape \(1, 1, 1\)"),
    "prefix": (lambda: flash(mask=atbfn.PrefixLM(1.5)), TypeError, r"mask.n: got dtype float"),
    "in a conjunction": (lambda: flash(mask=atbfn.Causal() & atbfn.Allowed(jnp.ones((1, 1, 2, 2), bool))), ValueError, r"mask.allowed"),
    # names
    "activation": (lambda: ffn(activation="sillu"), ValueError, r"fused_ffn: activation: got 'sillu'; expected one of 'silu'.*did you mean 'silu'\?"),
    "activation kind": (lambda: ffn(activation=3), TypeError, r"activation: got int; expected a name or an elementwise function"),
    "activation that reshapes": (lambda: ffn(activation=jnp.sum), ValueError, r"fused_ffn: activation: .*elementwise"),
    "activation of another dtype": (lambda: ffn(activation=jnp.isnan), ValueError, r"fused_ffn: activation: .*elementwise"),
    "activation over a tracer": (lambda: jax.jit(lambda s: ffn(activation=lambda y: y * s))(2.0), ValueError, r"fused_ffn: activation: got a function that closes over a traced array"),
    "activation over a gradient": (lambda: jax.grad(lambda s: atbfn.activation(X, lambda y: jnp.tanh(y * s)).sum())(2.0), ValueError, r"activation: name: got a function that closes over a traced array"),
    "activation of a row": (lambda: ffn(activation=jax.nn.softmax), ValueError, r"fused_ffn: activation: .*depends on the others; expected an elementwise one"),
    "half rope": (lambda: attend(rope=atbfn.Rope(ROPE.cos.astype(jnp.float16), ROPE.sin)), TypeError, r"rope.cos: got dtype float16; expected float32"),
    "segment kinds": (lambda: flash(mask=atbfn.Segments(jnp.ones((B, T), jnp.uint32), jnp.ones((B, 5), jnp.int32))), TypeError, r"mask.kv_ids: got dtype int32; expected uint32"),
    "rope float size": (lambda: atbfn.Rope.create(4.0, 8), TypeError, r"Rope.create: head_dim: got float; expected an int"),
    "rope theta": (lambda: atbfn.Rope.create(4, 8, theta=float("inf")), ValueError, r"theta: got inf; expected a positive number"),
    "mode": (lambda: ffn(mode="fuzed"), ValueError, r"fuzed.*fused"),
    "target": (lambda: ffn(target="gpu"), ValueError, r"gpu.*xla"),
    "target absent": (lambda: ffn(target="ascendc"), NotImplementedError, r"target: got 'ascendc'.*not part of this version.*use target='auto'"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("mode", ["fused", "step_by_step"])
def test_message(name: str, mode: str) -> None:
    call, error, pattern = CASES[name]
    with atbfn.fusion(mode=mode), pytest.raises(error, match=pattern):
        call()


@pytest.mark.parametrize("name", CASES)
def test_same_message_under_jit(name: str) -> None:
    call, error, pattern = CASES[name]
    with pytest.raises(error, match=pattern):
        jax.jit(lambda _: call())(0)


def test_cross_precision_makes_mixed_dtypes_legal() -> None:
    half = W_UP.astype(jnp.bfloat16)
    with atbfn.fusion(cross_precision=True):
        out = ffn(w_up=half, x=X.astype(jnp.float16))
        normed = atbfn.rmsnorm(X, 2 * GAMMA.astype(jnp.bfloat16))
    assert out.dtype == jnp.float16
    np.testing.assert_allclose(out, ffn(w_up=half.astype(jnp.float32)), rtol=1e-2)
    np.testing.assert_allclose(normed, 2 * X, rtol=1e-5)


@pytest.mark.parametrize("mode", ["step_by_step", "fused", "fused_with_checkpoints"])
@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("bad", [-1, 8, 1000, 2**31 - 1])
def test_a_traced_position_outside_the_cache(mode: str, stacked: bool, bad: int) -> None:
    cache = jnp.asarray(np.random.default_rng(0).normal(size=STACK.shape if stacked else CACHE.shape), jnp.float32)
    changes = {"layer": 1} if stacked else {}

    @jax.jit
    def run(pos):
        return attend(x=X, k_cache=cache, v_cache=cache, pos=pos, mode=mode, rope=ROPE, **changes)

    out, k_cache, v_cache = run(jnp.asarray([bad, 4]))
    assert np.isnan(out[0]).all() and np.isfinite(out[1]).all()
    before, after = (c[1] if stacked else c for c in (cache, k_cache))
    np.testing.assert_array_equal(after[0], before[0])
    assert not np.array_equal(after[1], before[1])
    one, k_one, _ = run(jnp.asarray(bad))
    assert np.isnan(one).all()
    np.testing.assert_array_equal(k_one, cache)


@pytest.mark.parametrize("bad", [2**31 - 1, -(2**31)])
def test_a_traced_position_at_an_end_of_int32_hides_no_keys_from_the_others(bad: int) -> None:
    # Long enough for several blocks of keys, of which only those that some sequence attends are visited.
    cache = jnp.asarray(np.random.default_rng(0).normal(size=(B, KV_HEADS, 1100, DIM)), jnp.float32)
    x = jnp.asarray(np.random.default_rng(1).normal(size=(B, T, HIDDEN)), jnp.float32)

    @jax.jit
    def run(pos, lengths):
        mask = atbfn.Causal(window=200)
        return attend(x=x, k_cache=cache, v_cache=cache, pos=pos, lengths=lengths, mask=mask)[0]

    good = run(jnp.asarray([700, 700]), jnp.asarray([T, T]))
    out = run(jnp.asarray([700, bad]), jnp.asarray([T, T]))
    np.testing.assert_array_equal(out[0], good[0])
    assert np.isnan(out[1]).all()
    out = run(jnp.asarray([700, 700]), jnp.asarray([T, bad]))
    np.testing.assert_array_equal(out[0], good[0])
    assert np.isnan(out[1]).all()


def test_traced_positions_of_wider_types_do_not_wrap_around() -> None:
    with jax.enable_x64(True):
        for dtype, bad in ((jnp.int64, 2**32 + 1), (jnp.int64, -(2**32) + 1), (jnp.uint32, 2**32 - 1)):
            out, k_cache, _ = jax.jit(lambda pos: attend(pos=pos))(jnp.asarray(bad, dtype))
            assert np.isnan(out).all()
            np.testing.assert_array_equal(k_cache, CACHE)


def test_a_traced_position_is_reported_once() -> None:
    with atbfn.fusion(mode="fused_with_checkpoints"):
        _, report = jax.jit(atbfn.checkpoint(lambda pos: attend(pos=pos)))(jnp.asarray([9, 0]))
    assert not report.ok
    failed = [line for line in str(report).splitlines() if "FAILED" in line and "inside the cache" in line]
    assert len(failed) == 1 and str(report).count("FAILED") == 2  # and the headline


def test_a_traced_length_outside_the_rows() -> None:
    out, k_cache, _ = jax.jit(lambda lengths: attend(lengths=lengths))(jnp.asarray([4, 2]))
    assert np.isnan(out[0]).all() and np.isfinite(out[1]).all()
    np.testing.assert_array_equal(k_cache[0], CACHE[0])


def test_a_traced_layer_outside_the_stack() -> None:
    run = jax.jit(lambda layer: attend(k_cache=STACK, v_cache=STACK, layer=layer))
    for layer in (-1, 2):
        out, k_cache, _ = run(layer)
        assert np.isnan(out).all()
        np.testing.assert_array_equal(k_cache, STACK)


def test_a_window_longer_than_any_sequence_is_causal() -> None:
    q = jnp.asarray(np.random.default_rng(0).normal(size=Q.shape), jnp.float32)
    for window, global_tokens in ((2**31 - 1, 0), (2**31, 0), (2, 2**40)):
        mask = atbfn.Causal(window=window, global_tokens=global_tokens)
        np.testing.assert_array_equal(flash(q=q, mask=mask), flash(q=q))


def test_numpy_numbers_are_numbers() -> None:
    expected = atbfn.rmsnorm(X, GAMMA, eps=0.25)
    np.testing.assert_array_equal(atbfn.rmsnorm(X, GAMMA, eps=np.float32(0.25)), expected)


@pytest.mark.parametrize("mode", ["step_by_step", "fused"])
def test_strict_promotion_and_debug_nans_find_nothing(mode: str) -> None:
    half = lambda tree: jax.tree.map(lambda a: a.astype(jnp.bfloat16), tree)  # noqa: E731
    x, cache, w = half((X, CACHE, WEIGHTS))
    with jax.numpy_dtype_promotion("strict"), jax.debug_nans(True):
        out, _, _ = attend(
            x=x,
            k_cache=cache,
            v_cache=cache,
            weights=w,
            softcap=2.0,
            lengths=np.array([3, 0]),
            rope=ROPE,
            residual=x,
            mode=mode,
        )
    assert np.isfinite(out.astype(np.float32)).all()
