"""NaN and infinities in the inputs come out where the formula and the mask say, and nowhere else."""

from __future__ import annotations

from typing import Any

import chex
import jax
import numpy as np
import pytest
from absl.testing import parameterized
from hypothesis import given

import atbfn
from atbfn.reference import attention as ref_attention
from tests.contract.harness import MODES, check_call, examples, run, ways
from tests.strategies import CALLS, DTYPES

EXAMPLES = {"fused_ffn": 4, "attention_with_kv_cache": 2, "self_attention": 1, "flash_attention": 3}


class NonFinite(chex.TestCase):
    """One NaN or infinity in each floating-point input that is not a weight."""

    @chex.variants(with_jit=True)
    @parameterized.named_parameters(
        (f"{operator}_{dtype}", operator, dtype)
        for i, operator in enumerate(CALLS)
        for dtype in (list(DTYPES) if operator not in EXAMPLES else [list(DTYPES)[i % 3]])
    )
    def test_come_out_where_the_reference_has_them(self, operator: str, dtype: str) -> None:
        @examples(EXAMPLES.get(operator, 5), operator, dtype)
        @given(CALLS[operator](dtype, poison=True))
        def agrees(call: Any) -> None:
            for mode, target in ways(operator):
                check_call(call, run(call, mode, target, self.variant), mode, target)

        agrees()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("mode", ["fused", "step_by_step"])
def test_a_masked_key_reaches_nothing_whatever_it_holds(mode: str, value: float) -> None:
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 2, 9, 8)).astype(np.float32) for _ in range(3))
    attend = jax.jit(lambda q, k, v: atbfn.flash_attention(q, k, v, mask=atbfn.Causal(window=3), mode=mode))
    clean = np.asarray(attend(q, k, v))
    for dirty in ("k", "v"):
        arrays = {"q": q, "k": k.copy(), "v": v.copy()}
        arrays[dirty][:, :, 4] = value
        out = np.asarray(attend(**arrays))
        touched = slice(4, 7)  # the queries whose window holds key 4
        np.testing.assert_array_equal(np.delete(out, touched, axis=2), np.delete(clean, touched, axis=2))
        if dirty == "v" or np.isnan(value):
            assert not np.isfinite(out[:, :, touched]).any()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("score", [1.0, np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("mode", MODES)
def test_one_key_with_a_nonfinite_score_and_value(mode: str, score: float, value: float) -> None:
    # 0 * inf, nan * inf and inf - inf are NaN in every mode, and the finite value beside them is what its score says.
    q, k, v = (np.ones((1, 1, 1, 2), np.float32) for _ in range(3))
    q[..., 0], v[..., 1] = score, value
    expected = ref_attention.flash_attention(q, k, v, np.ones((1, 1, 1, 1), bool))
    out, lse = atbfn.flash_attention(q, k, v, mask=atbfn.Full(), return_lse=True, mode=mode)
    np.testing.assert_array_equal(np.asarray(out), expected["context"])
    np.testing.assert_allclose(np.asarray(lse), expected["lse"], rtol=1e-6)
