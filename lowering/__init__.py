"""Lowerings of every operator, one folder per target, and the table of what each target supports.

The `xla` target has no folder: an operator's plain form in `atbfn.primitives` is its lowering there.
"""

from atbfn.lowering import cpu
from atbfn.lowering.table import (
    TARGETS,
    Implementation,
    register,
    register_lowerings,
    require,
    set_unavailable,
    status,
    why_not,
)

CUSTOM_CALLS = cpu.CUSTOM_CALLS
"""Every custom call that a program with atbfn operators may hold; `atbfn.export` allows them."""


def register_all() -> None:
    """Register every target's kernels that work in this process, and the lowering of every operator."""
    cpu.register_kernels()
    register_lowerings()


__all__ = [
    "CUSTOM_CALLS",
    "TARGETS",
    "Implementation",
    "register",
    "register_all",
    "require",
    "set_unavailable",
    "status",
    "why_not",
]
