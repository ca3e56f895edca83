"""The `cpu` target: lowerings that call the compiled kernels of this machine."""

from __future__ import annotations

from atbfn.lowering.cpu import attention, ffn, flash_attention, kv_cache, linear, native, norm, rope
from atbfn.lowering.table import Implementation, register, set_unavailable

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

CUSTOM_CALLS = (
    attention.TARGET,
    ffn.TARGET,
    flash_attention.TARGET,
    kv_cache.TARGET,
    linear.TARGET,
    norm.TARGET,
    norm.RESIDUAL_TARGET,
    rope.TARGET,
)
"""The handlers' names, as they stand in a program."""


def register_kernels() -> None:
    """Enter the compiled kernels into the table, or the reason why there are none."""
    reason = native.reason()
    if reason is not None:
        set_unavailable("cpu", reason)
        return
    for operator, form, refuses in _OPERATORS:
        register(operator, "cpu", Implementation(form, refuses, ("cpu",)))
