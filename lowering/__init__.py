"""Lowerings of every operator, one folder per target, and the table of what each target supports.

The `xla` target has no folder: an operator's plain form in `atbfn.primitives` is its lowering there.
"""

from atbfn.lowering.table import TARGETS, Implementation, register, require, set_unavailable, status, why_not


def register_all() -> None:
    """Register every target's kernels that work in this process, and the lowering of every operator."""
    # Here, not at the top: the targets' modules import the operators, which need this package's table first.
    from atbfn.lowering import cpu
    from atbfn.lowering.table import register_lowerings

    cpu.register_kernels()
    register_lowerings()


__all__ = [
    "TARGETS",
    "Implementation",
    "register",
    "register_all",
    "require",
    "set_unavailable",
    "status",
    "why_not",
]
