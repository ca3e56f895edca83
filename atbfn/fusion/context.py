"""The configuration in force here and now, as part of JAX's jit cache key."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from typing import Any

import jax

from atbfn.fusion.config import FIELDS, Settings, check_field, merge, settings
from atbfn.fusion.layers import Pattern, check_name, check_patterns, lookup
from atbfn.fusion.sources import Defaults, read


@dataclasses.dataclass(frozen=True)
class _Scope:
    """What the enclosing `with` statements say, merged. At equal depth a pattern is above a plain setting."""

    settings: Settings = ()
    layers: tuple[Pattern, ...] = ()
    path: tuple[str, ...] = ()


# Both values are in JAX's jit key, so a function that was jitted under one is traced again under another. The scope is
# set per thread; the defaults are set for the whole process, and `reload_config` thereby makes jitted code stale.
_scope: Any = jax.make_user_context(_Scope())
_defaults: Any = jax.make_user_context(Defaults())


@dataclasses.dataclass(frozen=True)
class Resolved:
    """How one call of an operator runs.

    Args:
      mode, target, cross_precision: as in `FusionConfig`; target "auto" is decided when the call is lowered.
      path: the layer that the call is in, e.g. "decoder/3"; empty outside any `atbfn.layer`.
    """

    mode: str
    target: str
    cross_precision: bool
    path: str


class _Entered(contextlib.ContextDecorator):
    """A context manager that may be entered again while it is active, and from several threads."""

    def __init__(self) -> None:
        self._local = threading.local()

    def _next(self, scope: _Scope) -> _Scope:
        raise NotImplementedError

    def __enter__(self) -> None:
        # JAX's context object keeps the previous value on itself: one that is shared would restore the wrong one.
        entered = _scope(self._next(_scope.value))
        entered.__enter__()
        self._local.__dict__.setdefault("stack", []).append(entered)

    def __exit__(self, *exc: Any) -> None:
        self._local.stack.pop().__exit__(*exc)


class fusion(_Entered):
    """Configure the operators that are called, or traced, inside the `with` statement.

    Only what is given is overridden. An operator's own argument is above every context, and an inner context above an
    outer one; every context is above the environment and the configuration file. A function that was jitted outside is
    traced again inside. Other threads are not affected.

    Args:
      mode: "step_by_step", "fused" or "fused_with_checkpoints".
      target: "auto", "xla", "cpu", "ascendc" or "torch_npu".
      cross_precision: whether an operator's arguments may have different floating-point dtypes.
      layers: settings by layer pattern, e.g. `{"decoder/[0-3]": {"mode": "step_by_step"}}`. They are above the `mode`,
        `target` and `cross_precision` of the same `with`; of two patterns that match, the later counts. See
        `atbfn.layer` for what a pattern matches.

    Raises:
      TypeError, ValueError: a value is of the wrong type (unhashable ones included) or not among the choices.
    """

    def __init__(
        self,
        mode: str | None = None,
        target: str | None = None,
        cross_precision: bool | None = None,
        layers: dict[str, dict[str, Any]] | None = None,
    ) -> None:
        super().__init__()
        given = {"mode": mode, "target": target, "cross_precision": cross_precision}
        self._settings = settings("fusion", given)
        self._layers = () if layers is None else check_patterns("fusion", layers)

    def _next(self, scope: _Scope) -> _Scope:
        # What is set here is also above the patterns of outer contexts, so those lose it.
        mine = dict(self._settings)
        outer = []
        for pattern, given in scope.layers:
            kept = tuple((field, value) for field, value in given if field not in mine)
            if kept:
                outer.append((pattern, kept))
        return _Scope(merge(scope.settings, self._settings), (*outer, *self._layers), scope.path)


class layer(_Entered):
    """Name the layer that the operators inside the `with` statement belong to. Nested names are joined with "/".

    The name is the first part of the names of captured steps and of checked nodes, and settings can be attached to it:
    from a configuration file or `atbfn.fusion(layers=...)`. A pattern is a path whose components are shell-style
    patterns, and covers the layers it matches with all that is inside them: "decoder/[0-3]" covers "decoder/2/mlp".

    Args:
      name: e.g. "decoder/3". Inside the body of a `jax.lax.scan` over layers, which is traced once for all of them,
        "decoder/*". A pattern that covers only some of those raises.

    Raises:
      TypeError, ValueError: the name is not a string of non-empty components.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self._parts = check_name(name)

    def _next(self, scope: _Scope) -> _Scope:
        return dataclasses.replace(scope, path=(*scope.path, *self._parts))


def resolve(operator: str, *, mode: str | None = None, target: str | None = None) -> Resolved:
    """How a call of `operator` runs: argument > context > layer pattern > environment > file > default.

    A public operator calls this once, when it is traced; nothing below it reads the context again.

    Args:
      operator: the operator's name, for messages.
      mode, target: the call's own arguments.

    Raises:
      TypeError, ValueError: an argument is not among the choices, or a layer pattern tells apart layers of one scan.
    """
    scope: _Scope = _scope.value
    defaults: Defaults = _defaults.value
    arguments = {"mode": mode, "target": target}
    chosen = dict(scope.settings)
    values = {}
    for field in FIELDS:
        value = arguments.get(field)
        if value is not None:
            values[field] = check_field(operator, field, value)
            continue
        value = lookup(scope.layers, scope.path, field, operator)
        if value is None:
            value = chosen.get(field)
        if value is None:
            value = lookup(defaults.layers, scope.path, field, operator)
        values[field] = getattr(defaults.config, field) if value is None else value
    return Resolved(**values, path="/".join(scope.path))


def reload_config() -> None:
    """Read the environment and the file that `ATBFN_CONFIG` names again, for the whole process.

    Functions that are already jitted are traced again if the result differs. Contexts that are active stay above it.

    Raises:
      ConfigError: a value or the file is not valid; the configuration stays as it was.
    """
    _defaults.set_global(read())
