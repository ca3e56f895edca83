"""Exported artifacts: portable by default, with symbolic shapes, and with compiled kernels where asked for."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export as jax_export

import atbfn
from atbfn import lowering

HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, HEAD_DIM, MAX_SEQ = 8, 12, 4, 2, 4, 16


def _array(*shape: int, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng((seed, *shape)).normal(size=shape), jnp.float32)


WEIGHTS = atbfn.AttentionWeights(
    _array(HEADS * HEAD_DIM, HIDDEN),
    _array(KV_HEADS * HEAD_DIM, HIDDEN),
    _array(KV_HEADS * HEAD_DIM, HIDDEN, seed=1),
    _array(HIDDEN, HEADS * HEAD_DIM),
)


def ffn(x: jax.Array) -> jax.Array:
    w_up, w_down = _array(INTERMEDIATE, HIDDEN), _array(HIDDEN, INTERMEDIATE)
    return atbfn.fused_ffn(x, w_up, w_up, w_down, norm=atbfn.RMSNorm(jnp.ones(HIDDEN)), residual=x)


def attention(x: jax.Array, k_cache: jax.Array, v_cache: jax.Array, pos: jax.Array) -> Any:
    rope = atbfn.Rope.create(HEAD_DIM, MAX_SEQ)
    heads = {"num_heads": HEADS, "num_kv_heads": KV_HEADS}
    return atbfn.attention_with_kv_cache(x, k_cache, v_cache, pos, weights=WEIGHTS, **heads, rope=rope)


def whole(x: jax.Array) -> jax.Array:
    return atbfn.self_attention(x, weights=WEIGHTS, num_heads=HEADS, num_kv_heads=KV_HEADS)


def _operands(batch: int, q_len: int) -> tuple[Any, ...]:
    cache = _array(batch, KV_HEADS, MAX_SEQ, HEAD_DIM)
    return _array(batch, q_len, HIDDEN), cache, cache, jnp.arange(batch, dtype=jnp.int32)


def _symbolic(text: str, dtype: Any = jnp.float32, scope: Any = None) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(jax_export.symbolic_shape(text, scope=scope), dtype)


def _same(actual: Any, expected: Any) -> None:
    jax.tree.map(lambda a, e: np.testing.assert_allclose(a, e, rtol=1e-5, atol=1e-5), actual, expected)


def _runner(exported: jax_export.Exported) -> Any:
    assert exported.mlir_module_serialized  # what an artifact on disk holds; jax needs flatbuffers to write it there
    return jax.jit(exported.call)


@pytest.mark.parametrize("mode", ["step_by_step", "fused", "fused_with_checkpoints"])
def test_every_mode_exports_with_symbolic_batch(mode: str) -> None:
    scope = jax_export.SymbolicScope()
    x = _symbolic(f"b, t, {HIDDEN}", scope=scope)
    cache = _symbolic(f"b, {KV_HEADS}, {MAX_SEQ}, {HEAD_DIM}", scope=scope)
    pos = _symbolic("b", jnp.int32, scope=scope)
    one = jax.ShapeDtypeStruct((2, 3, HIDDEN), jnp.float32)
    with atbfn.fusion(mode=mode):
        run_ffn, run_whole = _runner(atbfn.export(ffn)(x)), _runner(atbfn.export(whole)(x))
        run_attention = _runner(atbfn.export(attention)(_symbolic(f"b, 3, {HIDDEN}", scope=scope), cache, cache, pos))
        assert atbfn.export(ffn)(one).call(_operands(2, 3)[0]).shape == (2, 3, HIDDEN)
    for batch, q_len in ((1, 1), (3, 5)):
        operands = _operands(batch, q_len)
        _same(run_ffn(operands[0]), ffn(operands[0]))
        _same(run_whole(operands[0]), whole(operands[0]))
    operands = _operands(2, 3)
    _same(run_attention(*operands), attention(*operands))


def test_portable_by_default() -> None:
    operands = _operands(2, 3)
    exported = atbfn.export(jax.jit(attention), platforms=("cpu", "tpu", "cuda"))(*operands)
    assert not any(name in exported.mlir_module() for name in lowering.CUSTOM_CALLS)


def test_compiled_kernels_where_asked_for() -> None:
    if any(status.name == "cpu" and status.reason for status in lowering.status()):
        with pytest.raises(NotImplementedError, match="target: got 'cpu'"):
            atbfn.export(attention, target="cpu")(*_operands(2, 3))
        return
    operands = _operands(2, 3)
    exported = atbfn.export(attention, target="cpu")(*operands)
    assert lowering.CUSTOM_CALLS[0] in exported.mlir_module()
    _same(_runner(exported)(*operands), attention(*operands))
