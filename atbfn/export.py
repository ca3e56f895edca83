"""`export`: a function with atbfn operators as a `jax.export` artifact."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import export as jax_export

from atbfn.fusion.context import fusion
from atbfn.lowering import CUSTOM_CALLS


def export(
    fn: Callable[..., Any], *, platforms: Sequence[str] | None = None, target: str = "xla"
) -> Callable[..., jax_export.Exported]:
    """`jax.export.export` of `fn`, portable by default.

    Args:
      fn: a function of arrays, jitted or not.
      platforms: as in `jax.export.export`; None for this machine's.
      target: what its operators are lowered to. "xla" needs nothing of atbfn where the artifact runs. "auto" and "cpu"
        may call this machine's compiled kernels: the artifact then runs only where atbfn is imported.

    Returns:
      A function of the same arguments (arrays or `jax.ShapeDtypeStruct`, symbolic shapes included) that returns the
      `jax.export.Exported`. It keeps the mode that it was made in. To write it to disk with `serialize()`, install
      `flatbuffers`, and let arguments and results be arrays, dicts, lists and tuples: `fn` can build
      `AttentionWeights` and its like from them, or close over them.

    Raises:
      NotImplementedError: an operator call that the target cannot do.
    """
    jitted: Any = fn if hasattr(fn, "lower") else jax.jit(fn)
    allowed = [] if target == "xla" else [jax_export.DisabledSafetyCheck.custom_call(name) for name in CUSTOM_CALLS]

    def exported(*args: Any, **kwargs: Any) -> jax_export.Exported:
        with fusion(target=target):
            return jax_export.export(jitted, platforms=platforms, disabled_checks=allowed)(*args, **kwargs)

    return exported
