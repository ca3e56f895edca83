"""Attention in chunks: forward and handwritten backward, never holding the scores of a long sequence.

context_i = sum_j p_ij v_j with p_ij = exp(s_ij - lse_i), s_ij = cap(scale q_i . k_j) and lse_i = log sum_j exp(s_ij)
over the keys j that query i may attend. Chunks are joined by the online softmax of Milakov and Gimelshein, "Online
normalizer calculation for softmax", 2018; the backward recomputes p as in Dao et al., "FlashAttention", 2022.

Non-finite numbers behave as if keys that are not attended did not exist: `0 * nan` never leaks out of a masked key,
while an attended non-finite number appears exactly where the formula puts it.

All products are taken in the accumulator dtype: chunks of 16-bit inputs are widened as they are read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from atbfn.primitives.masks import Mask
from atbfn.primitives.precision import accumulator, contract, widen

_Q_BLOCK = 256
_KV_BLOCK = 512
_DECODE_KV_BLOCK = 1024


@dataclasses.dataclass(frozen=True)
class FlashSpec:
    """Static settings of attention.

    Args:
      scale: factor on q . k.
      softcap: None, or c for scores c * tanh(s / c), applied after the scale and before the mask.
      checks: also return the check values (`forward`).
    """

    scale: float
    softcap: float | None = None
    checks: bool = False


def forward(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    mask: Mask,
    pos: jax.Array,
    lengths: jax.Array | None,
    layer: jax.Array | None,
    *,
    spec: FlashSpec,
    dynamic: bool,
) -> tuple[jax.Array, jax.Array, dict[str, jax.Array]]:
    """Attention of q over k and v.

    Args:
      q: [batch, heads, q_len, head_dim]. Query row i has position pos + i.
      k, v: [batch, kv_heads, kv_len, head_dim]; with `layer`, [layers, batch, kv_heads, kv_len, head_dim]. Query head
        h uses head h // (heads // kv_heads).
      mask: which keys a query may attend; keys at pos + length and beyond are never attended.
      pos: int32 scalar or [batch].
      lengths: int32 [batch], the rows of q that count, or None for all. The others attend nothing.
      layer: int32 scalar, or None.
      dynamic: True visits only the chunks that some query can attend, so that time does not grow with the rest of a
        cache; forward mode only. False visits all, copies the layer it reads, and is differentiable in every mode with
        memory for one chunk. The numbers are the same.

    Returns:
      context [batch, heads, q_len, head_dim] in q's dtype, zero where nothing is attended;
      lse [batch, heads, q_len] in the accumulator dtype (float32), -inf where nothing is attended;
      checks, empty unless `spec.checks`: float32 [batch, heads, q_len] violations over their bounds (<= 1 passes):
        "probs", whether the probabilities, summed again through the path of p @ v, sum to one;
        "lse", whether max s <= lse <= max s + log(number of attended keys).
        Rows that attend nothing, or that see a non-finite q or k, are not judged (0).
    """
    q, k, v, mask, pos, lengths, layer = _all_varying((q, k, v, mask, pos, lengths, layer))
    if not dynamic:
        k, v, layer = _take_layer(k, layer), _take_layer(v, layer), None
    sizes = _sizes(q, k)
    grouped = _group_heads(q, sizes)
    rows = _Rows(mask, jnp.asarray(pos, jnp.int32).reshape(-1), lengths, sizes)
    acc_dtype = accumulator(q.dtype)

    def one_q_block(index: Any) -> tuple[Any, ...]:
        q_start, q_nominal = sizes.q_block(index)
        q_block = _slice(grouped, q_start, sizes.q_size, 3)
        over_kv = _kv_loop(rows, sizes, q_nominal, dynamic)
        row_shape = q_block.shape[:-1]

        def scores(j: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
            kv_start, kv_nominal = sizes.kv_block(j)
            allowed = rows.allowed(q_start, q_nominal, kv_start, kv_nominal)
            k_block = _slice_cache(k, layer, kv_start, sizes.kv_size)
            return masked_scores(q_block, k_block, allowed, spec.scale, spec.softcap), allowed, k_block

        def step(j: Any, carry: dict[str, jax.Array]) -> dict[str, jax.Array]:
            s, allowed, k_block = scores(j)
            v_block = _slice_cache(v, layer, sizes.kv_block(j)[0], sizes.kv_size)
            # The result does not depend on the maximum, so its derivative is left out.
            top = jnp.maximum(carry["top"], jax.lax.stop_gradient(jnp.max(s, axis=-1, initial=-jnp.inf)))
            shift = jnp.where(top == -jnp.inf, 0, top)
            p = jnp.exp(s - shift[..., None])
            rescale = jnp.exp(carry["top"] - shift)
            new = {
                "top": top,
                "total": carry["total"] * rescale + jnp.sum(p, axis=-1),
                "context": carry["context"] * rescale[..., None]
                + contract("bkgqc,bkcd->bkgqd", p, widen(_finite(v_block))),
                "some": carry["some"] | jnp.any(allowed, axis=-1),
                "broken": carry["broken"] | jnp.any(~jnp.isfinite(v_block), axis=(2, 3)),
            }
            if spec.checks:
                ones = jnp.ones((*v_block.shape[:-1], 1), acc_dtype)
                new["again"] = carry["again"] * rescale + contract("bkgqc,bkcd->bkgqd", p, ones)[..., 0]
                new["count"] = carry["count"] + jnp.sum(allowed, axis=-1, dtype=jnp.float32)
                bad_key = ~jnp.all(jnp.isfinite(k_block), axis=-1)[:, :, None, None, :]
                new["odd"] = carry["odd"] | jnp.any(allowed & bad_key, axis=-1)
            return new

        init = {
            "top": jnp.full(row_shape, -jnp.inf, acc_dtype),
            "total": jnp.zeros(row_shape, acc_dtype),
            "context": jnp.zeros(q_block.shape, acc_dtype),
            "some": jnp.zeros(row_shape, bool),
            "broken": jnp.zeros(q_block.shape[:2], bool),
        }
        if spec.checks:
            init |= {
                "again": jnp.zeros(row_shape, acc_dtype),
                "count": jnp.zeros(row_shape, jnp.float32),
                "odd": jnp.zeros(row_shape, bool),
            }
        end = over_kv(step, _vary_like(init, q))
        total = jnp.where(end["some"], end["total"], 1)
        context = end["context"] / total[..., None]
        lse = jnp.where(end["some"], jnp.where(end["top"] == -jnp.inf, 0, end["top"]) + jnp.log(total), -jnp.inf)

        def nonfinite_values(j: Any, counts: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
            s, allowed, _ = scores(j)
            v_block = _slice_cache(v, layer, sizes.kv_block(j)[0], sizes.kv_size)
            # A key of score -inf has probability zero, and 0 * inf is nan.
            return _count_kinds(
                counts, v_block, allowed & (s != -jnp.inf), allowed & (s == -jnp.inf), "bkgqc,bkcd->bkgqd"
            )

        zeros = jnp.zeros(q_block.shape, jnp.float32)
        extra = _only_if(
            jnp.any(end["broken"]),
            lambda: _kinds_to_values(over_kv(nonfinite_values, _vary_like((zeros, zeros, zeros), q))),
            _vary_like(zeros, q),
        )
        context = (context + extra).astype(q.dtype)
        if not spec.checks:
            return context, lse
        odd = end["odd"] | ~jnp.all(jnp.isfinite(q_block), axis=-1)
        return context, lse, *_check_values(end, total, lse, odd, q.dtype)

    outs = _over_q(one_q_block, sizes, checkpoint=not dynamic)
    outs = [x.reshape(q.shape[:3] + x.shape[4:]) for x in outs]
    checks = dict(zip(("probs", "lse"), outs[2:], strict=True)) if spec.checks else {}
    return outs[0], outs[1], checks


def backward(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    mask: Mask,
    pos: jax.Array,
    lengths: jax.Array | None,
    layer: jax.Array | None,
    context: jax.Array,
    lse: jax.Array,
    d_context: jax.Array,
    d_lse: jax.Array,
    *,
    spec: FlashSpec,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Cotangents of q, k and v in their shapes and dtypes, from those of `forward`'s context and lse.

    With P = exp(S - lse) and delta_i = sum_d dO_id O_id: dV = P^T dO, dS = P (dO V^T - delta + dlse), dQ = dS K,
    dK = dS^T Q. A layer of a stack gets its gradient in place in zeros. Differentiable itself, in every mode, with
    memory for one chunk.
    """
    args = (q, k, v, mask, pos, lengths, layer, context, lse, d_context, d_lse)
    q, k, v, mask, pos, lengths, layer, context, lse, d_context, d_lse = _all_varying(args)
    stack, (k, v) = k, (_take_layer(k, layer), _take_layer(v, layer))
    sizes = _sizes(q, k)
    rows = _Rows(mask, jnp.asarray(pos, jnp.int32).reshape(-1), lengths, sizes)
    acc_dtype = accumulator(q.dtype)
    delta = jnp.sum(widen(d_context) * widen(context), axis=-1) - d_lse
    # inf - inf of the formula, already in the difference from which every key's gradient comes.
    delta = jnp.where(jnp.isfinite(delta), delta, jnp.nan)
    # No pair is allowed in an empty row; a row whose scores are all -inf is 0 / 0.
    shift = jnp.where(lse == -jnp.inf, jnp.nan, lse)
    grouped = [_group_heads(x, sizes) for x in (q, d_context, shift, delta)]

    def one_kv_block(d_q: jax.Array, j: Any) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        kv_start, kv_nominal = sizes.kv_block(j)
        k_block, v_block = (_slice(x, kv_start, sizes.kv_size, 2) for x in (k, v))
        k_finite, v_finite = widen(_finite(k_block)), widen(_finite(v_block))

        def one_q_block(carry: tuple[jax.Array, jax.Array], i: Any) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
            q_start, q_nominal = sizes.q_block(i)
            allowed = rows.allowed(q_start, q_nominal, kv_start, kv_nominal)
            q_block, d_block, shift_block, delta_block = (_slice(x, q_start, sizes.q_size, 3) for x in grouped)
            d_finite = widen(_finite(d_block))
            raw = products(q_block, k_block) * jnp.asarray(spec.scale, acc_dtype)
            s = _capped(raw, allowed, spec.softcap)
            p = jnp.exp(jnp.where(allowed, s - shift_block[..., None], -jnp.inf))
            d_p = contract("bkgqd,bkcd->bkgqc", d_finite, v_finite)
            d_s = p * (d_p - delta_block[..., None])
            if spec.softcap is not None:
                d_s = d_s * (1 - jnp.square(s / spec.softcap))
            d_s = jnp.where(allowed, d_s * jnp.asarray(spec.scale, acc_dtype), 0)
            d_k = carry[0] + contract("bkgqc,bkgqd->bkcd", d_s, widen(_finite(q_block)))
            d_v = carry[1] + contract("bkgqc,bkgqd->bkcd", p, d_finite)
            return (d_k, d_v), contract("bkgqc,bkcd->bkgqd", d_s, k_finite)

        zeros = jnp.zeros(k_block.shape, acc_dtype)
        (d_k, d_v), d_q_blocks = _scan(one_q_block, _vary_like((zeros, zeros), q), sizes.q_blocks)
        return d_q + _join(d_q_blocks, sizes.q_len, sizes.q_size, 3), (d_k.astype(k.dtype), d_v.astype(v.dtype))

    d_q, (d_k, d_v) = _scan(one_kv_block, _vary_like(jnp.zeros(grouped[0].shape, acc_dtype), q), sizes.kv_blocks)
    d_k, d_v = (_join(x, sizes.kv_len, sizes.kv_size, 2) for x in (d_k, d_v))

    extra_q, extra_v = _nonfinite_gradients(grouped[1], k, rows, sizes)
    d_q = (d_q + extra_q).astype(q.dtype).reshape(q.shape)
    d_v = d_v + extra_v.astype(v.dtype)
    return d_q, _put_layer(d_k, layer, stack), _put_layer(d_v, layer, stack)


def _nonfinite_gradients(d_context: jax.Array, k: jax.Array, rows: _Rows, sizes: _Sizes) -> tuple[jax.Array, jax.Array]:
    """What attended non-finite k adds to dQ and non-finite dO to dV: 0, nan, inf or -inf per element."""
    d_context, k = jax.lax.stop_gradient((d_context, k))
    zeros_q, zeros_v = _vary_like((jnp.zeros(d_context.shape, jnp.float32), jnp.zeros(k.shape, jnp.float32)), k)

    def compute() -> tuple[jax.Array, jax.Array]:
        def one_kv_block(hits: jax.Array, j: Any) -> tuple[jax.Array, jax.Array]:
            kv_start, kv_nominal = sizes.kv_block(j)
            broken = (~jnp.isfinite(_slice(k, kv_start, sizes.kv_size, 2))).astype(jnp.float32)

            def one_q_block(counts: tuple[jax.Array, ...], i: Any) -> tuple[tuple[jax.Array, ...], jax.Array]:
                q_start, q_nominal = sizes.q_block(i)
                d_block = _slice(d_context, q_start, sizes.q_size, 3)
                allowed = rows.allowed(q_start, q_nominal, kv_start, kv_nominal)
                full = jnp.broadcast_to(allowed, (*d_block.shape[:-1], sizes.kv_size))
                counts = _count_kinds(counts, d_block, full, None, "bkgqc,bkgqd->bkcd")
                return counts, contract("bkgqc,bkcd->bkgqd", full.astype(jnp.float32), broken)

            zeros = jnp.zeros(broken.shape, jnp.float32)
            counts, block_hits = _scan(one_q_block, _vary_like((zeros, zeros, zeros), k), sizes.q_blocks)
            return hits + _join(block_hits, sizes.q_len, sizes.q_size, 3), _kinds_to_values(counts)

        hits, values = _scan(one_kv_block, zeros_q, sizes.kv_blocks)
        return jnp.where(hits > 0, jnp.nan, 0.0).astype(jnp.float32), _join(values, sizes.kv_len, sizes.kv_size, 2)

    flag = ~(jnp.all(jnp.isfinite(d_context)) & jnp.all(jnp.isfinite(k)))
    return _only_if(flag, compute, (zeros_q, zeros_v))


# Scores.


def masked_scores(q: jax.Array, k: jax.Array, allowed: jax.Array, scale: float, softcap: float | None) -> jax.Array:
    """Scores of `products`, -inf where not allowed; what is not allowed has a zero derivative, whatever it holds."""
    s = products(q, k)
    s = _capped(s * jnp.asarray(scale, s.dtype), allowed, softcap)
    return jnp.where(allowed, s, -jnp.inf)


def _capped(s: jax.Array, allowed: jax.Array, softcap: float | None) -> jax.Array:
    if softcap is None:
        return s
    # The derivative of tanh at NaN is NaN, and so would be its product with the zero cotangent of a masked score.
    return softcap * jnp.tanh(jnp.where(allowed, s, 0) / softcap)


@jax.custom_jvp
def products(q: jax.Array, k: jax.Array) -> jax.Array:
    """q . k: [batch, kv_heads, group, q, d] and [batch, kv_heads, c, d] -> [batch, kv_heads, group, q, c].

    The value is that of the raw inputs, so a non-finite key makes its own scores non-finite. The derivative uses
    finite inputs: a masked score has a zero cotangent, and zero times a non-finite key must stay zero. (A non-finite
    score that is not masked makes its row's probabilities nan, and with them every derivative.)
    """
    return contract("bkgqd,bkcd->bkgqc", widen(q), widen(k))


@products.defjvp
def _products_jvp(primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    q, k = primals
    d_q, d_k = tangents
    wide = [widen(x) for x in (d_q, _finite(k), _finite(q), d_k)]
    tangent = contract("bkgqd,bkcd->bkgqc", *wide[:2]) + contract("bkgqd,bkcd->bkgqc", *wide[2:])
    return products(q, k), tangent


def _finite(x: jax.Array) -> jax.Array:
    return jnp.where(jnp.isfinite(x), x, 0)


def _count_kinds(
    counts: tuple[jax.Array, ...], x: jax.Array, weight: jax.Array, zero_weight: jax.Array | None, subscripts: str
) -> tuple[jax.Array, ...]:
    """Adds how many nan, inf and -inf of `x` meet a True of `weight`; a `zero_weight` makes nan of any of them."""
    weight = weight.astype(jnp.float32)
    kinds = [kind.astype(jnp.float32) for kind in (jnp.isnan(x), x == jnp.inf, x == -jnp.inf)]
    nan, plus, minus = (old + contract(subscripts, weight, kind) for old, kind in zip(counts, kinds, strict=True))
    if zero_weight is not None:
        nan = nan + contract(subscripts, zero_weight.astype(jnp.float32), kinds[0] + kinds[1] + kinds[2])
    return nan, plus, minus


def _kinds_to_values(counts: tuple[jax.Array, ...]) -> jax.Array:
    nan, plus, minus = (count > 0 for count in counts)
    value = jnp.where(plus, jnp.inf, jnp.where(minus, -jnp.inf, 0.0))
    return jnp.where(nan | (plus & minus), jnp.nan, value).astype(jnp.float32)


def _only_if(flag: jax.Array, compute: Callable[[], Any], otherwise: Any) -> Any:
    """`compute()` if `flag`, else `otherwise`: a loop of at most one turn, which costs nothing unused even batched."""
    otherwise = jax.lax.stop_gradient(otherwise)
    _, result = jax.lax.while_loop(
        lambda carry: carry[0],
        lambda carry: (jnp.zeros_like(carry[0]), jax.lax.stop_gradient(compute())),
        (jax.lax.stop_gradient(flag), otherwise),
    )
    return jax.lax.stop_gradient(result)


def _check_values(
    end: dict[str, jax.Array], total: jax.Array, lse: jax.Array, odd: jax.Array, dtype: Any
) -> tuple[jax.Array, jax.Array]:
    """The check values of `forward`. The bounds are worst cases: a sum of n terms errs by n units."""
    some, count = end["some"], jnp.maximum(end["count"], 1)
    judged = some & ~odd
    unit = float(jnp.finfo(accumulator(dtype)).eps)
    bound = (count + 64) * 2 * unit
    probs = jnp.abs(end["again"] / total - 1) / bound
    slack = (count + 64) * 2 * unit + 4 * unit * jnp.abs(end["top"])
    outside = jnp.maximum(end["top"] - lse, lse - end["top"] - jnp.log(count))
    outside = jnp.maximum(outside, 0) / slack
    return jnp.where(judged, probs, 0).astype(jnp.float32), jnp.where(judged, outside, 0).astype(jnp.float32)


# Blocks.


@dataclasses.dataclass(frozen=True)
class _Sizes:
    """Lengths, and how they are cut: the last block starts early enough to be whole, its first part was seen before."""

    kv_heads: Any
    group: Any
    q_len: Any
    kv_len: Any
    q_size: Any
    q_blocks: int
    kv_size: Any
    kv_blocks: int

    def q_block(self, index: Any) -> tuple[Any, Any]:
        """Where block `index` starts, and its first new row."""
        return _block_start(index, self.q_blocks, self.q_size, self.q_len)

    def kv_block(self, index: Any) -> tuple[Any, Any]:
        """Where block `index` starts, and its first new key."""
        return _block_start(index, self.kv_blocks, self.kv_size, self.kv_len)


def _block_start(index: Any, blocks: int, size: Any, length: Any) -> tuple[Any, Any]:
    if blocks == 1:
        return 0, 0
    nominal = index * size
    return jnp.minimum(nominal, length - size), nominal


def _sizes(q: jax.Array, k: jax.Array) -> _Sizes:
    heads, q_len = q.shape[1:3]
    kv_heads, kv_len = k.shape[-3:-1]
    decode = isinstance(q_len, int) and q_len <= 8
    q_size, q_blocks = _cut(q_len, _Q_BLOCK)
    kv_size, kv_blocks = _cut(kv_len, _DECODE_KV_BLOCK if decode else _KV_BLOCK)
    return _Sizes(kv_heads, heads // kv_heads, q_len, kv_len, q_size, q_blocks, kv_size, kv_blocks)


def _cut(length: Any, target: int) -> tuple[Any, int]:
    """Block size and count. A symbolic length is one block: its count cannot be known."""
    if not isinstance(length, int) or length <= target:
        return length, 1
    blocks = -(-length // target)
    size = min(-(-length // blocks) + 15, length) // 16 * 16 or length
    return size, -(-length // size)


def _slice(x: jax.Array, start: Any, size: Any, axis: int) -> jax.Array:
    if x.shape[axis] == size:
        return x
    return jax.lax.dynamic_slice_in_dim(x, start, size, axis=axis)


def _slice_cache(x: jax.Array, layer: Any, start: Any, size: Any) -> jax.Array:
    """Keys start .. start + size of one layer, read straight from the stack.

    XLA's CPU compiler slices bfloat16 in float32. The barrier ties the cache to the block number: without it, the
    conversion of the whole cache would be moved out of the loop over blocks.
    """
    if layer is None and x.shape[2] == size:
        return x
    start = jnp.asarray(start, jnp.int32)
    if x.dtype.itemsize == 2:
        x, start = jax.lax.optimization_barrier((x, start))
    if layer is None:
        return jax.lax.dynamic_slice_in_dim(x, start, size, axis=2)
    zero = jnp.zeros((), jnp.int32)
    starts = (jnp.asarray(layer, jnp.int32), zero, zero, start, zero)
    return jax.lax.dynamic_slice(x, starts, (1, *x.shape[1:3], size, x.shape[4]))[0]


def _take_layer(x: jax.Array, layer: Any) -> jax.Array:
    return x if layer is None else jax.lax.dynamic_index_in_dim(x, layer, 0, keepdims=False)


def _put_layer(x: jax.Array, layer: Any, stack: jax.Array) -> jax.Array:
    return x if layer is None else jax.lax.dynamic_update_index_in_dim(jnp.zeros_like(stack), x, layer, 0)


def _group_heads(x: jax.Array, sizes: _Sizes) -> jax.Array:
    """[batch, heads, ...] -> [batch, kv_heads, group, ...]."""
    return x.reshape(x.shape[0], sizes.kv_heads, sizes.group, *x.shape[2:])


@dataclasses.dataclass(frozen=True)
class _Rows:
    """Who may attend what: the mask, the written keys, the valid rows."""

    mask: Mask
    pos: jax.Array  # [batch | 1]
    lengths: jax.Array | None  # [batch]
    sizes: _Sizes

    def allowed(self, q_start: Any, q_nominal: Any, kv_start: Any, kv_nominal: Any) -> jax.Array:
        """bool [batch | 1, kv_heads | 1, group | 1, q, kv]; False too for what an earlier block has seen."""
        sizes = self.sizes
        allowed = self.mask.block(q_start, sizes.q_size, kv_start, sizes.kv_size, self.pos)
        key = kv_start + jnp.arange(sizes.kv_size, dtype=jnp.int32)[None, None, None, :]
        allowed = allowed & (key < (self.pos + self._length())[:, None, None, None])
        row = q_start + jnp.arange(sizes.q_size, dtype=jnp.int32)[None, None, :, None]
        if sizes.kv_blocks > 1:
            allowed = allowed & (key >= kv_nominal)
        if sizes.q_blocks > 1:
            allowed = allowed & (row >= q_nominal)
        if self.lengths is not None:
            allowed = allowed & (row < self.lengths[:, None, None, None])
        allowed = jnp.broadcast_to(allowed, (*allowed.shape[:2], sizes.q_size, sizes.kv_size))
        if allowed.shape[1] == 1:
            return allowed[:, :, None]
        return _group_heads(allowed, sizes)

    def _length(self) -> Any:
        return self.sizes.q_len if self.lengths is None else self.lengths

    def kv_range(self, q_nominal: Any) -> tuple[jax.Array, jax.Array]:
        """The blocks of keys that rows from q_nominal on may attend: first, and one past the last."""
        sizes = self.sizes
        # A sequence outside the cache must not hide keys from the others, as sums that wrap around would.
        pos = jnp.clip(self.pos, -sizes.q_len, sizes.kv_len)
        length = self._length() if self.lengths is None else jnp.clip(self.lengths, 0, sizes.q_len)
        low, high = self.mask.kv_bounds(
            jnp.min(pos) + q_nominal,
            jnp.max(pos) + jnp.minimum(q_nominal + sizes.q_size, sizes.q_len) - 1,
            sizes.kv_len,
        )
        high = jnp.minimum(jnp.minimum(high, jnp.max(pos + length)), sizes.kv_len)
        if self.lengths is not None:
            high = jnp.where(q_nominal < jnp.max(self.lengths), high, 0)
        low, high = (jnp.clip(jnp.asarray(x, jnp.int32), 0) for x in (low, high))
        return low // sizes.kv_size, -(-high // sizes.kv_size)


def _kv_loop(rows: _Rows, sizes: _Sizes, q_nominal: Any, dynamic: bool) -> Callable[[Callable[..., Any], Any], Any]:
    """`loop(step, carry)` runs `carry = step(j, carry)` over the blocks of keys."""
    if sizes.kv_blocks == 1:
        return lambda step, carry: step(0, carry)
    if not dynamic:
        return lambda step, carry: _scan(lambda c, j: (step(j, c), None), carry, sizes.kv_blocks)[0]
    low, high = rows.kv_range(q_nominal)
    return lambda step, carry: jax.lax.fori_loop(low, high, step, carry)


def _over_q(body: Callable[[Any], tuple[Any, ...]], sizes: _Sizes, *, checkpoint: bool) -> list[jax.Array]:
    if sizes.q_blocks == 1:
        return list(body(0))
    if checkpoint:
        body = jax.checkpoint(body, prevent_cse=False)
    _, outs = jax.lax.scan(lambda _, i: (None, body(i)), None, jnp.arange(sizes.q_blocks, dtype=jnp.int32))
    return [_join(x, sizes.q_len, sizes.q_size, 3) for x in outs]


def _scan(body: Callable[[Any, Any], tuple[Any, Any]], carry: Any, blocks: int) -> tuple[Any, Any]:
    """A scan over block numbers that keeps only its carries for differentiation. One block: no loop."""
    if blocks == 1:
        carry, outs = body(carry, 0)
        return carry, jax.tree.map(lambda x: x[None], outs)
    return jax.lax.scan(jax.checkpoint(body, prevent_cse=False), carry, jnp.arange(blocks, dtype=jnp.int32))


def _join(blocks: jax.Array, length: Any, size: Any, axis: int) -> jax.Array:
    """[blocks, ..., size, ...] -> [..., length, ...], `axis` being that of the result."""
    count = blocks.shape[0]
    if count == 1:
        return blocks[0]
    last = jax.lax.slice_in_dim(blocks[-1], count * size - length, size, axis=axis)
    rest = jnp.moveaxis(blocks[:-1], 0, axis)
    rest = rest.reshape(*rest.shape[:axis], (count - 1) * size, *rest.shape[axis + 2 :])
    return jnp.concatenate([rest, last], axis=axis)


# Inside shard_map every array says over which mesh axes it varies, and a loop's carry may not change that.


def _vma(x: Any) -> frozenset[str]:
    aval = jax.typeof(x)
    if hasattr(aval, "vma"):  # its name before jax 0.10.2
        return frozenset(aval.vma)
    return frozenset(aval.manual_axis_type.varying)


def _cast_varying(x: Any, axes: frozenset[str]) -> Any:
    missing = axes - _vma(x)
    return jax.lax.pcast(x, tuple(sorted(missing)), to="varying") if missing else x


def _all_varying(args: Sequence[Any]) -> Any:
    """`args` with every array varying over the mesh axes that any of them varies over."""
    axes = frozenset().union(*(_vma(x) for x in jax.tree.leaves(args)))
    return jax.tree.map(lambda x: _cast_varying(x, axes), tuple(args)) if axes else tuple(args)


def _vary_like(tree: Any, x: jax.Array) -> Any:
    return jax.tree.map(lambda y: _cast_varying(y, _vma(x)), tree)
