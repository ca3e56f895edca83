"""What every contract test shares: the ways to run an operator, and the checks of one call on all of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import chex
import numpy as np

import atbfn
from tests.strategies import DTYPES, Call
from tests.tolerance import assert_discriminates, check

MODES = ("fused", "step_by_step", "fused_with_checkpoints")

SINGLE_OPERATORS = frozenset(["linear", "activation", "softmax", "layernorm", "rmsnorm", "rope", "kv_cache_update"])
"""They run alike in every mode, and are tested in one."""

AGREEMENT = {"float32": 1 / 8, "bfloat16": 1 / 2, "float16": 1 / 2}
"""How close the modes are to each other, in units of the bound against the reference.

float32: they add the same numbers in another order, errors of a few 2^-24 beside a unit of 2^-11 or 2^-12, which an
eighth still leaves room for. 16 bit: step_by_step rounds each step (half a spacing: 2^-9 in bfloat16, 2^-12 in float16)
where the fused form does not, which adds up to half the unit over the steps and sums behind one entry.
"""


def ways(operator: str) -> tuple[tuple[str, str], ...]:
    """(mode, target) pairs to test an operator in; the first is the one that the others are compared to."""
    modes = MODES[:1] if operator in SINGLE_OPERATORS else MODES
    found = [(mode, "xla") for mode in modes]
    for status in atbfn.lowering.status():
        if status.name != "xla" and status.reason is None and operator in status.operators:
            # Step by step, every step needs a kernel of the target, and the check values are made around its kernels.
            found.append(("fused", status.name))
    return tuple(found)


@functools.cache
def bound(operator: str, static: tuple[tuple[str, Any], ...], mode: str, target: str) -> Callable[..., Any]:
    """The operator as a function of a dict of arrays; the same object for the same settings, so that jit knows it."""

    def function(arrays: Mapping[str, Any]) -> Any:
        out = getattr(atbfn, operator)(**arrays, **dict(static), mode=mode, target=target)
        return out if isinstance(out, tuple) else (out,)

    return function


def run(call: Call, mode: str, target: str, variant: Callable[..., Any]) -> tuple[np.ndarray, ...]:
    """The outputs of a call, in its dtype."""
    fn = bound(call.operator, tuple(sorted(call.static.items())), mode, target)
    outs = variant(fn)(dict(call.arrays))
    outs = tuple(np.asarray(out) for out in outs)
    assert len(outs) == len(call.outputs)
    for out, step in zip(outs, call.outputs, strict=True):
        chex.assert_shape(out, call.steps[step].shape)
        assert out.dtype == (np.float32 if step == "lse" else DTYPES[call.dtype]), f"{step}: {out.dtype}"
    return outs


def check_call(call: Call, outs: tuple[np.ndarray, ...], what: str) -> None:
    """Every output within the table."""
    for out, step in zip(outs, call.outputs, strict=True):
        check_step(call, step, out, f"{what}: {step}")


def check_step(call: Call, step: str, actual: Any, what: str, unit_scale: float = 1.0, expected: Any = None) -> None:
    """One step within the table, of the class that the operator has; `expected`: other than the reference."""
    expected = call.steps[step] if expected is None else expected
    check(actual, expected, call.op_class, call.dtype, reduction=call.reduction, unit_scale=unit_scale, what=what)


def check_everywhere(call: Call, variant: Callable[..., Any]) -> None:
    """The call in every mode on every target: within the table, and the modes closer to each other than that.

    And the table must tell: zeros, and what the reference makes of reordered inputs, are out of its bounds.
    """
    first = None
    for mode, target in ways(call.operator):
        outs = run(call, mode, target, variant)
        check_call(call, outs, f"{call.operator} {mode} on {target}")
        if first is None:
            first = outs
            continue
        for ours, theirs, step in zip(outs, first, call.outputs, strict=True):
            what = f"{call.operator} {mode} on {target} against {ways(call.operator)[0]}: {step}"
            check_step(call, step, ours, what, AGREEMENT[call.dtype], np.asarray(theirs).astype(np.float64))
    check_discrimination(call)


def check_discrimination(call: Call) -> None:
    """The bounds of a call reject zeros and every one of its wrong results that differs from the right one at all."""
    for step in call.outputs:
        right = call.steps[step].astype(np.float64)
        if not np.any(np.isfinite(right) & (right != 0)):
            continue  # nothing attended, an empty batch, ...: zeros are the answer
        wrong = {f"{step} with reordered {name}": steps[step] for name, steps in call.wrong.items()}
        wrong = {
            name: w
            for name, w in wrong.items()
            if not np.allclose(w.astype(np.float64), right, 1e-9, 0, equal_nan=True)
        }
        assert_discriminates(lambda a, step=step: check_step(call, step, a, "wrong"), right.astype(np.float32), **wrong)
