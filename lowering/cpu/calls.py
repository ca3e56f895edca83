"""How the lowerings of this folder call a handler: optional operands, and settings by number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from atbfn.fusion.machine import this_machine
from atbfn.lowering.cpu.native import kernels
from atbfn.primitives.activation import Activation
from atbfn.primitives.norm import LayerNorm, Norm

DTYPES = (jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.float16), jnp.dtype(jnp.float32))

ACTIVATIONS = ("identity", "silu", "gelu", "gelu_tanh", "relu")
"""In the order of `Activation` in kernels/cpu/types.h."""


def token_bytes(dtype: Any, k: int) -> int:
    """Bytes of one token's row of k elements, packed for a product by the kernels in use."""
    return kernels().packed_bytes(DTYPES.index(jnp.dtype(dtype)), k, 16) // 16


def call(
    target: str, outs: Any, operands: Sequence[Any], aliases: dict[int, int] | None = None, **settings: Any
) -> Any:
    """Call a handler with the operands that are there; `present` tells it which they are.

    A `vmap` over operands that the handler knows nothing of runs it once per element.
    """
    present = sum(1 << i for i, x in enumerate(operands) if x is not None)
    given = [jnp.asarray(x) for x in operands if x is not None]
    at = {}
    for operand, out in (aliases or {}).items():
        at[sum(x is not None for x in operands[:operand])] = out
    fn = jax.ffi.ffi_call(target, outs, input_output_aliases=at, vmap_method="sequential")
    numbers = {name: _number(value) for name, value in settings.items()}
    return fn(*given, present=np.int64(present), threads=np.int64(this_machine().cores), **numbers)


def _number(value: Any) -> Any:
    if isinstance(value, bool):
        return np.bool_(value)
    if isinstance(value, np.ndarray):
        return value
    return np.int64(value) if isinstance(value, int) else np.float32(value)


def shape(x: Any) -> jax.ShapeDtypeStruct:
    """The type of an output that is like `x`."""
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


def norm_kind(norm: Norm | None) -> int:
    """0 none, 1 RMSNorm, 2 LayerNorm, as the handlers number them."""
    if norm is None:
        return 0
    return 2 if isinstance(norm, LayerNorm) else 1


def norm_operands(norm: Norm | None) -> tuple[Any, Any]:
    """gamma and beta, None where absent."""
    return (None, None) if norm is None else (norm.gamma, getattr(norm, "beta", None))


def norm_eps(norm: Norm | None) -> float:
    """The epsilon; 0 where there is no norm."""
    return 0.0 if norm is None else float(norm.eps)


def activation_number(activation: Activation) -> int:
    """The number of a named activation."""
    assert isinstance(activation, str)
    return ACTIVATIONS.index(activation)


def refuses_dtype(x: Any) -> str | None:
    """The reason why a dtype is not taken."""
    if jnp.dtype(x.dtype) not in DTYPES:
        return f"the native kernels take bfloat16, float16 and float32, not {x.dtype}"
    return None


def refuses_mixed(x: Any, *others: Any) -> str | None:
    """The reason where operands that must have the dtype of `x` do not."""
    for other in others:
        if other is not None and other.dtype != x.dtype:
            return f"the native kernels take operands of one dtype, not {x.dtype} and {other.dtype}"
    return None


def refuses_vectors(*vectors: Any) -> str | None:
    """The reason where a bias or norm parameter has a dtype that the handlers do not widen."""
    for vector in vectors:
        if vector is not None and (reason := refuses_dtype(vector)) is not None:
            return reason
    return None


def refuses_symbolic(*arrays: Any) -> str | None:
    """The reason where a size is not known: blocks are cut when a program is lowered."""
    for array in arrays:
        if array is not None and not all(isinstance(size, int) for size in array.shape):
            return "the native kernels need sizes that are known when the program is lowered"
    return None
