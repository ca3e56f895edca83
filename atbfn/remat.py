"""Rematerialisation policies that know the operators: JAX's own recompute a primitive they have not heard of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from atbfn.primitives.errors import bad_value
from atbfn.primitives.operator import operators


def save_operators(*names: str) -> Callable[..., bool]:
    """A policy for `jax.checkpoint` that keeps what the named operators return and recomputes the rest.

    Attention returns its context and log-sum-exp beside its output, so keeping it spares the backward pass the
    attention itself; that and a recomputed FFN is the usual choice:

        jax.checkpoint(layer, policy=atbfn.save_operators("attention_with_kv_cache"))

    Args:
      names: operators, as `atbfn.lowering.status()` lists them for the `xla` target.

    Raises:
      ValueError: a name that is no operator.
    """
    for name in names:
        if name not in operators:
            bad_value(
                "save_operators", "names", repr(name), f"any of {', '.join(sorted(operators))}", "check the spelling"
            )
    kept = frozenset(operators[name].primitive for name in names)

    def policy(primitive: Any, *_: Any, **__: Any) -> bool:
        return primitive in kept

    return policy
