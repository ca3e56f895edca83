"""What can be configured, and the checks of a value wherever it comes from."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable
from typing import Any

MODES = ("step_by_step", "fused", "fused_with_checkpoints")
TARGETS = ("auto", "xla", "cpu", "ascendc", "torch_npu")


class ConfigError(ValueError):
    """A configuration file or environment variable that cannot be used. The message says where, what and the fix."""


def nearest(value: str, choices: Iterable[str]) -> str | None:
    """The choice that `value` is most likely a misspelling of."""
    found = difflib.get_close_matches(value, list(choices), n=1, cutoff=0.5)
    return found[0] if found else None


def _choice(where: str, field: str, value: Any, choices: tuple[str, ...]) -> str:
    listed = ", ".join(repr(choice) for choice in choices)
    if not isinstance(value, str):
        raise TypeError(f"{where}: {field}: got {value!r} of type {type(value).__name__}; expected one of {listed}")
    if value not in choices:
        guess = nearest(value, choices)
        hint = f"; did you mean {guess!r}?" if guess else ""
        raise ValueError(f"{where}: {field}: got {value!r}; expected one of {listed}{hint}")
    return str(value)


def check_field(where: str, field: str, value: Any) -> Any:
    """The value of a configuration field, checked.

    Args:
      where: what the error message names first: an operator, `fusion`, or a file and line.
      field: a field of `FusionConfig`.
      value: any object.

    Raises:
      TypeError: the value is of the wrong type, unhashable ones included.
      ValueError: the value is not among the choices; the message names them and the nearest one.
    """
    if field == "mode":
        return _choice(where, field, value, MODES)
    if field == "target":
        return _choice(where, field, value, TARGETS)
    if field == "cross_precision":
        if not isinstance(value, bool):
            raise TypeError(f"{where}: {field}: got {value!r} of type {type(value).__name__}; expected True or False")
        return value
    raise AssertionError(field)


@dataclasses.dataclass(frozen=True)
class FusionConfig:
    """How operators run. Frozen and hashable: it is part of JAX's jit cache key.

    Args:
      mode: "step_by_step" (one primitive per step), "fused" (one primitive per operator), or
        "fused_with_checkpoints" (fused, and check values at the named nodes; see `atbfn.checkpoint`).
      target: what runs the operators: "auto" (decided when the call is lowered for a platform), "xla", "cpu",
        "ascendc" or "torch_npu". An explicit target that cannot do a call raises.
      cross_precision: True lets an operator's floating-point arguments have different dtypes; False raises.

    Raises:
      TypeError, ValueError: a field's value is of the wrong type or not among the choices.
    """

    mode: str = "fused"
    target: str = "auto"
    cross_precision: bool = False

    def __post_init__(self) -> None:
        for field in FIELDS:
            check_field("FusionConfig", field, getattr(self, field))


FIELDS: tuple[str, ...] = tuple(field.name for field in dataclasses.fields(FusionConfig))

Settings = tuple[tuple[str, Any], ...]
"""Some of the fields of `FusionConfig` with their values, in the order of `FIELDS`."""


def settings(where: str, given: dict[str, Any]) -> Settings:
    """The fields that are not None, checked."""
    return tuple((name, check_field(where, name, given[name])) for name in FIELDS if given.get(name) is not None)


def merge(below: Settings, above: Settings) -> Settings:
    """`below`, overridden by `above`."""
    merged = dict(below) | dict(above)
    return tuple((name, merged[name]) for name in FIELDS if name in merged)
