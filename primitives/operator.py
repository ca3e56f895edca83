"""Three JAX primitives from one plain form: how every operator gets its transformations.

An `Operator` is stated by a plain JAX function and a shape rule. From them it makes

- `<name>`: the primal. Its JVP rule binds itself for the value and `<name>_lin` for the tangent.
- `<name>_lin(primals, saved outputs, tangents)`: linear in the tangents. Its transpose binds `<name>_bwd`.
- `<name>_bwd(primals, saved outputs, cotangents)`: the cotangents of the inputs named by `wrt`.

so that forward mode, reverse mode, Hessian-vector products, `vmap` in any order, `linearize`, `scan` and `remat` all
work, only inputs and declared outputs are kept for the backward pass, and each part may have a kernel of its own.
A second derivative goes through `jax.checkpoint` of the plain form.

Batching does not unfold a primitive: `levels` records which operands each enclosing `vmap` batches (always at axis 0,
outermost first) and the same primitive is bound again, so a batched operator is still differentiated by these rules.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching

# jax.extend has no public name for this; it has been stable across the supported versions.
from jax._src import dispatch as _dispatch  # isort: skip

from atbfn.primitives.precision import accumulator

Level = tuple[bool, ...]

operators: dict[str, Operator] = {}
"""Every operator by name; `atbfn.lowering` gives each one's primitives their lowerings."""


class Out(NamedTuple):
    """One output of a shape rule. `axes` names, per dimension, the mesh axes it is split over (explicit sharding)."""

    shape: tuple[Any, ...]
    dtype: Any
    axes: tuple[Any, ...] | None = None


def like(x: Any, dtype: Any = None) -> Out:
    """An output with the shape, dtype and mesh axes of the input `x`."""
    return Out(tuple(x.shape), dtype or x.dtype, mesh_axes(x))


def mesh_axes(x: Any) -> tuple[Any, ...]:
    """The mesh axes that each dimension of `x` is split over; all None where it is not split explicitly."""
    sharding = getattr(x, "sharding", None)
    spec = tuple(getattr(sharding, "spec", None) or ())
    return spec + (None,) * (len(x.shape) - len(spec))


@dataclasses.dataclass(frozen=True)
class Outputs:
    """What a shape rule and a plain form return: the differentiable outputs, and those that carry no derivative."""

    main: tuple[Any, ...]
    aux: tuple[Any, ...] = ()


def _is_float(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jnp.inexact)


def _vmap_levels(fn: Callable[..., Any], levels: Sequence[Level]) -> Callable[..., Any]:
    for level in reversed(levels):
        fn = jax.vmap(fn, in_axes=tuple(0 if batched else None for batched in level))
    return fn


def _strip(avals: Sequence[Any], levels: Sequence[Level]) -> tuple[list[Any], tuple[Any, ...]]:
    """The operands as the innermost function sees them, and the batch sizes, outermost first."""
    shapes = [tuple(a.shape) for a in avals]
    axes = [mesh_axes(a) for a in avals]
    sizes = []
    for level in levels:
        sizes.append(next(shape[0] for shape, batched in zip(shapes, level, strict=True) if batched))
        shapes = [shape[1:] if batched else shape for shape, batched in zip(shapes, level, strict=True)]
        axes = [axis[1:] if batched else axis for axis, batched in zip(axes, level, strict=True)]
    stripped = [_Operand(s, a.dtype, ax) for s, a, ax in zip(shapes, avals, axes, strict=True)]
    return stripped, tuple(sizes)


class _Operand(NamedTuple):
    shape: tuple[Any, ...]
    dtype: Any
    spec: tuple[Any, ...]

    @property
    def sharding(self) -> _Operand:  # `mesh_axes` asks for `.sharding.spec`
        return self

    @property
    def ndim(self) -> int:
        return len(self.shape)


def _result_aval(operands: Sequence[Any], shape: tuple[Any, ...], dtype: Any) -> Any:
    """An output's type, carrying the operands' mesh and varying axes (a fresh ShapedArray would lose them)."""
    base = operands[0]
    sharding = base.sharding.update(spec=jax.sharding.PartitionSpec(*(None,) * len(shape)))
    return base.update(shape=tuple(shape), dtype=jnp.dtype(dtype), weak_type=False, sharding=sharding)


def _varying(x: Any) -> frozenset[str]:
    """The manual mesh axes that `x` varies over, inside `shard_map(check_vma=True)`."""
    aval = jax.typeof(x)
    if hasattr(aval, "vma"):  # its name before jax 0.10.2
        return aval.vma
    return aval.manual_axis_type.varying


def _join_varying(leaves: list[Any]) -> list[Any]:
    """Inside `shard_map(check_vma=True)`, mark every operand as varying over all axes that any of them varies over."""
    axes: frozenset[str] = frozenset().union(*(_varying(x) for x in leaves))
    if not axes:
        return leaves
    joined = []
    for x in leaves:
        missing = tuple(sorted(axes - _varying(x)))
        joined.append(jax.lax.pcast(x, missing, to="varying") if missing else x)
    return joined


class Operator:
    """An operator of the library and its three primitives.

    Args:
      name: the operator's name; the primitives are `name`, `name_lin`, `name_bwd`.
      plain: `plain(spec, args) -> Outputs`: the XLA form. `spec` is static and hashable, `args` a pytree of arrays.
      shapes: `shapes(spec, args) -> Outputs` of `Out`, from operands that have `.shape` and `.dtype`.
      smooth: `smooth(spec, args) -> tuple`: the main outputs in a form JAX can differentiate in any mode any number
        of times; `plain`'s when that is one.
      saved: which outputs (index into main + aux) the derivative rules receive beside the inputs.
      backward: `backward(spec, args, saved, cotangents) -> args-shaped pytree of cotangents`, for operators that do
        better than the VJP of `smooth`. None where an input has no derivative. Its own derivative is taken with the
        saved outputs recomputed, or, where one of them is an aux output, through the VJP of `smooth` instead.
      rows: argument names whose leading dimensions are free; a `vmap` over only those needs no batching level.
    """

    def __init__(
        self,
        name: str,
        *,
        plain: Callable[[Any, Any], Outputs],
        shapes: Callable[[Any, Any], Outputs],
        smooth: Callable[[Any, Any], tuple[Any, ...]] | None = None,
        saved: tuple[int, ...] = (),
        backward: Callable[[Any, Any, tuple[Any, ...], tuple[Any, ...]], Any] | None = None,
        rows: tuple[str, ...] = (),
    ) -> None:
        self.name = name
        operators[name] = self
        self.plain = plain
        self.smooth = smooth or (lambda spec, args: plain(spec, args).main)
        self._shapes = shapes
        self._saved = saved
        self._backward = backward
        self._rows = frozenset(rows)
        self.primitive = _primitive(name, self._shape_rule)
        self.lin = _primitive(f"{name}_lin", self._lin_shape_rule)
        self.bwd = _primitive(f"{name}_bwd", self._bwd_shape_rule)
        ad.primitive_jvps[self.primitive] = self._jvp
        ad.primitive_jvps[self.lin] = self._lin_jvp
        ad.primitive_jvps[self.bwd] = self._bwd_jvp
        ad.primitive_transposes[self.lin] = self._lin_transpose
        batching.primitive_batchers[self.primitive] = self._batch
        batching.primitive_batchers[self.lin] = self._lin_batch
        batching.primitive_batchers[self.bwd] = self._bwd_batch

    def __call__(self, spec: Any, args: Any) -> Outputs:
        """Bind the primitive on a pytree of arrays (None where an optional argument is absent)."""
        leaves, tree = jax.tree.flatten(args)
        leaves = _join_varying([jnp.asarray(x) for x in leaves])
        explicit = next((t.sharding.mesh for x in leaves if _explicit(t := jax.typeof(x))), None)
        if explicit is None:
            outs = self.primitive.bind(*leaves, spec=spec, tree=tree, levels=())
        else:
            outs = self._bind_explicit(explicit, leaves, spec, tree)
        return self._split(outs, spec, args)

    def _bind_explicit(self, mesh: Any, leaves: list[Any], spec: Any, tree: Any) -> Any:
        # Types that carry shardings: the operator says how its outputs are split, and the partitioner works inside.
        args = jax.tree.unflatten(tree, [jax.typeof(x) for x in leaves])
        outs = self._shapes(spec, args)
        shardings = tuple(
            jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*(out.axes or (None,) * len(out.shape))))
            for out in (*outs.main, *outs.aux)
        )

        def bind(*leaves: Any) -> tuple[Any, ...]:
            return tuple(self.primitive.bind(*leaves, spec=spec, tree=tree, levels=()))

        return jax.sharding.auto_axes(bind, out_sharding=shardings)(*leaves)

    def _split(self, outs: Sequence[Any], spec: Any, args: Any) -> Outputs:
        n_main = len(self._shapes(spec, args).main)
        return Outputs(tuple(outs[:n_main]), tuple(outs[n_main:]))

    # The functions behind the three primitives, on flat operands.

    def outputs(
        self,
        *operands: Any,
        spec: Any,
        tree: Any,
        levels: tuple[Level, ...],
        form: Callable[[Any, Any], Outputs] | None = None,
    ) -> list[Any]:
        """What the primal computes, by the plain form or by another `form` of it."""

        def one(*leaves: Any) -> list[Any]:
            outs = (form or self.plain)(spec, jax.tree.unflatten(tree, leaves))
            return [*outs.main, *outs.aux]

        return _vmap_levels(one, levels)(*operands)

    def _smooth_flat(self, spec: Any, tree: Any, leaves: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(self.smooth(spec, jax.tree.unflatten(tree, leaves)))

    def tangents(
        self, *operands: Any, spec: Any, tree: Any, wrt: tuple[bool, ...], levels: tuple[Level, ...]
    ) -> list[Any]:
        n = tree.num_leaves

        def one(*operands: Any) -> list[Any]:
            leaves, tangents = list(operands[:n]), operands[n + len(self._saved) :]
            where = [i for i, used in enumerate(wrt) if used]

            def of(*values: Any) -> tuple[Any, ...]:
                merged = list(leaves)
                for i, value in zip(where, values, strict=True):
                    merged[i] = value
                return self._smooth_flat(spec, tree, merged)

            _, out = jax.jvp(of, tuple(leaves[i] for i in where), tuple(tangents))
            return list(out)

        return _vmap_levels(one, levels)(*operands)

    def cotangents(
        self,
        *operands: Any,
        spec: Any,
        tree: Any,
        wrt: tuple[bool, ...],
        levels: tuple[tuple[Level, Level], ...],
        recompute: bool = False,
        backward: Callable[[Any, Any, tuple[Any, ...], tuple[Any, ...]], Any] | None = None,
    ) -> list[Any]:
        """`recompute` takes the VJP from the inputs alone, so that it can itself be differentiated.

        `backward` is a target's form of it, in place of the operator's own.
        """
        rule = backward or self._backward
        n = tree.num_leaves
        where = [i for i, used in enumerate(wrt) if used]

        def one(*operands: Any) -> list[Any]:
            leaves, rest = list(operands[:n]), operands[n:]
            saved, cotangents = rest[: len(self._saved)], rest[len(self._saved) :]
            args = jax.tree.unflatten(tree, leaves)
            if rule is not None and (not recompute or self._saved_are_differentiable(spec, args)):
                if recompute:
                    saved = self._saved_from(spec, args)
                grads = rule(spec, args, tuple(saved), tuple(cotangents))
                flat = tree.flatten_up_to(grads)
                return [flat[i].astype(leaves[i].dtype) for i in where]

            def of(*values: Any) -> tuple[Any, ...]:
                merged = list(leaves)
                for i, value in zip(where, values, strict=True):
                    merged[i] = value
                return self._smooth_flat(spec, tree, merged)

            _, pull = jax.vjp(of, *(leaves[i] for i in where))
            return list(pull(tuple(cotangents)))

        fn = one
        for in_flags, out_flags in reversed(levels):
            fn = _vmap_and_reduce(fn, in_flags, out_flags)
        return fn(*operands)

    def _saved_are_differentiable(self, spec: Any, args: Any) -> bool:
        return max(self._saved, default=-1) < len(self._shapes(spec, args).main)

    def _saved_from(self, spec: Any, args: Any) -> tuple[Any, ...]:
        """The saved outputs, main ones all, as a differentiable function of the inputs."""
        main = self(spec, args).main
        return tuple(main[i] for i in self._saved)

    # Shape rules.

    def _shape_rule(self, *operands: Any, spec: Any, tree: Any, levels: tuple[Level, ...]) -> list[Any]:
        inner, sizes = _strip(operands, levels)
        outs = self._shapes(spec, jax.tree.unflatten(tree, inner))
        return [_result_aval(operands, (*sizes, *out.shape), out.dtype) for out in (*outs.main, *outs.aux)]

    def _lin_shape_rule(
        self, *operands: Any, spec: Any, tree: Any, wrt: tuple[bool, ...], levels: tuple[Level, ...]
    ) -> list[Any]:
        inner, sizes = _strip(operands, levels)
        outs = self._shapes(spec, jax.tree.unflatten(tree, inner[: tree.num_leaves]))
        return [_result_aval(operands, (*sizes, *out.shape), out.dtype) for out in outs.main]

    def _bwd_shape_rule(
        self, *operands: Any, spec: Any, tree: Any, wrt: tuple[bool, ...], levels: tuple[tuple[Level, Level], ...]
    ) -> list[Any]:
        inner, sizes = _strip(operands, [flags for flags, _ in levels])
        avals = []
        for out, i in enumerate(i for i, used in enumerate(wrt) if used):
            kept = [size for size, (_, out_flags) in zip(sizes, levels, strict=True) if out_flags[out]]
            avals.append(_result_aval(operands, (*kept, *inner[i].shape), inner[i].dtype))
        return avals

    # Differentiation.

    def _jvp(self, primals: Any, tangents: Any, *, spec: Any, tree: Any, levels: tuple[Level, ...]) -> Any:
        outs = self.primitive.bind(*primals, spec=spec, tree=tree, levels=levels)
        n_main = len(self._shapes(spec, jax.tree.unflatten(tree, _strip(primals, levels)[0])).main)
        wrt = tuple(not isinstance(t, ad.Zero) and _is_float(p) for p, t in zip(primals, tangents, strict=True))
        out_tangents = [ad.Zero(jax.typeof(out).to_tangent_aval()) for out in outs]
        if any(wrt):
            used = [t for t, u in zip(tangents, wrt, strict=True) if u]
            lin_levels = tuple(
                (*level, *(True,) * len(self._saved), *(b for b, u in zip(level, wrt, strict=True) if u))
                for level in levels
            )
            saved = [outs[i] for i in self._saved]
            out_tangents[:n_main] = self.lin.bind(
                *primals, *saved, *used, spec=spec, tree=tree, wrt=wrt, levels=lin_levels
            )
        return outs, out_tangents

    def _lin_jvp(self, primals: Any, tangents: Any, **params: Any) -> Any:
        n, n_saved = params["tree"].num_leaves, len(self._saved)
        return self._second_order(self.lin, self.tangents, primals, tangents, range(n, n + n_saved), params)

    def _bwd_jvp(self, primals: Any, tangents: Any, **params: Any) -> Any:
        n, n_saved = params["tree"].num_leaves, len(self._saved)

        def cotangents(*operands: Any, **params: Any) -> list[Any]:
            return self.cotangents(*operands, **params, recompute=True)

        return self._second_order(self.bwd, cotangents, primals, tangents, range(n, n + n_saved), params)

    def _second_order(
        self, primitive: Primitive, function: Callable[..., Any], primals: Any, tangents: Any, saved: range, params: Any
    ) -> Any:
        # The saved outputs are functions of the inputs, and `function` takes the whole derivative from the inputs:
        # their own tangents would count it twice.
        outs = primitive.bind(*primals, **params)
        where = [i for i, t in enumerate(tangents) if i not in saved and not isinstance(t, ad.Zero)]
        if not where:
            return outs, [ad.Zero(jax.typeof(out).to_tangent_aval()) for out in outs]

        def of(*values: Any) -> list[Any]:
            merged = list(primals)
            for i, value in zip(where, values, strict=True):
                merged[i] = value
            return function(*merged, **params)

        _, out_tangents = jax.jvp(
            jax.checkpoint(of), tuple(primals[i] for i in where), tuple(tangents[i] for i in where)
        )
        return outs, list(out_tangents)

    def _lin_transpose(
        self, cotangents: Any, *operands: Any, spec: Any, tree: Any, wrt: tuple[bool, ...], levels: tuple[Level, ...]
    ) -> list[Any]:
        n, first = tree.num_leaves, tree.num_leaves + len(self._saved)
        result: list[Any] = [None] * len(operands)
        if all(isinstance(ct, ad.Zero) for ct in cotangents):
            return result
        positions = [i for i, used in enumerate(wrt) if used]
        asked = [ad.is_undefined_primal(t) for t in operands[first:]]
        wanted = dict(zip(positions, asked, strict=True))
        bwd_wrt = tuple(wanted.get(i, False) for i in range(n))
        bwd_levels = tuple(
            (
                (*level[:first], *(True,) * len(cotangents)),
                tuple(flag for flag, a in zip(level[first:], asked, strict=True) if a),
            )
            for level in levels
        )
        cotangents = [ad.instantiate_zeros(ct) for ct in cotangents]
        fixed = _join_varying([*operands[:first], *cotangents])
        grads = iter(self.bwd.bind(*fixed, spec=spec, tree=tree, wrt=bwd_wrt, levels=bwd_levels))
        for offset, a in enumerate(asked):
            if a:
                result[first + offset] = next(grads)
        return result

    # Batching.

    def _batch(self, operands: Any, dims: Any, *, spec: Any, tree: Any, levels: tuple[Level, ...]) -> Any:
        operands, flags = _to_front(operands, dims)
        if not levels and self._only_rows(tree, operands, flags):
            outs = self.primitive.bind(*operands, spec=spec, tree=tree, levels=())
        else:
            outs = self.primitive.bind(*operands, spec=spec, tree=tree, levels=(flags, *levels))
        return outs, [0] * len(outs)

    def _only_rows(self, tree: Any, operands: Sequence[Any], flags: Level) -> bool:
        if not self._rows:
            return False
        args = jax.tree.unflatten(tree, list(flags))
        names = {f.name: getattr(args, f.name) for f in dataclasses.fields(args)}
        batched = [name for name, value in names.items() if any(jax.tree.leaves(value))]
        present = [name for name, value in names.items() if name in self._rows and value is not None]
        return set(batched) == set(present)

    def _lin_batch(self, operands: Any, dims: Any, *, levels: tuple[Level, ...], **params: Any) -> Any:
        operands, flags = _to_front(operands, dims)
        outs = self.lin.bind(*operands, levels=(flags, *levels), **params)
        return outs, [0] * len(outs)

    def _bwd_batch(self, operands: Any, dims: Any, *, levels: tuple[Any, ...], **params: Any) -> Any:
        operands, flags = _to_front(operands, dims)
        n_out = sum(params["wrt"])
        outs = self.bwd.bind(*operands, levels=((flags, (True,) * n_out), *levels), **params)
        return outs, [0] * len(outs)


def _primitive(name: str, shape_rule: Callable[..., Any]) -> Primitive:
    primitive = Primitive(name)
    primitive.multiple_results = True
    primitive.def_impl(lambda *operands, **params: _dispatch.apply_primitive(primitive, *operands, **params))
    primitive.def_abstract_eval(shape_rule)
    return primitive


def _explicit(aval: Any) -> bool:
    mesh = aval.sharding.mesh
    return bool(mesh.shape) and any(t == jax.sharding.AxisType.Explicit for t in mesh.axis_types)


def _to_front(operands: Any, dims: Any) -> tuple[list[Any], Level]:
    flags = tuple(d is not None for d in dims)
    moved = [jnp.moveaxis(x, d, 0) if flag else x for x, d, flag in zip(operands, dims, flags, strict=True)]
    return moved, flags


def _vmap_and_reduce(fn: Callable[..., Any], in_flags: Level, out_flags: Level) -> Callable[..., Any]:
    """`vmap`, then the sum over the batch for those outputs whose input was shared by the batch."""
    mapped = jax.vmap(fn, in_axes=tuple(0 if batched else None for batched in in_flags))

    def reduced(*operands: Any) -> list[Any]:
        outs = mapped(*operands)
        return [
            out if keep else jnp.sum(out, axis=0, dtype=accumulator(out.dtype)).astype(out.dtype)
            for out, keep in zip(outs, out_flags, strict=True)
        ]

    return reduced
