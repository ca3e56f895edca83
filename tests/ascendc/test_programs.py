"""Complete programs, written as for the vendor's toolkit, run and pass their own check.

Strictly: without what the vendor's compiler would order by itself.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.ascendc.running import build, run

# How many random orders of the cores to try: more for a soak, such as ATBFN_TEST_ORDERS=100.
ORDERS = int(os.environ.get("ATBFN_TEST_ORDERS", "2"))
PROGRAMS = sorted((Path(__file__).parent / "programs").glob("*.asc"))


def test_there_are_enough() -> None:
    assert len(PROGRAMS) >= 40


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_passes_whatever_the_order_of_cores(path: Path, tmp_path: Path) -> None:
    program = build(path)
    outputs, reports = set(), set()
    orders = [{"threads": n} for n in (1, 2, 4)] + [{"seed": n} for n in range(ORDERS)]
    for variant, options in enumerate(orders):
        report = tmp_path / f"{variant}.json"
        result = run(program, strict=True, report=report, **options)
        assert result.returncode == 0, result.stdout + result.stderr
        assert result.stderr == ""
        assert result.stdout.rstrip().endswith("ok"), result.stdout
        outputs.add(result.stdout)
        reports.add(report.read_text())
    assert len(outputs) == 1, "the output depends on the order of cores"
    assert len(reports) == 1, "the report depends on the order of cores"
    for line in reports.pop().splitlines():
        launch = json.loads(line)
        assert launch["time_s"] > 0
        assert launch["bytes"]["HBM"]["read"] > 0


@pytest.mark.parametrize("chip", ["910b3", "a3", "950"])
def test_one_source_for_several_chips(chip: str) -> None:
    result = run(build(Path(__file__).parent / "programs" / "matmul_tile.asc", chip=chip), strict=True)
    assert result.returncode == 0, result.stdout + result.stderr
