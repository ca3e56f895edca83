"""The native kernels against the float64 references: every other target's calls, and shapes that fill their blocks.

Without the `xla` target beside it this is quick, so it runs again for every narrower instruction set of the machine
(`tests/lowering/cpu/test_isas.py`).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

import atbfn
from atbfn.lowering.cpu import native
from atbfn.reference import ffn as ref_ffn
from tests.contract.harness import PRIMITIVES, check_call, examples, run
from tests.strategies import CALLS, DTYPES
from tests.tolerance import check

pytestmark = pytest.mark.skipif(not native.available(), reason=f"no compiled kernels: {native.reason()}")

NATIVE = [
    operator
    for operator in CALLS
    if any(
        status.name == "cpu" and PRIMITIVES.get(operator, operator) in status.operators
        for status in atbfn.lowering.status()
    )
]


def eagerly(fn: Any) -> Any:
    return fn


def test_there_are_native_operators() -> None:
    expected = {"fused_ffn", "linear", "flash_attention", "attention_with_kv_cache", "self_attention", "rope"}
    assert expected | {"kv_cache_update"} | set(PRIMITIVES) == set(NATIVE)


@pytest.mark.parametrize("poison", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("operator", NATIVE)
def test_agrees_with_the_reference(operator: str, dtype: str, poison: bool) -> None:
    @examples(2, operator, dtype, "native", str(poison))
    @given(CALLS[operator](dtype, **({"poison": True} if poison else {})))
    def agrees(call: Any) -> None:
        if callable(call.static.get("activation")):
            return  # refused: see `check_everywhere`
        check_call(call, run(call, "fused", "cpu", eagerly), "fused", "cpu")

    agrees()


def draw(rng: np.random.Generator, shape: tuple[int, ...], dtype: str, scale: float = 1.0) -> np.ndarray:
    return (rng.standard_normal(shape) * scale).astype(DTYPES[dtype])


def wide(*arrays: np.ndarray | None) -> list[Any]:
    return [None if a is None else np.asarray(a, np.float64) for a in arrays]


# tokens, hidden, intermediate: one block and many, all counts of tiles, sizes that divide by nothing.
FFNS = [
    (1, 331, 887),
    (5, 96, 64),
    (8, 331, 887),
    (16, 64, 96),
    (33, 83, 101),
    (61, 331, 887),
    (130, 64, 2080),
    (700, 48, 80),
]


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("tokens, hidden, intermediate", FFNS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_ffn_of_many_blocks(dtype: str, tokens: int, hidden: int, intermediate: int, gated: bool) -> None:
    rng = np.random.default_rng(tokens)
    x, gate, up = (
        draw(rng, s, dtype, c) for s, c in (((tokens, hidden), 1), *[((intermediate, hidden), hidden**-0.5)] * 2)
    )
    down, residual = draw(rng, (hidden, intermediate), dtype, intermediate**-0.5), draw(rng, (tokens, hidden), dtype)
    gate = gate if gated else None
    out = atbfn.fused_ffn(x, gate, up, down, residual=residual, activation="gelu", target="cpu")
    x_, gate_, up_, down_, residual_ = wide(x, gate, up, down, residual)
    expected = ref_ffn.fused_ffn(x_, gate_, up_, down_, residual=residual_, activation="gelu")["out"]
    check(np.asarray(out), expected, "matmul", dtype, reduction=max(hidden, intermediate), what="fused_ffn")


# batch, heads, kv_heads, q_len, kv_len, head_dim
ATTENTIONS = [
    (1, 4, 2, 1, 1100, 64),
    (2, 3, 3, 2, 700, 41),
    (1, 8, 1, 1, 300, 128),
    (1, 2, 1, 300, 300, 41),
    (2, 4, 2, 67, 600, 64),
    (1, 1, 1, 700, 1300, 32),
]
MASKS = {
    "causal": atbfn.Causal(),
    "window": atbfn.Causal(window=100, global_tokens=3),
    "full": atbfn.Full(),
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("batch, heads, kv_heads, q_len, kv_len, head_dim", ATTENTIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_attention_of_many_blocks(
    dtype: str, batch: int, heads: int, kv_heads: int, q_len: int, kv_len: int, head_dim: int, mask: str
) -> None:
    rng = np.random.default_rng(q_len)
    q = draw(rng, (batch, heads, q_len, head_dim), dtype)
    k, v = (draw(rng, (batch, kv_heads, kv_len, head_dim), dtype) for _ in "kv")
    out, lse = atbfn.flash_attention(q, k, v, mask=MASKS[mask], return_lse=True, target="cpu")
    allowed = np.asarray(MASKS[mask].block(0, q_len, 0, kv_len, jnp.asarray([kv_len - q_len], jnp.int32)))
    q_, k_, v_ = wide(q, k, v)
    k_, v_ = (np.repeat(a, heads // kv_heads, axis=1) for a in (k_, v_))
    s = np.where(allowed, np.einsum("bhqd,bhkd->bhqk", q_, k_) * head_dim**-0.5, -np.inf)
    top = s.max(-1, keepdims=True)
    p = np.exp(s - top)
    expected = np.einsum("bhqk,bhkd->bhqd", p / p.sum(-1, keepdims=True), v_)
    # Many queries: probabilities are rounded to bfloat16 before the second product, as in every such kernel.
    outliers = 1 / 200 if dtype == "bfloat16" else 0.0
    check(np.asarray(out), expected, "attention", dtype, reduction=kv_len, outliers=outliers, what="context")
    np.testing.assert_allclose(
        np.asarray(lse), top[..., 0] + np.log(p.sum(-1)), rtol=0, atol=2e-3 if dtype != "float32" else 1e-4
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_masked_keys_do_not_leak(dtype: str) -> None:
    # In the middle of blocks: an unattended NaN and an attended infinity.
    rng = np.random.default_rng(0)
    q, k, v = (draw(rng, (1, 2, 200, 32), dtype) for _ in "qkv")
    clean = np.asarray(atbfn.flash_attention(q, k, v, target="cpu")).astype(np.float32)
    for array in (k, v):
        array[:, :, 150] = np.nan
    out = np.asarray(atbfn.flash_attention(q, k, v, target="cpu")).astype(np.float32)
    check(
        out[:, :, :150], clean[:, :, :150].astype(np.float64), "attention", dtype, reduction=200, what="before the NaN"
    )
    assert np.isnan(out[:, :, 150:]).all()
    v[:, :, 150], k[:, :, 150] = np.inf, 0
    out = np.asarray(atbfn.flash_attention(q, k, v, target="cpu")).astype(np.float32)
    assert np.isfinite(out[:, :, :150]).all() and np.isposinf(out[:, :, 150:]).all()


@pytest.mark.parametrize("tokens", [1, 40])
@pytest.mark.parametrize("dtype", DTYPES)
def test_infinities_in_products(dtype: str, tokens: int) -> None:
    # float16 and float32 may be multiplied in parts, of which infinity has none.
    rng = np.random.default_rng(0)
    x, w = draw(rng, (tokens, 70), dtype), draw(rng, (50, 70), dtype)
    x[0, 3], w[7, 5], w[9, 1] = np.inf, -np.inf, np.nan
    out = np.asarray(atbfn.linear(x, w, target="cpu")).astype(np.float64)
    with np.errstate(invalid="ignore"):
        expected = np.asarray(x, np.float64) @ np.asarray(w, np.float64).T
    np.testing.assert_array_equal(np.isnan(out), np.isnan(expected))
    np.testing.assert_array_equal(out[np.isinf(expected)], expected[np.isinf(expected)])


def test_large_float32_does_not_become_infinite() -> None:
    x = np.full((40, 64), 1e-3, np.float32)
    w = np.full((32, 64), np.finfo(np.float32).max, np.float32)
    out = np.asarray(atbfn.linear(x, w, target="cpu"))
    np.testing.assert_allclose(out, np.finfo(np.float32).max * 1e-3 * 64, rtol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_jit_vmap_and_grad(dtype: str) -> None:
    rng = np.random.default_rng(0)
    x, w = jnp.asarray(draw(rng, (3, 20, 48), dtype)), jnp.asarray(draw(rng, (3, 32, 48), dtype, 0.1))
    native_ = jax.jit(jax.vmap(lambda x, w: atbfn.linear(x, w, target="cpu")))(x, w)
    plain = jax.vmap(lambda x, w: atbfn.linear(x, w, target="xla"))(x, w)
    check(np.asarray(native_), np.asarray(plain, np.float64), "matmul", dtype, reduction=48, what="vmap")
    grads = [
        jax.grad(lambda x, t=t: atbfn.linear(x, w[0], target=t).astype(jnp.float32).sum())(x[0]) for t in ("cpu", "xla")
    ]
    np.testing.assert_array_equal(np.asarray(grads[0]), np.asarray(grads[1]))
