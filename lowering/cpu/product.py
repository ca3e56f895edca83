"""Products of the backward passes: forward and both cotangents by native kernels."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from atbfn.fusion.machine import this_machine, token_block
from atbfn.lowering.cpu import calls
from atbfn.primitives.operator import Outputs

_MANY = 128  # rows from which XLA's float32 products are faster on the machines measured (docs/cpu.md)

TARGET, GRAD_TARGET = "atbfn_linear", "atbfn_linear_grad"


@jax.custom_vjp
def product(x: jax.Array, w: jax.Array, b: jax.Array | None = None) -> jax.Array:
    """`primitives.linear.product`, in float32. Cotangents are rounded to the dtype of x before they are multiplied."""
    out = jax.ShapeDtypeStruct((*x.shape[:-1], w.shape[0]), jnp.float32)
    return calls.call(TARGET, out, (x, w, b), block=_block(x))


def _block(x: Any) -> int:
    return token_block(this_machine(), math.prod(x.shape[:-1]), calls.token_bytes(x.dtype, x.shape[-1]))


def _forward(x: jax.Array, w: jax.Array, b: jax.Array | None) -> tuple[jax.Array, tuple[Any, ...]]:
    return product(x, w, b), (x, w, b)


def _backward(saved: tuple[Any, ...], dy: jax.Array) -> tuple[Any, ...]:
    x, w, b = saved
    call = jax.ffi.ffi_call(GRAD_TARGET, (calls.shape(x), calls.shape(w)), vmap_method="sequential")
    settings = {"want_x": np.bool_(True), "want_w": np.bool_(True), "threads": np.int64(this_machine().cores)}
    dx, dw = call(dy.astype(x.dtype), x, w, block=np.int64(_block(dy.astype(x.dtype))), **settings)
    db = None if b is None else dy.sum(tuple(range(dy.ndim - 1))).astype(b.dtype)
    return dx, dw, db


product.defvjp(_forward, _backward)


def backward_of(plain: Callable[..., Outputs]) -> Callable[..., Any]:
    """The backward form of an operator whose plain form takes a `product`."""

    def backward(spec: Any, args: Any, saved: tuple[Any, ...], cotangents: tuple[Any, ...]) -> Any:
        _, pull = jax.vjp(lambda args: tuple(plain(spec, args, product=product).main), args)
        return pull(cotangents)[0]

    return backward


def refuses(x: Any) -> str | None:
    """Why the native backward is not taken for an operator on `x`, or None."""
    if x.dtype.itemsize != 2:
        return "in float32 XLA's own products are as fast"
    if math.prod(x.shape) == 0:
        return "there is nothing to sum"
    return None


def declines(spec: Any, args: Any) -> str | None:
    """Why `auto` leaves a product of `args.x` to XLA, or None."""
    if args.x.dtype.itemsize == 4 and math.prod(args.x.shape[:-1]) > _MANY:
        return f"XLA's float32 products of more than {_MANY} rows are faster than the native ones"
    return None
