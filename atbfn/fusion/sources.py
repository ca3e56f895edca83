"""Configuration from the environment and from a YAML file."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

import yaml

from atbfn.fusion.config import FIELDS, ConfigError, FusionConfig, Settings, check_field, merge, nearest
from atbfn.fusion.layers import Pattern, check_pattern

FILE_VARIABLE = "ATBFN_CONFIG"
VARIABLES = {"mode": "ATBFN_MODE", "target": "ATBFN_TARGET", "cross_precision": "ATBFN_CROSS_PRECISION"}
_WORDS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


@dataclasses.dataclass(frozen=True)
class Defaults:
    """The process-wide configuration: what applies where no argument and no context says otherwise."""

    config: FusionConfig = dataclasses.field(default_factory=FusionConfig)
    layers: tuple[Pattern, ...] = ()


def read(environ: Mapping[str, str] | None = None) -> Defaults:
    """Read the environment and the file that `ATBFN_CONFIG` names.

    Raises:
      ConfigError: a value is not valid, or the file cannot be read. The message names the variable or file and line.
    """
    environ = os.environ if environ is None else environ
    below: Settings = ()
    patterns: tuple[Pattern, ...] = ()
    path = environ.get(FILE_VARIABLE)
    if path:
        below, patterns = read_file(path)
    merged = merge(below, _from_environment(environ))
    return Defaults(FusionConfig(**dict(merged)), patterns)


def _from_environment(environ: Mapping[str, str]) -> Settings:
    found = {}
    for field in FIELDS:
        text: Any = environ.get(VARIABLES[field])
        if not text:  # an empty variable is one that is not set
            continue
        where = f"environment variable {VARIABLES[field]}"
        if field == "cross_precision":
            if text.lower() not in _WORDS:
                raise ConfigError(f"{where}: got {text!r}; expected 1 or 0 (or true, false, yes, no, on, off)")
            text = _WORDS[text.lower()]
        found[field] = _checked(where, field, text)
    return merge((), tuple(found.items()))


def _checked(where: str, field: str, value: Any) -> Any:
    try:
        return check_field(where, field, value)
    except (TypeError, ValueError) as error:
        raise ConfigError(str(error)) from None


def read_file(path: str | os.PathLike[str]) -> tuple[Settings, tuple[Pattern, ...]]:
    """Read a YAML file of settings and, under `layers`, of settings by layer pattern.

        mode: fused
        target: auto
        cross_precision: false
        layers:
          decoder/3: {mode: step_by_step}

    Raises:
      ConfigError: the file cannot be read, is not YAML, or holds what is not a setting. The message gives file and
        line, and for a misspelt key or value the nearest valid one.
    """
    path = os.fspath(path)
    try:
        with open(path, encoding="utf-8") as file:
            root = yaml.compose(file, Loader=yaml.SafeLoader)
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read: {error.strerror}; set {FILE_VARIABLE} to a YAML file, or unset it"
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not a text file in UTF-8 ({error.reason} at byte {error.start})") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        raise ConfigError(f"{path}{line}: not valid YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML: {error}") from None
    if root is None or (isinstance(root, yaml.ScalarNode) and not root.value):
        return (), ()
    found: dict[str, Any] = {}
    patterns: list[Pattern] = []
    for key, key_node, node in _entries(path, root, "the file", (*FIELDS, "layers")):
        if key == "layers":
            patterns = _layers(path, node)
        else:
            found[key] = _scalar(path, key_node, key, node)
    return merge((), tuple(found.items())), tuple(patterns)


def _at(path: str, node: yaml.Node) -> str:
    return f"{path}:{node.start_mark.line + 1}"


def _entries(path: str, node: yaml.Node, what: str, keys: tuple[str, ...] | None) -> list[tuple[str, Any, Any]]:
    """The entries of a mapping. `keys` are the valid ones, or None if any string is."""
    if not isinstance(node, yaml.MappingNode):
        expected = f"a mapping with the keys {', '.join(keys)}" if keys else "a mapping of layer patterns to settings"
        kind = "a list" if isinstance(node, yaml.SequenceNode) else repr(node.value)
        raise ConfigError(f"{_at(path, node)}: {what}: got {kind}; expected {expected}")
    entries = []
    lines: dict[str, int] = {}
    for key_node, value_node in node.value:
        key = key_node.value
        where = _at(path, key_node)
        if not isinstance(key_node, yaml.ScalarNode):
            raise ConfigError(f"{where}: {what}: got a key that is not a string")
        if key in lines:
            raise ConfigError(f"{where}: {what}: the key {key!r} occurs twice (first in line {lines[key]}); keep one")
        lines[key] = key_node.start_mark.line + 1
        if keys is not None and key not in keys:
            guess = nearest(key, keys)
            hint = f"; did you mean {guess!r}?" if guess else ""
            raise ConfigError(f"{where}: {what}: unknown key {key!r}; expected one of {', '.join(keys)}{hint}")
        entries.append((key, key_node, value_node))
    return entries


def _scalar(path: str, key_node: yaml.Node, field: str, node: yaml.Node) -> Any:
    where = _at(path, node if isinstance(node, yaml.ScalarNode) and node.value else key_node)
    if not isinstance(node, yaml.ScalarNode):
        kind = "a list" if isinstance(node, yaml.SequenceNode) else "a mapping"
        raise ConfigError(f"{where}: {field}: got {kind}; expected a single value")
    try:
        value: Any = yaml.SafeLoader("").construct_object(node)
    except yaml.MarkedYAMLError as error:
        raise ConfigError(f"{where}: {field}: not valid YAML: {error.problem}") from None
    except ValueError as error:  # an explicit tag such as !!int on something else
        raise ConfigError(f"{where}: {field}: not valid YAML: {error}") from None
    return _checked(where, field, value)


def _layers(path: str, node: yaml.Node) -> list[Pattern]:
    patterns = []
    for pattern, key_node, value in _entries(path, node, "layers", None):
        try:
            check_pattern(_at(path, key_node), pattern)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        found = {}
        for field, field_node, scalar in _entries(path, value, f"layers: {pattern}", FIELDS):
            found[field] = _scalar(path, field_node, field, scalar)
        if not found:
            raise ConfigError(f"{_at(path, value)}: layers: {pattern}: sets nothing; give one of {', '.join(FIELDS)}")
        patterns.append((pattern, merge((), tuple(found.items()))))
    return patterns
