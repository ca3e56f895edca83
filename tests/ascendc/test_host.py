"""Mistakes of the host are errors of the call, which say what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ascendc.running import build, run

MISTAKES = {
    1: "aclrtMemcpy reads memory that kernel fill (",
    2: "aclrtMemset writes memory that kernel fill (",
    3: "aclrtMemcpy reads memory that kernel fill (",
    4: "call aclrtSynchronizeStream with its stream first",
    5: "aclrtFreeHost: the address is device memory, which aclrtFree frees",
    6: "aclrtMemcpy: the source is null",
    7: "aclrtMemcpy: the source is memory that was freed: allocation 2 (1024 bytes)",
    8: "aclrtSynchronizeStream: the stream was not created by aclrtCreateStream, or is destroyed already",
    9: "fill<<<...>>>: the stream was not created by aclrtCreateStream, or is destroyed already [launch]",
    10: "aclrtDestroyStream: the stream was not created by aclrtCreateStream, or is destroyed already",
    11: "aclrtMemcpy: the source is host memory, and the kind of copy says device memory",
}


@pytest.mark.parametrize("case", MISTAKES)
def test_is_an_error_that_says_why(sources: Path, case: int) -> None:
    result = run(build(sources / "host_errors.asc"), str(case))
    assert result.returncode == 1, result.stdout + result.stderr
    assert "error: " in result.stderr
    assert MISTAKES[case] in result.stderr


def test_waiting_in_any_way_is_enough(sources: Path) -> None:
    result = run(build(sources / "host_errors.asc"), "0", strict=True)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
