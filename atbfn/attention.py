"""`attention_with_kv_cache`, `self_attention` and `flash_attention`."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp

from atbfn import arguments
from atbfn.fusion import Resolved, resolve
from atbfn.kv_cache import check_caches, check_lengths, check_positions
from atbfn.primitives import attention as prim
from atbfn.primitives.activation import PairArgs, PairSpec, add
from atbfn.primitives.attention import AttentionArgs, AttentionSpec, AttentionWeights, FlashAttentionArgs
from atbfn.primitives.errors import bad_type, bad_value
from atbfn.primitives.kv_cache import KVCacheArgs, KVCacheSpec
from atbfn.primitives.kv_cache import kv_cache_update as kv_cache_update_op
from atbfn.primitives.linear import LinearArgs, LinearSpec
from atbfn.primitives.linear import linear as linear_op
from atbfn.primitives.masks import Causal, Mask
from atbfn.primitives.norm import Norm, NormArgs, NormSpec
from atbfn.primitives.norm import norm as norm_op
from atbfn.primitives.rope import Rope, RopeArgs, RopeSpec
from atbfn.primitives.rope import rope as rope_op
from atbfn.primitives.softmax import ContextArgs, ContextSpec, ScoresArgs, ScoresSpec, SoftmaxArgs, SoftmaxSpec
from atbfn.primitives.softmax import attention_context as context_op
from atbfn.primitives.softmax import attention_scores as scores_op
from atbfn.primitives.softmax import softmax as softmax_op
from atbfn.primitives.tag import Call


def attention_with_kv_cache(
    x: jax.Array,
    k_cache: jax.Array,
    v_cache: jax.Array,
    pos: Any,
    *,
    weights: AttentionWeights,
    num_heads: int,
    num_kv_heads: int | None = None,
    rope: Rope | None = None,
    mask: Mask = Causal(),  # noqa: B008  (a frozen value)
    scale: float | None = None,
    softcap: float | None = None,
    lengths: Any = None,
    norm: Norm | None = None,
    residual: jax.Array | None = None,
    post_norm: Norm | None = None,
    layer: Any = None,
    mode: str | None = None,
    target: str | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Attention of new tokens over a cache that they are first appended to; prefill and decode alike.

    Steps: norm, q, k, v, q_rope, k_rope, k_cache, v_cache, scores, probs, context, proj, summed, out. Query row i has
    position pos + i; the keys are 0 .. pos + length - 1. Flash attention (Dao et al., 2022) inside: the scores of a
    long sequence never exist at once. Grouped queries as in Ainslie et al., "GQA", 2023.

    Args:
      x: [batch, q_len, hidden], float16, bfloat16 or float32. q_len = 1 is decode.
      k_cache, v_cache: [batch, kv_heads, max_seq, head_dim], x's dtype, or [layers, batch, kv_heads, max_seq,
        head_dim] with `layer`. Donate them, or keep them in a loop's carry, and they are updated in place.
      pos: int32 scalar or [batch], the position of row 0 of x.
      weights: the projections and their biases.
      num_heads: query heads; no default, since it cannot be seen from the weights.
      num_kv_heads: key and value heads; None for num_heads. Divides num_heads.
      rope: tables that rotate queries and keys, reaching at least max_seq; None for none.
      mask: which keys a query may attend, beside being written.
      scale: factor of the scores; None for 1 / sqrt(head_dim).
      softcap: scores become softcap * tanh(scores / softcap); None for no cap.
      lengths: int32 [batch] or None: valid rows of x per sequence. Rows beyond are neither written nor attended, and
        return zeros.
      norm: applied to x first; None for none.
      residual: [batch, q_len, hidden], added after w_o; None for none.
      post_norm: applied to that sum; None for none.
      layer: int32 scalar, index into stacked caches (for layers under scan: the stack rides in the carry).
      mode, target: override the surrounding configuration.

    Returns:
      (out [batch, q_len, hidden] in x's dtype, k_cache, v_cache). A row that may attend to nothing has zero context.
      A sequence whose traced position lies outside the cache keeps its cache, and its output is NaN.

    Raises:
      ValueError: shapes that do not fit, a known position outside the cache. TypeError: dtypes that do not fit.
      NotImplementedError: the named target cannot do this call. Each names the argument and the fix.
    """
    op = "attention_with_kv_cache"
    how = resolve(op, mode=mode, target=target)
    x = arguments.array(op, "x", x, 3)
    weights, heads = _check_weights(op, weights, num_heads, num_kv_heads, x)
    batch, q_len = x.shape[:2]
    k_cache, v_cache, layer = check_caches(op, k_cache, v_cache, layer, batch, heads.kv, heads.dim)
    max_seq = k_cache.shape[-2]
    pos, lengths = check_positions(op, pos, lengths, batch, q_len, max_seq)
    args = AttentionArgs(
        x=x,
        weights=weights,
        mask=arguments.check_mask(op, mask, batch, heads.q, q_len, max_seq),
        pos=pos,
        k_cache=k_cache,
        v_cache=v_cache,
        rope=arguments.check_rope(op, "rope", rope, x, heads.dim, max_seq, how.cross_precision),
        lengths=lengths,
        layer=layer,
    )
    out, new_k, new_v = _attend(op, how, heads, scale, softcap, args, norm, residual, post_norm)
    return out.astype(x.dtype), new_k.astype(k_cache.dtype), new_v.astype(v_cache.dtype)


def self_attention(
    x: jax.Array,
    *,
    weights: AttentionWeights,
    num_heads: int,
    num_kv_heads: int | None = None,
    rope: Rope | None = None,
    mask: Mask = Causal(),  # noqa: B008  (a frozen value)
    scale: float | None = None,
    softcap: float | None = None,
    lengths: Any = None,
    norm: Norm | None = None,
    residual: jax.Array | None = None,
    post_norm: Norm | None = None,
    mode: str | None = None,
    target: str | None = None,
) -> jax.Array:
    """Attention of a sequence over itself, without a cache: `attention_with_kv_cache` at position 0.

    Steps: norm, q, k, v, q_rope, k_rope, scores, probs, context, proj, summed, out.

    Args:
      x: [batch, q_len, hidden], float16, bfloat16 or float32.
      lengths: int32 [batch] or None: valid rows per sequence. Rows beyond are not attended, and return zeros.
      weights, num_heads, num_kv_heads, rope, mask, scale, softcap, norm, residual, post_norm, mode, target: as in
        `attention_with_kv_cache`.

    Returns:
      [batch, q_len, hidden] in x's dtype.

    Raises:
      As `attention_with_kv_cache`.
    """
    op = "self_attention"
    how = resolve(op, mode=mode, target=target)
    x = arguments.array(op, "x", x, 3)
    weights, heads = _check_weights(op, weights, num_heads, num_kv_heads, x)
    batch, q_len = x.shape[:2]
    args = AttentionArgs(
        x=x,
        weights=weights,
        mask=arguments.check_mask(op, mask, batch, heads.q, q_len, q_len),
        pos=jnp.zeros((), jnp.int32),
        rope=arguments.check_rope(op, "rope", rope, x, heads.dim, q_len, how.cross_precision),
        lengths=check_lengths(op, lengths, batch, q_len),
    )
    (out,) = _attend(op, how, heads, scale, softcap, args, norm, residual, post_norm)
    return out.astype(x.dtype)


def flash_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    mask: Mask = Causal(),  # noqa: B008  (a frozen value)
    scale: float | None = None,
    softcap: float | None = None,
    return_lse: bool = False,
    mode: str | None = None,
    target: str | None = None,
) -> jax.Array | tuple[jax.Array, jax.Array]:
    """softmax(scale q k^T) v in blocks (Dao et al., 2022). Steps: scores, probs, context.

    Args:
      q: [batch, heads, q_len, head_dim], float16, bfloat16 or float32.
      k, v: [batch, kv_heads, kv_len, head_dim], q's dtype; kv_heads divides heads.
      mask: which keys a query may attend. Query row i has position kv_len - q_len + i.
      scale: factor of the scores; None for 1 / sqrt(head_dim).
      softcap: scores become softcap * tanh(scores / softcap); None for no cap.
      return_lse: also return the log-sum-exp of each row's scores; False returns the output alone.
      mode, target: override the surrounding configuration.

    Returns:
      [batch, heads, q_len, head_dim] in q's dtype, and if asked for, lse float32 [batch, heads, q_len]. A row that may
      attend to nothing is zero, with lse -inf.

    Raises:
      ValueError: shapes that do not fit. TypeError: dtypes that do not.
      NotImplementedError: the named target cannot do this call. Each names the argument and the fix.
    """
    op = "flash_attention"
    how = resolve(op, mode=mode, target=target)
    q, k, v = arguments.array(op, "q", q, 4), arguments.array(op, "k", k, 4), arguments.array(op, "v", v, 4)
    batch, num_heads, q_len, head_dim = q.shape
    kv_heads, kv_len = k.shape[1], k.shape[2]
    arguments.shape(op, "k", k, batch=batch, kv_heads=kv_heads, kv_len=kv_len, head_dim=head_dim)
    arguments.shape(op, "v", v, batch=batch, kv_heads=kv_heads, kv_len=kv_len, head_dim=head_dim)
    _check_groups(op, "k", num_heads, kv_heads)
    mask = arguments.check_mask(op, mask, batch, num_heads, q_len, kv_len)
    dtype = q.dtype
    operands = arguments.same_dtype(op, how.cross_precision, q=q, k=k, v=v)
    pos = jnp.asarray(kv_len - q_len, jnp.int32)
    spec = prim.FlashAttentionSpec(
        _check_scale(op, scale, head_dim), _check_softcap(op, softcap), how.target, how.mode == "fused_with_checkpoints"
    )
    call = Call(how.path, op)
    if how.mode == "step_by_step":
        allowed = _allowed(mask, pos, None, q_len, kv_len)
        context, scores = _attention_steps(call, spec, allowed, **operands)
        lse = jax.nn.logsumexp(scores, axis=-1)
        # The softmax of a row with an infinite score is NaN, which its sum then is too, as in the fused form.
        lse = jnp.where(jnp.max(scores, axis=-1, initial=-jnp.inf) == jnp.inf, jnp.nan, lse)
    else:
        outs = arguments.bind(prim.flash_attention, spec, FlashAttentionArgs(**operands, mask=mask, pos=pos))
        context, lse = outs.main
        if spec.checks:
            nodes = zip(prim.FLASH_CHECKS, outs.aux, strict=True)
            context = call.check(context, [(node, rule, ratio) for (node, rule), ratio in nodes])
    context = context.astype(dtype)
    return (context, lse) if return_lse else context


@dataclasses.dataclass(frozen=True)
class _Heads:
    q: int
    kv: int
    dim: int


def _check_groups(op: str, argument: str, num_heads: int, kv_heads: int) -> None:
    if kv_heads == 0 or num_heads % kv_heads:
        bad_value(
            op,
            argument,
            f"{kv_heads} key and value heads for {num_heads} query heads",
            "a number that divides the query heads",
            "give every group of query heads one key head",
        )


def _check_weights(
    op: str, weights: Any, num_heads: Any, num_kv_heads: Any, x: jax.Array
) -> tuple[AttentionWeights, _Heads]:
    if not isinstance(weights, AttentionWeights):
        bad_type(
            op, "weights", type(weights).__name__, "atbfn.AttentionWeights", "AttentionWeights(w_q, w_k, w_v, w_o, ...)"
        )
    num_heads = arguments.check_count(op, "num_heads", num_heads)
    kv_heads = num_heads if num_kv_heads is None else arguments.check_count(op, "num_kv_heads", num_kv_heads)
    _check_groups(op, "num_kv_heads", num_heads, kv_heads)
    hidden = x.shape[-1]
    w_q = arguments.array(op, "weights.w_q", weights.w_q, 2)
    if w_q.shape[0] % num_heads:
        bad_value(
            op, "weights.w_q", f"shape {w_q.shape}", f"rows that num_heads={num_heads} divides", "check num_heads"
        )
    heads = _Heads(num_heads, kv_heads, w_q.shape[0] // num_heads)
    q_size, kv_size = num_heads * heads.dim, kv_heads * heads.dim
    out_names = {"w_q": ("num_heads*head_dim", q_size), "w_k": ("num_kv_heads*head_dim", kv_size)}
    out_names["w_v"] = out_names["w_k"]
    checked: dict[str, Any] = {}
    for name, (size_name, size) in out_names.items():
        checked[name] = arguments.array(op, f"weights.{name}", getattr(weights, name), 2)
        arguments.shape(op, f"weights.{name}", checked[name], **{size_name: size}, hidden=hidden)
    checked["w_o"] = arguments.array(op, "weights.w_o", weights.w_o, 2)
    arguments.shape(op, "weights.w_o", checked["w_o"], **{"hidden": hidden, "num_heads*head_dim": q_size})
    for name, size in (("b_q", q_size), ("b_k", kv_size), ("b_v", kv_size), ("b_o", hidden)):
        bias = getattr(weights, name)
        if bias is not None:
            checked[name] = arguments.array(op, f"weights.{name}", bias, 1)
            arguments.shape(op, f"weights.{name}", checked[name], out_features=size)
    return AttentionWeights(**checked), heads


def _check_scale(op: str, scale: float | None, head_dim: int) -> float:
    return 1 / math.sqrt(head_dim or 1) if scale is None else arguments.check_scalar(op, "scale", scale, positive=False)


def _check_softcap(op: str, softcap: float | None) -> float | None:
    return None if softcap is None else arguments.check_scalar(op, "softcap", softcap, positive=True)


def _attend(
    op: str,
    how: Resolved,
    heads: _Heads,
    scale: float | None,
    softcap: float | None,
    args: AttentionArgs,
    norm: Norm | None,
    residual: jax.Array | None,
    post_norm: Norm | None,
) -> tuple[jax.Array, ...]:
    """Both operators from checked sizes: (out,) or (out, k_cache, v_cache)."""
    x = args.x
    if residual is not None:
        residual = arguments.array(op, "residual", residual)
        arguments.same_shape(op, "residual", residual, "x", x)
    norm = arguments.check_norm(op, "norm", norm, x, how.cross_precision)
    post_norm = arguments.check_norm(op, "post_norm", post_norm, x, how.cross_precision)
    operands = arguments.same_dtype(
        op,
        how.cross_precision,
        x=x,
        k_cache=args.k_cache,
        v_cache=args.v_cache,
        weights=args.weights,
        residual=residual,
    )
    args = dataclasses.replace(args, **operands, norm=norm, post_norm=post_norm)
    spec = AttentionSpec(
        heads.q,
        heads.kv,
        _check_scale(op, scale, heads.dim),
        _check_softcap(op, softcap),
        how.target,
        checks=how.mode == "fused_with_checkpoints",
    )
    if how.mode == "step_by_step":
        return _step_by_step(Call(how.path, op), spec, args)
    outs = arguments.bind(prim.self_attention if args.k_cache is None else prim.attention_with_kv_cache, spec, args)
    out, *caches = outs.main
    if spec.checks:
        nodes = zip(prim.check_nodes(args), outs.aux[2:], strict=True)
        out = Call(how.path, op).check(out, [(node, rule, ratio) for (node, rule), ratio in nodes])
    return (out, *caches)


def _allowed(mask: Mask, pos: jax.Array, lengths: jax.Array | None, q_len: Any, kv_len: Any) -> jax.Array:
    """bool [batch | 1, heads | 1, q_len, kv_len]: the mask, and that both the row and the key exist."""
    allowed = mask.block(0, q_len, 0, kv_len, pos)
    length = jnp.asarray(q_len, jnp.int32) if lengths is None else lengths
    written = (pos + length).reshape(-1, 1, 1, 1)
    allowed = allowed & (jnp.arange(kv_len, dtype=jnp.int32) < written)
    if lengths is not None:
        allowed = allowed & prim.valid_rows(lengths, q_len)[:, None]
    return allowed


def _attention_steps(
    call: Call, spec: prim.FlashAttentionSpec, allowed: jax.Array, q: jax.Array, k: jax.Array, v: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """(context, scores) by the three single operators."""
    allowed = jnp.broadcast_to(allowed, (q.shape[0], q.shape[1], q.shape[2], k.shape[2]))
    scores_spec = ScoresSpec(spec.scale, spec.softcap, spec.target)
    scores = call.step("scores", arguments.bind(scores_op, scores_spec, ScoresArgs(q, k, allowed)).main[0])
    probs = arguments.bind(softmax_op, SoftmaxSpec(spec.target), SoftmaxArgs(scores, allowed)).main[0]
    probs = call.step("probs", probs)
    context = arguments.bind(context_op, ContextSpec(spec.target), ContextArgs(probs, v, allowed)).main[0]
    return call.step("context", context), scores


def _step_by_step(call: Call, spec: AttentionSpec, args: AttentionArgs) -> tuple[jax.Array, ...]:
    args = prim.clean_padding(args)
    target, weights, dtype = spec.target, args.weights, args.x.dtype

    def normed(norm: Norm, x: jax.Array) -> jax.Array:
        return arguments.bind(norm_op, NormSpec(target), NormArgs(x, norm)).main[0]

    def product(x: jax.Array, w: jax.Array, b: jax.Array | None) -> jax.Array:
        return arguments.bind(linear_op, LinearSpec(target), LinearArgs(x, w, b)).main[0]

    def rotated(x: jax.Array) -> jax.Array:
        return arguments.bind(rope_op, RopeSpec(target), RopeArgs(x, args.pos, args.rope)).main[0]

    x = args.x if args.norm is None else call.step("norm", normed(args.norm, args.x))
    q = call.step("q", prim.split_heads(product(x, weights.w_q, weights.b_q), spec.num_heads))
    k = call.step("k", prim.split_heads(product(x, weights.w_k, weights.b_k), spec.num_kv_heads))
    v = call.step("v", prim.split_heads(product(x, weights.w_v, weights.b_v), spec.num_kv_heads))
    if args.rope is not None:
        q, k = call.step("q_rope", rotated(q)), call.step("k_rope", rotated(k))
    caches: tuple[jax.Array, ...] = ()
    if args.k_cache is not None:
        cache_args = KVCacheArgs(args.k_cache, args.v_cache, k, v, args.pos, args.lengths, args.layer)
        new_k, new_v = arguments.bind(kv_cache_update_op, KVCacheSpec(target), cache_args).main
        caches = new_k, new_v = call.step("k_cache", new_k), call.step("v_cache", new_v)
        k, v = (c if args.layer is None else c[args.layer] for c in (new_k, new_v))
    allowed = _allowed(args.mask, args.pos, args.lengths, q.shape[2], k.shape[2])
    context, _ = _attention_steps(call, spec.flash, allowed, q, k, v)
    out = call.step("proj", product(prim.merge_heads(context), weights.w_o, weights.b_o))
    if args.residual is not None:
        out = call.step("summed", arguments.bind(add, PairSpec(target), PairArgs(out, args.residual)).main[0])
    if args.post_norm is not None:
        out = normed(args.post_norm, out)
    return (call.step("out", prim.finish_rows(out.astype(dtype), args)), *caches)
