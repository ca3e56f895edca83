"""Layer names, and the patterns that settings are attached to.

A name is a path such as `decoder/3/mlp`. A component `*` in a *name* stands for every layer of one `jax.lax.scan`,
whose body is traced once. A pattern is a path too; each of its components is a shell-style pattern (`*`, `?`, `[0-3]`)
for one component of the name, and it covers the named layer and all that is inside it.
"""

from __future__ import annotations

import fnmatch
import functools
from typing import Any

from atbfn.fusion.config import FIELDS, Settings, nearest, settings

Pattern = tuple[str, Settings]
"""A path pattern and what it sets."""

_SCANNED = tuple(str(index) for index in range(1000))
"""What the component `*` of a name may stand for: the layers of a scan are numbered."""


def check_name(name: Any) -> tuple[str, ...]:
    """The components of a layer name."""
    if not isinstance(name, str):
        raise TypeError(f"layer: name: got {name!r} of type {type(name).__name__}; expected a string like 'decoder/3'")
    parts = tuple(name.split("/"))
    for part in parts:
        if not part or (part != "*" and any(c in part for c in "*?[]")):
            raise ValueError(
                f"layer: name: got {name!r}; expected components separated by '/', each not empty and either without "
                "wildcards or '*' alone, which stands for every layer of a scan; e.g. 'decoder/3' or 'decoder/*'"
            )
    return parts


def check_pattern(where: str, pattern: Any) -> str:
    """A pattern, checked."""
    if not isinstance(pattern, str) or not all(pattern.split("/")):
        raise ValueError(
            f"{where}: layers: got the pattern {pattern!r}; expected a string of components separated by '/', "
            "e.g. 'decoder/3', 'decoder/[0-3]' or 'decoder/*/mlp'"
        )
    return pattern


def check_patterns(where: str, layers: Any) -> tuple[Pattern, ...]:
    """Patterns given from Python as `{pattern: {field: value}}`."""
    if not isinstance(layers, dict):
        raise TypeError(
            f"{where}: layers: got {layers!r} of type {type(layers).__name__}; expected a dict like "
            "{'decoder/3': {'mode': 'step_by_step'}}"
        )
    checked = []
    for pattern, given in layers.items():
        check_pattern(where, pattern)
        if not isinstance(given, dict) or not given:
            raise TypeError(
                f"{where}: layers[{pattern!r}]: got {given!r}; expected a dict of settings like "
                "{'mode': 'step_by_step'}"
            )
        for field in given:
            if field not in FIELDS:
                guess = nearest(str(field), FIELDS)
                raise ValueError(
                    f"{where}: layers[{pattern!r}]: got the setting {field!r}; expected one of {', '.join(FIELDS)}"
                    + (f"; did you mean {guess!r}?" if guess else "")
                )
        checked.append((pattern, settings(f"{where}: layers[{pattern!r}]", given)))
    return tuple(checked)


@functools.lru_cache(maxsize=4096)
def _component(name: str, pattern: str) -> str:
    """Whether the pattern matches "all", "some" or "none" of what a component of a name stands for."""
    if name != "*":
        return "all" if fnmatch.fnmatchcase(name, pattern) else "none"
    matched = sum(fnmatch.fnmatchcase(index, pattern) for index in _SCANNED)
    return "all" if matched == len(_SCANNED) else "some" if matched else "none"


@functools.lru_cache(maxsize=4096)
def match(path: tuple[str, ...], pattern: str) -> str:
    """Whether a pattern covers "all", "some" or "none" of the layers that a path stands for."""
    parts = pattern.split("/")
    if len(parts) > len(path):
        return "none"
    found = {_component(name, part) for name, part in zip(path, parts, strict=False)}
    return "none" if "none" in found else "some" if "some" in found else "all"


def lookup(patterns: tuple[Pattern, ...], path: tuple[str, ...], field: str, operator: str) -> Any:
    """The value that the last matching pattern gives a field, or None.

    Raises:
      ValueError: a pattern that sets the field covers some of a scan's layers but not all of them.
    """
    for pattern, given in reversed(patterns):
        value = dict(given).get(field)
        if value is None:
            continue
        covered = match(path, pattern)
        if covered == "some":
            name = "/".join(path)
            raise ValueError(
                f"{operator}: layers: the pattern {pattern!r} (which sets {field}={value!r}) tells apart layers of one "
                f"scan, which are named {name!r} and traced once; expected a pattern that covers all of them or none; "
                f"write the pattern as {name!r}, or unroll the layers and name each one"
            )
        if covered == "all":
            return value
    return None
