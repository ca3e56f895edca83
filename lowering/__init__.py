"""Lowerings of every operator, one folder per target, and the table of what each target supports.

The `xla` target has no folder: an operator's plain form in `atbfn.primitives` is its lowering there.
"""

from atbfn.lowering.table import TARGETS, Implementation, register, require, set_unavailable, status, why_not

__all__ = ["TARGETS", "Implementation", "register", "require", "set_unavailable", "status", "why_not"]
