"""A small operator with marks, as the public operators leave them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from atbfn.fusion import resolve
from atbfn.primitives import tag


def _toy(x: jax.Array, w: jax.Array, *, mode: str | None = None) -> jax.Array:
    """gate = sin(x w), out = gate + x; x [..., n], w [n, n]. Checks: abs(x) is at most 4, and finite."""
    resolved = resolve("toy", mode=mode)
    call = tag.Call(resolved.path, "toy")
    gate = jnp.sin(x @ w)
    if resolved.mode == "step_by_step":
        gate = call.step("gate", gate, also={"size": jnp.sum(x, -1)})
    out = gate + x
    if resolved.mode == "step_by_step":
        return call.step("out", out)
    if resolved.mode == "fused_with_checkpoints":
        finite = jnp.where(jnp.all(jnp.isfinite(x), -1), 0.0, jnp.inf)
        checks = [("gate", "range", jnp.max(jnp.abs(x), -1) / 4), ("gate", "finite", finite), ("out", "finite", finite)]
        return call.check(out, checks)
    return out


@pytest.fixture
def toy() -> Callable[..., Any]:
    return _toy
