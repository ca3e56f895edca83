"""The tables of `Rope.create` are the reference's, scaled as Llama 3 does or linearly."""

from __future__ import annotations

import numpy as np
import pytest

import atbfn
from atbfn.reference import rope as ref_rope


@pytest.mark.parametrize("scaling", [None, "llama3", "linear"])
@pytest.mark.parametrize("rotary_dim, theta", [(64, 500000.0), (42, 10000.0)])
def test_tables(rotary_dim: int, theta: float, scaling: str | None) -> None:
    freqs = ref_rope.frequencies(rotary_dim, theta)
    settings = {None: None, "llama3": atbfn.Llama3Scaling(8.0, 1.0, 4.0, 8192), "linear": atbfn.LinearScaling(4.0)}
    if scaling == "llama3":
        freqs = ref_rope.llama3_frequencies(freqs, 8.0, 1.0, 4.0, 8192)
    elif scaling == "linear":
        freqs = freqs / 4
    cos, sin = ref_rope.tables(freqs, 20000)
    table = atbfn.Rope.create(64, 20000, theta=theta, scaling=settings[scaling], rotary_dim=rotary_dim)
    # Rounding to float32 is 2^-25 of at most 1; the angles, up to 20000 radians, are float64 in both.
    np.testing.assert_allclose(np.asarray(table.cos), cos, rtol=0, atol=2.0**-24)
    np.testing.assert_allclose(np.asarray(table.sin), sin, rtol=0, atol=2.0**-24)
