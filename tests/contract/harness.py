"""What every contract test shares: the ways to run an operator, and the checks of one call on all of them."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Container, Mapping
from typing import Any

import chex
import numpy as np
import pytest
from hypothesis import reject, seed, settings

import atbfn
from tests.strategies import DTYPES, Call
from tests.tolerance import SHORT_ROW, assert_discriminates, check, unit

MODES = ("fused", "step_by_step", "fused_with_checkpoints")

SINGLE_OPERATORS = frozenset(["linear", "activation", "softmax", "layernorm", "rmsnorm", "rope", "kv_cache_update"])
"""They run alike in every mode, and are tested in one."""

PRIMITIVES = {
    "layernorm": "norm",
    "rmsnorm": "norm",
    "layernorm_residual": "norm_residual",
    "rmsnorm_residual": "norm_residual",
}
"""What the table of targets calls an operator, where that is another name."""

CHAINS = frozenset(["layernorm_residual", "rmsnorm_residual", "fused_ffn", "self_attention", "attention_with_kv_cache"])
"""Step by step these round two to nine values on the way, each to half a spacing."""

CHAIN_UNITS = {"float32": 1.0, "bfloat16": 2.0, "float16": 1.0}
"""Units that a chain run step by step is allowed; also any chain with a width below `SHORT_ROW` (twice that for both).

Half a spacing of bfloat16 is up to 2^-8 of a value, half the table's unit of 2^-7, and 0.2 units in the mean. Two of
them may add up to the unit and more; eight, independent of each other, make 0.6 units, which one entry in ten exceeds
by two thirds. Sums of few terms cancel, and a norm behind them magnifies what is left. In float16 half a spacing is an
eighth of the unit, and no chain here comes near it.
"""

OUTLIERS = {"float32": 0.0, "bfloat16": 1 / 200, "float16": 0.0}
"""Share of a chain's entries that may be off by up to twice the bound: the fused forms round a few values too."""

NATIVE_OUTLIERS = {**OUTLIERS, "bfloat16": 1 / 100}
"""The same on native kernels, which round probabilities to bfloat16 too: that adds a seventh of a unit (rms)."""

AGREEMENT = {"float32": (1 / 8, 1 / 16), "bfloat16": (3 / 2, 3 / 4), "float16": (3 / 4, 1 / 4)}
"""How close the modes are to each other, in units of the bound against the reference: each entry, and the rms of all.

float32: they add the same numbers in another order, errors of a few 2^-24 beside a unit of 2^-11 or 2^-12.
16 bit: step by step each step is rounded where the fused form is not (see `CHAIN_UNITS`). In bfloat16 one spacing is
the unit itself, so that two results that round to neighbours are a unit apart: there only the rms can be held tighter.
"""

MINIMUM_FOR_RMS = 32
"""With fewer entries the rms is little else than the largest of them."""


def ways(operator: str) -> tuple[tuple[str, str], ...]:
    """(mode, target) pairs to test an operator in; the first is the one that the others are compared to."""
    modes = MODES[:1] if operator in SINGLE_OPERATORS else MODES
    found = [(mode, "xla") for mode in modes]
    for status in atbfn.lowering.status():
        if status.name != "xla" and status.reason is None and PRIMITIVES.get(operator, operator) in status.operators:
            # Step by step, every step needs a kernel of the target, and the check values are made around its kernels.
            found.append(("fused", status.name))
    return tuple(found)


def examples(count: int, *name: str) -> Callable[[Any], Any]:
    """Decorator of a Hypothesis test: how many examples, other ones for each name, and the same in every run.

    Under the profile "explore" twenty times as many, and new ones in every run.
    """
    if not settings.default.derandomize:
        return settings(max_examples=20 * count)
    return lambda test: settings(max_examples=count)(seed(zlib.crc32(" ".join(name).encode()))(test))


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


def check_call(call: Call, outs: tuple[np.ndarray, ...], mode: str, target: str) -> None:
    """Every output of a call that ran in a mode on a target within the table."""
    for out, step in zip(outs, call.outputs, strict=True):
        what = f"{call.operator} {mode} on {target}: {step}"
        check_step(call, step, out, what, units(call, mode), native=target == "cpu")


def units(call: Call, mode: str) -> float:
    """How many units a result may be off."""
    if call.operator not in CHAINS:
        return 1.0
    factor = CHAIN_UNITS[call.dtype]
    return (factor if mode == "step_by_step" else 1.0) * (factor if call.width < SHORT_ROW else 1.0)


def check_step(
    call: Call,
    step: str,
    actual: Any,
    what: str,
    unit_scale: float = 1.0,
    expected: Any = None,
    native: bool = False,
) -> None:
    """One step within the table, of the class that the operator has; `expected`: other than the reference."""
    check(
        actual,
        call.steps[step] if expected is None else expected,
        call.op_class,
        call.dtype,
        reduction=call.reduction,
        unit_scale=unit_scale,
        outliers=(NATIVE_OUTLIERS if native else OUTLIERS)[call.dtype] if call.operator in CHAINS else 0.0,
        what=what,
    )


def check_everywhere(call: Call, variant: Callable[..., Any], *, targets: Container[str] | None = None) -> None:
    """The call in every mode on every target: within the table, and the modes closer to each other than that.

    And the table must tell: zeros, and what the reference makes of reordered inputs, are out of its bounds. `targets`:
    None for all.
    """
    first = None
    for mode, target in ways(call.operator):
        if targets is not None and target not in targets:
            continue
        if target == "cpu" and callable(call.static.get("activation")):
            # No native kernel can hold a function of Python's: it must say so, and nothing else may be refused.
            with pytest.raises(NotImplementedError, match="not a function"):
                run(call, mode, target, variant)
            continue
        outs = run(call, mode, target, variant)
        check_call(call, outs, mode, target)
        if first is None:
            first = outs
            continue
        for ours, theirs, step in zip(outs, first, call.outputs, strict=True):
            what = f"{call.operator} {mode} on {target} against {ways(call.operator)[0]}: {step}"
            check_agreement(call, step, ours, np.asarray(theirs).astype(np.float64), what)
    check_discrimination(call)


def check_agreement(call: Call, step: str, ours: np.ndarray, theirs: np.ndarray, what: str) -> None:
    """Two modes' results of one step within `AGREEMENT`."""
    each, together = AGREEMENT[call.dtype]
    check_step(call, step, ours, what, each * (CHAIN_UNITS[call.dtype] if call.width < SHORT_ROW else 1.0), theirs)
    finite = np.isfinite(theirs)
    if np.count_nonzero(finite) >= MINIMUM_FOR_RMS:
        error, size = np.sqrt(np.mean((ours.astype(np.float64) - theirs)[finite] ** 2)), np.mean(theirs[finite] ** 2)
        bound = together * units(call, "fused") * unit(call.op_class, call.dtype, call.reduction) * np.sqrt(size)
        assert error <= bound, f"{what}: rms of the difference {error:.3g}, bound {bound:.3g}"


def check_discrimination(call: Call) -> None:
    """The bounds of a call reject zeros and each of its wrong results; a call that cannot show it is drawn again."""
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
        loosest = max(units(call, mode) for mode, _ in ways(call.operator))

        def judge(a: Any, step: str = step, loosest: float = loosest) -> None:
            check_step(call, step, a, "wrong", loosest)

        assert_discriminates(judge, right.astype(np.float32))
        try:
            assert_discriminates(judge, right.astype(np.float32), **wrong)
        except AssertionError:
            # A residual can outweigh what was reordered. Such a call is not counted as an example; a test whose
            # examples are all like that fails.
            reject()
