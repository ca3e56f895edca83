"""Evaluates a jaxpr and returns, beside its results, the values that operators marked in it.

The equations are bound again one by one under whatever is tracing, and those that hold a jaxpr with marks are rebuilt
so that the marked values come out: loops stay loops and jitted functions stay jitted. This file alone knows how
JAX's own primitives carry their jaxprs; what it does not know, and what holds marks, raises.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from atbfn.primitives.tag import Call, Mark, tag_p

# jax.extend has no public name for "the compiler decides", which the outputs added to a jitted function need.
from jax._src.sharding_impls import UNSPECIFIED  # isort: skip


@dataclasses.dataclass(frozen=True)
class Key:
    """Where a value was marked: "<path>/<operator>[<repeat>]/<step or node>", and the rule if it is a check."""

    name: str
    rule: str | None


Found = list[tuple[Key, Any]]
"""Marked values in the order of execution."""


def closed_parts(jaxpr: Any) -> tuple[Any, list[Any], list[Any]]:
    """The equations' owner, its constants' variables and their values, of a Jaxpr or ClosedJaxpr of any version."""
    inner = getattr(jaxpr, "jaxpr", jaxpr)
    return inner, list(inner.constvars), list(getattr(jaxpr, "consts", ()))


def sub_jaxprs(params: dict[str, Any]) -> list[Any]:
    """The jaxprs among an equation's parameters."""
    found = []
    for value in params.values():
        for item in value if isinstance(value, (tuple, list)) else (value,):
            if hasattr(item, "eqns"):
                found.append(item)
    return found


def _recomputes(eqn: Any) -> bool:
    # In a gradient, `jax.checkpoint` runs its body again: those marks are copies of the ones of the forward pass. JAX
    # says so in a parameter; where a second gradient has unpacked the body, the name stack still tells.
    return bool(eqn.params.get("differentiated", False)) or "rematted_computation" in str(eqn.source_info.name_stack)


def primitives_in(jaxpr: Any) -> set[str]:
    """The names of all primitives in a jaxpr and in those it holds."""
    names = set()
    for eqn in jaxpr.eqns:
        names.add(eqn.primitive.name)
        for sub in sub_jaxprs(eqn.params):
            names |= primitives_in(sub)
    return names


class Collector:
    """Collects marks of one kind. Numbers the calls of an operator in a layer in the order in which it meets them."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._repeats: dict[tuple[str, str], int] = {}
        self._calls: dict[Call, tuple[int, frozenset[Any]]] = {}
        self._marked: dict[int, tuple[Any, bool]] = {}  # by id, with the jaxpr, which must stay alive for its id

    def evaluate(self, jaxpr: Any, args: Sequence[Any]) -> tuple[list[Any], Found]:
        """The results of a closed jaxpr, and the marked values."""
        inner, constvars, consts = closed_parts(jaxpr)
        env: dict[Any, Any] = dict(zip((*constvars, *inner.invars), (*consts, *args), strict=True))
        found: Found = []

        def read(atom: Any) -> Any:
            return atom.val if hasattr(atom, "val") else env[atom]

        for eqn in inner.eqns:
            operands = [read(atom) for atom in eqn.invars]
            with eqn.ctx.manager:
                if eqn.primitive is tag_p:
                    results, new = self._bind(eqn, operands), self._collect(eqn, operands)
                elif self._has_marks(eqn):
                    results, new = self._enter(eqn, operands)
                else:
                    results, new = self._bind(eqn, operands), []
            found += new
            env.update(zip(eqn.outvars, results, strict=True))
        return [read(atom) for atom in inner.outvars], found

    def _bind(self, eqn: Any, operands: Sequence[Any]) -> list[Any]:
        results = eqn.primitive.bind(*operands, **eqn.primitive.get_bind_params(eqn.params))
        return list(results) if eqn.primitive.multiple_results else [results]

    def _collect(self, eqn: Any, operands: Sequence[Any]) -> Found:
        if _recomputes(eqn):
            return []
        return [(self._key(mark), operands[mark.operand]) for mark in eqn.params["marks"] if mark.kind == self.kind]

    def _key(self, mark: Mark) -> Key:
        call, step = mark.call, (mark.name, mark.rule)
        number, seen = self._calls.get(call, (-1, frozenset()))
        # A call whose step comes a second time is one in a jaxpr that is run twice.
        if number < 0 or step in seen:
            number, seen = self._repeats.get((call.path, call.operator), 0), frozenset()
            self._repeats[call.path, call.operator] = number + 1
        self._calls[call] = number, seen | {step}
        operator = f"{call.operator}[{number}]" if number else call.operator
        return Key("/".join((*filter(None, (call.path,)), operator, mark.name)), mark.rule)

    def _has_marks(self, eqn: Any) -> bool:
        return not _recomputes(eqn) and any(self._marks_in(sub) for sub in sub_jaxprs(eqn.params))

    def _marks_in(self, jaxpr: Any) -> bool:
        if id(jaxpr) not in self._marked:
            has = any(
                (eqn.primitive is tag_p and any(mark.kind == self.kind for mark in eqn.params["marks"]))
                or self._has_marks(eqn)
                for eqn in jaxpr.eqns
            )
            self._marked[id(jaxpr)] = jaxpr, has
        return self._marked[id(jaxpr)][1]

    def _again(self, jaxpr: Any, keys: list[Key]) -> Callable[..., tuple[list[Any], list[Any]]]:
        """A function that evaluates a jaxpr and returns (results, marked values), and leaves their keys in `keys`.

        JAX may trace it more than once: each time it starts from the numbering that it started from first.
        """
        repeats, calls = dict(self._repeats), dict(self._calls)

        def run(*args: Any) -> tuple[list[Any], list[Any]]:
            self._repeats, self._calls = dict(repeats), dict(calls)
            results, found = self.evaluate(jaxpr, args)
            keys[:] = [key for key, _ in found]
            return results, [value for _, value in found]

        return run

    def _enter(self, eqn: Any, operands: Sequence[Any]) -> tuple[list[Any], Found]:
        rule = _RULES.get(eqn.primitive.name)
        if rule is None:
            kind = "steps" if self.kind == "step" else "checks"
            raise NotImplementedError(
                f"atbfn.{_WRAPPER[self.kind]}: got {kind} of an operator inside the primitive "
                f"{eqn.primitive.name!r}, whose inner computation cannot be looked into; call the operator outside it"
            )
        return rule(self, eqn, operands)

    # How each primitive that holds a jaxpr is rebuilt.

    def _jit(self, eqn: Any, operands: Sequence[Any]) -> tuple[list[Any], Found]:
        keys: list[Key] = []
        jaxpr = jax.make_jaxpr(self._again(eqn.params["jaxpr"], keys))(*operands)
        params = dict(eqn.params)
        params["jaxpr"] = jaxpr
        params["out_shardings"] = (*params["out_shardings"], *(UNSPECIFIED,) * len(keys))
        params["out_layouts"] = (*params["out_layouts"], *(None,) * len(keys))
        results = eqn.primitive.bind(*operands, **params)
        return _split(results, keys)

    def _inline(self, eqn: Any, operands: Sequence[Any]) -> tuple[list[Any], Found]:
        (jaxpr,) = sub_jaxprs(eqn.params)
        return self.evaluate(jaxpr, operands)

    def _remat(self, eqn: Any, operands: Sequence[Any]) -> tuple[list[Any], Found]:
        keys: list[Key] = []
        run = self._again(eqn.params["jaxpr"], keys)
        run = jax.checkpoint(run, prevent_cse=eqn.params["prevent_cse"], policy=eqn.params["policy"])
        results, values = run(*operands)
        return results, list(zip(keys, values, strict=True))

    def _custom_derivative(self, eqn: Any, operands: Sequence[Any]) -> tuple[list[Any], Found]:
        # The value keeps its derivative rule. The marks are taken from a second evaluation, which XLA merges with it.
        _, found = self.evaluate(eqn.params["call_jaxpr"], [jax.lax.stop_gradient(x) for x in operands])
        return self._bind(eqn, operands), found

    def _scan(self, eqn: Any, operands: Sequence[Any]) -> tuple[list[Any], Found]:
        params = eqn.params
        if "ft_in" in params:  # jax 0.12
            consts, carry, _ = (len(part) for part in params["ft_in"].unpack())
        else:
            consts, carry = params["num_consts"], params["num_carry"]
        keys: list[Key] = []
        run = self._again(params["jaxpr"], keys)

        def body(state: Any, xs: Any) -> Any:
            results, values = run(*operands[:consts], *state, *xs)
            return results[:carry], (results[carry:], values)

        state, (stacked, values) = jax.lax.scan(
            body,
            list(operands[consts : consts + carry]),
            list(operands[consts + carry :]),
            length=params["length"],
            reverse=params["reverse"],
            unroll=params["unroll"],
        )
        return [*state, *stacked], list(zip(keys, values, strict=True))

    def _while(self, eqn: Any, operands: Sequence[Any]) -> tuple[list[Any], Found]:
        params = eqn.params
        if self.kind == "step":
            raise _in_loop("jax.lax.while_loop", "whose number of iterations is not known")
        if self._marks_in(params["cond_jaxpr"]):
            raise NotImplementedError(
                "atbfn.checkpoint: got checks of an operator inside the condition of jax.lax.while_loop; compute the "
                "condition in the loop's body and carry it"
            )
        n_cond, n_body = params["cond_nconsts"], params["body_nconsts"]
        cond_consts, body_consts = operands[:n_cond], operands[n_cond : n_cond + n_body]
        init = list(operands[n_cond + n_body :])
        keys: list[Key] = []
        run = self._again(params["body_jaxpr"], keys)
        types: list[Any] = []

        def look(*state: Any) -> None:
            types[:] = [jax.typeof(x) for x in run(*body_consts, *state)[1]]

        jax.eval_shape(look, *init)

        def cond(state: Any) -> Any:
            return Collector(self.kind).evaluate(params["cond_jaxpr"], [*cond_consts, *state[0]])[0][0]

        def body(state: Any) -> Any:
            results, values = run(*body_consts, *state[0])
            # The worst of all iterations; jnp.maximum keeps nans.
            return results, [jnp.maximum(old, new) for old, new in zip(state[1], values, strict=True)]

        results, worst = jax.lax.while_loop(cond, body, (init, [_neutral(t) for t in types]))
        return results, list(zip(keys, worst, strict=True))

    def _cond(self, eqn: Any, operands: Sequence[Any]) -> tuple[list[Any], Found]:
        if self.kind == "step":
            raise _in_loop("jax.lax.cond or jax.lax.switch", "of which one branch runs")
        index, operands = operands[0], operands[1:]
        runs, keys, types = [], [], []
        for branch in eqn.params["branches"]:
            mine: list[Key] = []
            run = self._again(branch, mine)
            seen: list[Any] = []

            def look(*args: Any, run: Any = run, seen: list[Any] = seen) -> None:
                seen[:] = [jax.typeof(x) for x in run(*args)[1]]

            jax.eval_shape(look, *operands)  # also moves the numbering past this branch
            runs.append(run)
            keys.append(mine)
            types.append(seen)

        def branch_of(which: int) -> Callable[..., Any]:
            def branch(*args: Any) -> Any:
                results, values = runs[which](*args)
                return results, [values if i == which else [_neutral(t) for t in ts] for i, ts in enumerate(types)]

            return branch

        after = dict(self._repeats), dict(self._calls)
        results, values = jax.lax.switch(index, [branch_of(i) for i in range(len(runs))], *operands)
        self._repeats, self._calls = after
        found = [pair for ks, vs in zip(keys, values, strict=True) for pair in zip(ks, vs, strict=True)]
        return results, found

    def _shard_map(self, eqn: Any, operands: Sequence[Any]) -> tuple[list[Any], Found]:
        params = eqn.params
        mesh, manual = params["mesh"], frozenset(params["newly_manual_axes"])
        keys: list[Key] = []
        run = self._again(params["jaxpr"], keys)
        axes: list[tuple[str, ...]] = []

        def body(*args: Any) -> Any:
            results, values = run(*args)
            # Each shard's value; devices that differ are told apart along a new first axis.
            axes[:] = [
                tuple(a for a in mesh.axis_names if a in (varying(x) if params["check_vma"] else manual))
                for x in values
            ]
            return tuple(results), tuple(x[None] if a else x for x, a in zip(values, axes, strict=True))

        def mapped(body: Any, out_specs: Any) -> Any:
            return jax.shard_map(
                body,
                mesh=mesh,
                in_specs=tuple(params["in_specs"]),
                out_specs=out_specs,
                axis_names=manual,
                check_vma=params["check_vma"],
            )

        specs = tuple(params["out_specs"])
        jax.eval_shape(mapped(lambda *args: body(*args)[0], specs), *operands)
        marked = tuple(jax.sharding.PartitionSpec(a) if a else jax.sharding.PartitionSpec() for a in axes)
        results, values = mapped(body, (specs, marked))(*operands)
        return list(results), list(zip(keys, values, strict=True))


_WRAPPER = {"step": "intermediates", "check": "checkpoint"}

_RULES: dict[str, Callable[[Collector, Any, Sequence[Any]], tuple[list[Any], Found]]] = {
    "jit": Collector._jit,
    "pjit": Collector._jit,
    "closed_call": Collector._inline,
    "core_call": Collector._inline,
    "remat2": Collector._remat,
    "checkpoint": Collector._remat,
    "custom_jvp_call": Collector._custom_derivative,
    "custom_vjp_call": Collector._custom_derivative,
    "scan": Collector._scan,
    "while": Collector._while,
    "cond": Collector._cond,
    "shard_map": Collector._shard_map,
}


def varying(x: Any) -> frozenset[str]:
    """The manual mesh axes that `x` varies over, inside `shard_map(check_vma=True)`."""
    aval = jax.typeof(x)
    return aval.vma if hasattr(aval, "vma") else aval.manual_axis_type.varying


def split(aval: Any) -> bool:
    """Whether the type says that a dimension is split over a mesh (explicit sharding)."""
    return any(axis is not None for axis in aval.sharding.spec)


def _split(results: Sequence[Any], keys: list[Key]) -> tuple[list[Any], Found]:
    n = len(results) - len(keys)
    return list(results[:n]), list(zip(keys, results[n:], strict=True))


def _neutral(aval: Any) -> jax.Array:
    """A check value that passes, of the type `aval`."""
    zeros = jnp.zeros(aval.shape, aval.dtype)
    if split(aval):
        zeros = jax.sharding.reshard(zeros, aval.sharding.spec)
    axes = tuple(sorted(aval.vma if hasattr(aval, "vma") else aval.manual_axis_type.varying))
    return jax.lax.pcast(zeros, axes, to="varying") if axes else zeros


def _in_loop(what: str, why: str) -> NotImplementedError:
    return NotImplementedError(
        f"atbfn.intermediates: got steps of an operator inside {what}, {why}; capture the function that is called "
        "inside it by itself, or use jax.lax.scan, or a Python loop or branch, while looking at steps"
    )
