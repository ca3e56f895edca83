"""Every public operator agrees with its float64 reference, in every mode, on every target, jitted and eager.

Compiling is what these tests take, so each example is worth one: the fused operators of attention meet every kind of
mask, and over the kinds every dtype in every mode, jitted and eager.
"""

from __future__ import annotations

from typing import Any

import chex
from absl.testing import parameterized
from hypothesis import given

from tests.contract.harness import check_everywhere, examples
from tests.strategies import CALLS, DTYPES, MASKS

CHEAP = [name for name in CALLS if name not in ("flash_attention", "self_attention", "attention_with_kv_cache")]
BY_MASK = [
    (f"{operator}_{kind.replace(' ', '_')}", operator, kind, i)
    for operator in ("flash_attention", "attention_with_kv_cache")
    for i, kind in enumerate(MASKS)
]


class Contract(chex.TestCase):
    """One body for all operators."""

    def _agrees(self, count: int, operator: str, dtype: str, targets: Any = None, **options: Any) -> None:
        @examples(count, operator, dtype, *map(str, options.values()), str(self.variant.type))
        @given(CALLS[operator](dtype, **options))
        def agrees(call: Any) -> None:
            check_everywhere(call, self.variant, targets=targets)

        agrees()

    @chex.variants(with_jit=True, without_jit=True)
    @parameterized.named_parameters((f"{operator}_{dtype}", operator, dtype) for operator in CHEAP for dtype in DTYPES)
    def test_agrees(self, operator: str, dtype: str) -> None:
        self._agrees(6, operator, dtype)

    @chex.variants(with_jit=True, without_jit=True)
    @parameterized.named_parameters((dtype, dtype) for dtype in DTYPES)
    def test_self_attention_agrees(self, dtype: str) -> None:
        self._agrees(1, "self_attention", dtype)

    @chex.variants(with_jit=True)
    @parameterized.named_parameters(*BY_MASK)
    def test_agrees_for_mask(self, operator: str, kind: str, index: int) -> None:
        self._agrees(1, operator, list(DTYPES)[(index + 1) % 3], kind=kind)

    @chex.variants(without_jit=True)
    @parameterized.named_parameters(*BY_MASK[::3])
    def test_agrees_for_mask_eagerly(self, operator: str, kind: str, index: int) -> None:
        self._agrees(1, operator, list(DTYPES)[index // 3 % 3], targets=["xla"], kind=kind)

    @chex.variants(with_jit=True)
    @parameterized.named_parameters((operator, operator) for operator in CALLS)
    def test_empty_batch(self, operator: str) -> None:
        @examples(1, operator)
        @given(CALLS[operator]("float32", empty=True))
        def agrees(call: Any) -> None:
            assert all(call.steps[step].size == 0 for step in call.outputs)
            check_everywhere(call, self.variant)

        agrees()
