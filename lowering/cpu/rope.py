"""`rope` by a native kernel."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from atbfn.fusion.machine import this_machine
from atbfn.lowering.cpu import calls
from atbfn.primitives.operator import Outputs
from atbfn.primitives.rope import RopeArgs, RopeSpec

TARGET = "atbfn_rope"


def form(spec: RopeSpec, args: RopeArgs) -> Outputs:
    """The operator as one call."""
    call = jax.ffi.ffi_call(TARGET, calls.shape(args.x), vmap_method="sequential")
    pos = jnp.asarray(args.pos, jnp.int32).reshape(-1)
    interleaved = np.bool_(args.table.style == "interleaved")
    cos, sin = jnp.asarray(args.table.cos), jnp.asarray(args.table.sin)
    return Outputs((call(args.x, pos, cos, sin, interleaved=interleaved, threads=np.int64(this_machine().cores)),))


def refuses(spec: RopeSpec, args: RopeArgs) -> str | None:
    """Why the kernel cannot do a call, or None."""
    if any(t.dtype != jnp.float32 for t in (args.table.cos, args.table.sin)):
        return "the native kernel takes rotary tables in float32"
    return calls.refuses_dtype(args.x)
