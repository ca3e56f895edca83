"""The feed-forward network of a Transformer: Vaswani et al., 2017; gated, Shazeer, "GLU Variants", 2020.

out = post_norm(act(n w_gate^T + b_gate) * (n w_up^T + b_up) w_down^T + b_down + residual), n = norm(x)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from atbfn.reference import norm as norms
from atbfn.reference.activation import activation as apply_activation
from atbfn.reference.linear import linear


def fused_ffn(
    x: Any,
    w_gate: Any,
    w_up: Any,
    w_down: Any,
    *,
    activation: str | Callable[[np.ndarray], np.ndarray] = "silu",
    b_gate: Any = None,
    b_up: Any = None,
    b_down: Any = None,
    norm: norms.LayerNorm | norms.RMSNorm | None = None,
    residual: Any = None,
    post_norm: norms.LayerNorm | norms.RMSNorm | None = None,
) -> dict[str, np.ndarray]:
    """Steps: `norm gate up act gated down summed out`; those that the arguments leave out are missing.

    x [..., hidden]; w_gate, w_up [intermediate, hidden]; w_down [hidden, intermediate]. With w_gate None the plain MLP:
    no `gate`, no `gated`, and the activation is that of `up`.
    """
    steps: dict[str, np.ndarray] = {}
    x = np.asarray(x).astype(np.float64)
    with np.errstate(all="ignore"):
        if norm is not None:
            x = steps["norm"] = norms.normalize(norm, x)
        if w_gate is not None:
            steps["gate"] = linear(x, w_gate, b_gate)["out"]
        steps["up"] = linear(x, w_up, b_up)["out"]
        inner = steps["act"] = apply_activation(steps["up" if w_gate is None else "gate"], activation)["out"]
        if w_gate is not None:
            inner = steps["gated"] = inner * steps["up"]
        out = steps["down"] = linear(inner, w_down, b_down)["out"]
        if residual is not None:
            out = steps["summed"] = out + np.asarray(residual).astype(np.float64)
        steps["out"] = out if post_norm is None else norms.normalize(post_norm, out)
    return steps
