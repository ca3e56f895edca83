"""`flash_attention`, `self_attention` and `attention_with_kv_cache`.

Online softmax over blocks of keys: Milakov, Gimelshein, "Online normalizer calculation for softmax", 2018; Dao et
al., "FlashAttention", 2022. Grouped queries: Ainslie et al., "GQA", 2023. `flash.py` has the blocks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from atbfn.primitives import flash, kv_cache
from atbfn.primitives.checks import broken_ratio, finite_rows, position_ratio
from atbfn.primitives.linear import Product, product
from atbfn.primitives.norm import normalize, normalize_checked
from atbfn.primitives.operator import Operator, Out, Outputs, like, mesh_axes
from atbfn.primitives.precision import accumulator, widen
from atbfn.primitives.rope import rotate


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class AttentionWeights:
    """Projections of an attention, `[out_features, in_features]`.

    Args:
      w_q: [num_heads * head_dim, hidden].
      w_k, w_v: [num_kv_heads * head_dim, hidden].
      w_o: [hidden, num_heads * head_dim].
      b_q, b_k, b_v, b_o: biases of the same out_features, or None.
    """

    w_q: Any
    w_k: Any
    w_v: Any
    w_o: Any
    b_q: Any = None
    b_k: Any = None
    b_v: Any = None
    b_o: Any = None


# flash_attention


@dataclasses.dataclass(frozen=True)
class FlashAttentionSpec:
    """Static settings of `flash_attention`."""

    scale: float
    softcap: float | None
    target: str
    checks: bool = False

    @property
    def core(self) -> flash.FlashSpec:
        """What the blocks need to know."""
        return flash.FlashSpec(scale=self.scale, softcap=self.softcap, checks=self.checks)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class FlashAttentionArgs:
    """q [batch, heads, q_len, d]; k, v [(layers,) batch, kv_heads, kv_len, d]; the rest as in `AttentionArgs`."""

    q: Any
    k: Any
    v: Any
    mask: Any
    pos: Any
    lengths: Any = None
    layer: Any = None


FLASH_CHECKS = (("probs", "rows sum to one"), ("lse", "bounds the maximum"), ("context", "finite"))
"""Node and rule of each check value of `flash_attention`, in the order of its aux outputs."""


def _flash_plain(spec: FlashAttentionSpec, args: FlashAttentionArgs) -> Outputs:
    context, lse, checks = flash.forward(
        args.q, args.k, args.v, args.mask, args.pos, args.lengths, args.layer, spec=spec.core, dynamic=True
    )
    if not spec.checks:
        return Outputs((context, lse))
    expected = jnp.all(finite_rows(args.q), axis=-1, keepdims=True)
    for x in (args.k, args.v):
        expected = expected & jnp.all(jnp.isfinite(x))
    return Outputs((context, lse), (checks["probs"], checks["lse"], broken_ratio(context, expected)))


def _flash_smooth(spec: FlashAttentionSpec, args: FlashAttentionArgs) -> tuple[Any, ...]:
    core = dataclasses.replace(spec.core, checks=False)
    context, lse, _ = flash.forward(
        args.q, args.k, args.v, args.mask, args.pos, args.lengths, args.layer, spec=core, dynamic=False
    )
    return context, lse


def _flash_backward(
    spec: FlashAttentionSpec, args: FlashAttentionArgs, saved: tuple[Any, ...], cotangents: tuple[Any, ...]
) -> FlashAttentionArgs:
    dq, dk, dv = flash.backward(
        args.q, args.k, args.v, args.mask, args.pos, args.lengths, args.layer, *saved, *cotangents, spec=spec.core
    )
    none = jax.tree.map(lambda _: None, args)
    return dataclasses.replace(none, q=dq, k=dk, v=dv)


def _flash_shapes(spec: FlashAttentionSpec, args: FlashAttentionArgs) -> Outputs:
    row = Out(tuple(args.q.shape[:3]), accumulator(args.q.dtype), mesh_axes(args.q)[:3])
    check = row._replace(dtype=jnp.float32)
    return Outputs((like(args.q), row), (check,) * len(FLASH_CHECKS) if spec.checks else ())


flash_attention = Operator(
    "flash_attention",
    plain=_flash_plain,
    shapes=_flash_shapes,
    smooth=_flash_smooth,
    saved=(0, 1),
    backward=_flash_backward,
)


# attention_with_kv_cache and self_attention


@dataclasses.dataclass(frozen=True)
class AttentionSpec:
    """Static settings of `attention_with_kv_cache` and `self_attention`."""

    num_heads: int
    num_kv_heads: int
    scale: float
    softcap: float | None
    target: str
    checks: bool = False

    @property
    def flash(self) -> FlashAttentionSpec:
        """Settings of the attention inside."""
        return FlashAttentionSpec(self.scale, self.softcap, self.target, self.checks)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class AttentionArgs:
    """Operands of both; None where absent.

    x [batch, q_len, hidden]; caches [(layers,) batch, kv_heads, max_seq, head_dim], None in `self_attention`;
    pos int32 scalar or [batch]; lengths int32 [batch]; layer int32 scalar.
    """

    x: Any
    weights: AttentionWeights
    mask: Any
    pos: Any
    k_cache: Any = None
    v_cache: Any = None
    rope: Any = None
    lengths: Any = None
    norm: Any = None
    residual: Any = None
    post_norm: Any = None
    layer: Any = None


def valid_rows(lengths: jax.Array, q_len: Any) -> jax.Array:
    """bool [batch, q_len, 1]: rows of x that belong to their sequence."""
    return (jnp.arange(q_len, dtype=jnp.int32) < lengths[:, None])[..., None]


def fits(args: AttentionArgs) -> jax.Array:
    """bool [batch | 1]: sequences whose position, length and layer lie inside the cache."""
    if args.k_cache is None:
        if args.lengths is None:
            return jnp.ones((1,), bool)
        return (args.lengths >= 0) & (args.lengths <= args.x.shape[1])
    ok = kv_cache.fits(args.pos, args.x.shape[1], args.k_cache.shape[-2], args.lengths)
    if args.layer is not None:
        ok = ok & (args.layer >= 0) & (args.layer < args.k_cache.shape[0])
    return ok.reshape(-1)


def split_heads(x: jax.Array, num_heads: int) -> jax.Array:
    """[batch, q_len, num_heads * head_dim] as [batch, num_heads, q_len, head_dim]."""
    return jnp.swapaxes(x.reshape(*x.shape[:2], num_heads, x.shape[2] // num_heads), 1, 2)


def merge_heads(x: jax.Array) -> jax.Array:
    """[batch, num_heads, q_len, head_dim] as [batch, q_len, num_heads * head_dim]."""
    x = jnp.swapaxes(x, 1, 2)
    return x.reshape(*x.shape[:2], x.shape[2] * x.shape[3])


def finish_rows(out: jax.Array, args: AttentionArgs) -> jax.Array:
    """Zeros in rows beyond their sequence's length, NaN in sequences that do not fit into the cache."""
    if args.lengths is not None:
        out = jnp.where(valid_rows(args.lengths, out.shape[1]), out, 0)
    return jnp.where(fits(args)[:, None, None], out, np.asarray(np.nan, out.dtype))


def clean_padding(args: AttentionArgs) -> AttentionArgs:
    """Rows of x and residual beyond their sequence's length set to zero, so that what they hold goes nowhere."""
    if args.lengths is None:
        return args
    valid = valid_rows(args.lengths, args.x.shape[1])
    residual = None if args.residual is None else jnp.where(valid, args.residual, 0)
    return dataclasses.replace(args, x=jnp.where(valid, args.x, 0), residual=residual)


class _Checks:
    """Collects check values in the order of `check_nodes`; does nothing where they are not asked for."""

    def __init__(self, wanted: bool, args: AttentionArgs) -> None:
        self.values: list[jax.Array] = []
        self._wanted = wanted
        # A position outside the cache gives NaN throughout, and is reported once, at node pos.
        self._expected = finite_rows(args.x) & fits(args)[:, None] if wanted else None

    def also_needs(self, residual: jax.Array) -> None:
        if self._expected is not None:
            self._expected = self._expected & finite_rows(residual)

    def finite(self, node: jax.Array, *, whole_sequence: bool = False) -> None:
        if self._expected is not None:
            expected = jnp.all(self._expected, axis=-1, keepdims=True) if whole_sequence else self._expected
            self.values.append(broken_ratio(node, expected))

    def norm(self, norm: Any, x: jax.Array) -> jax.Array:
        if not self._wanted:
            return normalize(norm, x)
        y, ratio = normalize_checked(norm, x)
        self.values.append(ratio)
        return y


def check_nodes(args: AttentionArgs) -> tuple[tuple[str, str], ...]:
    """Node and rule of each check value, in the order of the aux outputs behind context and lse."""
    nodes = [("norm", "norm statistics")] if args.norm is not None else []
    nodes += [("q", "finite"), ("k", "finite"), ("v", "finite")]
    nodes += [("probs", "rows sum to one"), ("lse", "bounds the maximum"), ("context", "finite"), ("proj", "finite")]
    if args.post_norm is not None:
        nodes.append(("out", "norm statistics"))
    return (*nodes, ("out", "finite"), ("pos", "inside the cache"))


def _project(
    spec: AttentionSpec, args: AttentionArgs, checks: _Checks, product: Product = product
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """q, k, v of the new rows, rotated, in the input dtype."""
    dtype, weights = args.x.dtype, args.weights
    x = args.x if args.norm is None else checks.norm(args.norm, args.x).astype(dtype)
    q = split_heads(product(x, weights.w_q, weights.b_q), spec.num_heads)
    k = split_heads(product(x, weights.w_k, weights.b_k), spec.num_kv_heads)
    v = split_heads(product(x, weights.w_v, weights.b_v), spec.num_kv_heads)
    for node in (q, k, v):
        checks.finite(merge_heads(node))
    if args.rope is not None:
        q, k = rotate(q, args.pos, args.rope), rotate(k, args.pos, args.rope)
    return q.astype(dtype), k.astype(dtype), v.astype(dtype)


def _finish(args: AttentionArgs, context: jax.Array, checks: _Checks, product: Product = product) -> jax.Array:
    """Output projection, residual and norm, for context [batch, heads, q_len, head_dim]."""
    out = product(merge_heads(context), args.weights.w_o, args.weights.b_o)
    checks.finite(out, whole_sequence=True)
    if args.residual is not None:
        out = out + widen(args.residual)
        checks.also_needs(args.residual)
    if args.post_norm is not None:
        out = checks.norm(args.post_norm, out)
    return finish_rows(out.astype(args.x.dtype), args)


def _flash_args(args: AttentionArgs, q: jax.Array, k: jax.Array, v: jax.Array) -> FlashAttentionArgs:
    return FlashAttentionArgs(q, k, v, args.mask, args.pos, args.lengths, args.layer)


WriteCache = Callable[..., tuple[jax.Array, jax.Array]]


def plain(spec: AttentionSpec, args: AttentionArgs, *, write: WriteCache = kv_cache.write) -> Outputs:
    """The plain form of both operators. `write` puts the new rows into the caches, as `kv_cache.write` does."""
    args = clean_padding(args)
    checks = _Checks(spec.checks, args)
    q, k, v = _project(spec, args, checks)
    caches: tuple[jax.Array, ...] = ()
    if args.k_cache is not None:
        caches = k, v = write(args.k_cache, args.v_cache, k, v, args.pos, args.lengths, args.layer)
    context, lse, softmax_checks = flash.forward(
        q, k, v, args.mask, args.pos, args.lengths, args.layer, spec=spec.flash.core, dynamic=True
    )
    if spec.checks:
        checks.values += [softmax_checks["probs"], softmax_checks["lse"]]
        checks.finite(merge_heads(context), whole_sequence=True)
    out = _finish(args, context, checks)
    if spec.checks:
        checks.finite(out, whole_sequence=True)
        checks.values.append(position_ratio(jnp.broadcast_to(fits(args), args.x.shape[:1])))
    return Outputs((out, *caches), (context, lse, *checks.values))


def _before_attention(
    spec: AttentionSpec, args: AttentionArgs, product: Product = product
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """q, and the keys and values to attend: the updated caches, or the new rows alone."""
    q, k, v = _project(spec, args, _Checks(False, args), product)
    if args.k_cache is not None:
        k, v = kv_cache.write(args.k_cache, args.v_cache, k, v, args.pos, args.lengths, args.layer)
    return q, k, v


def _smooth(spec: AttentionSpec, args: AttentionArgs) -> tuple[Any, ...]:
    args = clean_padding(args)
    q, k, v = _before_attention(spec, args)
    flash_spec = dataclasses.replace(spec.flash, checks=False)
    context = flash_attention(flash_spec, _flash_args(args, q, k, v)).main[0]
    out = _finish(args, context, _Checks(False, args))
    return (out,) if args.k_cache is None else (out, k, v)


def backward(
    spec: AttentionSpec,
    args: AttentionArgs,
    saved: tuple[Any, ...],
    cotangents: tuple[Any, ...],
    *,
    product: Product = product,
) -> AttentionArgs:
    """Cotangents of both operators' inputs, by any product."""
    # Only the projections are computed again: the context and its log-sum-exp were kept.
    context, lse = saved
    leaves, tree = jax.tree.flatten(args)
    floats = [i for i, leaf in enumerate(leaves) if jnp.issubdtype(leaf.dtype, jnp.inexact)]

    def with_floats(values: Any) -> AttentionArgs:
        merged = list(leaves)
        for i, value in zip(floats, values, strict=True):
            merged[i] = value
        return clean_padding(jax.tree.unflatten(tree, merged))

    values = [leaves[i] for i in floats]
    (q, k, v), pull_before = jax.vjp(lambda values: _before_attention(spec, with_floats(values), product), values)
    _, pull_after = jax.vjp(
        lambda values, context: _finish(with_floats(values), context, _Checks(False, args), product), values, context
    )
    after, d_context = pull_after(cotangents[0])
    dq, dk, dv = flash.backward(
        q,
        k,
        v,
        args.mask,
        args.pos,
        args.lengths,
        args.layer,
        context,
        lse,
        d_context,
        jnp.zeros_like(lse),
        spec=spec.flash.core,
    )
    if args.k_cache is not None:
        dk, dv = dk + cotangents[1], dv + cotangents[2]
    (before,) = pull_before((dq, dk, dv))
    grads: list[Any] = [None] * len(leaves)
    for i, a, b in zip(floats, before, after, strict=True):
        grads[i] = a + b
    return jax.tree.unflatten(tree, grads)


def _shapes(spec: AttentionSpec, args: AttentionArgs) -> Outputs:
    batch, q_len = args.x.shape[:2]
    x_axes = mesh_axes(args.x)
    head_axes = mesh_axes(args.weights.w_q)[0]
    head_dim = args.weights.w_q.shape[0] // spec.num_heads
    context = Out((batch, spec.num_heads, q_len, head_dim), args.x.dtype, (x_axes[0], head_axes, x_axes[1], None))
    lse = Out(context.shape[:3], accumulator(args.x.dtype), context.axes[:3] if context.axes else None)
    caches = () if args.k_cache is None else (like(args.k_cache), like(args.v_cache))
    checks = []
    if spec.checks:
        shapes = {"probs": lse, "lse": lse, "pos": Out((batch,), jnp.float32, x_axes[:1])}
        row = Out((batch, q_len), jnp.float32, x_axes[:2])
        checks = [shapes.get(node, row)._replace(dtype=jnp.float32) for node, _ in check_nodes(args)]
    return Outputs((like(args.x), *caches), (context, lse, *checks))


attention_with_kv_cache = Operator(
    "attention_with_kv_cache", plain=plain, shapes=_shapes, smooth=_smooth, saved=(3, 4), backward=backward
)
self_attention = Operator(
    "self_attention", plain=plain, shapes=_shapes, smooth=_smooth, saved=(1, 2), backward=backward
)
