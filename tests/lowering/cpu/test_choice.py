"""What `auto` takes the native kernels for, and what an explicit target says where it cannot."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import atbfn
from atbfn.lowering.cpu import native

pytestmark = pytest.mark.skipif(not native.available(), reason=f"no compiled kernels: {native.reason()}")


def calls(fn: Any, *args: Any) -> bool:
    """Whether the compiled program calls a native kernel."""
    return "atbfn_" in jax.jit(fn).lower(*args).as_text()


def ffn(tokens: int, dtype: Any, **options: Any) -> bool:
    x, w, down = jnp.ones((tokens, 8), dtype), jnp.ones((16, 8), dtype), jnp.ones((8, 16), dtype)
    return calls(lambda x: atbfn.fused_ffn(x, w, w, down, **options), x)


def test_auto_takes_native_kernels_where_they_apply() -> None:
    assert ffn(4, jnp.bfloat16) and ffn(512, jnp.bfloat16) and ffn(512, jnp.float16) and ffn(4, jnp.float32)
    assert not ffn(4, jnp.bfloat16, activation=jax.nn.leaky_relu)
    assert not ffn(4, jnp.bfloat16, mode="fused_with_checkpoints")


def test_auto_leaves_large_float32_products_to_xla_and_cpu_does_not() -> None:
    assert not ffn(512, jnp.float32)
    assert ffn(512, jnp.float32, target="cpu")


def test_an_explicit_target_says_why_not() -> None:
    with pytest.raises(NotImplementedError, match="not a function"):
        ffn(4, jnp.bfloat16, activation=jax.nn.leaky_relu, target="cpu")
    q = jnp.ones((1, 2, 4, 8), jnp.bfloat16)
    ids = jnp.zeros((1, 4), jnp.int32)
    mask = atbfn.Segments(ids, ids) & atbfn.Segments(ids, ids)
    with pytest.raises(NotImplementedError, match="one Segments mask"):
        atbfn.flash_attention(q, q, q, mask=mask, target="cpu")


def test_gradients_take_native_products_in_16_bits() -> None:
    x, w = jnp.ones((40, 8), jnp.bfloat16), jnp.ones((16, 8), jnp.bfloat16)
    text = jax.jit(jax.grad(lambda x: atbfn.linear(x, w).astype(jnp.float32).sum())).lower(x).as_text()
    assert "atbfn_linear_grad" in text
    wide = jax.jit(jax.grad(lambda x: atbfn.linear(x, w.astype(jnp.float32)).sum())).lower(x.astype(jnp.float32))
    assert "atbfn_linear_grad" not in wide.as_text()
