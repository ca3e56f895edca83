"""Step by step, every named step can be captured, and each agrees with the reference's step of that name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given

import atbfn
from tests.contract.harness import bound, check_step, examples, units
from tests.strategies import CALLS, DTYPES

CAPTURED = (
    "fused_ffn",
    "layernorm_residual",
    "rmsnorm_residual",
    "flash_attention",
    "self_attention",
    "attention_with_kv_cache",
)


@pytest.mark.parametrize(
    "operator, dtype",
    [(o, d) for o in CAPTURED for d in DTYPES if d == "bfloat16" or o not in ("flash_attention", "self_attention")],
)
def test_captured_steps_are_the_references(operator: str, dtype: str) -> None:
    attention = operator in ("self_attention", "attention_with_kv_cache")

    @examples(1 if "attention" in operator else 3, operator, dtype)
    @given(CALLS[operator](dtype, **({"padded": False} if attention else {})))
    def agrees(call: Any) -> None:
        fn = bound(operator, tuple(sorted(call.static.items())), "step_by_step", "xla")
        _, steps = atbfn.intermediates(fn)(dict(call.arrays))
        names = [name for name in call.steps if name != "lse"]
        assert list(steps) == [f"{operator}/{name}" for name in names]
        for name in names:
            step = np.asarray(steps[f"{operator}/{name}"])
            check_step(call, name, step, f"{operator} step {name}", units(call, "step_by_step"))

    agrees()
