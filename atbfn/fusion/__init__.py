"""How operators run: configuration, modes and layer names.

`atbfn.fusion` is this package and also the context manager: `with atbfn.fusion(mode="step_by_step"):`.
"""

from __future__ import annotations

import sys
import types
from typing import Any

from atbfn.fusion.config import MODES, TARGETS, ConfigError, FusionConfig
from atbfn.fusion.context import Resolved, layer, reload_config, resolve
from atbfn.fusion.context import fusion as _fusion

__all__ = ["MODES", "TARGETS", "ConfigError", "FusionConfig", "Resolved", "layer", "reload_config", "resolve"]


class _CallableModule(types.ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> _fusion:
        return _fusion(*args, **kwargs)


_CallableModule.__call__.__doc__ = _fusion.__doc__
sys.modules[__name__].__class__ = _CallableModule

reload_config()
