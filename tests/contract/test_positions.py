"""Traced positions, lengths and layers outside the cache: nothing is written, the output is NaN, the others go on."""

from __future__ import annotations

from typing import Any

import chex
import numpy as np
from absl.testing import parameterized
from hypothesis import given

from tests.contract.harness import check_call, examples, run, ways
from tests.strategies import CALLS, DTYPES, kv_cache_calls, rope_calls


class Outside(chex.TestCase):
    """The reference keeps the caches of such sequences and has NaN for their output."""

    @chex.variants(with_jit=True)
    @parameterized.named_parameters((dtype, dtype) for dtype in DTYPES)
    def test_kv_cache_update(self, dtype: str) -> None:
        @examples(12, dtype)
        @given(kv_cache_calls(dtype, outside=True))
        def agrees(call: Any) -> None:
            for mode, target in ways("kv_cache_update"):
                check_call(call, run(call, mode, target, self.variant), mode, target)

        agrees()

    @chex.variants(with_jit=True)
    def test_attention(self) -> None:
        @examples(3)
        @given(CALLS["attention_with_kv_cache"]("float32", outside=True))
        def agrees(call: Any) -> None:
            for mode, target in ways("attention_with_kv_cache"):
                check_call(call, run(call, mode, target, self.variant), mode, target)

        agrees()

    @chex.variants(with_jit=True)
    def test_rope(self) -> None:
        @examples(4)
        @given(rope_calls("float32"))
        def is_nan_outside(call: Any) -> None:
            for pos in (-2, 429, 2**31 - 3):
                arrays = dict(call.arrays) | {"pos": np.int32(pos)}
                q_len = call.arrays["x"].shape[2]
                rotated = 2 * call.arrays["table"].cos.shape[1]
                moved = type(call)(call.operator, arrays, {}, call.steps, call.outputs, call.op_class, call.dtype)
                (out,) = run(moved, "fused", "xla", self.variant)
                positions = pos + np.arange(q_len)
                outside = (positions < 0) | (positions >= 431)
                assert (np.isnan(out[..., :rotated]).all(axis=(0, 1, 3)) == outside).all()

        is_nan_outside()
