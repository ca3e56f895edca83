"""Every mutant of a correct program is reported: by the emulator, or by the program's own check of its numbers.

The list of exceptions is short, and each says why nothing is wrong with it.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from atbfn.ascendc import build as _build
from tests.ascendc.mutants import VARIABLE, Mutant, mutate

PROGRAMS = Path(__file__).parent / "programs"

# (program, line text) of mutants that compute the right numbers in the right order, and why.
EQUIVALENT: dict[tuple[str, str], str] = {}

NAMES: tuple[str, ...] = ()


def _run(program: Path, mutant: int) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, VARIABLE: str(mutant), "ATBFN_ASCENDC_STRICT": "1", "ATBFN_ASCENDC_THREADS": "1"}
    return subprocess.run([str(program)], env=environment, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("name", NAMES)
def test_every_mutant_is_reported(name: str, tmp_path: Path) -> None:
    text, mutants = mutate((PROGRAMS / name).read_text())
    assert len(mutants) >= 3, "this program has too little to break"
    source = tmp_path / name
    source.write_text(text)
    program = _build.build([source], includes=[PROGRAMS]).path
    assert _run(program, 0).returncode == 0, "unchanged, the program is correct"
    survivors: list[Mutant] = []
    for mutant in mutants:
        result = _run(program, mutant.number)
        excused = (name, mutant.text) in EQUIVALENT
        if result.returncode == 0 and not excused:
            survivors.append(mutant)
        assert not (excused and result.returncode != 0), f"{mutant} is reported after all: {result.stderr}"
    assert not survivors, "\n".join(map(str, survivors))
