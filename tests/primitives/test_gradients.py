"""Every differentiable operator: forward and reverse mode to second order, Hessian-vector products, vmap in any order.

In float64, where finite differences are sharp: the rules are the same for every dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import atbfn

BATCH, Q_LEN, HIDDEN, INTERMEDIATE = 2, 3, 6, 5
HEADS, KV_HEADS, HEAD_DIM, MAX_SEQ = 4, 2, 4, 7
pytestmark = pytest.mark.usefixtures("unoptimized")

MODES = ("step_by_step", "fused", "fused_with_checkpoints")


@pytest.fixture(autouse=True)
def double_precision() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def _array(*shape: int, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng((seed, *shape)).normal(size=shape), jnp.float64)


def _weights() -> atbfn.AttentionWeights:
    q, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    scale = 0.4
    return atbfn.AttentionWeights(
        *(scale * w for w in (_array(q, HIDDEN), _array(kv, HIDDEN), _array(kv, HIDDEN, seed=1), _array(HIDDEN, q))),
        b_q=_array(q),
        b_o=_array(HIDDEN),
    )


def _caches() -> tuple[jax.Array, jax.Array]:
    shape = (BATCH, KV_HEADS, MAX_SEQ, HEAD_DIM)
    return _array(*shape), _array(*shape, seed=1)


X = (BATCH, Q_LEN, HIDDEN)


def _cases() -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    """Each operator as a function of its differentiable operands. Called under x64."""
    x, residual = _array(*X), _array(*X, seed=1)
    gamma, beta = 1 + 0.1 * _array(HIDDEN), _array(HIDDEN, seed=1)
    w_gate, w_up = _array(INTERMEDIATE, HIDDEN), _array(INTERMEDIATE, HIDDEN, seed=1)
    w_down = _array(HIDDEN, INTERMEDIATE)
    q = _array(BATCH, HEADS, Q_LEN, HEAD_DIM)
    k_cache, v_cache = _caches()
    rope = atbfn.Rope.create(HEAD_DIM, MAX_SEQ)
    heads = {"num_heads": HEADS, "num_kv_heads": KV_HEADS}
    pos, lengths = jnp.asarray([4, 1], jnp.int32), jnp.asarray([3, 2], jnp.int32)

    def gated(x, w_gate, w_up, w_down, residual, gamma):
        return atbfn.fused_ffn(x, w_gate, w_up, w_down, norm=atbfn.RMSNorm(gamma), residual=residual)

    def plain(x, w_up, w_down, b_up, gamma, beta):
        norm = atbfn.LayerNorm(gamma, beta)
        return atbfn.fused_ffn(x, None, w_up, w_down, activation="gelu", b_up=b_up, residual=x, post_norm=norm)

    def cached(x, k_cache, v_cache, weights, gamma):
        norm = atbfn.RMSNorm(gamma)
        return atbfn.attention_with_kv_cache(
            x, k_cache, v_cache, pos, weights=weights, **heads, rope=rope, lengths=lengths, norm=norm, residual=x,
            softcap=5.0,
        )  # fmt: skip

    def stacked(x, k_cache, v_cache, weights):
        return atbfn.attention_with_kv_cache(
            x, k_cache[None], v_cache[None], 2, weights=weights, **heads, layer=0, mask=atbfn.Causal(window=3)
        )

    def whole(x, weights, gamma, beta):
        norm = atbfn.LayerNorm(gamma, beta)
        return atbfn.self_attention(x, weights=weights, **heads, mask=atbfn.Full(), residual=x, post_norm=norm)

    return {
        "fused_ffn gated": (gated, (x, w_gate, w_up, w_down, residual, gamma)),
        "fused_ffn plain": (plain, (x, w_up, w_down, _array(INTERMEDIATE), gamma, beta)),
        "layernorm_residual": (atbfn.layernorm_residual, (x, residual, gamma, beta)),
        "rmsnorm_residual": (atbfn.rmsnorm_residual, (x, residual, gamma)),
        "attention_with_kv_cache": (cached, (x, k_cache, v_cache, _weights(), gamma)),
        "attention_with_kv_cache stacked": (stacked, (x, k_cache, v_cache, _weights())),
        "self_attention": (whole, (x, _weights(), gamma, beta)),
        "flash_attention": (lambda q, k, v: atbfn.flash_attention(q, k, v, return_lse=True), (q, k_cache, v_cache)),
        "linear": (atbfn.linear, (x, w_up, _array(INTERMEDIATE))),
        "activation silu": (lambda x: atbfn.activation(x, "silu"), (x,)),
        "activation gelu": (lambda x: atbfn.activation(x, "gelu"), (x,)),
        "activation gelu_tanh": (lambda x: atbfn.activation(x, "gelu_tanh"), (x,)),
        "activation custom": (lambda x: atbfn.activation(x, jnp.sin), (x,)),
        "softmax": (atbfn.softmax, (x,)),
        "layernorm": (atbfn.layernorm, (x, gamma, beta)),
        "rmsnorm": (atbfn.rmsnorm, (x, gamma)),
        "rope": (lambda q: atbfn.rope(q, pos, rope), (q,)),
        "kv_cache_update": (
            lambda *operands: atbfn.kv_cache_update(*operands, pos, lengths=lengths),
            (k_cache, v_cache, _array(BATCH, KV_HEADS, Q_LEN, HEAD_DIM), _array(BATCH, KV_HEADS, Q_LEN, HEAD_DIM)),
        ),
    }


with jax.enable_x64(True):
    NAMES = tuple(_cases())
FUSED = tuple(name for name in NAMES if name.startswith(("fused", "layernorm_r", "rmsnorm_r", "att", "self", "flash")))


@pytest.mark.parametrize("name", NAMES)
def test_second_order_in_both_modes(name: str) -> None:
    fn, args = _cases()[name]
    check_grads(jax.jit(fn), args, order=2, modes=("fwd", "rev"), rtol=1e-3, atol=1e-3)


def _scalar(fn: Callable[..., Any]) -> Callable[..., jax.Array]:
    return lambda *args: sum(jnp.sum(jnp.sin(out)) for out in jax.tree.leaves(fn(*args)))


def _close(actual: Any, expected: Any, tolerance: float = 1e-9) -> None:
    jax.tree.map(lambda a, e: np.testing.assert_allclose(a, e, rtol=tolerance, atol=tolerance), actual, expected)


@pytest.mark.parametrize("name", FUSED)
def test_modes_have_one_gradient(name: str) -> None:
    fn, args = _cases()[name]
    grads = []
    for mode in MODES:
        with atbfn.fusion(mode=mode):
            grads.append(jax.jit(jax.grad(_scalar(fn), argnums=tuple(range(len(args)))))(*args))
    _close(grads[1], grads[0])
    _close(grads[2], grads[0])
    assert all(float(jnp.max(jnp.abs(g))) > 1e-6 for g in jax.tree.leaves(grads[0]))


@pytest.mark.parametrize("name", FUSED)
def test_hessian_vector_products_agree(name: str) -> None:
    fn, args = _cases()[name]
    loss = _scalar(lambda x: fn(x, *args[1:]))
    x, v = args[0], _array(*args[0].shape, seed=7)
    forward_over_reverse = jax.jvp(jax.grad(loss), (x,), (v,))[1]
    reverse_over_reverse = jax.grad(lambda x: jnp.vdot(jax.grad(loss)(x), v))(x)
    reverse_over_forward = jax.grad(lambda x: jax.jvp(loss, (x,), (v,))[1])(x)
    _close(reverse_over_reverse, forward_over_reverse)
    _close(reverse_over_forward, forward_over_reverse)


@pytest.mark.parametrize("name", FUSED)
def test_vmap_over_each_operand(name: str) -> None:
    fn, args = _cases()[name]
    for batched in range(len(args)):
        stacked = jax.tree.map(lambda a: jnp.stack([a, 0.5 * a, -a]), args[batched])
        operands = [*args[:batched], stacked, *args[batched + 1 :]]
        axes = tuple(0 if i == batched else None for i in range(len(args)))
        mapped = jax.vmap(fn, in_axes=axes)(*operands)
        for i in range(3):
            one = fn(*args[:batched], jax.tree.map(lambda a, i=i: a[i], stacked), *args[batched + 1 :])
            _close(jax.tree.map(lambda a, i=i: a[i], mapped), one)


@pytest.mark.parametrize("name", FUSED)
def test_gradient_of_vmap_and_vmap_of_gradient(name: str) -> None:
    fn, args = _cases()[name]
    loss = _scalar(fn)
    x = jnp.stack([args[0], 0.5 * args[0]])
    shared = args[-1]  # a weight, shared by the batch

    def total(x, shared):
        return jnp.sum(jax.vmap(lambda x: loss(x, *args[1:-1], shared))(x))

    each = jax.vmap(jax.grad(lambda x, shared: loss(x, *args[1:-1], shared), argnums=(0, 1)), in_axes=(0, None))
    of_sum, of_each = jax.grad(total, argnums=(0, 1))(x, shared), each(x, shared)
    _close(of_sum[0], of_each[0])
    _close(of_sum[1], jax.tree.map(lambda g: jnp.sum(g, axis=0), of_each[1]))


@pytest.mark.parametrize("name", FUSED)
def test_linearize_remat_and_scan(name: str) -> None:
    fn, args = _cases()[name]
    loss = _scalar(lambda x: fn(x, *args[1:]))
    x, v = args[0], _array(*args[0].shape, seed=7)
    expected = jax.jvp(loss, (x,), (v,))[1]
    _close(jax.linearize(loss, x)[1](v), expected)
    _close(jax.grad(jax.checkpoint(loss))(x), jax.grad(loss)(x))

    def scanned(x):
        return jax.lax.scan(lambda carry, s: (carry + loss(s * x), None), 0.0, jnp.asarray([1.0, 0.5]))[0]

    _close(jax.grad(scanned)(x), jax.grad(lambda x: loss(x) + loss(0.5 * x))(x))


def test_a_frozen_weight_costs_nothing() -> None:
    fn, args = _cases()["fused_ffn gated"]
    jaxpr = jax.make_jaxpr(jax.grad(lambda x: _scalar(fn)(x, *args[1:])))(args[0])
    backward = next(eqn for eqn in jaxpr.eqns if eqn.primitive.name == "fused_ffn_bwd")
    assert [v.aval.shape for v in backward.outvars] == [X]


def test_only_inputs_are_kept_for_the_backward_pass() -> None:
    fn, args = _cases()["fused_ffn gated"]
    _, pull = jax.vjp(fn, *args)
    kept = sum(leaf.size for leaf in jax.tree.leaves(pull) if hasattr(leaf, "size"))
    assert kept == sum(arg.size for arg in args)


def test_a_policy_keeps_the_named_operators() -> None:
    fn, args = _cases()["self_attention"]

    def count(policy: Any) -> int:
        loss = jax.checkpoint(lambda x: _scalar(fn)(x, *args[1:]), policy=policy)
        return str(jax.make_jaxpr(jax.grad(loss))(args[0])).count(" self_attention[")

    assert count(None) == 2
    assert count(atbfn.save_operators("self_attention")) == 1
    with pytest.raises(ValueError, match="save_operators: names: got 'attention'"):
        atbfn.save_operators("attention")


@pytest.mark.parametrize("name", ["fused_ffn gated", "attention_with_kv_cache"])
def test_control_flow(name: str) -> None:
    fn, args = _cases()[name]
    loss = _scalar(lambda x: fn(x, *args[1:]))
    x, v = args[0], _array(*args[0].shape, seed=7)

    def branches(x):
        return jax.lax.cond(jnp.sum(x) > 1e9, lambda x: 0.0, loss, x)

    _close(jax.grad(branches)(x), jax.grad(loss)(x))

    def repeated(x):  # forward mode only, as JAX has it
        return jax.lax.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, c[1] + loss(x)), (0, 0.0))[1]

    _close(jax.jvp(repeated, (x,), (v,))[1], 2 * jax.jvp(loss, (x,), (v,))[1])


@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("mode", ["fused", "step_by_step"])
def test_a_masked_key_reaches_no_derivative(mode: str, softcap: float | None) -> None:
    rng = np.random.default_rng(0)
    q, k, v = (jnp.asarray(rng.normal(size=(1, 2, n, 4)), jnp.float32) for n in (3, 6, 6))
    mask = atbfn.Allowed(jnp.arange(6)[None, None, None] < jnp.array([3, 0, 4])[:, None])

    @jax.jit
    def derivatives(q, k, v):
        def loss(q, k, v):
            return jnp.sum(atbfn.flash_attention(q, k, v, mask=mask, softcap=softcap, mode=mode) ** 2)

        gradient = jax.grad(loss, argnums=(0, 1, 2))
        return gradient(q, k, v), jax.jvp(gradient, (q, k, v), (q, jnp.ones_like(k), jnp.ones_like(v)))[1]

    expected = derivatives(q, k, v)
    dirty = derivatives(q, k.at[:, :, 4:].set(jnp.nan), v.at[:, :, 4:].set(jnp.nan))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), dirty, expected)
