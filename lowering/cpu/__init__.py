"""The `cpu` target: lowerings that call the compiled kernels of this machine."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from atbfn.lowering.cpu import attention, ffn, flash_attention, kv_cache, linear, native, norm, product, rope
from atbfn.lowering.table import Implementation, register, set_unavailable
from atbfn.primitives import attention as primitive_attention
from atbfn.primitives import ffn as primitive_ffn
from atbfn.primitives import linear as primitive_linear

_OPERATORS = (
    ("attention_with_kv_cache", attention.form, attention.refuses),
    ("flash_attention", flash_attention.form, flash_attention.refuses),
    ("fused_ffn", ffn.form, ffn.refuses),
    ("kv_cache_update", kv_cache.form, kv_cache.refuses),
    ("linear", linear.form, linear.refuses),
    ("norm", norm.form, norm.refuses),
    ("norm_residual", norm.residual_form, norm.refuses),
    ("rope", rope.form, rope.refuses),
    ("self_attention", attention.form, attention.refuses),
)

_attention_backward = functools.partial(primitive_attention.backward, product=product.product)

_BACKWARD: dict[str, Callable[..., Any]] = {
    "attention_with_kv_cache": _attention_backward,
    "fused_ffn": product.backward_of(primitive_ffn.plain),
    "linear": product.backward_of(primitive_linear.plain),
    "self_attention": _attention_backward,
}
"""Backward forms on native products. The others are not bound by products, and XLA fuses what they are made of."""

CUSTOM_CALLS = (
    attention.TARGET,
    ffn.TARGET,
    flash_attention.TARGET,
    kv_cache.TARGET,
    linear.TARGET,
    product.GRAD_TARGET,
    norm.TARGET,
    norm.RESIDUAL_TARGET,
    rope.TARGET,
)
"""The handlers' names, as they stand in a program."""


def _refuses_backward(spec: Any, args: Any) -> str | None:
    return product.refuses(args.x)


def _declines_nothing(spec: Any, args: Any) -> str | None:
    return None


def register_kernels() -> None:
    """Enter the compiled kernels into the table, or the reason why there are none."""
    reason = native.reason()
    if reason is not None:
        set_unavailable("cpu", reason)
        return
    for operator, form, refuses in _OPERATORS:
        backward = _BACKWARD.get(operator)
        declines = product.declines if operator in ("fused_ffn", "linear") else _declines_nothing
        register(operator, "cpu", Implementation(form, refuses, ("cpu",), backward, _refuses_backward, declines))
