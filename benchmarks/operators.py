"""Every operator against its peers and the machine's ceilings, on the shapes of real models (shapes.py).

    python benchmarks/operators.py                                    # all of it: about an hour on two cores
    python benchmarks/operators.py --only 'fused_ffn/half-7B' --dtype bfloat16 --json ffn.json --plot ffn.png
    python benchmarks/operators.py --only 'odd' --rounds 3 --no-compile   # a minute
    python benchmarks/operators.py --list                             # names of the cases, for --only

Peers are jax.jit with both spellings of a matmul ("jax plain" is `x @ w.T`, "jax f32" asks for float32 sums with
`preferred_element_type`, and rounds after), `jax.nn.dot_product_attention`, torch eager and torch.compile. Every form's
result is compared with ours before anything is timed; one that differs is named and left out.

In each round every form is sampled once, in turns, and so are the ceilings: the rate of multiply-adds in registers,
and of reading a buffer as large as the case's operands. Times are medians over rounds, of calls from Python that wait
for the result. All forms read the same buffers again and again, so operands that fit a cache are found there, by peers
and by us. Peers far behind are sampled three times only. torch gets as many threads as there are CPUs.

Columns: "x best" is the best peer's time over ours, "x jax" that of the best spelling for jax.jit; "peak" is our share
of the multiply-add rate, "read" that of the bandwidth, counting every operand once. A star marks programs of ours that
ran on compiled kernels. The exit status is 1 if two results differed or ours did not run.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import math
import pathlib
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import measuring
from measuring import OURS, Ceilings, Form, Progress, Row, Work
from shapes import CACHE_MEBIBYTES, CACHED, DECODE, FFN_TOKENS, GRAD, LINEAR, MODELS, NORM, PREFILL, ROPE, Model

# isort: split
import jax
import jax.numpy as jnp

import atbfn

EPS = 1e-5
LOOP_STEPS = 20  # of cache writes inside one program
NAIVE_SCORES = 2**26  # bytes of float32 scores up to which a peer that holds them all is tried

Array = jax.Array


@dataclasses.dataclass(frozen=True)
class Context:
    """What builds the forms: `torch` is the module or None; `compiled` adds torch.compile."""

    dtype: str
    target: str
    torch: Any
    compiled: bool

    def draw(self, *shape: int, seed: int = 0, scale: float = 1.0) -> Array:
        """Normal numbers of the case's dtype."""
        return (jax.random.normal(jax.random.key(seed), shape, jnp.float32) * scale).astype(self.dtype)

    def weight(self, rows: int, columns: int, seed: int) -> Array:
        """[rows, columns] of variance 1 / columns, as in trained models about."""
        return self.draw(rows, columns, seed=seed, scale=columns**-0.5)

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return jnp.dtype(self.dtype).itemsize

    @property
    def spellings(self) -> dict[str, Any]:
        """The ways to write a matmul; in float32 they are the same program."""
        return {"jax": None} if self.dtype == "float32" else {"jax plain": None, "jax f32": jnp.float32}

    # Forms. `state` is donated and handed on from call to call; a function with state returns (outputs, state).

    def ours(self, fn: Callable[..., Any], *args: Any, state: tuple[Any, ...] = (), steps: int = 1) -> Form:
        """Our form, traced under the target."""

        def traced(*values: Any) -> Any:
            with atbfn.fusion(target=self.target):
                return fn(*values)

        form = self.jax(OURS, traced, *args, state=state, steps=steps)
        text = jax.jit(traced).lower(*state, *args).as_text()
        return dataclasses.replace(form, native="atbfn_" in text)

    def jax(self, name: str, fn: Callable[..., Any], *args: Any, state: tuple[Any, ...] = (), steps: int = 1) -> Form:
        """`jax.jit` of a function."""
        if not state:
            plain = jax.jit(fn)
            return Form(name, lambda: jax.block_until_ready(plain(*args)), steps)
        jitted = jax.jit(fn, donate_argnums=tuple(range(len(state))))
        held: list[Any] = [jax.tree.map(jnp.copy, item) for item in state]

        def call() -> Any:
            outputs, new = jitted(*held, *args)
            held[:] = new
            return jax.block_until_ready((outputs, new))

        return Form(name, call, steps)

    def spelled(self, fn: Callable[..., Any], *args: Any, state: tuple[Any, ...] = ()) -> Iterator[Form]:
        """`fn(prefer, ...)` under `jax.jit` in every spelling."""
        for name, prefer in self.spellings.items():
            yield self.jax(name, functools.partial(fn, prefer), *args, state=state)

    def torches(
        self, fn: Callable[..., Any], *args: Any, name: str = "torch", compiles: bool = True, steps: int = 1
    ) -> Iterator[Form]:
        """torch eager, and torch.compile where there is something to fuse, on views of JAX's buffers."""
        if self.torch is None:
            return
        views = jax.tree.map(self.torch.from_dlpack, args)

        def runner(fn: Callable[..., Any]) -> Callable[[], Any]:
            def call() -> Any:
                with self.torch.inference_mode():
                    return fn(*views)

            return call

        yield Form(name, runner(fn), steps, torch=True)
        if self.compiled and compiles:
            yield Form(f"{name} compiled", runner(self.torch.compile(fn, dynamic=False)), steps, torch=True)


Builder = Callable[[Context], Work]


@dataclasses.dataclass(frozen=True)
class Case:
    """One operator on one shape; `build` makes its forms."""

    operator: str
    shape: str
    build: Builder
    dtypes: tuple[str, ...] = measuring.DTYPES


# The peers' formulas in JAX. `prefer` is the element type asked of a matmul, or None for the plain spelling.


def _product(prefer: Any, x: Array, w: Array) -> Array:
    """x w^T; the wide result of the second spelling is left wide, for what follows to round."""
    if prefer is None:
        return x @ w.T
    return jax.lax.dot_general(x, w, (((x.ndim - 1,), (1,)), ((), ())), preferred_element_type=prefer)


def _linear(prefer: Any, x: Array, w: Array, b: Array | None = None) -> Array:
    y = _product(prefer, x, w)
    return (y if b is None else y + b).astype(x.dtype)


def _ffn(prefer: Any, x: Array, w_gate: Array, w_up: Array, w_down: Array) -> Array:
    hidden = jax.nn.silu(_product(prefer, x, w_gate)) * _product(prefer, x, w_up)
    return _linear(prefer, hidden.astype(x.dtype), w_down)


def _mlp(prefer: Any, x: Array, w_up: Array, w_down: Array, b_up: Array, b_down: Array) -> Array:
    hidden = jax.nn.gelu(_product(prefer, x, w_up) + b_up, approximate=False)
    return _linear(prefer, hidden.astype(x.dtype), w_down, b_down)


def _rmsnorm(x: Array, gamma: Array) -> Array:
    wide = x.astype(jnp.float32)
    normed = wide * jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + EPS) * gamma
    return normed.astype(x.dtype)


def _layernorm(x: Array, gamma: Array, beta: Array) -> Array:
    wide = x.astype(jnp.float32)
    centred = wide - jnp.mean(wide, axis=-1, keepdims=True)
    variance = jnp.mean(jnp.square(centred), axis=-1, keepdims=True)
    return (centred * jax.lax.rsqrt(variance + EPS) * gamma + beta).astype(x.dtype)


def _rotate(x: Array, cos: Array, sin: Array) -> Array:
    """cos, sin float32 [q_len, rotary_dim / 2]; the rest of a head passes through."""
    half = cos.shape[-1]
    a, b = x[..., :half].astype(jnp.float32), x[..., half : 2 * half].astype(jnp.float32)
    rotated = jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)
    return jnp.concatenate([rotated, x[..., 2 * half :]], axis=-1) if x.shape[-1] > 2 * half else rotated


def _attend(prefer: Any, q: Array, k: Array, v: Array, allowed: Array | None) -> Array:
    """The formula with all scores at once: q [b, heads, q_len, d], k and v [b, kv_heads, kv_len, d]."""
    batch, heads, q_len, dim = q.shape
    grouped = q.reshape(batch, k.shape[1], -1, q_len, dim)
    scores = jnp.einsum("bhgqd,bhkd->bhgqk", grouped, k, preferred_element_type=prefer)
    scores = scores.astype(jnp.float32) * dim**-0.5
    if allowed is not None:
        scores = jnp.where(allowed, scores, -jnp.inf)
    probs = jax.nn.softmax(scores, axis=-1).astype(q.dtype)
    context = jnp.einsum("bhgqk,bhkd->bhgqd", probs, v, preferred_element_type=prefer)
    return context.reshape(batch, heads, q_len, dim).astype(q.dtype)


# And in torch.


def _torch_rotate(torch: Any, x: Any, cos: Any, sin: Any) -> Any:
    half = cos.shape[-1]
    a, b = x[..., :half].float(), x[..., half : 2 * half].float()
    return torch.cat([(a * cos - b * sin).to(x.dtype), (b * cos + a * sin).to(x.dtype), x[..., 2 * half :]], dim=-1)


def _torch_sdpa(torch: Any, q: Any, k: Any, v: Any, causal: bool) -> Any:
    grouped = q.shape[1] != k.shape[1]
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped)


def _torch_sdpa_grouped(torch: Any, q: Any, k: Any, v: Any) -> Any:
    """One query: the heads of a group become the rows of one head, so the keys are read once."""
    batch, heads, _, dim = q.shape
    rows = q.reshape(batch, k.shape[1], heads // k.shape[1], dim)
    return torch.nn.functional.scaled_dot_product_attention(rows, k, v).reshape(q.shape)


# Builders, one per operator.


def fused_ffn(model: Model, tokens: int, c: Context) -> Work:
    hidden, intermediate = model.hidden, model.intermediate
    x = c.draw(tokens, hidden)
    w_gate, w_up = c.weight(intermediate, hidden, 1), c.weight(intermediate, hidden, 2)
    w_down = c.weight(hidden, intermediate, 3)
    matrices = 3 if model.gated else 2
    flops = 2.0 * tokens * matrices * hidden * intermediate
    size = c.itemsize * (matrices * hidden * intermediate + 2 * tokens * hidden)
    torch = c.torch
    if model.gated:
        args = (x, w_gate, w_up, w_down)
        forms = [c.ours(atbfn.fused_ffn, *args), *c.spelled(_ffn, *args)]

        def gated(x: Any, w_gate: Any, w_up: Any, w_down: Any) -> Any:
            linear, silu = torch.nn.functional.linear, torch.nn.functional.silu
            return linear(silu(linear(x, w_gate)) * linear(x, w_up), w_down)

        return Work([*forms, *c.torches(gated, *args)], flops, size)

    plain = (x, w_up, w_down, c.draw(intermediate, seed=4, scale=0.1), c.draw(hidden, seed=5, scale=0.1))

    def ours(x: Array, w_up: Array, w_down: Array, b_up: Array, b_down: Array) -> Array:
        return atbfn.fused_ffn(x, None, w_up, w_down, activation="gelu", b_up=b_up, b_down=b_down)

    def mlp(x: Any, w_up: Any, w_down: Any, b_up: Any, b_down: Any) -> Any:
        linear, gelu = torch.nn.functional.linear, torch.nn.functional.gelu
        return linear(gelu(linear(x, w_up, b_up)), w_down, b_down)

    return Work([c.ours(ours, *plain), *c.spelled(_mlp, *plain), *c.torches(mlp, *plain)], flops, size)


def linear(model: Model, projection: str, tokens: int, c: Context) -> Work:
    sizes = {"q": model.heads * model.head_dim, "kv": 2 * model.kv_heads * model.head_dim, "head": model.vocab}
    rows, hidden = sizes[projection], model.hidden
    args = [c.draw(tokens, hidden), c.weight(rows, hidden, 1)]
    if model.qkv_bias and projection != "head":
        args.append(c.draw(rows, seed=2, scale=0.1))
    forms = [c.ours(atbfn.linear, *args), *c.spelled(_linear, *args)]
    if c.torch is not None:  # compiled, it is the same call
        forms += c.torches(c.torch.nn.functional.linear, *args, compiles=False)
    return Work(forms, 2.0 * tokens * rows * hidden, c.itemsize * (rows * hidden + tokens * (rows + hidden)))


def _attention_work(c: Context, q: Array, k: Array, v: Array, causal: bool) -> Work:
    batch, heads, q_len, dim = q.shape
    kv_len = k.shape[2]
    one = q_len == 1
    masked = causal and not one  # the last query may attend to everything
    mask = atbfn.Causal() if causal else atbfn.Full()
    forms = [c.ours(lambda q, k, v: atbfn.flash_attention(q, k, v, mask=mask), q, k, v)]
    if 4 * batch * heads * q_len * kv_len <= NAIVE_SCORES:
        allowed = jnp.tri(q_len, kv_len, dtype=bool) if masked else None
        forms += c.spelled(lambda prefer, q, k, v: _attend(prefer, q, k, v, allowed), q, k, v)
    # Its own layout, [batch, length, heads, head_dim], made beforehand; the result goes back for the comparison only.
    turned = [jnp.swapaxes(item, 1, 2).copy() for item in (q, k, v)]
    attention = jax.jit(functools.partial(jax.nn.dot_product_attention, is_causal=masked))
    peer = c.jax("jax.nn.dot_product_attention", attention, *turned)
    forms.append(_Turned(peer))
    torch = c.torch
    if torch is not None:
        forms += c.torches(lambda q, k, v: _torch_sdpa(torch, q, k, v, masked), q, k, v, compiles=False)
        if one and heads != k.shape[1]:
            grouped = functools.partial(_torch_sdpa_grouped, torch)
            forms += c.torches(grouped, q, k, v, name="torch grouped", compiles=False)
    pairs = q_len * (q_len + 1) / 2 if masked else q_len * kv_len
    return Work(forms, 4.0 * batch * heads * dim * pairs, c.itemsize * (2 * q.size + k.size + v.size))


class _Turned(Form):
    """A form whose result has the other layout: turned for the comparison, which asks for the first result only."""

    def __init__(self, form: Form) -> None:
        super().__init__(form.name, self._first, form.steps)
        self._call = form.call

    def _first(self) -> Array:
        self.call = self._call
        return jnp.swapaxes(self._call(), 1, 2)


def prefill(model: Model, batch: int, tokens: int, c: Context) -> Work:
    q = c.draw(batch, model.heads, tokens, model.head_dim)
    k, v = (c.draw(batch, model.kv_heads, tokens, model.head_dim, seed=seed) for seed in (1, 2))
    return _attention_work(c, q, k, v, model.causal)


def decode(model: Model, batch: int, keys: int, c: Context) -> Work:
    q = c.draw(batch, model.heads, 1, model.head_dim)
    k, v = (c.draw(batch, model.kv_heads, keys, model.head_dim, seed=seed) for seed in (1, 2))
    return _attention_work(c, q, k, v, causal=True)


def _attention_weights(c: Context, model: Model) -> atbfn.AttentionWeights:
    q, kv = model.heads * model.head_dim, model.kv_heads * model.head_dim
    sizes = ((q, model.hidden), (kv, model.hidden), (kv, model.hidden), (model.hidden, q))
    return atbfn.AttentionWeights(*(c.weight(*size, seed) for seed, size in enumerate(sizes, 10)))


def _split(x: Array, heads: int) -> Array:
    """[batch, tokens, heads * d] as [batch, heads, tokens, d]; for torch's tensors too."""
    return x.reshape(x.shape[0], x.shape[1], heads, -1).swapaxes(1, 2)


def _merge(x: Array) -> Array:
    return x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], -1)


def cached_attention(model: Model, batch: int, tokens: int, pos: int, max_seq: int, c: Context) -> Work:
    weights, x = _attention_weights(c, model), c.draw(batch, tokens, model.hidden)
    shape = (batch, model.kv_heads, max_seq, model.head_dim)
    state = (c.draw(*shape, seed=1), c.draw(*shape, seed=2))
    rotary = model.head_dim // 2 * 2
    table = atbfn.Rope.create(model.head_dim, max_seq, rotary_dim=rotary)
    heads: dict[str, Any] = {"num_heads": model.heads, "num_kv_heads": model.kv_heads}
    args = (x, jnp.int32(pos), weights, table.cos, table.sin)

    def ours(k: Array, v: Array, x: Array, pos: Array, weights: Any, cos: Array, sin: Array) -> Any:
        rope = atbfn.Rope(cos, sin)
        out, k, v = atbfn.attention_with_kv_cache(x, k, v, pos, weights=weights, rope=rope, **heads)
        return out, (k, v)

    def peer(prefer: Any, k: Array, v: Array, x: Array, pos: Array, w: Any, cos: Array, sin: Array) -> Any:
        cos, sin = (jax.lax.dynamic_slice_in_dim(t, pos, tokens) for t in (cos, sin))
        q = _rotate(_split(_linear(prefer, x, w.w_q), model.heads), cos, sin)
        new = _rotate(_split(_linear(prefer, x, w.w_k), model.kv_heads), cos, sin)
        at = (0, 0, pos, 0)
        k = jax.lax.dynamic_update_slice(k, new, at)
        v = jax.lax.dynamic_update_slice(v, _split(_linear(prefer, x, w.w_v), model.kv_heads), at)
        allowed = jnp.arange(max_seq) <= pos + jnp.arange(tokens)[:, None]
        out = _linear(prefer, _merge(_attend(prefer, q, k, v, allowed)), w.w_o)
        return out, (k, v)

    forms = [c.ours(ours, *args, state=state), *c.spelled(peer, *args, state=state)]
    torch = c.torch
    if torch is not None:
        # Torch writes in place, so its caches are its own. Positions are known to Python, as in eager model code.
        k_cache, v_cache = (torch.from_dlpack(item).clone() for item in state)
        end = pos + tokens

        def eager(x: Any, w_q: Any, w_k: Any, w_v: Any, w_o: Any, cos: Any, sin: Any) -> Any:
            project = torch.nn.functional.linear
            q = _torch_rotate(torch, _split(project(x, w_q), model.heads), cos[pos:end], sin[pos:end])
            k = _torch_rotate(torch, _split(project(x, w_k), model.kv_heads), cos[pos:end], sin[pos:end])
            k_cache[:, :, pos:end] = k
            v_cache[:, :, pos:end] = _split(project(x, w_v), model.kv_heads)
            keys, values = k_cache[:, :, :end], v_cache[:, :, :end]
            if tokens == 1 and model.heads != model.kv_heads:
                out = _torch_sdpa_grouped(torch, q, keys, values)
            elif pos == 0 or tokens == 1:
                out = _torch_sdpa(torch, q, keys, values, causal=tokens > 1)
            else:  # is_causal is top-left aligned
                allowed = torch.arange(end) <= pos + torch.arange(tokens)[:, None]
                grouped = model.heads != model.kv_heads
                sdpa = torch.nn.functional.scaled_dot_product_attention
                out = sdpa(q, keys, values, attn_mask=allowed, enable_gqa=grouped)
            return project(_merge(out), w_o), (k_cache, v_cache)

        matrices = (weights.w_q, weights.w_k, weights.w_v, weights.w_o)
        forms += c.torches(eager, x, *matrices, table.cos, table.sin)
    elements = sum(w.size for w in (weights.w_q, weights.w_k, weights.w_v, weights.w_o))
    pairs = tokens * pos + tokens * (tokens + 1) / 2
    flops = 2.0 * batch * tokens * elements + 4.0 * batch * model.heads * model.head_dim * pairs
    caches = 2 * batch * model.kv_heads * (pos + tokens) * model.head_dim
    return Work(forms, flops, c.itemsize * (elements + caches + 2 * x.size), tolerance=2)


def norm_residual(kind: str, rows: int, hidden: int, c: Context) -> Work:
    x, residual = c.draw(rows, hidden), c.draw(rows, hidden, seed=1)
    gamma, beta = 1 + c.draw(hidden, seed=2, scale=0.1), c.draw(hidden, seed=3, scale=0.1)
    size = c.itemsize * (4 * rows * hidden + 2 * hidden)
    torch = c.torch
    if kind == "rmsnorm_residual":

        def rms(x: Any, residual: Any, gamma: Any) -> Any:
            summed = x + residual
            return torch.nn.functional.rms_norm(summed, (hidden,), gamma, EPS), summed

        def rms_jax(x: Array, residual: Array, gamma: Array) -> Any:
            summed = x + residual
            return _rmsnorm(summed, gamma), summed

        forms = [c.ours(functools.partial(atbfn.rmsnorm_residual, eps=EPS), x, residual, gamma)]
        forms += [c.jax("jax", rms_jax, x, residual, gamma), *c.torches(rms, x, residual, gamma)]
        return Work(forms, 5.0 * rows * hidden, size)

    def layer(x: Any, residual: Any, gamma: Any, beta: Any) -> Any:
        summed = x + residual
        return torch.nn.functional.layer_norm(summed, (hidden,), gamma, beta, EPS), summed

    def layer_jax(x: Array, residual: Array, gamma: Array, beta: Array) -> Any:
        summed = x + residual
        return _layernorm(summed, gamma, beta), summed

    args = (x, residual, gamma, beta)
    forms = [c.ours(functools.partial(atbfn.layernorm_residual, eps=EPS), *args)]
    return Work([*forms, c.jax("jax", layer_jax, *args), *c.torches(layer, *args)], 8.0 * rows * hidden, size)


def rope(model: Model, batch: int, tokens: int, c: Context) -> Work:
    x = c.draw(batch, model.heads, tokens, model.head_dim)
    table = atbfn.Rope.create(model.head_dim, 1024, rotary_dim=model.head_dim // 2 * 2)
    pos = 64
    args = (x, table.cos, table.sin)

    def ours(x: Array, cos: Array, sin: Array) -> Array:
        return atbfn.rope(x, pos, atbfn.Rope(cos, sin))

    def peer(x: Array, cos: Array, sin: Array) -> Array:
        return _rotate(x, cos[pos : pos + tokens], sin[pos : pos + tokens])

    def eager(x: Any, cos: Any, sin: Any) -> Any:
        return _torch_rotate(c.torch, x, cos[pos : pos + tokens], sin[pos : pos + tokens])

    forms = [c.ours(ours, *args), c.jax("jax", peer, *args), *c.torches(eager, *args)]
    tables = 4 * tokens * 2 * table.cos.shape[1]
    return Work(forms, 3.0 * x.size, 2.0 * c.itemsize * x.size + tables)


def kv_cache_update(mebibytes: int, loop: bool, c: Context) -> Work:
    heads, dim = 8, 128
    max_seq = mebibytes * 2**20 // (heads * dim * c.itemsize)
    state = tuple(c.draw(1, heads, max_seq, dim, seed=seed) for seed in (1, 2))
    row, pos = c.draw(1, heads, 1, dim, seed=3), jnp.int32(max_seq // 2)

    def native(k: Array, v: Array, row: Array, pos: Array) -> tuple[Array, ...]:
        return atbfn.kv_cache_update(k, v, row, row, pos)

    def peer(k: Array, v: Array, row: Array, pos: Array) -> tuple[Array, ...]:
        at = (0, 0, pos, 0)
        return tuple(jax.lax.dynamic_update_slice(cache, row, at) for cache in (k, v))

    def once(write: Callable[..., tuple[Array, ...]]) -> Callable[..., Any]:
        return lambda k, v, row, pos: ((), write(k, v, row, pos))

    def looped(write: Callable[..., tuple[Array, ...]]) -> Callable[..., Any]:
        def run(k: Array, v: Array, row: Array, pos: Array) -> Any:
            def body(carry: Any) -> Any:
                step, k, v = carry
                return (step + 1, *write(k, v, row, pos + step))

            _, k, v = jax.lax.while_loop(lambda carry: carry[0] < LOOP_STEPS, body, (jnp.int32(0), k, v))
            return (), (k, v)

        return run

    form, steps = (looped, LOOP_STEPS) if loop else (once, 1)
    forms = [c.ours(form(native), row, pos, state=state, steps=steps)]
    forms.append(c.jax("jax", form(peer), row, pos, state=state, steps=steps))
    if c.torch is not None:
        k_cache, v_cache = (c.torch.from_dlpack(item).clone() for item in state)
        first = max_seq // 2

        def eager(row: Any) -> Any:
            for at in range(first, first + steps):
                k_cache[:, :, at : at + 1] = row
                v_cache[:, :, at : at + 1] = row
            return (), (k_cache, v_cache)

        forms += c.torches(eager, row, compiles=False, steps=steps)
    return Work(forms, 0.0, 4.0 * c.itemsize * row.size)


def grad_layer(model: Model, tokens: int, c: Context) -> Work:
    """Gradients by every weight and the input of a Llama layer: attention, norms, FFN, residuals."""
    table = atbfn.Rope.create(model.head_dim, tokens, rotary_dim=model.head_dim // 2 * 2)
    params = {
        "attention": _attention_weights(c, model),
        "attention_norm": 1 + c.draw(model.hidden, seed=20, scale=0.1),
        "ffn_norm": 1 + c.draw(model.hidden, seed=21, scale=0.1),
        "w_gate": c.weight(model.intermediate, model.hidden, 22),
        "w_up": c.weight(model.intermediate, model.hidden, 23),
        "w_down": c.weight(model.hidden, model.intermediate, 24),
    }
    x, cotangent = c.draw(1, tokens, model.hidden), c.draw(1, tokens, model.hidden, seed=1)

    def ours(params: Any, x: Array) -> Array:
        heads: dict[str, Any] = {"num_heads": model.heads, "num_kv_heads": model.kv_heads}
        norm = atbfn.RMSNorm(params["attention_norm"], EPS)
        attended = atbfn.self_attention(x, weights=params["attention"], rope=table, norm=norm, **heads)
        normed, summed = atbfn.rmsnorm_residual(attended, x, params["ffn_norm"], eps=EPS)
        return atbfn.fused_ffn(normed, params["w_gate"], params["w_up"], params["w_down"], residual=summed)

    def peer(prefer: Any, params: Any, x: Array) -> Array:
        w, normed = params["attention"], _rmsnorm(x, params["attention_norm"])
        q = _rotate(_split(_linear(prefer, normed, w.w_q), model.heads), table.cos, table.sin)
        k = _rotate(_split(_linear(prefer, normed, w.w_k), model.kv_heads), table.cos, table.sin)
        v = _split(_linear(prefer, normed, w.w_v), model.kv_heads)
        context = _attend(prefer, q, k, v, jnp.tri(tokens, dtype=bool))
        summed = x + _linear(prefer, _merge(context), w.w_o)
        normed = _rmsnorm(summed, params["ffn_norm"])
        return summed + _ffn(prefer, normed, params["w_gate"], params["w_up"], params["w_down"])

    def gradient(layer: Callable[..., Array]) -> Callable[..., Any]:
        def loss(params: Any, x: Array, cotangent: Array) -> Array:
            return jnp.sum((layer(params, x) * cotangent).astype(jnp.float32))

        return jax.grad(loss, argnums=(0, 1))

    forms = [c.ours(gradient(ours), params, x, cotangent)]
    for name, prefer in c.spellings.items():
        forms.append(c.jax(name, gradient(functools.partial(peer, prefer)), params, x, cotangent))
    forms += _torch_gradient(c, model, params, x, cotangent, table)
    elements = sum(leaf.size for leaf in jax.tree.leaves(params) if leaf.ndim == 2)
    attention = 4.0 * model.heads * model.head_dim * tokens * (tokens + 1) / 2
    # Weights are read forwards and backwards, and their gradients written.
    size = c.itemsize * (3 * elements + 4 * x.size)
    return Work(forms, 3 * (2.0 * tokens * elements + attention), size, tolerance=4)


def _torch_gradient(c: Context, model: Model, params: Any, x: Array, cotangent: Array, table: Any) -> Iterator[Form]:
    torch = c.torch
    if torch is None:
        return
    leaves, tree = jax.tree.flatten((params, x))
    inputs = [torch.from_dlpack(leaf).requires_grad_() for leaf in leaves]
    cos, sin, ct = (torch.from_dlpack(item) for item in (table.cos, table.sin, cotangent))
    linear, functional = torch.nn.functional.linear, torch.nn.functional

    def layer(*flat: Any) -> Any:
        p, x = jax.tree.unflatten(tree, flat)
        w, normed = p["attention"], functional.rms_norm(x, (model.hidden,), p["attention_norm"], EPS)
        q = _torch_rotate(torch, _split(linear(normed, w.w_q), model.heads), cos, sin)
        k = _torch_rotate(torch, _split(linear(normed, w.w_k), model.kv_heads), cos, sin)
        v = _split(linear(normed, w.w_v), model.kv_heads)
        summed = x + linear(_merge(_torch_sdpa(torch, q, k, v, causal=True)), w.w_o)
        normed = functional.rms_norm(summed, (model.hidden,), p["ffn_norm"], EPS)
        hidden = functional.silu(linear(normed, p["w_gate"])) * linear(normed, p["w_up"])
        return summed + linear(hidden, p["w_down"])

    def call() -> Any:
        grads = torch.autograd.grad(layer(*inputs), inputs, ct)
        return jax.tree.unflatten(tree, grads)

    yield Form("torch", call, torch=True)


def cases() -> Iterator[Case]:
    """Every case, in the order of the table."""
    for name, rows in FFN_TOKENS.items():
        for tokens in rows:
            yield Case("fused_ffn", f"{name}/M={tokens}", functools.partial(fused_ffn, MODELS[name], tokens))
    for name, projection, tokens in LINEAR:
        build = functools.partial(linear, MODELS[name], projection, tokens)
        yield Case("linear", f"{name}/{projection}/M={tokens}", build)
    for name, batch, tokens in PREFILL:
        build = functools.partial(prefill, MODELS[name], batch, tokens)
        yield Case("prefill", f"{name}/B={batch}/T={tokens}", build)
    for name, batch, keys in DECODE:
        build = functools.partial(decode, MODELS[name], batch, keys)
        yield Case("decode", f"{name}/B={batch}/K={keys}", build)
    for name, batch, tokens, pos, max_seq in CACHED:
        build = functools.partial(cached_attention, MODELS[name], batch, tokens, pos, max_seq)
        yield Case("attention_with_kv_cache", f"{name}/B={batch}/T={tokens}/pos={pos}", build)
    for kind in ("layernorm_residual", "rmsnorm_residual"):
        for count, hidden in NORM:
            yield Case(kind, f"[{count},{hidden}]", functools.partial(norm_residual, kind, count, hidden))
    for name, batch, tokens in ROPE:
        yield Case("rope", f"{name}/B={batch}/T={tokens}", functools.partial(rope, MODELS[name], batch, tokens))
    for loop in (False, True):
        for mebibytes in CACHE_MEBIBYTES:
            where = "loop" if loop else "call"
            build = functools.partial(kv_cache_update, mebibytes, loop)
            yield Case("kv_cache_update", f"{where}/{mebibytes}MiB", build)
    for name, tokens in GRAD:
        yield Case("grad_llama_layer", f"{name}/T={tokens}", functools.partial(grad_layer, MODELS[name], tokens))


# Output


def _ratio(value: float) -> str:
    return f"[{'green' if value >= 1 else 'red'}]{value:.2f}[/]" if math.isfinite(value) else "-"


def print_table(rows: list[Row]) -> None:
    """One line a case, and below it what did not run or did not agree."""
    from rich.console import Console
    from rich.table import Table

    # Piped output has no width of its own; a table cut at 80 columns would be of no use.
    console = Console(width=None if sys.stdout.isatty() else 200)
    table = Table(title="seconds are medians; x best is the best peer's time over ours")
    for heading in ("case", "dtype", "ours", "x jax", "x best", "best peer", "peak", "read", "all peers"):
        table.add_column(heading, justify="left" if heading in ("case", "dtype", "best peer", "all peers") else "right")
    previous = None
    for row in rows:
        if previous not in (None, row.operator):
            table.add_section()
        previous = row.operator
        star = "*" if row.native else ""
        peers = ", ".join(f"{k} {measuring.duration(v)}" for k, v in row.median.items() if k != OURS)
        table.add_row(
            f"{row.operator}/{row.shape}",
            {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}[row.dtype],
            measuring.duration(row.ours) + star,
            _ratio(row.ratio("jax")),
            _ratio(row.ratio()),
            row.best() or "-",
            f"{row.flops / row.ours / row.peak:.0%}" if row.peak and row.flops and math.isfinite(row.ours) else "-",
            f"{row.bytes / row.ours / row.bandwidth:.0%}" if row.bandwidth and math.isfinite(row.ours) else "-",
            peers,
        )
    console.print(table)
    for row in rows:
        for problem in row.problems:
            console.print(f"{row.operator}/{row.shape}/{row.dtype}: {problem}", style="yellow", markup=False)


def plot(rows: list[Row], ceilings: dict[str, Any], best: dict[str, float], path: pathlib.Path) -> None:
    """Rooflines, one panel per dtype: operations per second over operations per byte; ours filled, peers hollow."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = [row for row in rows if row.flops and math.isfinite(row.ours)]
    dtypes = [dtype for dtype in measuring.DTYPES if any(row.dtype == dtype for row in rows)]
    if not dtypes:
        print("nothing to plot", file=sys.stderr)
        return
    operators = list(dict.fromkeys(row.operator for row in rows))
    colours = dict(zip(operators, matplotlib.color_sequences["tab10"], strict=False))
    figure, panels = pyplot.subplots(
        1, len(dtypes), figsize=(6.5 * len(dtypes), 5.5), squeeze=False, sharey=True, layout="constrained"
    )
    intensities = [row.flops / row.bytes for row in rows]
    span = [min(intensities) / 2, max(max(intensities), 1000.0) * 2]
    steps = [span[0] * (span[1] / span[0]) ** (i / 200) for i in range(201)]
    for panel, dtype in zip(panels[0], dtypes, strict=True):
        if best.get(dtype):
            for size, dash in ((2**22, ":"), (2**26, "--"), (2**30, "-")):
                rate = ceilings["bandwidth"][size]
                roof = [min(best[dtype], rate * x) / 1e9 for x in steps]
                label = f"{size >> 20} MiB at {rate / 1e9:.0f} GB/s"
                panel.plot(steps, roof, dash, color="grey", linewidth=1, label=label)
        for row in (row for row in rows if row.dtype == dtype):
            x, colour = row.flops / row.bytes, colours[row.operator]
            ours = row.flops / row.ours / 1e9
            panel.plot(x, ours, "o", color=colour, markersize=6)
            if best_peer := row.best():
                peer = row.flops / row.median[best_peer] / 1e9
                panel.plot([x, x], [peer, ours], "-", color=colour, linewidth=0.8)
                panel.plot(x, peer, "o", markerfacecolor="white", markeredgecolor=colour, markersize=6)
        panel.set(xscale="log", yscale="log", xlabel="operations per byte of operands", title=dtype)
        panel.grid(True, which="major", alpha=0.3)
        panel.legend(loc="lower right", fontsize=8, title="read bandwidth of")
    panels[0][0].set_ylabel("GFLOP/s")
    marks = [pyplot.Line2D([], [], marker="o", linestyle="", color=colours[name], label=name) for name in operators]
    marks.append(pyplot.Line2D([], [], marker="o", linestyle="", color="black", label="filled: atbfn"))
    hollow: dict[str, Any] = {"marker": "o", "linestyle": "", "markerfacecolor": "white", "markeredgecolor": "black"}
    marks.append(pyplot.Line2D([], [], label="hollow: best peer", **hollow))
    figure.legend(handles=marks, loc="outside lower center", ncols=3 * len(dtypes), fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def load_torch() -> Any:
    """torch with a thread per CPU, or None with a message."""
    try:
        import torch
    except ImportError:
        print("torch is not installed: its forms are left out", file=sys.stderr)
        return None
    torch.set_num_threads(measuring.threads())
    return torch


def run(case: Case, context: Context, ceilings: Ceilings, rounds: int) -> Row:
    """Build and measure one case; what goes wrong is in the row."""
    row = Row(case.operator, case.shape, context.dtype)
    try:
        return measuring.measure(row, case.build(context), ceilings, rounds)
    except Exception as error:  # a refused target for one: the other cases are still worth having
        row.problems.append(measuring.short(error))
        row.failed = True
        return row
    finally:
        if context.torch is not None and context.compiled:
            context.torch.compiler.reset()  # at most eight variants of a function are kept
        jax.clear_caches()


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="REGEX", default="", help="cases whose operator/shape/dtype it matches")
    parser.add_argument("--dtype", action="append", choices=measuring.DTYPES, help="may be repeated; default all")
    parser.add_argument("--rounds", type=int, default=7, help="samples of each form (default 7)")
    parser.add_argument("--target", default="auto", help="of ours: auto (default), cpu, xla")
    parser.add_argument("--no-torch", action="store_true", help="leave torch out")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out, which takes longest")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write everything measured")
    parser.add_argument("--plot", type=pathlib.Path, metavar="FILE", help="write rooflines (PNG)")
    parser.add_argument("--list", action="store_true", help="print the cases and stop")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("--rounds: at least 1")
    wanted = re.compile(options.only)
    chosen = [
        (case, dtype)
        for case in cases()
        for dtype in (options.dtype or measuring.DTYPES)
        if dtype in case.dtypes and wanted.search(f"{case.operator}/{case.shape}/{dtype}")
    ]
    if options.list:
        print("\n".join(f"{case.operator}/{case.shape}/{dtype}" for case, dtype in chosen))
        return 0
    if not chosen:
        parser.error(f"--only {options.only!r} matches no case; --list shows their names")

    torch = None if options.no_torch else load_torch()
    ceilings = Ceilings()
    about = measuring.machine(("atbfn", "jax", "jaxlib", "torch", "numpy"))
    measuring.introduce(about)
    rows = []
    progress = Progress(len(chosen))
    for case, dtype in chosen:
        progress.step(f"{case.operator}/{case.shape}/{dtype}")
        context = Context(dtype, options.target, torch, not options.no_compile)
        rows.append(run(case, context, ceilings, options.rounds))
    progress.end()

    rates = ceilings.json()
    best: dict[str, float] = {}
    for row in rows:  # a roof that a disturbed sample lowered would lie below the points
        best[row.dtype] = max(best.get(row.dtype, 0.0), row.peak, rates["peak"].get(ceilings.kind(row.dtype), 0.0))
    print_table(rows)
    kinds = ", ".join(f"{kind} {rate / 1e12:.2f} TFLOP/s" for kind, rate in rates["peak"].items())
    reads = ", ".join(f"{size >> 20} MiB {rate / 1e9:.0f}" for size, rate in rates["bandwidth"].items())
    print(f"ceilings: {kinds}\nread bandwidth, GB/s: {reads}")
    if options.json:
        settings = {key: str(value) for key, value in vars(options).items() if value}
        document = {"machine": about, "options": settings, "ceilings": rates, "rows": [row.json() for row in rows]}
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(document, indent=1))
    if options.plot:
        plot(rows, rates, best, options.plot)
    return int(any(row.failed for row in rows))


if __name__ == "__main__":
    sys.exit(main())
