"""The tests of the native kernels, run again with every narrower instruction set of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from atbfn.lowering.cpu import native

ROOT = Path(__file__).parents[3]
ISAS = native.kernels().isas().split() if native.available() else []


@pytest.mark.slow
@pytest.mark.parametrize("isa", ISAS[:-1])
def test_kernels_of(isa: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "tests/contract/test_native.py"]
    environment = os.environ | {"ATBFN_CPU_ISA": isa}
    environment.pop("PYTEST_XDIST_WORKER", None)
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1200)
    assert result.returncode == 0, result.stdout[-4000:]


def test_the_widest_is_chosen() -> None:
    if not ISAS:
        pytest.skip(f"no compiled kernels: {native.reason()}")
    assert native.kernels().isa() == os.environ.get("ATBFN_CPU_ISA", ISAS[-1])


def test_an_unknown_set_is_refused() -> None:
    environment = os.environ | {"ATBFN_CPU_ISA": "mmx"}
    result = subprocess.run([sys.executable, "-c", "import atbfn"], env=environment, capture_output=True, text=True)
    assert result.returncode != 0
    assert "ATBFN_CPU_ISA: got 'mmx'; expected one of: portable" in result.stderr
