"""What each target can do, and the choice between targets at lowering time.

The plain form of an operator is its `xla` lowering, on every platform: it is always there. Another target adds an
`Implementation` of an operator with `register`. `target="auto"` stays unresolved until the platform is known, then
takes the first registered target that can do the call and falls back to `xla`, saying why once in the log.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from typing import Any, NoReturn

import jax
from jax.interpreters import mlir

from atbfn.primitives.errors import message
from atbfn.primitives.operator import Operator, Outputs, operators

logger = logging.getLogger("atbfn.lowering")

TARGETS = ("xla", "cpu", "ascendc", "torch_npu")

# `auto` tries them in this order, where they exist for the platform, before `xla`.
_PREFERENCE = ("cpu", "ascendc")

_UNSPLITTABLE = (
    "XLA cannot split its custom call over the devices of a plain jit and would gather the operands (shard_map can)"
)


@dataclasses.dataclass(frozen=True)
class Implementation:
    """One operator on one target.

    Args:
      form: `form(spec, args) -> Outputs`, traced into the program in place of the plain form.
      refuses: `refuses(spec, args) -> reason or None`; `args` have `.shape` and `.dtype`.
      platforms: XLA platforms on which the form can run.
      backward: the target's form of the operator's `backward`, or None: the plain one, compiled by XLA.
      declines: as `refuses`, for calls that the form can do but another target does better; `auto` only.
      refuses_backward: as `refuses`, for `backward`, of a call that was not refused.
    """

    form: Callable[[Any, Any], Outputs]
    refuses: Callable[[Any, Any], str | None]
    platforms: tuple[str, ...]
    backward: Callable[[Any, Any, tuple[Any, ...], tuple[Any, ...]], Any] | None = None
    refuses_backward: Callable[[Any, Any], str | None] = lambda spec, args: None
    declines: Callable[[Any, Any], str | None] = lambda spec, args: None


@dataclasses.dataclass(frozen=True)
class TargetStatus:
    """Whether a target works in this process. `reason` says why not, and is None when it does."""

    name: str
    reason: str | None
    operators: tuple[str, ...]


_implementations: dict[tuple[str, str], Implementation] = {}
_unavailable: dict[str, str] = {
    "cpu": "no native kernel is registered",
    "ascendc": "the Ascend C target is not part of this version",
    "torch_npu": "the torch_npu target is not part of this version",
}
_told: set[tuple[str, str, str]] = set()


def register(operator: str, target: str, implementation: Implementation) -> None:
    """Add an operator to a target."""
    _implementations[operator, target] = implementation
    _unavailable.pop(target, None)


def set_unavailable(target: str, reason: str) -> None:
    """Record why a target cannot work in this process."""
    _unavailable[target] = reason


def status() -> tuple[TargetStatus, ...]:
    """Every target, whether it works here, and the operators it has a lowering for."""
    found = []
    for target in TARGETS:
        names = operators if target == "xla" else (op for op, t in _implementations if t == target)
        found.append(TargetStatus(target, _unavailable.get(target), tuple(sorted(names))))
    return tuple(found)


def why_not(operator: str, target: str, spec: Any, args: Any) -> str | None:
    """The reason why `target` cannot do this call, or None if it can."""
    if target in ("auto", "xla"):
        return None
    if (operator, target) not in _implementations:
        return _unavailable.get(target) or f"it has no kernel for {operator}"
    return _implementations[operator, target].refuses(spec, args)


def require(operator: str, target: str, spec: Any, args: Any) -> None:
    """Raise NotImplementedError, with the reason, if an explicitly named target cannot do the call."""
    reason = why_not(operator, target, spec, args)
    if reason is not None:
        _refuse(operator, target, reason)


def _refuse(operator: str, target: str, reason: str) -> NoReturn:
    fix = f"{reason}; use target='auto' or 'xla'"
    raise NotImplementedError(message(operator, "target", repr(target), "a target that can do this call", fix))


def _is_partitioned(ctx: Any) -> bool:
    """Whether XLA's partitioner will split this program: plain `jit` over several devices, not inside `shard_map`."""
    axis_context = ctx.module_context.axis_context
    manual = getattr(axis_context, "manual_axes", None)
    if manual is not None:  # inside shard_map; what is not manual is still the partitioner's
        return frozenset(axis_context.mesh.axis_names) != frozenset(manual)
    return (getattr(axis_context, "num_devices", None) or 1) > 1


def _choose(
    operator: Operator, platforms: tuple[str, ...], partitioned: bool, spec: Any, args: Any
) -> Callable[[Any, Any], Outputs]:
    target = spec.target
    if target == "xla":
        return operator.plain
    if target != "auto":
        require(operator.name, target, spec, args)
        chosen = _implementations[operator.name, target]
        reason = None if set(platforms) <= set(chosen.platforms) else f"it runs on {chosen.platforms}, not {platforms}"
        if partitioned:
            reason = reason or _UNSPLITTABLE
        if reason is not None:
            _refuse(operator.name, target, reason)
        return chosen.form
    for candidate in _PREFERENCE:
        implementation = _implementations.get((operator.name, candidate))
        if implementation is None or not set(platforms) <= set(implementation.platforms):
            continue
        reason = implementation.refuses(spec, args) or implementation.declines(spec, args)
        if partitioned:
            reason = reason or _UNSPLITTABLE
        if reason is None:
            return implementation.form
        if (operator.name, candidate, reason) not in _told:
            _told.add((operator.name, candidate, reason))
            logger.info("%s: target auto uses xla, not %s: %s", operator.name, candidate, reason)
    return operator.plain


def _lower_primal(operator: Operator) -> Callable[..., Any]:
    def rule(ctx: Any, *operands: Any, spec: Any, tree: Any, levels: Any) -> Any:
        args = jax.tree.unflatten(tree, ctx.avals_in)
        form = _choose(operator, tuple(ctx.module_context.platforms), _is_partitioned(ctx), spec, args)

        def outputs(*leaves: Any) -> list[Any]:
            return operator.outputs(*leaves, spec=spec, tree=tree, levels=levels, form=form)

        outputs.__name__ = operator.name
        return mlir.lower_fun(outputs, multiple_results=True)(ctx, *operands)

    return rule


def _lower_backward(operator: Operator) -> Callable[..., Any]:
    def rule(ctx: Any, *operands: Any, spec: Any, tree: Any, wrt: Any, levels: Any) -> Any:
        args = jax.tree.unflatten(tree, ctx.avals_in[: tree.num_leaves])
        form = _choose_backward(operator, tuple(ctx.module_context.platforms), _is_partitioned(ctx), spec, args)

        def cotangents(*leaves: Any) -> list[Any]:
            return operator.cotangents(*leaves, spec=spec, tree=tree, wrt=wrt, levels=levels, backward=form)

        cotangents.__name__ = f"{operator.name}_bwd"
        return mlir.lower_fun(cotangents, multiple_results=True)(ctx, *operands)

    return rule


def _choose_backward(
    operator: Operator, platforms: tuple[str, ...], partitioned: bool, spec: Any, args: Any
) -> Callable[..., Any] | None:
    """A target's backward form; None where the plain one is better, or all there is."""
    for candidate in _PREFERENCE if spec.target == "auto" else (spec.target,):
        found = _implementations.get((operator.name, candidate))
        if found is None or found.backward is None or partitioned or not set(platforms) <= set(found.platforms):
            continue
        if found.refuses(spec, args) is None and found.refuses_backward(spec, args) is None:
            return found.backward
    return None


def register_lowerings() -> None:
    """Give every operator's primitives their lowering, for every platform."""
    for operator in operators.values():
        mlir.register_lowering(operator.primitive, _lower_primal(operator))
        mlir.register_lowering(operator.lin, mlir.lower_fun(operator.tangents, multiple_results=True))
        mlir.register_lowering(operator.bwd, _lower_backward(operator))
