"""`softmax`, and the attention steps around it, each holding a whole [batch, heads, q_len, kv_len] array.

They are what `step_by_step` attention runs. A pair that is not allowed contributes nothing, whatever it holds.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from atbfn.primitives.flash import masked_scores
from atbfn.primitives.operator import Operator, Out, Outputs, like, mesh_axes
from atbfn.primitives.precision import accumulator, contract, widen


@dataclasses.dataclass(frozen=True)
class SoftmaxSpec:
    """Static settings of `softmax`."""

    target: str


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SoftmaxArgs:
    """x [..., n]; allowed, bool broadcastable to x or None: where it is False the result is 0."""

    x: Any
    allowed: Any = None


def _softmax_plain(spec: SoftmaxSpec, args: SoftmaxArgs) -> Outputs:
    x = widen(args.x)
    if args.allowed is None:
        return Outputs((jax.nn.softmax(x, axis=-1).astype(args.x.dtype),))
    x = jnp.where(args.allowed, x, -jnp.inf)
    largest = jax.lax.stop_gradient(jnp.max(x, axis=-1, keepdims=True, initial=-jnp.inf))
    some = jnp.any(args.allowed, axis=-1, keepdims=True)
    # A row that may attend to nothing gets zeros; both sides of each `where` stay finite for its derivative.
    shifted = jnp.where(args.allowed, x - jnp.where(some, largest, 0), -jnp.inf)
    weights = jnp.where(args.allowed, jnp.exp(shifted), 0)
    total = jnp.where(some, jnp.sum(weights, axis=-1, keepdims=True), 1)
    return Outputs((jnp.where(args.allowed, weights / total, 0).astype(args.x.dtype),))


@dataclasses.dataclass(frozen=True)
class ScoresSpec:
    """Static settings of `attention_scores`."""

    scale: float
    softcap: float | None
    target: str


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ScoresArgs:
    """q [batch, heads, q_len, head_dim], k [batch, kv_heads, kv_len, head_dim], allowed as in `SoftmaxArgs`."""

    q: Any
    k: Any
    allowed: Any


def grouped(x: Any, kv_heads: int) -> Any:
    """[batch, heads, ...] as [batch, kv_heads, heads // kv_heads, ...]: query head h uses kv head h // group."""
    return x.reshape(x.shape[0], kv_heads, x.shape[1] // kv_heads, *x.shape[2:])


def _ungrouped(x: Any) -> Any:
    return x.reshape(x.shape[0], x.shape[1] * x.shape[2], *x.shape[3:])


def _scores_plain(spec: ScoresSpec, args: ScoresArgs) -> Outputs:
    kv_heads, shape = args.k.shape[1], (*args.q.shape[:3], args.k.shape[2])
    allowed = grouped(jnp.broadcast_to(args.allowed, shape), kv_heads)
    scores = masked_scores(grouped(args.q, kv_heads), args.k, allowed, spec.scale, spec.softcap)
    return Outputs((_ungrouped(scores),))


def _scores_shapes(spec: ScoresSpec, args: ScoresArgs) -> Outputs:
    axes = (*mesh_axes(args.q)[:3], None)
    return Outputs((Out((*args.q.shape[:3], args.k.shape[2]), accumulator(args.q.dtype), axes),))


@dataclasses.dataclass(frozen=True)
class ContextSpec:
    """Static settings of `attention_context`."""

    target: str


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ContextArgs:
    """probs [batch, heads, q_len, kv_len], v [batch, kv_heads, kv_len, head_dim], allowed as in `SoftmaxArgs`."""

    probs: Any
    v: Any
    allowed: Any


def _context_plain(spec: ContextSpec, args: ContextArgs) -> Outputs:
    kv_heads, dtype = args.v.shape[1], args.v.dtype
    finite = jnp.isfinite(args.v)

    def weigh(weights: jax.Array, values: jax.Array) -> jax.Array:
        return _ungrouped(contract("bkgqs,bksd->bkgqd", grouped(weights, kv_heads), values))

    context = weigh(args.probs.astype(dtype), jnp.where(finite, args.v, 0))

    def with_non_finite(context: jax.Array) -> jax.Array:
        # 0 * NaN would let a masked value through, so infinities and NaN are counted, not multiplied.
        allowed = jnp.broadcast_to(args.allowed, args.probs.shape).astype(dtype)
        up = weigh(allowed, (args.v == jnp.inf).astype(dtype)) > 0
        down = weigh(allowed, (args.v == -jnp.inf).astype(dtype)) > 0
        nan = (weigh(allowed, jnp.isnan(args.v).astype(dtype)) > 0) | (up & down)
        # Nor is a probability of zero or NaN times an infinite value infinite.
        lost = jnp.where(args.probs > 0, 0, allowed)
        nan = nan | (weigh(lost, jnp.isinf(args.v).astype(dtype)) > 0)
        context = jnp.where(up, jnp.inf, jnp.where(down, -jnp.inf, context))
        return jnp.where(nan, jnp.nan, context)

    context = jax.lax.cond(jnp.all(finite), lambda c: c, with_non_finite, context)
    return Outputs((context.astype(dtype),))


def _context_shapes(spec: ContextSpec, args: ContextArgs) -> Outputs:
    axes = (*mesh_axes(args.probs)[:3], None)
    return Outputs((Out((*args.probs.shape[:3], args.v.shape[3]), args.v.dtype, axes),))


softmax = Operator("softmax", plain=_softmax_plain, shapes=lambda spec, args: Outputs((like(args.x),)))
attention_scores = Operator("attention_scores", plain=_scores_plain, shapes=_scores_shapes)
attention_context = Operator("attention_context", plain=_context_plain, shapes=_context_shapes)
