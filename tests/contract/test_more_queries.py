"""More queries than keys: the first queries lie before position 0, and attend what the mask says of such positions."""

from __future__ import annotations

import numpy as np
import pytest

import atbfn
from atbfn.reference import attention as ref_attention
from tests.contract.harness import MODES
from tests.strategies import Maker, mask_pair
from tests.tolerance import check

POSITIONAL = ("causal", "window", "window and global", "full", "prefix", "block sparse")


@pytest.mark.parametrize("mode", MODES)
def test_queries_before_the_first_key(mode: str) -> None:
    make = Maker("float32", 0)
    q, k, v = make.x(2, 2, 9, 16), make.x(2, 1, 4, 16), make.x(2, 1, 4, 16)
    for kind in POSITIONAL:
        mask, allowed = mask_pair(kind, make.rng, 2, 2, 9, 4, -5)
        out, lse = atbfn.flash_attention(q, k, v, mask=mask, return_lse=True, mode=mode)
        expected = ref_attention.flash_attention(q, k, v, allowed)
        check(np.asarray(out), expected["context"], "attention", np.float32, what=f"{kind} {mode}")
        check(np.asarray(lse), expected["lse"], "attention", np.float32, what=f"{kind} {mode} lse")
