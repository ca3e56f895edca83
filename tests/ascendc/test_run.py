"""Kernels on NumPy arrays: arguments in and out, what is refused, and what does not change results."""

from __future__ import annotations

import ctypes
import json
import re
import threading
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from atbfn import ascendc
from atbfn.ascendc import AscendCError, CompileError

COUNT = 256 * 4 * 4
RNG = np.random.default_rng(0)
X = RNG.standard_normal(COUNT).astype(np.float16)
Y = RNG.standard_normal(COUNT).astype(np.float16)


class Tiling(ctypes.Structure):
    _fields_ = (("count", ctypes.c_int32), ("offset", ctypes.c_float), ("more", ctypes.c_int16 * 2))


TILING = Tiling(64, 0.5, (1, 2))


def add(sources: Path, *arrays: Any, **options: Any) -> ascendc.Result:
    arguments = arrays or (X, Y, np.zeros_like(X))
    return ascendc.run(sources / "add.asc", "add<256>", arguments, **{"blocks": 4, **options})


def scale(sources: Path, changes: dict[int, Any] | None = None, **options: Any) -> ascendc.Result:
    arguments: list[Any] = [np.arange(64, dtype=np.float32), np.zeros(64, np.float32), TILING, 2.0, 0, False, 0.0, 0, 0]
    arguments += [None, None]
    for index, value in (changes or {}).items():
        arguments[index] = value
    return ascendc.run(sources / "scale.asc", "scale", arguments, **options)


def test_outputs_and_counters(sources: Path) -> None:
    z = np.zeros_like(X)
    result = add(sources, X, Y, z, outputs=[2])
    (out,) = result.outputs
    np.testing.assert_array_equal(out, X + Y)
    assert not z.any(), "arrays that are passed never change"
    assert result.warnings == []
    counters = result.counters
    assert (counters["kernel"], counters["blocks"], counters["chip"]) == ("add<256>", 4, "Ascend910B1")
    assert counters["file"].endswith("add.asc") and counters["line"] > 0
    assert counters["bytes"]["UB"]["written"] >= 3 * X.nbytes
    assert counters["operations"]["vector_elements"] == COUNT
    assert counters["instructions"]["MTE2"] == 32 and counters["instructions"]["MTE3"] == 16
    assert len(counters["cores"]) == 4 and counters["time_s"] > 0
    assert counters["capacity"]["UB"] == 184 * 1024
    assert counters["cores"][0]["peak"]["UB"] == 6 * 256 * 2


def test_every_array_comes_back_by_default(sources: Path) -> None:
    outputs = add(sources).outputs
    assert [out.dtype for out in outputs] == [np.float16] * 3
    np.testing.assert_array_equal(outputs[0], X)
    np.testing.assert_array_equal(outputs[2], X + Y)


def test_shapes_and_strides_do_not_matter(sources: Path) -> None:
    x = np.asfortranarray(X.reshape(64, -1))
    out = add(sources, x, Y[::-1], np.zeros((2, COUNT // 2), np.float16), outputs=[-1]).outputs[0]
    np.testing.assert_array_equal(out, (X + Y[::-1]).reshape(2, -1))


def test_jax_arrays_are_arrays(sources: Path) -> None:
    import jax.numpy as jnp

    out = add(sources, jnp.asarray(X), Y, np.zeros_like(X), outputs=[2]).outputs[0]
    np.testing.assert_array_equal(out, X + Y)


def test_results_do_not_depend_on_threads_or_the_order_of_cores(sources: Path) -> None:
    first = add(sources)
    for options in ({"threads": 1}, {"threads": 3}, {"seed": 1}, {"seed": 2, "threads": 2}):
        other = add(sources, **options)
        assert other.counters == first.counters
        for a, b in zip(other.outputs, first.outputs, strict=True):
            np.testing.assert_array_equal(a, b)


def test_python_threads_may_run_kernels_at_the_same_time(sources: Path) -> None:
    add(sources)
    outputs: list[np.ndarray] = []
    threads = [threading.Thread(target=lambda: outputs.append(add(sources, outputs=[2]).outputs[0])) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outputs) == 4 and all((out == X + Y).all() for out in outputs)


def test_text_instead_of_a_file(sources: Path) -> None:
    text = (sources / "add.asc").read_text()
    np.testing.assert_array_equal(ascendc.run(text, "add<256>", [X, Y, np.zeros_like(X)], blocks=4).outputs[2], X + Y)
    with pytest.raises(AscendCError, match=r"broken.asc:2:.* error"):
        ascendc.run('#include "kernel_operator.h"\n__global__ void broken() { int a = ; }', "broken", [])


def test_arguments_by_value(sources: Path) -> None:
    result = scale(sources, {4: 1, 5: True, 6: np.float16(0.25), 7: ml_dtypes.bfloat16(4), 8: -8}, outputs=[1])
    expected = -4.0 * np.arange(64) + (0.5 + 1 + 2 + 0.25 + 4 - 8)
    np.testing.assert_array_equal(result.outputs[0], expected.astype(np.float32))


@pytest.mark.parametrize(
    "tiling",
    [
        bytes(TILING),
        bytearray(bytes(TILING)),
        np.array((64, 0.5, (1, 2)), np.dtype([("count", "i4"), ("offset", "f4"), ("more", "i2", 2)]))[()],
    ],
    ids=["bytes", "bytearray", "structured scalar"],
)
def test_structures_by_value(sources: Path, tiling: Any) -> None:
    np.testing.assert_array_equal(scale(sources, {2: tiling}).outputs[1], 2 * np.arange(64) + 3.5)


def test_workspace_and_null(sources: Path) -> None:
    expected = 2 * np.arange(64) + 3.5
    with pytest.raises(
        ValueError, match=r"workspace: got 256 bytes and 2 arguments that are None; expected None for ex"
    ):
        scale(sources, workspace=256)
    more = np.array([0], np.float32)
    np.testing.assert_array_equal(scale(sources, {10: more}, workspace=256).outputs[1], expected)
    with pytest.raises(AscendCError, match=r"out-of-bounds|workspace"):
        scale(sources, {10: more}, workspace=128)
    with pytest.raises(ValueError, match=r"workspace: got -1"):
        scale(sources, workspace=-1)


@pytest.mark.parametrize("more", [np.float32(7).tobytes(), (ctypes.c_float * 1)(7.0), np.array([7], np.float32)])
def test_bytes_and_structures_for_a_pointer(sources: Path, more: Any) -> None:
    np.testing.assert_array_equal(scale(sources, {10: more}, outputs=[1]).outputs[0], 2 * np.arange(64) + 10.5)


@pytest.mark.parametrize(
    ("index", "value", "error", "message"),
    [
        (0, np.zeros(64), TypeError, r"argument 0 \(x\): got float64 array; expected float32"),
        (0, 3, TypeError, r"argument 0 \(x\): got int 3; expected an array"),
        (0, [1.0], TypeError, r"argument 0 \(x\): got list .*; expected an array"),
        (0, np.array([None]), TypeError, r"argument 0 \(x\): got object array; expected an array of numbers"),
        (0, np.zeros(64, ">f4"), TypeError, r"argument 0 \(x\): .*byte order"),
        (2, b"short", ValueError, r"argument 2 \(tiling\): got 5 bytes; expected 12"),
        (2, 1, TypeError, r"argument 2 \(tiling\): got int 1; expected bytes, a ctypes structure"),
        (3, "2", TypeError, r"argument 3 \(factor\): got str '2'; expected a number"),
        (3, np.zeros(2), TypeError, r"argument 3 \(factor\): got float64 array; expected a number"),
        (3, None, TypeError, r"argument 3 \(factor\): got NoneType None; expected a number"),
        (4, 256, ValueError, r"argument 4 \(mode\): got int 256; expected a number from 0 to 255"),
        (8, 1.5, ValueError, r"argument 8 \(fifth\): got float 1.5; expected a whole number"),
        (8, 2**63, ValueError, r"argument 8 \(fifth\): got int .*expected a number from"),
    ],
)
def test_arguments_that_do_not_fit(sources: Path, index: int, value: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=r"atbfn.ascendc.run: " + message):
        scale(sources, {index: value})


def test_calls_that_do_not_fit(sources: Path, tmp_path: Path) -> None:
    z = np.zeros_like(X)
    with pytest.raises(ValueError, match=r"arrays: got 2; expected the 3 arguments of add<256>\(x, y, z\)"):
        add(sources, X, Y)
    with pytest.raises(AscendCError, match=r"add.asc:\d+: error: `add` is a template; write its arguments: add<...>"):
        ascendc.run(sources / "add.asc", "add", [X, Y, z])
    with pytest.raises(AscendCError, match=r"there is no kernel `sub`; kernels here: add$"):
        ascendc.run(sources / "add.asc", "sub", [X, Y, z])
    with pytest.raises(CompileError, match=r"nonsense"):
        ascendc.run(sources / "add.asc", "add<nonsense>", [X, Y, z])
    with pytest.raises(FileNotFoundError, match=r"source: there is no file"):
        ascendc.run(tmp_path / "nowhere.asc", "add", [])
    with pytest.raises(ValueError, match=r"outputs: got 3; expected indices of arrays among the 3 arguments"):
        add(sources, outputs=[3])
    with pytest.raises(ValueError, match=r"blocks: got 0"):
        add(sources, blocks=0)
    with pytest.raises(ValueError, match=r"chip: got 'b200'; expected one of"):
        add(sources, chip="b200")


def test_an_array_that_is_no_output_may_not_be_written(sources: Path) -> None:
    with pytest.raises(AscendCError, match=r"wrote to argument 2 \(z\), which is not in outputs=\[0, 1\]"):
        add(sources, outputs=[0, 1])


def test_refusals_name_the_kernels_line_and_the_argument(sources: Path) -> None:
    with pytest.raises(AscendCError, match=r"add.asc:\d+: error: .*\by\b.* \d+ bytes.*out-of-bounds") as caught:
        add(sources, X, Y[:-16], np.zeros_like(X))
    line = int(re.search(r"add.asc:(\d+)", str(caught.value))[1])  # type: ignore[index]
    assert "AscendC::DataCopy(y," in (sources / "add.asc").read_text().splitlines()[line - 1]
    np.testing.assert_array_equal(add(sources).outputs[2], X + Y)  # and the next launch is fine


def test_a_missing_barrier_is_a_warning_and_an_error_when_strict(sources: Path) -> None:
    text = (sources / "scale.asc").read_text().replace("    AscendC::PipeBarrier<PIPE_V>();\n", "")
    arguments = [
        np.arange(64, dtype=np.float32),
        np.zeros(64, np.float32),
        TILING,
        2.0,
        0,
        False,
        0.0,
        0,
        0,
        None,
        None,
    ]
    result = ascendc.run(text, "ops::scale", arguments)
    np.testing.assert_array_equal(result.outputs[1], 2 * np.arange(64) + 3.5)
    assert len(result.warnings) == 1 and "Adds" in result.warnings[0]
    with pytest.raises(AscendCError, match=r"scale.asc:\d+: error: Adds"):
        ascendc.run(text, "ops::scale", arguments, strict=True)


def test_defines_and_chips(sources: Path) -> None:
    text = (sources / "add.asc").read_text().replace("uint32_t kTiles = 4", "uint32_t kTiles = TILES")
    out = ascendc.run(text, "add<128>", [X, Y, np.zeros_like(X)], blocks=4, defines={"TILES": 8}, chip="950")
    np.testing.assert_array_equal(out.outputs[2], X + Y)
    assert out.counters["chip"] == "Ascend950"
    with pytest.raises(AscendCError, match=r"capacity"):
        ascendc.run(text, "add<32768>", [X, Y, np.zeros_like(X)], defines={"TILES": 1})


def test_a_timeline(sources: Path, tmp_path: Path) -> None:
    add(sources, trace=tmp_path / "timeline.json")
    events = json.loads((tmp_path / "timeline.json").read_text())["traceEvents"]
    copies = [event for event in events if event["ph"] == "X" and event["name"] == "DataCopy"]
    assert len(copies) == 48 and all(event["dur"] > 0 for event in copies)


def test_the_report(sources: Path) -> None:
    text = add(sources).report()
    assert re.search(r"add<256> \(.*add.asc:\d+\)", text)
    assert "4 blocks on 4 AIV cores" in text and re.search(r"UB .* 3 KB +184 KB +2 %", text)
    assert re.search(r"MTE2 +32 ", text)


SUMS = """
#include "kernel_operator.h"
using namespace AscendC;

// Every core adds its numbers to the same place, reads a place of its own in between, and after all have met adds what
// it finds there to a second place.
__global__ __mix__(0, 1) void sums(GM_ADDR x, GM_ADDR first, GM_ADDR second) {
  GlobalTensor<float> xGm, firstGm, secondGm;
  xGm.SetGlobalBuffer((__gm__ float*)x + GetBlockIdx() * 64);
  firstGm.SetGlobalBuffer((__gm__ float*)first);
  secondGm.SetGlobalBuffer((__gm__ float*)second);
  TPipe pipe;
  TQueBind<TPosition::VECIN, TPosition::VECOUT, 1> through;
  pipe.InitBuffer(through, 2, 64 * sizeof(float));
  for (int turn = 0; turn < 2; ++turn) {
    LocalTensor<float> a = through.AllocTensor<float>();
    DataCopy(a, turn == 0 ? xGm : firstGm, 64);
    through.EnQue(a);
    a = through.DeQue<float>();
    SetAtomicAdd<float>();
    DataCopy(turn == 0 ? firstGm : secondGm, a, 64);
    SetAtomicNone();
    through.FreeTensor(a);
    if (turn == 0) SyncAll();
  }
}
"""


def test_sums_of_floats_do_not_depend_on_the_order_of_the_cores() -> None:
    # Numbers of many sizes: any other order of the additions gives other bits.
    rng = np.random.default_rng(0)
    x = (rng.standard_normal(16 * 64) * 10.0 ** rng.integers(-4, 5, 16 * 64)).astype(np.float32)
    arrays = [x, np.zeros(64, np.float32), np.zeros(64, np.float32)]
    ways = [{"threads": t} for t in (1, 2, 4)] + [{"threads": 4, "seed": s} for s in range(4)]
    results = [ascendc.run(SUMS, "sums", arrays, blocks=16, outputs=[1, 2], **way).outputs for way in ways]
    expected = np.zeros(64, np.float32)
    for row in x.reshape(16, 64):
        expected = expected + row
    np.testing.assert_array_equal(results[0][0], expected)
    for result in results[1:]:
        for a, b in zip(result, results[0], strict=True):
            np.testing.assert_array_equal(a.view(np.uint32), b.view(np.uint32))


MIXED = """
#include "kernel_operator.h"
using namespace AscendC;

__global__ __vector__ void mixed(GM_ADDR x) {
  GlobalTensor<float> xGm;
  xGm.SetGlobalBuffer((__gm__ float*)x);
  LocalTensor<float> a(TPosition::VECOUT, 0, 64);
  Duplicate(a, 1.0f, 64);
  SetFlag<HardEvent::V_MTE3>(EVENT_ID0);
  WaitFlag<HardEvent::V_MTE3>(EVENT_ID0);
  if (GetBlockIdx() == 0) {
    SetAtomicAdd<float>();
  } else {
    SetAtomicMax<float>();
  }
  DataCopy(xGm, a, 64);
  SetAtomicNone();
}
"""


def test_atomics_of_two_operations_on_the_same_bytes_are_a_race() -> None:
    with pytest.raises(AscendCError, match="different operations or types"):
        ascendc.run(MIXED, "mixed", [np.zeros(64, np.float32)], blocks=2)


TWO_WAITS = """
#include "kernel_operator.h"
using namespace AscendC;

__global__ __vector__ void two_waits(GM_ADDR flags) {
  GlobalTensor<int32_t> gm;
  gm.SetGlobalBuffer((__gm__ int32_t*)flags);
  TPipe pipe;
  TQue<TPosition::VECIN, 1> queue;
  pipe.InitBuffer(queue, 1, 1024);
  LocalTensor<int32_t> workspace = queue.AllocTensor<int32_t>();
  if (GetBlockIdx() == 0) {
    IBSet(gm, workspace, 0, 0);
  } else {
    IBWait(gm, workspace, 0, 0);
  }
  queue.FreeTensor(workspace);
}
"""


@pytest.mark.parametrize("threads", [1, 4])
def test_two_waits_for_one_signal_are_a_deadlock(threads: int) -> None:
    with pytest.raises(AscendCError, match="IBWait"):
        ascendc.run(TWO_WAITS, "two_waits", [np.zeros(4096, np.int32)], blocks=3, threads=threads)


@pytest.mark.parametrize(
    "options, error, text",
    [
        ({"blocks": 2**64 + 1}, ValueError, "blocks: got 18446744073709551617; expected 1 to 65535"),
        ({"blocks": 1.5}, TypeError, "blocks: got 1.5; expected an int"),
        ({"outputs": 1}, TypeError, r"outputs: got 1; expected a list .* write outputs=\[1\]"),
    ],
)
def test_arguments_that_cannot_be(sources: Path, options: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        add(sources, **options)


def test_an_empty_source() -> None:
    with pytest.raises(ValueError, match="source: got an empty text"):
        ascendc.run("", "add", [])


KERNEL_ENDS = """
#include "kernel_operator.h"
#include <stdexcept>
using namespace AscendC;

__global__ __vector__ void no_pipe(GM_ADDR x) {
  TBuf<TPosition::VECCALC> buffer;
  GetTPipePtr()->InitBuffer(buffer, 256);
}
__global__ __vector__ void throws_a_number(GM_ADDR x) { throw 5; }
__global__ __vector__ void throws_an_error(GM_ADDR x) { throw std::runtime_error("something"); }
"""


@pytest.mark.parametrize(
    "kernel, text",
    [
        ("no_pipe", "GetTPipePtr: this core has no TPipe"),
        ("throws_a_number", "AIV 0 threw an object that is no std::exception"),
        ("throws_an_error", "something"),
    ],
)
def test_a_kernel_that_cannot_go_on_says_so(kernel: str, text: str) -> None:
    with pytest.raises(AscendCError, match=text):
        ascendc.run(KERNEL_ENDS, kernel, [np.zeros(64, np.float32)])


SUM_THEN_LARGEST = """
#include "kernel_operator.h"
using namespace AscendC;

__global__ __vector__ void sum_then_largest(GM_ADDR z, GM_ADDR flags) {
  const int32_t me = GetBlockIdx();
  GlobalTensor<float> zGm;
  GlobalTensor<int32_t> flagsGm;
  zGm.SetGlobalBuffer((__gm__ float*)z);
  flagsGm.SetGlobalBuffer((__gm__ int32_t*)flags);
  LocalTensor<float> a(TPosition::VECOUT, 0, 64);
  LocalTensor<int32_t> scratch(TPosition::VECCALC, 8192, 8);
  Duplicate(a, me == 0 ? 2.0f : 1.0f, 64);
  PipeBarrier<PIPE_ALL>();
  if (me == 0) {
    SetAtomicAdd<float>();
    DataCopy(zGm, a, 64);
    SetAtomicNone();
    PipeBarrier<PIPE_ALL>();
    IBSet(flagsGm, scratch, 0, 0);
  } else {
    IBWait(flagsGm, scratch, 0, 0);
    SetAtomicMax<float>();
    DataCopy(zGm, a, 64);
    SetAtomicNone();
  }
}
"""


def test_a_largest_after_a_sum_sees_the_sum() -> None:
    arrays = [np.zeros(64, np.float32), np.zeros(64, np.int32)]
    (z,) = ascendc.run(SUM_THEN_LARGEST, "sum_then_largest", arrays, blocks=2, outputs=[0]).outputs
    np.testing.assert_array_equal(z, np.full(64, 2, np.float32))
