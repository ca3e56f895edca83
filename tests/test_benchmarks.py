"""The benchmarks' harness: it must see a wrong result, and its cases must build, run and agree."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

FOLDER = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def measuring(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    return pytest.importorskip("measuring")


def test_a_peer_that_computes_something_else_is_named_and_not_timed(measuring):
    x = np.random.default_rng(0).normal(size=(8, 16)).astype(np.float32)
    others = {"right": x, "rows": x[::-1], "zeros": 0 * x, "nan": x * np.nan, "shape": x.T, "scaled": 1.01 * x}
    forms = [measuring.Form(measuring.OURS, lambda: x)]
    forms += [measuring.Form(name, lambda value=value: jnp.asarray(value)) for name, value in others.items()]
    row = measuring.Row("op", "shape", "float32")
    sound = measuring.agreeing(measuring.Work(forms, 1, 1), "float32", row)
    assert [form.name for form in sound] == [measuring.OURS, "right"]
    assert row.failed and len(row.problems) == 5


@pytest.mark.slow
def test_one_command_measures_and_writes(tmp_path):
    file = tmp_path / "out.json"
    options = ["--only", "odd-tiny", "--rounds", "1", "--no-torch", "--dtype", "float32", "--json", str(file)]
    subprocess.run([sys.executable, str(FOLDER / "operators.py"), *options], check=True)
    rows = json.loads(file.read_text())["rows"]
    assert len(rows) == 4 and all(row["median"]["atbfn"] > 0 and row["ratio"] > 0 for row in rows)
