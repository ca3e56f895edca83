"""`activation`, and the elementwise steps `multiply` (gated) and `add` (summed) of the fused operators."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from atbfn.primitives.operator import Operator, Outputs, like
from atbfn.primitives.precision import widen

Activation = str | Callable[[jax.Array], jax.Array]

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "silu": jax.nn.silu,
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True),
    "relu": lambda x: jnp.maximum(x, 0),
    "identity": lambda x: x,
}


def activate(x: jax.Array, activation: Activation) -> jax.Array:
    """The named or given elementwise function of `x`, which is in an accumulator dtype already."""
    fn = ACTIVATIONS[activation] if isinstance(activation, str) else activation
    return fn(x)


@dataclasses.dataclass(frozen=True)
class ActivationSpec:
    """Static settings of `activation`."""

    activation: Activation
    target: str


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ActivationArgs:
    """Operand of `activation`."""

    x: Any


@dataclasses.dataclass(frozen=True)
class PairSpec:
    """Static settings of `multiply` and `add`."""

    target: str


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PairArgs:
    """Operands of `multiply` and `add`, of one shape."""

    a: Any
    b: Any


def _activation_plain(spec: ActivationSpec, args: ActivationArgs) -> Outputs:
    return Outputs((activate(widen(args.x), spec.activation).astype(args.x.dtype),))


def _multiply_plain(spec: PairSpec, args: PairArgs) -> Outputs:
    return Outputs(((widen(args.a) * widen(args.b)).astype(args.a.dtype),))


def _add_plain(spec: PairSpec, args: PairArgs) -> Outputs:
    return Outputs(((widen(args.a) + widen(args.b)).astype(args.a.dtype),))


activation = Operator(
    "activation", plain=_activation_plain, shapes=lambda spec, args: Outputs((like(args.x),)), rows=("x",)
)
multiply = Operator(
    "multiply", plain=_multiply_plain, shapes=lambda spec, args: Outputs((like(args.a),)), rows=("a", "b")
)
add = Operator("add", plain=_add_plain, shapes=lambda spec, args: Outputs((like(args.a),)), rows=("a", "b"))
