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

_LAST = "the buffer is not allocated again, and ends with the kernel"
_TRIP = "flags to pipe MTE1 and back order the two products"
_APART = "the copies read the same results and write different arrays"
# (program, text of the statement) of mutants that are correct programs themselves, and why.
EQUIVALENT: dict[tuple[str, str], str] = {
    ("atomics.asc", "through.FreeTensor(a);"): _LAST,
    ("core_chain.asc", "in.FreeTensor(before);"): _LAST,
    ("core_chain.asc", "in.FreeTensor(mine);"): _LAST,
    ("core_chain.asc", "out.FreeTensor(sum);"): _LAST,
    ("layernorm.asc", "gamma_.FreeTensor(gamma);"): _LAST,
    ("queue_matmul.asc", "sums_.FreeTensor(sum);"): _LAST,
    ("slices.asc", "queue.FreeTensor(pieces);"): _LAST,
    ("ffn.asc", "PipeBarrier<PIPE_M>();"): _TRIP,
    ("gemv.asc", "PipeBarrier<PIPE_M>();"): _TRIP,
    ("matmul_tails.asc", "AscendC::PipeBarrier<PIPE_M>();"): _TRIP,
    ("queue_matmul.asc", "AscendC::PipeBarrier<PIPE_M>();"): _TRIP,
    ("copy_co1.asc", "PipeBarrier<PIPE_FIX>();"): _APART,
}

NAMES = (
    "add_flags.asc",
    "add_queues.asc",
    "atomics.asc",
    "attention_tile.asc",
    "batch_matmul.asc",
    "bound_copy.asc",
    "chained_matmul.asc",
    "copy_co1.asc",
    "core_chain.asc",
    "counter_mode.asc",
    "cross_core_modes.asc",
    "ffn.asc",
    "gemv.asc",
    "layernorm.asc",
    "matmul_bias_gelu.asc",
    "matmul_int4.asc",
    "matmul_tails.asc",
    "matmul_tiled.asc",
    "mmad_accumulate.asc",
    "quantise.asc",
    "queue_matmul.asc",
    "rope.asc",
    "slices.asc",
    "softmax.asc",
    "sort_rows.asc",
    "split_k.asc",
    "sync_all.asc",
    "tensor_list.asc",
    "transpose_matrix.asc",
    "two_streams.asc",
    "unit_flag.asc",
)


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
