"""Hypothesis strategies: whole calls of the operators, with inputs scaled as in real models, and their references.

A strategy draws shapes and options from small pools, so that compiled programs are met again, and one seed; NumPy makes
the arrays from it. Every `Call` carries what the float64 reference says of exactly the arrays that the operator gets.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import strategies as st

import atbfn
from atbfn.reference import activation as ref_activation
from atbfn.reference import attention as ref_attention
from atbfn.reference import ffn as ref_ffn
from atbfn.reference import kv_cache as ref_kv_cache
from atbfn.reference import linear as ref_linear
from atbfn.reference import masks as ref_masks
from atbfn.reference import norm as ref_norm
from atbfn.reference import rope as ref_rope
from atbfn.reference import softmax as ref_softmax

DTYPES: dict[str, Any] = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}

LEADS = ((), (1,), (3,), (2, 5), (17,))
"""Leading shapes of x."""

WIDTHS = ((1, 1), (6, 42), (7, 13), (42, 6), (123, 431), (128, 64))
"""hidden and intermediate: one, primes, multiples of 8 and 128 and what is none."""

HEADS = ((1, 1, 4), (4, 2, 8), (6, 2, 7), (3, 3, 16), (4, 1, 42))
"""num_heads, num_kv_heads, head_dim."""

LENGTHS = ((1, 1), (1, 17), (5, 5), (6, 31), (13, 123))
"""q_len and kv_len."""

MAGNITUDES = {"float32": (1.0, 1e-4, 1e4), "bfloat16": (1.0, 1e-4, 1e4), "float16": (1.0, 1e-2, 30.0)}
"""Factors on the inputs: as they are, tiny, large. float16 ends at 65504."""

MASKS = (
    "causal",
    "window",
    "window and global",
    "full",
    "prefix",
    "prefix per sequence",
    "block sparse",
    "segments",
    "allowed",
    "causal & segments",
    "empty rows",
)

NONFINITE = (np.nan, np.inf, -np.inf)


@dataclasses.dataclass(frozen=True)
class Call:
    """One call of a public operator.

    Args:
      operator: its name in `atbfn`.
      arrays: its array arguments by name; traced when jitted.
      static: its other arguments by name.
      steps: the reference's float64 arrays by step.
      outputs: the steps that the operator returns, in order.
      op_class, dtype, reduction: what the tolerance depends on.
      wrong: steps as they would be with an input in another order, by what was reordered: the tolerance must tell.
      width: the least number of terms in the sums behind an entry, or of entries in a row.
    """

    operator: str
    arrays: Mapping[str, Any]
    static: Mapping[str, Any]
    steps: Mapping[str, np.ndarray]
    outputs: tuple[str, ...]
    op_class: str
    dtype: str
    reduction: int = 1
    wrong: Mapping[str, Mapping[str, np.ndarray]] = dataclasses.field(default_factory=dict)
    width: int = 1 << 30

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # Hypothesis would print every number
        printer.text(repr(self))

    def __repr__(self) -> str:  # the arrays are made from a seed; their shapes say enough
        shapes = {name: getattr(x, "shape", x) for name, x in self.arrays.items() if name not in ("mask", "weights")}
        return f"Call({self.operator}, {self.dtype}, {shapes}, mask={_kind(self.arrays.get('mask'))}, {self.static})"


def _kind(mask: Any) -> str:
    parts = getattr(mask, "masks", (mask,))
    return " & ".join(type(part).__name__ for part in parts)


@dataclasses.dataclass
class Maker:
    """Makes arrays of one dtype from one seed."""

    dtype: str
    seed: int
    magnitude: float = 1.0

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)

    def normal(self, *shape: int, scale: float = 1.0) -> np.ndarray:
        return (self.rng.standard_normal(shape) * scale).astype(DTYPES[self.dtype])

    def x(self, *shape: int) -> np.ndarray:
        """Activations: of the drawn magnitude."""
        return self.normal(*shape, scale=self.magnitude)

    def weight(self, out_features: int, in_features: int) -> np.ndarray:
        """So that products keep the magnitude of their inputs."""
        return self.normal(out_features, in_features, scale=in_features**-0.5)

    def bias(self, size: int, scale: float = 1.0) -> np.ndarray:
        """Small beside what it is added to, which is of size `scale`."""
        return self.normal(size, scale=0.1 * scale)

    def gamma(self, size: int, wide: bool = False) -> np.ndarray:
        gamma = 1 + self.rng.standard_normal(size) * 0.1
        return gamma.astype(np.float32 if wide else DTYPES[self.dtype])

    def poison(self, x: np.ndarray, value: float | None, keep: Any = None) -> np.ndarray:
        """`x` with one entry replaced; None leaves it as it is."""
        if value is None or not x.size:
            return x
        x = x.copy()
        x[tuple(int(self.rng.integers(n)) for n in x.shape)] = value
        return x


def rms(x: np.ndarray) -> float:
    """Of the finite entries; 1 where there are none but zeros."""
    x = x[np.isfinite(x)]
    return float(np.sqrt(np.mean(x**2))) or 1.0 if x.size else 1.0


def seeds() -> st.SearchStrategy[int]:
    """Seeds of NumPy's generator.

    Zero is left out, and with it the simplest example, which Hypothesis tries first: where a test has few examples, it
    would be the same one of the smallest sizes without options in all of them.
    """
    return st.integers(0, 2**32 - 1).filter(bool)


def nonfinite(enabled: bool) -> st.SearchStrategy[float | None]:
    """NaN or an infinity to put into an input if enabled, None otherwise."""
    return st.sampled_from(NONFINITE) if enabled else st.none()


@st.composite
def makers(draw: st.DrawFn, dtype: str, magnitudes: bool = True) -> Maker:
    """A seed, and the magnitude of the activations."""
    magnitude = draw(st.sampled_from(MAGNITUDES[dtype])) if magnitudes else 1.0
    return Maker(dtype, draw(seeds()), magnitude)


@st.composite
def norms(draw: st.DrawFn, make: Maker, hidden: int, optional: bool = True) -> tuple[Any, Any]:
    """A norm of the library and its reference; (None, None) for none."""
    kinds = ["layer", "layer without beta", "rms", "rms with float32 gamma"]
    kind = draw(st.sampled_from([None, *kinds] if optional else kinds))
    if kind is None:
        return None, None
    gamma = make.gamma(hidden, wide="float32" in kind)
    if kind.startswith("rms"):
        return atbfn.RMSNorm(gamma, 1e-6), ref_norm.RMSNorm(gamma, 1e-6)
    beta = None if "without" in kind else make.bias(hidden)
    return atbfn.LayerNorm(gamma, beta, 1e-5), ref_norm.LayerNorm(gamma, beta, 1e-5)


@st.composite
def linear_calls(draw: st.DrawFn, dtype: str, *, poison: bool = False, empty: bool = False) -> Call:
    """`linear`."""
    make = draw(makers(dtype))
    lead = (0, 3) if empty else draw(st.sampled_from(LEADS))
    in_features, out_features = draw(st.sampled_from(WIDTHS))
    arrays = {
        "x": make.poison(make.x(*lead, in_features), draw(nonfinite(poison))),
        "w": make.weight(out_features, in_features),
    }
    if draw(st.booleans()):
        arrays["b"] = make.bias(out_features, make.magnitude)
    steps = ref_linear.linear(**arrays)
    wrong = {"rows of w": ref_linear.linear(**(arrays | {"w": arrays["w"][::-1]}))}
    return Call("linear", arrays, {}, steps, ("out",), "matmul", dtype, in_features, wrong)


def leaky_relu(x: Any) -> Any:
    """An activation function of the caller's, for JAX and NumPy: x above zero, x / 10 below."""
    return 0.55 * x + 0.45 * abs(x)


@st.composite
def activation_calls(draw: st.DrawFn, dtype: str, *, poison: bool = False, empty: bool = False) -> Call:
    """`activation`."""
    make = draw(makers(dtype))
    function = draw(st.sampled_from([*ref_activation.FUNCTIONS, leaky_relu]))
    x = make.poison(make.x(*((0, 3) if empty else draw(st.sampled_from(LEADS))), 42), draw(nonfinite(poison)))
    steps = ref_activation.activation(x, function)
    wrong = {"columns of x": ref_activation.activation(x[..., ::-1], function)}
    return Call("activation", {"x": x}, {"name": function}, steps, ("out",), "matmul", dtype, wrong=wrong)


@st.composite
def softmax_calls(draw: st.DrawFn, dtype: str, *, poison: bool = False, empty: bool = False) -> Call:
    """`softmax`."""
    make = draw(makers(dtype))
    shape = (0, 3) if empty else draw(st.sampled_from(LEADS))
    x = make.poison(make.x(*shape, draw(st.sampled_from([1, 6, 123]))), draw(nonfinite(poison)))
    # Tiny inputs give one constant, whatever their order.
    wrong = {"columns of x": ref_softmax.softmax(x[..., ::-1])} if make.magnitude >= 1 else {}
    return Call("softmax", {"x": x}, {}, ref_softmax.softmax(x), ("out",), "attention", dtype, wrong=wrong)


@st.composite
def norm_calls(draw: st.DrawFn, operator: str, dtype: str, *, poison: bool = False, empty: bool = False) -> Call:
    """`layernorm`, `rmsnorm`, `layernorm_residual` or `rmsnorm_residual`."""
    make = draw(makers(dtype))
    lead = (0, 3) if empty else draw(st.sampled_from(LEADS))
    hidden = draw(st.sampled_from([1, 6, 123, 128, 431]))
    arrays = {"x": make.poison(make.x(*lead, hidden), draw(nonfinite(poison)))}
    if operator.endswith("residual"):
        arrays["residual"] = make.x(*lead, hidden)
    arrays["gamma"] = make.gamma(hidden, wide=draw(st.booleans()))
    if operator.startswith("layer") and draw(st.booleans()):
        arrays["beta"] = make.bias(hidden)
    # A large eps and a tiny x leave nothing but the shift.
    eps = draw(st.sampled_from([1e-5, 1e-6, 0.1] if make.magnitude >= 1 else [1e-5, 1e-6]))
    steps = getattr(ref_norm, operator)(**arrays, eps=eps)
    wrong = {"columns of x": getattr(ref_norm, operator)(**(arrays | {"x": arrays["x"][..., ::-1]}), eps=eps)}
    residual = operator.endswith("residual")
    op_class = "matmul" if operator == "layernorm" else "vector"
    outputs = ("normed", "summed") if residual else ("normed",)
    return Call(operator, arrays, {"eps": eps}, steps, outputs, op_class, dtype, hidden, wrong, hidden)


def rope_tables(
    head_dim: int, max_positions: int, style: str, rotary_dim: int | None = None, llama3: bool = False
) -> tuple[atbfn.Rope, ref_attention.Rope]:
    """A table of the library and the reference's, the same float32 numbers."""
    scaling = atbfn.Llama3Scaling(8.0, 1.0, 4.0, 64) if llama3 else None
    table = atbfn.Rope.create(head_dim, max_positions, scaling=scaling, style=style, rotary_dim=rotary_dim)
    return table, ref_attention.Rope(np.asarray(table.cos), np.asarray(table.sin), style)


def positions(batch: int, last: int) -> st.SearchStrategy[Any]:
    """int32 scalar or [batch], in 0 .. last, with the ends."""
    one = st.sampled_from(sorted({0, last // 2, last}))
    per_sequence = st.lists(one, min_size=batch, max_size=batch).map(lambda x: np.array(x, np.int32))
    return st.one_of(one.map(np.int32), per_sequence)


@st.composite
def rope_calls(draw: st.DrawFn, dtype: str, *, poison: bool = False, empty: bool = False) -> Call:
    """`rope`."""
    make = draw(makers(dtype))
    batch = 0 if empty else draw(st.sampled_from([1, 2]))
    head_dim, rotary_dim = draw(st.sampled_from([(2, 2), (16, 16), (42, 42), (42, 20), (7, 6)]))
    q_len = draw(st.sampled_from([1, 5]))
    style = draw(st.sampled_from(["half", "interleaved"]))
    table, ref_table = rope_tables(head_dim, 431, style, rotary_dim, draw(st.booleans()))
    x = make.poison(make.x(batch, 3, q_len, head_dim), draw(nonfinite(poison)))
    pos = draw(positions(batch, 431 - q_len))
    steps = ref_rope.rope(x, pos, ref_table.cos, ref_table.sin, style=style)
    other = "half" if style == "interleaved" else "interleaved"
    wrong = {
        "columns of x": ref_rope.rope(x[..., ::-1], pos, ref_table.cos, ref_table.sin, style=style),
        "pairs": ref_rope.rope(x, pos + 1, ref_table.cos, ref_table.sin, style=other) if rotary_dim > 2 else steps,
    }
    return Call("rope", {"x": x, "pos": pos, "table": table}, {}, steps, ("out",), "matmul", dtype, wrong=wrong)


@st.composite
def kv_cache_calls(
    draw: st.DrawFn, dtype: str, *, poison: bool = False, empty: bool = False, outside: bool = False
) -> Call:
    """`kv_cache_update`; with `outside`, positions, lengths and layers may lie anywhere (they must be traced then)."""
    make = draw(makers(dtype))
    batch = 0 if empty else draw(st.sampled_from([1, 3]))
    q_len, max_seq = draw(st.sampled_from([(1, 1), (1, 17), (5, 17), (7, 42)]))
    layers = draw(st.sampled_from([None, 3]))
    lead = () if layers is None else (layers,)
    caches = [make.normal(*lead, batch, 2, max_seq, 6) for _ in range(2)]
    rows = [make.poison(make.x(batch, 2, q_len, 6), draw(nonfinite(poison))) for _ in range(2)]
    arrays: dict[str, Any] = {"k_cache": caches[0], "v_cache": caches[1], "k": rows[0], "v": rows[1]}
    if outside:
        far = st.sampled_from([-1, 0, max_seq - q_len, max_seq - q_len + 1, max_seq, 2**31 - 1, -(2**31)])
        arrays["pos"] = np.array(draw(st.lists(far, min_size=batch, max_size=batch)), np.int32)
    else:
        arrays["pos"] = draw(positions(batch, max_seq - q_len))
    if draw(st.booleans()):
        arrays["lengths"] = draw(lengths(batch, q_len, outside))
    layer = None if layers is None else draw(st.sampled_from([-1, 0, 2, 3] if outside else [0, 2]))
    if layer is not None:
        arrays["layer"] = np.int32(layer)
    plain = {**arrays, "layer": layer}
    steps = ref_kv_cache.kv_cache_update(**plain)
    reordered = {name: arrays[name][..., ::-1] for name in ("k", "v")}
    wrong = {"columns of the rows": ref_kv_cache.kv_cache_update(**(plain | reordered))}
    return Call("kv_cache_update", arrays, {}, steps, ("k_cache", "v_cache"), "move", dtype, wrong=wrong)


def lengths(batch: int, q_len: int, outside: bool = False) -> st.SearchStrategy[np.ndarray]:
    """int32 [batch] in 0 .. q_len with the ends; with `outside` also beyond."""
    one = st.sampled_from(sorted({0, 1, q_len // 2, q_len} | ({-1, q_len + 1} if outside else set())))
    return st.lists(one, min_size=batch, max_size=batch).map(lambda x: np.array(x, np.int32))


@st.composite
def ffn_calls(draw: st.DrawFn, dtype: str, *, poison: bool = False, empty: bool = False) -> Call:
    """`fused_ffn`."""
    make = draw(makers(dtype))
    hidden, intermediate = draw(st.sampled_from(WIDTHS))
    # A single number may be all cancellation: see tolerance.SHORT_ROW.
    lead = (0, 3) if empty else draw(st.sampled_from(LEADS if hidden > 1 else LEADS[-2:]))
    function = draw(st.sampled_from([*ref_activation.FUNCTIONS, "silu", leaky_relu]))
    gated, biases = draw(st.booleans()), draw(st.booleans())
    norm, ref = draw(norms(make, hidden))
    # The norm of one number is its sign, and magnifies what was left of it.
    post_norm, ref_post = draw(norms(make, hidden)) if hidden > 1 else (None, None)
    if norm is None:  # three factors of x are multiplied: what float16 holds of them ends soon
        low, high = (0.1, 3.0) if dtype == "float16" else (1e-4, 100.0)
        low = low if post_norm is None else 0.1  # beside the eps of a norm, less is nothing
        make.magnitude = min(max(make.magnitude, low), high)
    arrays: dict[str, Any] = {
        "x": make.poison(make.x(*lead, hidden), draw(nonfinite(poison))),
        "w_gate": make.weight(intermediate, hidden) if gated else None,
        "w_up": make.weight(intermediate, hidden),
        "w_down": make.weight(hidden, intermediate),
    }
    if biases:
        size = make.magnitude if norm is None else 1.0
        arrays |= {"b_up": make.bias(intermediate, size)} | ({"b_gate": make.bias(intermediate, size)} if gated else {})
    # As large as what they are added to: a much larger residual would hide the rest.
    size = rms(ref_ffn.fused_ffn(**arrays, activation=function, norm=ref)["down"])
    if biases:
        arrays["b_down"] = make.bias(hidden, size)
    if draw(st.booleans()):
        arrays["residual"] = make.normal(*lead, hidden, scale=size)

    def reference(**changes: Any) -> dict[str, np.ndarray]:
        return ref_ffn.fused_ffn(**(arrays | changes), activation=function, norm=ref, post_norm=ref_post)

    steps = reference()
    wrong = {name: reference(**{name: arrays[name][::-1]}) for name in ("w_up", "w_down")} if hidden > 1 else {}
    arrays |= {name: n for name, n in (("norm", norm), ("post_norm", post_norm)) if n is not None}
    return Call(
        "fused_ffn",
        arrays,
        {"activation": function},
        steps,
        ("out",),
        "matmul",
        dtype,
        max(hidden, intermediate),
        wrong,
        min(hidden, intermediate),
    )


def mask_pair(
    kind: str, rng: np.random.Generator, batch: int, heads: int, q_len: int, kv_len: int, pos: Any
) -> tuple[atbfn.Mask, np.ndarray]:
    """A mask of the library and what it allows, bool [batch | 1, heads | 1, q_len, kv_len].

    `pos`: int scalar or [batch], the position of the first query.
    """
    q_pos, kv_pos = ref_masks.positions(pos, q_len), np.arange(kv_len)
    if kind == "causal":
        return atbfn.Causal(), ref_masks.causal(q_pos, kv_pos)
    if kind == "window":
        return atbfn.Causal(window=3), ref_masks.causal(q_pos, kv_pos, 3)
    if kind == "window and global":
        return atbfn.Causal(window=2, global_tokens=2), ref_masks.causal(q_pos, kv_pos, 2, 2)
    if kind == "full":
        return atbfn.Full(), ref_masks.full(q_pos, kv_pos)
    if kind == "prefix":
        n = int(rng.integers(0, kv_len + 1))
        return atbfn.PrefixLM(n), ref_masks.prefix_lm(q_pos, kv_pos, n)
    if kind == "prefix per sequence":
        each = rng.integers(0, kv_len + 1, batch).astype(np.int32)
        return atbfn.PrefixLM(each), ref_masks.prefix_lm(q_pos, kv_pos, each)
    if kind == "block sparse":
        count = -(-kv_len // 4)
        blocks = rng.random((heads, count, count)) < 0.7
        return atbfn.BlockSparse(blocks, 4), ref_masks.block_sparse(q_pos, kv_pos, blocks, 4)
    if kind == "segments":
        q_ids, kv_ids = _segments(rng, batch, q_len, kv_len, pos)
        return atbfn.Segments(q_ids, kv_ids), ref_masks.segments(q_ids, kv_ids)
    if kind == "allowed":
        allowed = rng.random((batch, heads, q_len, kv_len)) < 0.6
        return atbfn.Allowed(allowed), allowed
    if kind == "causal & segments":
        first, second = (mask_pair(k, rng, batch, heads, q_len, kv_len, pos) for k in ("causal", "segments"))
        return first[0] & second[0], first[1] & second[1]
    if kind == "empty rows":
        allowed = rng.random((1, 1, q_len, kv_len)) < 0.6
        allowed[:, :, ::2] = False
        return atbfn.Allowed(allowed), allowed
    raise ValueError(f"mask_pair: kind: got {kind!r}; expected one of {MASKS}")


def _segments(rng: np.random.Generator, batch: int, q_len: int, kv_len: int, pos: Any) -> tuple[np.ndarray, np.ndarray]:
    kv_ids = np.sort(rng.integers(0, 3, (batch, kv_len)), axis=1).astype(np.int32)
    rows = np.clip(np.broadcast_to(ref_masks.positions(pos, q_len), (batch, q_len)), 0, kv_len - 1)
    return np.take_along_axis(kv_ids, rows, axis=1), kv_ids


@st.composite
def flash_calls(
    draw: st.DrawFn, dtype: str, *, kind: str | None = None, poison: bool = False, empty: bool = False
) -> Call:
    """`flash_attention`."""
    make = draw(makers(dtype))
    heads, kv_heads, head_dim = draw(st.sampled_from(HEADS))
    q_len, kv_len = draw(st.sampled_from(LENGTHS))
    batch = 0 if empty else draw(st.sampled_from([1, 2]))
    kind = draw(st.sampled_from(MASKS)) if kind is None else kind
    mask, allowed = mask_pair(kind, make.rng, batch, heads, q_len, kv_len, kv_len - q_len)
    arrays = {
        "q": make.poison(make.x(batch, heads, q_len, head_dim), draw(nonfinite(poison))),
        "k": make.poison(make.x(batch, kv_heads, kv_len, head_dim), draw(nonfinite(poison))),
        "v": make.poison(make.x(batch, kv_heads, kv_len, head_dim), draw(nonfinite(poison))),
    }
    static: dict[str, Any] = {"softcap": draw(st.sampled_from([None, 5.0])), "return_lse": True}
    if make.magnitude > 1:  # scores of the size that models have: otherwise rounding decides which key wins
        static["scale"] = make.magnitude**-2 * head_dim**-0.5
    reference_static = {name: static.get(name) for name in ("scale", "softcap")}

    def reference(**changes: Any) -> dict[str, np.ndarray]:
        return ref_attention.flash_attention(**(arrays | changes), mask=allowed, **reference_static)

    steps = reference()
    wrong = {"columns of v": reference(v=arrays["v"][..., ::-1])}
    if make.magnitude >= 1 and kv_heads < heads:  # the scores of tiny keys are all zero
        wrong["heads"] = reference(k=arrays["k"][:, ::-1], v=arrays["v"][:, ::-1])
    arrays["mask"] = mask
    return Call("flash_attention", arrays, static, steps, ("context", "lse"), "attention", dtype, kv_len, wrong)


@st.composite
def attention_calls(
    draw: st.DrawFn,
    dtype: str,
    *,
    cached: bool,
    kind: str | None = None,
    poison: bool = False,
    empty: bool = False,
    padded: bool | None = None,
    outside: bool = False,
) -> Call:
    """`attention_with_kv_cache` if `cached`, else `self_attention`.

    Args:
      kind: of the mask, drawn if None.
      padded: whether lengths are given; then the rows beyond hold NaN. Drawn if None.
      outside: positions and lengths may lie outside the cache (they must be traced then).
    """
    make = draw(makers(dtype))
    heads, kv_heads, head_dim = draw(st.sampled_from(HEADS))
    hidden = draw(st.sampled_from([6, 42, 64]))
    q_len, max_seq = draw(st.sampled_from(LENGTHS[1:]))
    if not cached:
        q_len = max_seq = draw(st.sampled_from([1, 5, 31]))
    batch = 0 if empty else draw(st.sampled_from([1, 3]))
    padded = draw(st.booleans()) if padded is None else padded
    arrays: dict[str, Any] = {}
    counts = draw(lengths(batch, q_len, outside)) if padded else None
    pos: Any = np.int32(0)
    if cached:
        pos = draw(positions(batch, max_seq - q_len))
        if outside:
            far = st.sampled_from([-1, 0, max_seq - q_len, max_seq - q_len + 1, max_seq, 2**31 - 1, -(2**31)])
            pos = np.array(draw(st.lists(far, min_size=batch, max_size=batch)), np.int32)
    kind = draw(st.sampled_from(MASKS)) if kind is None else kind
    mask, allowed = mask_pair(kind, make.rng, batch, heads, q_len, max_seq, pos)
    norm, ref = draw(norms(make, hidden, optional=make.magnitude == 1))
    post_norm, ref_post = draw(norms(make, hidden))
    x = make.poison(make.x(batch, q_len, hidden), draw(nonfinite(poison)))
    residual = make.normal(batch, q_len, hidden, scale=0.5) if draw(st.booleans()) else None
    if counts is not None:
        beyond = ~ref_masks.valid_queries(np.clip(counts, 0, q_len), q_len)[:, 0]
        x = np.where(beyond, x.dtype.type(np.nan), x)
        residual = None if residual is None else np.where(beyond, x.dtype.type(np.nan), residual)
    sizes = {"w_q": heads * head_dim, "w_k": kv_heads * head_dim, "w_v": kv_heads * head_dim}
    weights = {name: make.weight(size, hidden) for name, size in sizes.items()}
    weights["w_o"] = make.weight(hidden, heads * head_dim)
    if draw(st.booleans()):
        weights |= {f"b_{name[2:]}": make.bias(w.shape[0]) for name, w in weights.items()}
    rope, ref_table = None, None
    if head_dim > 1 and draw(st.booleans()):
        style = draw(st.sampled_from(["half", "interleaved"]))
        rotary_dim = head_dim - head_dim % 2 - (2 if head_dim > 4 and draw(st.booleans()) else 0)
        rope, ref_table = rope_tables(head_dim, max_seq + q_len, style, rotary_dim)
    static: dict[str, Any] = {
        "num_heads": heads,
        "num_kv_heads": kv_heads,
        "scale": draw(st.sampled_from([None, 0.2])),
        "softcap": draw(st.sampled_from([None, 5.0])),
    }
    common = {"rope": ref_table, "lengths": counts, "norm": ref, "residual": residual, "post_norm": ref_post}
    common |= {"weights": ref_attention.AttentionWeights(**weights), **static}
    reordered = [weights | {name: weights[name][::-1]} for name in ("w_v", "w_o")]
    wrong_weights = {"w_v": ref_attention.AttentionWeights(**reordered[0])}
    wrong_weights["w_o"] = ref_attention.AttentionWeights(**reordered[1])
    arrays |= {"x": x, "weights": atbfn.AttentionWeights(**weights), "mask": mask}
    optional = {"rope": rope, "lengths": counts, "norm": norm, "residual": residual, "post_norm": post_norm}
    arrays |= {name: value for name, value in optional.items() if value is not None}
    width = min(hidden, heads * head_dim)
    if not cached:
        steps = ref_attention.self_attention(x, allowed, **common)
        wrong = {
            name: ref_attention.self_attention(x, allowed, **(common | {"weights": w}))
            for name, w in wrong_weights.items()
        }
        return Call("self_attention", arrays, static, steps, ("out",), "attention", dtype, max_seq, wrong, width)
    layers = draw(st.sampled_from([None, 2]))
    caches = _caches(make, () if layers is None else (layers,), batch, kv_heads, max_seq, head_dim, pos)
    layer = None if layers is None else draw(st.sampled_from([0, 1]))
    arrays |= {"k_cache": caches[0], "v_cache": caches[1], "pos": pos}
    if layer is not None:
        arrays["layer"] = np.int32(layer)
    common["layer"] = layer
    steps = ref_attention.attention_with_kv_cache(x, *caches, pos, allowed, **common)
    wrong = {
        name: ref_attention.attention_with_kv_cache(x, *caches, pos, allowed, **(common | {"weights": w}))
        for name, w in wrong_weights.items()
    }
    outputs = ("out", "k_cache", "v_cache")
    return Call("attention_with_kv_cache", arrays, static, steps, outputs, "attention", dtype, max_seq, wrong, width)


def _caches(
    make: Maker, lead: tuple[int, ...], batch: int, kv_heads: int, max_seq: int, head_dim: int, pos: Any
) -> list[np.ndarray]:
    # What is not written yet holds NaN: it must not be seen.
    unwritten = np.arange(max_seq)[None, None, :, None] >= np.reshape(np.asarray(pos), (-1, 1, 1, 1))
    caches = [make.normal(*lead, batch, kv_heads, max_seq, head_dim) for _ in range(2)]
    return [np.where(unwritten, c.dtype.type(np.nan), c) for c in caches]


CALLS: dict[str, Callable[..., st.SearchStrategy[Call]]] = {
    "linear": linear_calls,
    "activation": activation_calls,
    "softmax": softmax_calls,
    "layernorm": lambda dtype, **options: norm_calls("layernorm", dtype, **options),
    "rmsnorm": lambda dtype, **options: norm_calls("rmsnorm", dtype, **options),
    "layernorm_residual": lambda dtype, **options: norm_calls("layernorm_residual", dtype, **options),
    "rmsnorm_residual": lambda dtype, **options: norm_calls("rmsnorm_residual", dtype, **options),
    "rope": rope_calls,
    "kv_cache_update": kv_cache_calls,
    "fused_ffn": ffn_calls,
    "flash_attention": flash_calls,
    "self_attention": lambda dtype, **options: attention_calls(dtype, cached=False, **options),
    "attention_with_kv_cache": lambda dtype, **options: attention_calls(dtype, cached=True, **options),
}
"""The strategy of each public operator: `CALLS[name](dtype, poison=, empty=)`."""
