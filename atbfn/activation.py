"""`activation`: the elementwise function between two products."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from atbfn import arguments
from atbfn.fusion import resolve
from atbfn.primitives.activation import ACTIVATIONS, Activation, ActivationArgs, ActivationSpec
from atbfn.primitives.activation import activation as activation_op
from atbfn.primitives.errors import bad_type, bad_value


def activation(
    x: jax.Array,
    name: str | Callable[[jax.Array], jax.Array],
    *,
    mode: str | None = None,
    target: str | None = None,
) -> jax.Array:
    """An elementwise function of x, computed in float32 for 16-bit inputs.

    Args:
      x: any shape, float16, bfloat16 or float32.
      name: "silu", "gelu" (with erf), "gelu_tanh", "relu", "identity", or a traceable elementwise function that is
        hashable and closes over no traced arrays.
      mode, target: override the surrounding configuration. A single operator runs alike in every mode.

    Returns:
      x's shape and dtype.

    Raises:
      ValueError: an unknown name. TypeError: neither a name nor a function, or an unhashable one.
    """
    op = "activation"
    how = resolve(op, mode=mode, target=target)
    x = arguments.array(op, "x", x)
    spec = ActivationSpec(check_activation(op, "name", name), how.target)
    return arguments.bind(activation_op, spec, ActivationArgs(x)).main[0]


def check_activation(operator: str, argument: str, value: Any) -> Activation:
    """A name of `ACTIVATIONS`, or a hashable function."""
    if isinstance(value, str):
        if value not in ACTIVATIONS:
            near = difflib.get_close_matches(value, ACTIVATIONS, 1)
            fix = f"did you mean {near[0]!r}?" if near else "or pass a function"
            bad_value(operator, argument, repr(value), f"one of {', '.join(map(repr, ACTIVATIONS))}", fix)
        return value
    if not callable(value):
        bad_type(operator, argument, type(value).__name__, "a name or an elementwise function", "e.g. 'silu'")
    try:
        hash(value)
    except TypeError:
        bad_type(
            operator,
            argument,
            "an unhashable function",
            "a hashable one",
            "define it at module level, without arrays bound to it",
        )
    probe = jax.ShapeDtypeStruct((2, 3), jnp.float32)
    jaxpr, result = jax.make_jaxpr(lambda x: value(x), return_shape=True)(probe)
    if any(isinstance(constant, jax.core.Tracer) for constant in jaxpr.consts):
        bad_value(
            operator,
            argument,
            "a function that closes over a traced array",
            "one of its argument alone",
            "apply what depends on other arrays outside of the operator, or make it a Python number",
        )
    if getattr(result, "shape", None) != probe.shape or getattr(result, "dtype", None) != probe.dtype:
        bad_value(
            operator,
            argument,
            f"a function that maps {probe} to {result}",
            "an elementwise one, float to float",
            "return one value of the same dtype per element",
        )
    if not _is_elementwise(value):
        bad_value(
            operator,
            argument,
            "a function whose result at one element depends on the others",
            "an elementwise one",
            "apply softmax, normalisation and the like outside of the operator",
        )
    return value


@functools.lru_cache(maxsize=256)
def _is_elementwise(function: Callable[[jax.Array], jax.Array]) -> bool:
    """Whether the function gives each of a few numbers the same value alone as among the others."""
    numbers = np.array([[-1.7, 0.3, 2.1], [0.9, -0.4, 5.0]], np.float32)
    with jax.ensure_compile_time_eval():
        probe = jnp.asarray(numbers)  # made here: under jit one from outside is traced, and so is all that follows
        whole = np.asarray(function(probe))
        alone = [np.asarray(function(probe[i : i + 1, j : j + 1])) for i in range(2) for j in range(3)]
    return np.allclose(whole.reshape(-1), np.concatenate(alone).reshape(-1), rtol=1e-4, atol=1e-6, equal_nan=True)
