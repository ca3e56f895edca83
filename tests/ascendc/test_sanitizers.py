"""The emulator itself under the compiler's sanitizers: no access out of bounds, nothing undefined, no data race.

Here a few programs of each kind; with ATBFN_TEST_SANITIZE=all every one (`make sanitize`).
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from atbfn.ascendc.build import SANITIZERS
from tests.ascendc.running import build, run

FOLDER = Path(__file__).parent / "programs"
SAMPLE = ("add_queues.asc", "atomics.asc", "ffn.asc", "reductions.asc")
NAMES = sorted(path.name for path in FOLDER.glob("*.asc")) if os.environ.get("ATBFN_TEST_SANITIZE") == "all" else SAMPLE


@pytest.mark.slow
@pytest.mark.parametrize("sanitize", SANITIZERS)
@pytest.mark.parametrize("name", NAMES)
def test_is_clean(name: str, sanitize: str) -> None:
    result = run(build(FOLDER / name, sanitize=sanitize), strict=True, threads=4, timeout=300)
    assert result.returncode == 0, result.stderr[-4000:]
    assert result.stderr == ""
