"""The examples and edge values of the public documentation (see `documented.py`), each a test of its API.

One launch of each kernel of `documented_kernels/` runs all the examples of a family, so few programs are compiled.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from atbfn import ascendc
from tests.ascendc import documented
from tests.ascendc.documented import TYPES, Case, Job

KERNELS = Path(__file__).parent / "documented_kernels"
# In the order of `Type` in job.h.
CODES = [
    *("half", "bfloat16_t", "float", "int8_t", "uint8_t", "int16_t"),
    *("uint16_t", "int32_t", "uint32_t", "int64_t", "uint64_t", "int4b_t"),
]
BLOCKS = 8
CASES = documented.cases()


def _operations(family: str) -> dict[str, int]:
    """The operations that a kernel knows, and their numbers: those that it compares with come last, in their order."""
    text = (KERNELS / f"{family}.asc").read_text()
    named = re.findall(r"\b(?:UNARY|BINARY|SCALAR)\((\w+)\)", text) + re.findall(r"\bOP_(\w+)", text)
    named = list(dict.fromkeys(name for name in named if name != "NAME"))
    if family == "layout":
        atomics = ["SetAtomicAdd", "SetAtomicMax", "SetAtomicMin"]
        scalar = [name for name in named if re.match(r"Get|Count|Scalar|Numeric", name)]
        scalar = ["GetBitCount", *(name for name in scalar if name != "GetBitCount")]
        named = [name for name in named if name not in (*atomics, *scalar)] + atomics + scalar
    return {name: number for number, name in enumerate(named)}


def _stored(array: np.ndarray, dtype: str) -> bytes:
    """As device memory holds it, padded to whole blocks."""
    data = array.tobytes()
    if dtype == "int4b_t":
        nibbles = array.astype(np.uint8) & 15
        nibbles = np.resize(
            np.concatenate([nibbles, np.zeros(len(nibbles) % 2, np.uint8)]), len(nibbles) + len(nibbles) % 2
        )
        data = (nibbles[::2] | nibbles[1::2] << 4).tobytes()
    return data + bytes(-len(data) % 32)


class _Data:
    """The operands of all jobs, one after the other."""

    def __init__(self) -> None:
        self.bytes = bytearray()

    def add(self, array: np.ndarray | None, dtype: str) -> tuple[int, int]:
        """Where it lies, and its length."""
        if array is None:
            return 0, 0
        data = _stored(array, dtype)
        start = len(self.bytes)
        self.bytes += data
        return start, len(data)


def _words(job: Job, operations: dict[str, int], data: _Data) -> tuple[np.ndarray, int]:
    """The job as job.h has it, and where its result will lie."""
    a = data.add(job.a, job.from_type)
    b = data.add(job.b, job.from_type)
    out = data.add(job.out, job.to_type)
    scalar = bytes(8) if job.scalar is None else job.scalar.tobytes() + bytes(8 - job.scalar.itemsize)
    words = [operations[job.op], CODES.index(job.from_type), CODES.index(job.to_type), int(job.saturate)]
    words += [job.form, job.lanes, job.repeats, job.mode, *job.blocks, *job.strides]
    words += [job.bits[0] & 0xFFFFFFFF, job.bits[0] >> 32, job.bits[1] & 0xFFFFFFFF, job.bits[1] >> 32]
    words += [*np.frombuffer(scalar, np.uint32).tolist(), *a, *b, *out]
    words += [*job.extra, *[0] * (6 - len(job.extra))]
    return np.array(words, np.int64).astype(np.uint32), out[0]


def _launch(family: str, jobs: Sequence[Job]) -> list[np.ndarray]:
    operations, data = _operations(family), _Data()
    packed = [_words(job, operations, data) for job in jobs]
    arrays = [np.concatenate([words for words, _ in packed]), np.frombuffer(bytes(data.bytes), np.uint8)]
    result = ascendc.run(
        KERNELS / f"{family}.asc",
        family,
        [*arrays, len(jobs)],
        blocks=min(BLOCKS, len(jobs)),
        strict=True,
        outputs=[1],
        defines={f"OP_{name}": number for name, number in operations.items()},
    ).outputs[0]
    outputs = []
    for job, (_, start) in zip(jobs, packed, strict=True):
        size = TYPES[job.to_type].itemsize
        count = len(job.out)
        if job.to_type == "int4b_t":
            raw = result[start : start + (count + 1) // 2]
            nibbles = np.stack([raw & 15, raw >> 4], 1).reshape(-1)[:count].astype(np.int8)
            outputs.append(np.where(nibbles > 7, nibbles - 16, nibbles).astype(np.int8))
        else:
            outputs.append(result[start : start + count * size].view(TYPES[job.to_type]))
    return outputs


@functools.cache
def _results(family: str) -> dict[str, np.ndarray | str]:
    """By the case's name: what the destination holds afterwards, or why the emulator refused it."""
    cases = [case for case in CASES if case.family == family]
    try:
        return dict(zip([c.name for c in cases], _launch(family, [c.job for c in cases]), strict=True))
    except ascendc.AscendCError:
        pass
    results: dict[str, np.ndarray | str] = {}
    for case in cases:  # find the culprits
        try:
            results[case.name] = _launch(family, [case.job])[0]
        except ascendc.AscendCError as error:
            results[case.name] = str(error)
    return results


def _agrees(got: np.generic, want: object) -> bool:
    if isinstance(want, tuple):
        value, digits = want
        return abs(float(got) - value) <= 0.5000001 * 10.0**-digits
    assert isinstance(want, np.generic)
    if want != want:  # any nan is as good as another
        return bool(got != got)
    return got.tobytes() == want.tobytes()


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in CASES])
def test_documented(case: Case) -> None:
    got = _results(case.family)[case.name]
    assert not isinstance(got, str), f"{case.page}: {got}"
    wrong = [
        f"[{index}] is {got[index]!r}, not {want!r}"
        for index, want in case.want.items()
        if not _agrees(got[index], want)
    ]
    assert not wrong, f"{case.page}: {'; '.join(wrong[:8])}"


def test_there_are_enough() -> None:
    examples = {case.name for case in CASES if not case.page.startswith("附录")}
    assert len(examples) >= 250
    assert len({case.name for case in CASES}) == len(CASES) >= 1300
