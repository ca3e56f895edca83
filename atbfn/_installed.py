"""Says what to do where the package is imported from its source folder: there the other rooms lie beside it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

if importlib.util.find_spec("atbfn.primitives") is None:
    raise ModuleNotFoundError(
        f"atbfn: imported from its sources in {Path(__file__).resolve().parents[1]}, where it is not complete; install "
        'it so that it can be used from there (pip install -e ".[all]"), or run Python in another folder',
        name="atbfn.primitives",
    )
