"""Finds the compiled kernels, registers them with XLA, and knows why they are missing when they are.

The package works without them (on the `xla` target), so nothing here raises on a machine that could not build them:
`available()` says so, `reason()` says why, and the reason is logged once.
"""

from __future__ import annotations

import functools
import importlib
import logging
from typing import Any

import jax

_log = logging.getLogger("atbfn")


@functools.cache
def reason() -> str | None:
    """Why the compiled kernels cannot be used in this process; None when they can. The first call loads them."""
    found = _load()
    if found is not None:
        _log.warning("the compiled kernels are not available, so the xla target is used: %s", found)
    return found


def available() -> bool:
    """Whether the compiled kernels are loaded and registered."""
    return reason() is None


def kernels() -> Any:
    """The compiled module.

    Raises:
      ImportError: there is none (`reason` says why).
    """
    return importlib.import_module("atbfn._kernels")


def _load() -> str | None:
    try:
        module = kernels()
    except ImportError as error:
        return _why_not_built(error)
    if problem := module.isa_problem():
        raise ValueError(problem)
    for name, handler in module.handlers().items():
        try:
            jax.ffi.register_ffi_target(name, handler, platform="cpu")
        except Exception as error:  # XLA refuses handlers of a newer interface with more than one exception type
            version = ".".join(map(str, module.ffi_api_version))
            return f"XLA refused {name}, which was built for FFI interface {version}: {error}"
    return None


def _why_not_built(error: ImportError) -> str:
    """The reason that the build recorded, or the import error where it says that there should be kernels."""
    try:
        recorded = importlib.import_module("atbfn._build_info").REASON
    except ImportError:
        return f"this installation has no record of its build (install it with pip): {error}"
    return f"they were not built: {recorded}" if recorded else f"they were built but do not load: {error}"
