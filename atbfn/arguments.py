"""Argument checks of the public operators, and the step from checked arguments to a primitive.

Every refusal names the operator, the argument, what came, what was expected, and the fix.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from atbfn.lowering import require
from atbfn.primitives.errors import bad_type, bad_value
from atbfn.primitives.masks import Mask
from atbfn.primitives.norm import LayerNorm, RMSNorm
from atbfn.primitives.operator import Operator, Outputs
from atbfn.primitives.rope import Rope

_INT32 = np.iinfo(np.int32)
_FLOATS = "float16, bfloat16, float32 or float64"


def array(operator: str, argument: str, value: Any, ndim: int | None = None) -> jax.Array:
    """`value` as a floating-point array of a supported dtype, with `ndim` dimensions if given."""
    checked = _as_array(operator, argument, value)
    if checked.dtype not in (jnp.float16, jnp.bfloat16, jnp.float32, jnp.float64):
        bad_type(
            operator, argument, f"dtype {checked.dtype}", _FLOATS, f"convert it, e.g. {argument}.astype(jnp.float32)"
        )
    if ndim is not None and checked.ndim != ndim:
        bad_value(
            operator, argument, f"{checked.ndim} dimensions, shape {checked.shape}", f"{ndim} dimensions", "reshape it"
        )
    return checked


def _as_array(operator: str, argument: str, value: Any) -> jax.Array:
    if not isinstance(value, (jax.Array, np.ndarray, np.generic)):
        bad_type(operator, argument, type(value).__name__, "an array", "pass a jax or numpy array")
    try:
        return jnp.asarray(value)
    except TypeError:
        bad_type(operator, argument, f"dtype {np.asarray(value).dtype}", _FLOATS, "pass numbers")


def shape(operator: str, argument: str, value: Any, **dims: Any) -> None:
    """Check the whole shape of `value`: one keyword per dimension, by name, in order."""
    if tuple(value.shape) != tuple(dims.values()):
        expected = ", ".join(f"{name}={size}" for name, size in dims.items())
        bad_value(operator, argument, f"shape {tuple(value.shape)}", f"[{expected}]", _layout(argument))


def same_shape(operator: str, argument: str, value: Any, other: str, reference: Any) -> None:
    """Check that two operands have one shape."""
    if value.shape != reference.shape:
        bad_value(
            operator,
            argument,
            f"shape {value.shape}",
            f"{reference.shape}, the shape of {other}",
            "make the sizes agree",
        )


def rows(operator: str, argument: str, value: Any) -> jax.Array:
    """A float array [..., features]."""
    checked = array(operator, argument, value)
    return checked if checked.ndim else array(operator, argument, value, 1)


def _layout(argument: str) -> str:
    if argument.startswith(("w_", "weights.w_")) or argument == "w":
        return "weights are [out_features, in_features], as checkpoints store them"
    return "make the sizes agree"


def integers(operator: str, argument: str, value: Any, shapes: Sequence[tuple[Any, ...]]) -> Any:
    """`value` as int32 of one of the given shapes: a numpy array while its numbers are known, else a traced one."""
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        value = np.asarray(value)
    if not isinstance(value, jax.core.Tracer) and isinstance(value, jax.Array):
        value = np.asarray(value)  # also inside jit, where jnp would make a tracer of it
    checked = value if isinstance(value, np.ndarray) else _as_array(operator, argument, value)
    if not jnp.issubdtype(checked.dtype, jnp.integer):
        bad_type(
            operator, argument, f"dtype {checked.dtype}", "int32", f"convert it, e.g. {argument}.astype(jnp.int32)"
        )
    if checked.shape not in shapes:
        choices = " or ".join("a scalar" if not s else f"shape {s}" for s in dict.fromkeys(shapes))
        bad_value(operator, argument, f"shape {checked.shape}", choices, "give one value, or one per sequence")
    if isinstance(checked, np.ndarray) and checked.size:
        # A conversion to int32 would wrap a larger number around without a word.
        if not _INT32.min <= checked.min() <= checked.max() <= _INT32.max:
            bad_value(operator, argument, checked.tolist(), "values that fit int32", "pass token positions")
    elif np.iinfo(checked.dtype).max > _INT32.max:  # traced: the largest int32 lies outside of every cache
        checked = jnp.minimum(checked, jnp.asarray(_INT32.max, checked.dtype))
        if np.iinfo(checked.dtype).min < _INT32.min:
            checked = jnp.maximum(checked, jnp.asarray(_INT32.min, checked.dtype))
    return checked.astype(np.int32)


def concrete(value: Any) -> np.ndarray | None:
    """The numbers of `value` if they are known now, None while they are traced."""
    return None if isinstance(value, jax.core.Tracer) else np.asarray(value)


def check_norm(operator: str, argument: str | None, norm: Any, x: jax.Array, cross_precision: bool) -> Any:
    """A LayerNorm or RMSNorm whose parameters fit the rows of `x`; None passes.

    `argument` is what holds the norm, or None where gamma and beta are arguments themselves.
    """
    if norm is None:
        return None
    if not isinstance(norm, (LayerNorm, RMSNorm)):
        bad_type(
            operator,
            argument or "norm",
            type(norm).__name__,
            "LayerNorm(...), RMSNorm(...) or None",
            "wrap gamma and eps in one of them",
        )
    prefix = "" if argument is None else f"{argument}."
    parameters = {"gamma": norm.gamma}
    if isinstance(norm, LayerNorm) and norm.beta is not None:
        parameters["beta"] = norm.beta
    checked = {}
    for name, value in parameters.items():
        value = array(operator, prefix + name, value, 1)
        shape(operator, prefix + name, value, hidden=x.shape[-1])
        _check_table_dtype(operator, prefix + name, value, x, cross_precision)
        checked[name] = value
    return dataclasses.replace(norm, **checked)


def _check_table_dtype(operator: str, argument: str, value: jax.Array, x: jax.Array, cross_precision: bool) -> None:
    """Norm parameters and rotary tables have x's dtype or float32, or any with `cross_precision`."""
    if not cross_precision and value.dtype not in (x.dtype, jnp.float32):
        bad_type(
            operator,
            argument,
            f"dtype {value.dtype}",
            f"{x.dtype}, the dtype of x, or float32",
            "cast it, or set cross_precision",
        )


def check_rope(
    operator: str, argument: str, table: Any, x: jax.Array, head_dim: int, max_positions: Any, cross_precision: bool
) -> Rope | None:
    """A Rope whose tables fit heads of `head_dim` and reach `max_positions`; None passes."""
    if table is None:
        return None
    if not isinstance(table, Rope):
        bad_type(
            operator,
            argument,
            type(table).__name__,
            "atbfn.Rope or None",
            "build it with Rope.create(head_dim, max_positions)",
        )
    cos, sin = array(operator, f"{argument}.cos", table.cos, 2), array(operator, f"{argument}.sin", table.sin, 2)
    for name, value in (("cos", cos), ("sin", sin)):
        _check_table_dtype(operator, f"{argument}.{name}", value, x, cross_precision)
    if cos.shape != sin.shape:
        bad_value(
            operator,
            f"{argument}.sin",
            f"shape {sin.shape}",
            f"the shape of {argument}.cos, {cos.shape}",
            "build both with Rope.create",
        )
    if 2 * cos.shape[1] > head_dim:
        bad_value(
            operator,
            argument,
            f"tables for rotary_dim={2 * cos.shape[1]}",
            f"at most head_dim={head_dim}",
            "build it with Rope.create(head_dim, ...)",
        )
    if isinstance(max_positions, int) and isinstance(cos.shape[0], int) and cos.shape[0] < max_positions:
        bad_value(
            operator,
            argument,
            f"tables for {cos.shape[0]} positions",
            f"at least {max_positions}",
            f"build it with Rope.create(head_dim, {max_positions})",
        )
    return Rope(cos, sin, table.style)


def check_mask(operator: str, mask: Any, batch: Any, num_heads: int, q_len: Any, kv_len: Any) -> Mask:
    """A mask object that fits an attention of these sizes."""
    if not isinstance(mask, Mask):
        got = "None" if mask is None else type(mask).__name__
        bad_type(operator, "mask", got, "a mask object", "use Causal(), Full(), Allowed(array) or a combination with &")
    mask.validate(operator, batch, num_heads, q_len, kv_len)
    return jax.tree.map(jnp.asarray, mask)


def check_scalar(operator: str, argument: str, value: Any, *, positive: bool) -> float:
    """A finite static number."""
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float, np.floating, np.integer))
        or not np.isfinite(value)
    ):
        bad_value(
            operator,
            argument,
            repr(value),
            "a finite number",
            "pass a Python float: it is part of the compiled program",
        )
    if positive and value <= 0:
        bad_value(operator, argument, value, "a number above 0", "leave it None to switch it off")
    size, info = abs(float(value)), np.finfo(np.float32)
    if size and not float(info.tiny) <= size <= float(info.max):
        bad_value(operator, argument, value, "a number that float32 can hold", "scores are computed in float32")
    return float(value)


def check_count(operator: str, argument: str, value: Any) -> int:
    """A static positive int."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        bad_value(operator, argument, repr(value), "an int of at least 1", "pass the model's number")
    return int(value)


def same_dtype(operator: str, cross_precision: bool, **arrays: Any) -> dict[str, Any]:
    """The float operands of a call in one dtype.

    They must agree already, unless `cross_precision` is set: then all are promoted to the widest dtype among them.
    Values may be None or pytrees of arrays.
    """
    leaves = {
        f"{name}{jax.tree_util.keystr(path)}": leaf
        for name, value in arrays.items()
        for path, leaf in jax.tree_util.tree_leaves_with_path(value)
    }
    dtypes = {leaf.dtype for leaf in leaves.values()}
    if len(dtypes) <= 1:
        return arrays
    if not cross_precision:
        first, *rest = leaves.items()
        other = next((name, leaf) for name, leaf in rest if leaf.dtype != first[1].dtype)
        bad_type(
            operator,
            other[0],
            f"dtype {other[1].dtype}",
            f"{first[1].dtype}, the dtype of {first[0]}",
            "cast one of them, or set cross_precision (then all compute in the wider dtype)",
        )
    with jax.numpy_dtype_promotion("standard"):  # asked for, whatever JAX does by itself
        widest = jnp.result_type(*dtypes)
    return jax.tree.map(lambda leaf: leaf.astype(widest), arrays)


def bind(operator: Operator, spec: Any, args: Any) -> Outputs:
    """Bind a primitive, unless its explicitly named target cannot do the call."""
    require(operator.name, spec.target, spec, args)
    return operator(spec, args)
