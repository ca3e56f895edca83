"""Marks on values: what `atbfn.observe` looks for in a jaxpr.

A mark rides on a value that the computation uses (its carrier), so that it lives exactly as long as that value is
computed: JAX drops an equation whose result nobody needs, and with it the mark. The other marked arrays are extra
operands, and in plain `jax.jit`, where nobody looks, XLA drops what computes them.

A public operator marks its values like this:

    call = tag.Call(resolved.path, "layernorm_residual")  # once per call
    summed = call.step("summed", summed)  # use the returned value from here on
    normed = call.step("normed", normed, also={"mean": mean, "rstd": rstd})  # mean, rstd have no user of their own
    out = call.check(out, [("summed", "finite", ratio), ("normed", "norm statistics", other_ratio)])
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir


@dataclasses.dataclass(frozen=True, eq=False)
class Call:
    """One call of an operator. Its marks share this object, which is how a repeated call is told apart.

    It is compared by identity. No cache of JAX's is defeated: a jitted function that is not traced again keeps its
    jaxpr, and with it this object; eagerly, a mark is the identity in Python and compiles nothing.

    Args:
      path: the layer, as `atbfn.fusion.resolve` gives it; empty outside any.
      operator: the public operator's name.
    """

    path: str
    operator: str

    def step(self, name: str, value: jax.Array, *, also: Mapping[str, jax.Array] | None = None) -> jax.Array:
        """Mark `value` as the result of the step `name`; the returned array is to be used in its place.

        The boundary is also an optimization barrier, as far as XLA keeps it.

        Args:
          name: the step's name, unique in this call.
          value: any array.
          also: further steps that are ready here and that nothing else uses; they come first, in their order.
        """
        also = {} if also is None else also
        marks = [Mark("step", self, other, None, 1 + i) for i, other in enumerate(also)]
        return _bind(value, tuple(also.values()), (*marks, Mark("step", self, name, None, 0)))

    def check(self, value: jax.Array, checks: Sequence[tuple[str, str, jax.Array]]) -> jax.Array:
        """Attach check values to `value`; the returned array is to be used in its place.

        Args:
          value: an output of the operator.
          checks: (node, rule, ratio) each. `ratio` is a float32 array of any shape, the violation over its bound: at
            most 1 passes; larger, nan and infinite values do not. A node and rule occur once in a call.
        """
        marks = tuple(Mark("check", self, node, rule, 1 + i) for i, (node, rule, _) in enumerate(checks))
        return _bind(value, tuple(ratio for _, _, ratio in checks), marks) if marks else value


@dataclasses.dataclass(frozen=True)
class Mark:
    """What one operand of the primitive is.

    Args:
      kind: "step" or "check".
      call: the operator call.
      name: the step or node.
      rule: what a check verifies; None for a step.
      operand: its position among the primitive's operands; the carrier is operand 0.
    """

    kind: str
    call: Call
    name: str
    rule: str | None
    operand: int


def _bind(value: Any, others: tuple[Any, ...], marks: tuple[Mark, ...]) -> jax.Array:
    return tag_p.bind(jnp.asarray(value), *(jnp.asarray(x) for x in others), marks=marks)


tag_p = Primitive("atbfn_tag")
"""`tag_p.bind(carrier, *others, marks=...)` returns the carrier."""


@tag_p.def_impl
def _impl(carrier: Any, *others: Any, marks: tuple[Mark, ...]) -> Any:
    return carrier


@tag_p.def_abstract_eval
def _abstract_eval(carrier: Any, *others: Any, marks: tuple[Mark, ...]) -> Any:
    return carrier  # the type itself: a fresh one would lose its sharding and its varying axes


def _jvp(primals: Any, tangents: Any, *, marks: tuple[Mark, ...]) -> tuple[Any, Any]:
    return tag_p.bind(*primals, marks=marks), tangents[0]


def _transpose(cotangent: Any, *operands: Any, marks: tuple[Mark, ...]) -> list[Any]:
    # Reached only when marked code is itself transposed, as by jax.linear_transpose.
    zeros = [ad.Zero(x.aval) if ad.is_undefined_primal(x) else None for x in operands[1:]]
    return [cotangent, *zeros]


def _batch(operands: Any, dims: Any, *, marks: tuple[Mark, ...]) -> tuple[Any, Any]:
    moved = [x if dim is None else jnp.moveaxis(x, dim, 0) for x, dim in zip(operands, dims, strict=True)]
    return tag_p.bind(*moved, marks=marks), None if dims[0] is None else 0


def _lower(carrier: Any, *others: Any, marks: tuple[Mark, ...]) -> Any:
    return jax.lax.optimization_barrier(carrier) if any(mark.kind == "step" for mark in marks) else carrier


ad.primitive_jvps[tag_p] = _jvp
ad.primitive_transposes[tag_p] = _transpose
batching.primitive_batchers[tag_p] = _batch
mlir.register_lowering(tag_p, mlir.lower_fun(_lower, multiple_results=False))
