"""What goes wrong with Ascend C sources here."""

from __future__ import annotations


class AscendCError(RuntimeError):
    """A kernel broke a rule, did not compile, or was called with what it does not take.

    The text is the compiler's or the emulator's own: it starts with the user's `file:line` where there is one.
    """


class CompileError(AscendCError):
    """The C++ compiler refused the source; the text is all it said."""


class EmulatorUnavailable(AscendCError):
    """This machine cannot compile kernels: no suitable compiler, or the emulator's sources are not installed."""
