"""Plain `jit` on inputs sharded over batch, heads or intermediate: nothing is gathered, and the numbers agree."""

from __future__ import annotations

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import atbfn

DEVICES = 4
HEADS, KV_HEADS, HEAD_DIM, HIDDEN, INTERMEDIATE = 8, 4, 8, 32, 64
BATCH, Q_LEN, MAX_SEQ = 4, 6, 16


@dataclasses.dataclass(frozen=True)
class Case:
    """A function, its operands, and how each operand is split."""

    fn: object
    args: tuple
    specs: tuple


def _rng(*shape: int, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng((seed, *shape)).normal(size=shape) / np.sqrt(shape[-1]), jnp.float32)


def _ffn(x, w_gate, w_up, w_down):
    return atbfn.fused_ffn(x, w_gate, w_up, w_down, norm=atbfn.RMSNorm(jnp.ones(HIDDEN)), residual=x)


def _attention(x, k_cache, v_cache, pos, lengths, weights):
    rope = atbfn.Rope.create(HEAD_DIM, MAX_SEQ)
    return atbfn.attention_with_kv_cache(
        x, k_cache, v_cache, pos, lengths=lengths, weights=weights, num_heads=HEADS, num_kv_heads=KV_HEADS,
        rope=rope, norm=atbfn.LayerNorm(jnp.ones(HIDDEN)), residual=x,
    )  # fmt: skip


def _self_attention(x, weights):
    return atbfn.self_attention(x, weights=weights, num_heads=HEADS, num_kv_heads=KV_HEADS, mask=atbfn.Full())


def _norm(x, residual):
    return atbfn.layernorm_residual(x, residual, jnp.ones(HIDDEN))


WEIGHTS = atbfn.AttentionWeights(
    _rng(HEADS * HEAD_DIM, HIDDEN),
    _rng(KV_HEADS * HEAD_DIM, HIDDEN),
    _rng(KV_HEADS * HEAD_DIM, HIDDEN, seed=1),
    _rng(HIDDEN, HEADS * HEAD_DIM),
)
WHOLE = atbfn.AttentionWeights(P(), P(), P(), P())
BY_HEAD = atbfn.AttentionWeights(P("d"), P("d"), P("d"), P(None, "d"))
X = _rng(BATCH, Q_LEN, HIDDEN)
CACHES = (_rng(BATCH, KV_HEADS, MAX_SEQ, HEAD_DIM), _rng(BATCH, KV_HEADS, MAX_SEQ, HEAD_DIM, seed=1))
FFN = (X, _rng(INTERMEDIATE, HIDDEN), _rng(INTERMEDIATE, HIDDEN, seed=1), _rng(HIDDEN, INTERMEDIATE))
ONE_POS, EACH_POS = jnp.asarray(3, jnp.int32), jnp.asarray([0, 3, 10, 5], jnp.int32)
LENGTHS = jnp.asarray([6, 2, 6, 0], jnp.int32)
Q = _rng(BATCH, HEADS, Q_LEN, HEAD_DIM)

CASES = {
    "ffn, batch": Case(_ffn, FFN, (P("d"), P(), P(), P())),
    "ffn, intermediate": Case(_ffn, FFN, (P(), P("d"), P("d"), P(None, "d"))),
    "norm, batch": Case(_norm, (X, X), (P("d"), P("d"))),
    "attention, batch, one pos": Case(
        _attention, (X, *CACHES, ONE_POS, None, WEIGHTS), (P("d"), P("d"), P("d"), P(), None, WHOLE)
    ),
    "attention, batch, each pos": Case(
        _attention, (X, *CACHES, EACH_POS, LENGTHS, WEIGHTS), (P("d"), P("d"), P("d"), P("d"), P("d"), WHOLE)
    ),
    "attention, heads, one pos": Case(
        _attention, (X, *CACHES, ONE_POS, None, WEIGHTS), (P(), P(None, "d"), P(None, "d"), P(), None, BY_HEAD)
    ),
    "attention, heads, each pos": Case(
        _attention, (X, *CACHES, EACH_POS, LENGTHS, WEIGHTS), (P(), P(None, "d"), P(None, "d"), P(), P(), BY_HEAD)
    ),
    "self attention, batch": Case(_self_attention, (X, WEIGHTS), (P("d"), WHOLE)),
    "self attention, heads": Case(_self_attention, (X, WEIGHTS), (P(), BY_HEAD)),
    "flash attention, batch": Case(atbfn.flash_attention, (Q, *CACHES), (P("d"), P("d"), P("d"))),
    "flash attention, heads": Case(atbfn.flash_attention, (Q, *CACHES), (P(None, "d"),) * 3),
}
GATHERS = re.compile(r"all-gather|all-to-all|collective-permute")


def _mesh(kind: AxisType) -> jax.sharding.Mesh:
    return jax.make_mesh((DEVICES,), ("d",), axis_types=(kind,), devices=jax.devices()[:DEVICES])


def _split(case: Case, mesh: jax.sharding.Mesh) -> tuple:
    return jax.tree.map(lambda x, spec: jax.device_put(x, NamedSharding(mesh, spec)), case.args, case.specs)


def _loss(fn):
    return lambda *args: sum(jnp.sum(jnp.sin(out)) for out in jax.tree.leaves(fn(*args)))


def _float_args(args: tuple) -> tuple[int, ...]:
    return tuple(
        i for i, arg in enumerate(args) if arg is not None and jax.tree.leaves(arg)[0].dtype == jnp.float32
    )  # fmt: skip


def _agree(actual, expected) -> None:
    jax.tree.map(lambda a, e: np.testing.assert_allclose(a, e, rtol=2e-5, atol=2e-5), actual, expected)


@pytest.mark.parametrize("name", CASES)
def test_forward_gathers_nothing(name: str) -> None:
    case = CASES[name]
    compiled = jax.jit(case.fn).lower(*_split(case, _mesh(AxisType.Auto))).compile()
    assert not GATHERS.search(compiled.as_text())
    _agree(compiled(*_split(case, _mesh(AxisType.Auto))), jax.jit(case.fn)(*case.args))


def test_a_gather_would_be_seen() -> None:
    mesh = _mesh(AxisType.Auto)
    x = jax.device_put(X, NamedSharding(mesh, P("d")))
    whole = jax.jit(lambda x: x * 2, out_shardings=NamedSharding(mesh, P()))
    assert GATHERS.search(whole.lower(x).compile().as_text())


@pytest.mark.parametrize("name", CASES)
def test_gradient_gathers_nothing(name: str) -> None:
    case = CASES[name]
    grad = jax.jit(jax.grad(_loss(case.fn), argnums=_float_args(case.args)))
    compiled = grad.lower(*_split(case, _mesh(AxisType.Auto))).compile()
    assert not GATHERS.search(compiled.as_text())
    _agree(compiled(*_split(case, _mesh(AxisType.Auto))), grad(*case.args))


@pytest.mark.parametrize("name", ["ffn, batch", "attention, batch, each pos", "attention, heads, one pos"])
def test_explicit_axes_keep_their_types(name: str) -> None:
    case, mesh = CASES[name], _mesh(AxisType.Explicit)
    with jax.set_mesh(mesh):
        out = jax.jit(case.fn)(*_split(case, mesh))
    for actual, given in zip(jax.tree.leaves(out), jax.tree.leaves(case.specs), strict=False):
        assert P(*jax.typeof(actual).sharding.spec[: len(given)]) == given
    _agree(out, jax.jit(case.fn)(*case.args))


def test_shard_map_with_varying_axes_checked() -> None:
    case, mesh = CASES["ffn, batch"], _mesh(AxisType.Auto)
    mapped = jax.shard_map(case.fn, mesh=mesh, in_specs=case.specs, out_specs=P("d"), check_vma=True)
    _agree(jax.jit(mapped)(*case.args), case.fn(*case.args))
    argnums = tuple(range(len(case.args)))
    actual = jax.jit(jax.grad(_loss(mapped), argnums))(*case.args)
    _agree(actual, jax.grad(_loss(case.fn), argnums)(*case.args))


def test_shard_map_over_the_cache() -> None:
    case, mesh = CASES["attention, batch, each pos"], _mesh(AxisType.Auto)
    out_specs = (P("d"), P("d"), P("d"))
    mapped = jax.shard_map(case.fn, mesh=mesh, in_specs=case.specs, out_specs=out_specs, check_vma=True)
    _agree(jax.jit(mapped)(*case.args), case.fn(*case.args))
    actual = jax.jit(jax.grad(_loss(mapped), (0, 5)))(*case.args)
    _agree(actual, jax.grad(_loss(case.fn), (0, 5))(*case.args))


def test_a_custom_call_that_would_gather_is_refused() -> None:
    if any(status.name == "cpu" and status.reason for status in atbfn.lowering.status()):
        return  # no compiled kernels in this installation, hence no custom call
    case, mesh = CASES["attention, batch, one pos"], _mesh(AxisType.Auto)
    with atbfn.fusion(target="cpu"), pytest.raises(NotImplementedError, match="would gather the operands"):
        jax.jit(case.fn).lower(*_split(case, mesh))
