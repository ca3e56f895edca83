"""Infinities, nans, zeros with a sign, and the ends of every type, against the vendor's public table of edge values.

`edge_values.csv` holds the facts: of each API and dtype (`from->to` for conversions) the operands, the result, and the
result in saturation mode. Results are compared bit for bit, any nan equal to any other; where the table rounds, to the
digits that it gives.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from atbfn import ascendc

DTYPES: dict[str, np.dtype] = {
    "half": np.dtype(np.float16),
    "bfloat16_t": np.dtype(ml_dtypes.bfloat16),
    "float": np.dtype(np.float32),
    **{f"{name}_t": np.dtype(name) for name in ("int8", "uint8", "int16", "int32", "int64")},
}
UNARY = ("Exp", "Ln", "Abs", "Reciprocal", "Sqrt", "Rsqrt", "Relu")
BINARY = ("Add", "Sub", "Mul", "Div", "Max", "Min", "AddRelu", "SubRelu")
SCALAR = ("Adds", "Muls", "Maxs", "Mins", "LeakyRelu")
BLOCKS = 128  # rows of one launch; each has a block of 32 bytes to itself

# Left out of the table: what contradicts another row, or arithmetic (integers that their type cannot hold), and two
# square roots that are not the nearest number there and are here.
Row = tuple[str, str, str, str]  # a, b, expected, saturated


def _integer(text: str) -> bool:
    return text.lstrip("-").isdigit()


def _fits(dtype: str, text: str) -> bool:
    kind = DTYPES[dtype]
    if kind.kind not in "iu" or not text:
        return True
    return (
        text not in ("inf", "-inf", "nan")
        and np.iinfo(kind).min <= (int(text) if _integer(text) else float(text)) <= np.iinfo(kind).max
    )


def _groups() -> dict[tuple[str, str], list[Row]]:
    groups = defaultdict(list)
    with (Path(__file__).parent / "edge_values.csv").open() as file:
        for row in csv.DictReader(file):
            result = row["dtype"].split("->")[-1]
            operand = row["dtype"].split("->")[0]
            if (
                all(_fits(operand, row[n]) for n in "ab")
                and _fits(result, row["expected"])
                and _fits(result, row["saturated"])
            ):
                groups[row["api"], row["dtype"]].append((row["a"], row["b"], row["expected"], row["saturated"]))
    return groups


GROUPS = _groups()

ELEMENTWISE = r"""
#include "kernel_operator.h"
using namespace AscendC;

template <class T>
__global__ __vector__ void edge(__gm__ T* a, __gm__ T* b, __gm__ T* z, int32_t rows, bool saturate) {
  GlobalTensor<T> aGm, bGm, zGm;
  aGm.SetGlobalBuffer(a);
  bGm.SetGlobalBuffer(b);
  zGm.SetGlobalBuffer(z);
  constexpr int32_t block = 32 / sizeof(T);
  const int32_t count = rows * block;
  LocalTensor<T> x(TPosition::VECIN, 0, count), y(TPosition::VECIN, 8192, count), out(TPosition::VECOUT, 16384, count);
  DataCopy(x, aGm, count);
  DataCopy(y, bGm, count);
  SetSaturationFlag<SaturationMode::FLOAT>(saturate);
  PipeBarrier<PIPE_ALL>();
  for (int32_t i = 0; i < rows; ++i) {
    LocalTensor<T> to = out[i * block], from = x[i * block], other = y[i * block];
    const T scalar = other.GetValue(0);
    (void)scalar;
    CALL;
  }
  PipeBarrier<PIPE_ALL>();
  DataCopy(zGm, out, count);
}
"""

CONVERSION = r"""
#include "kernel_operator.h"
using namespace AscendC;

__global__ __vector__ void edge(__gm__ FROM* a, __gm__ TO* z, int32_t rows, bool saturate) {
  GlobalTensor<FROM> aGm;
  GlobalTensor<TO> zGm;
  aGm.SetGlobalBuffer(a);
  zGm.SetGlobalBuffer(z);
  LocalTensor<FROM> x(TPosition::VECIN, 0, rows * 32 / sizeof(FROM));
  LocalTensor<TO> out(TPosition::VECOUT, 16384, rows * 32 / sizeof(TO));
  DataCopy(x, aGm, rows * 32 / sizeof(FROM));
  SetSaturationFlag<SaturationMode::CAST>(saturate);
  PipeBarrier<PIPE_ALL>();
  constexpr uint32_t wide = sizeof(TO) > sizeof(FROM) ? sizeof(TO) : sizeof(FROM);
  for (int32_t i = 0; i < rows; ++i)
    Cast(out[i * 32 / sizeof(TO)], x[i * 32 / sizeof(FROM)], RoundMode::MODE, 32 / wide);
  PipeBarrier<PIPE_ALL>();
  DataCopy(zGm, out, rows * 32 / sizeof(TO));
}
"""
# Conversions that lose nothing have CAST_NONE only; for the others the mode does not matter at the edges.
LOSSY = {
    "float->float",
    "half->int16_t",
    "half->int32_t",
    "float->int16_t",
    "float->int32_t",
    "float->int64_t",
    "float->bfloat16_t",
}
LOSSY |= {"bfloat16_t->int32_t", "int64_t->float"}


def _blocks(dtype: str, values: list[str]) -> np.ndarray:
    """Every value fills a block."""
    kind = DTYPES[dtype]
    return np.repeat(np.array([_value(dtype, v or "0") for v in values], kind), 32 // kind.itemsize)


def _value(dtype: str, text: str) -> np.generic:
    kind = DTYPES[dtype]
    return kind.type(int(text) if _integer(text) and kind.kind in "iu" else float(text))


def _run(api: str, dtype: str, rows: list[Row], saturate: bool) -> np.ndarray:
    a, b = [r[0] for r in rows], [r[1] for r in rows]
    if api == "Cast":
        before, after = dtype.split("->")
        words = {"FROM": before, "TO": after, "MODE": "CAST_RINT" if dtype in LOSSY else "CAST_NONE"}
        out = np.zeros(len(rows) * 32 // DTYPES[after].itemsize, DTYPES[after])
        arguments = [_blocks(before, a), out, len(rows), saturate]
        result = ascendc.run(CONVERSION, "edge", arguments, outputs=[1], defines=words)
        return result.outputs[0][:: 32 // DTYPES[after].itemsize]
    size = DTYPES[dtype].itemsize
    call = f"{api}(to, from, {'other' if api in BINARY else 'scalar'}, block)"
    if api in UNARY:
        call = f"{api}(to, from, block)"
    arguments = [_blocks(dtype, a), _blocks(dtype, b), _blocks(dtype, ["0"] * len(rows)), len(rows), saturate]
    result = ascendc.run(ELEMENTWISE, f"edge<{dtype}>", arguments, outputs=[2], defines={"CALL": call})
    return result.outputs[0][:: 32 // size]


def _agrees(got: np.generic, text: str, dtype: str) -> bool:
    want = _value(dtype, text)
    if DTYPES[dtype].kind in "iu":
        return bool(got == want) if _integer(text) else bool(abs(float(got) / float(text) - 1) < 1e-5)
    if np.isnan(float(want)):
        return bool(np.isnan(float(got)))
    same = float(got) == float(want) and np.signbit(float(got)) == np.signbit(float(want))
    digits = text.lower().partition("e")[0].partition(".")[2].rstrip("0")
    if same or not digits or np.isinf(float(got)):
        return same
    exponent = int(text.lower().partition("e")[2] or 0)
    return abs(float(got) - float(text)) <= 10.0 ** (exponent - len(digits))


@pytest.mark.parametrize(("api", "dtype"), [pytest.param(*key, id=f"{key[0]}-{key[1]}") for key in GROUPS])
def test_edges(api: str, dtype: str) -> None:
    result = dtype.split("->")[-1]
    wrong = []
    for saturate in (False, True):
        if saturate and result == "float":
            continue  # floats have no saturation mode
        rows = GROUPS[api, dtype]
        for start in range(0, len(rows), BLOCKS):
            part = rows[start : start + BLOCKS]
            for row, got in zip(part, _run(api, dtype, part, saturate), strict=True):
                if saturate and api == "LeakyRelu" and row[1] in ("inf", "-inf"):
                    continue  # there the table changes the sign
                expected = row[3] if saturate else row[2]
                if not _agrees(got, expected, result):
                    mode = " saturating" if saturate else ""
                    wrong.append(f"{api}({row[0]}{', ' if row[1] else ''}{row[1]}) is {got}, not {expected}{mode}")
    assert not wrong, "\n".join(wrong)


def test_there_are_enough() -> None:
    assert sum(len(rows) for rows in GROUPS.values()) >= 900
