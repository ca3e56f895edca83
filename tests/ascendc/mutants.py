"""Breaks correct programs in one place at a time.

A program is compiled once with all its mutants inside: each is switched on by its number in an environment variable. So
a statement `S;` that is to go missing becomes `if (mutant != 3) { S; }`, and an expression `e` that is to be wrong
becomes `(mutant == 4 ? (e) + 16 : (e))`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator

VARIABLE = "ATBFN_TEST_MUTANT"
_ACTIVE = "AtbfnTestMutant()"
_PRELUDE = f"""#include <cstdlib>
static int {_ACTIVE} {{
  static const int mutant = std::getenv("{VARIABLE}") ? std::atoi(std::getenv("{VARIABLE}")) : 0;
  return mutant;
}}
"""

_SYNC = re.compile(
    r"^(\s*)((?:AscendC::)?(?:SetFlag|WaitFlag|PipeBarrier|CrossCoreSetFlag|CrossCoreWaitFlag|SyncAll|IBSet|IBWait)\b"
    r"\s*(?:<[^;]*>)?\s*\([^;]*\);|\w+(?:\[\w+\])?\.(?:EnQue|FreeTensor)(?:<[^;]*>)?\([^;]*\);)(.*)$"
)
_OFFSET = re.compile(r"\b(\w*(?:[gG]m|GM|[iI]nput|[oO]utput|global|Global)\w*)\[((?:[^\[\]]|\[[^\]]*\])+)\]")
_SHRINK = re.compile(r"(InitBuffer\((?:[^,;]+),\s*(?:\d+|k?\w+),\s*)([^;]+?)(\);)")
_FLAG = re.compile(
    r"(\.(?:ifTranspose|cmatrixInitVal|srcStride|dstStride|dstNzC0Stride|dstNzNStride|srcDValue|dstGap)\s*=\s*)([^;]+)(;)"
)
_TRANSPOSED = re.compile(r"(LoadData2DParams[ ({][^;]*?\b)(true|false)(,[^;]*\);)")


@dataclasses.dataclass(frozen=True)
class Mutant:
    """`number` switches it on; `kind` is what was done to `text` in `line`."""

    number: int
    kind: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.line}: {self.kind}: {self.text}"


def mutate(source: str) -> tuple[str, list[Mutant]]:
    """The program with its mutants inside, and their list. Line numbers stay."""
    mutants: list[Mutant] = []

    def new(kind: str, line: int, text: str) -> str:
        mutants.append(Mutant(len(mutants) + 1, kind, line, text.strip()))
        return f"{_ACTIVE} == {len(mutants)}"

    lines = source.split("\n")
    device = list(_device_lines(lines))
    for index, line in enumerate(lines):
        if not device[index] or line.lstrip().startswith(("//", "#")):
            continue
        number = index + 1
        if match := _SYNC.match(line):
            lines[index] = f"{match[1]}if (!({new('no sync', number, match[2])})) {{ {match[2]} }}{match[3]}"
            continue
        if re.search(r"\b(?:DataCopy\w*|Fixpipe|LoadData)\b", line):
            line = _OFFSET.sub(
                lambda m, n=number: f"{m[1]}[({new('offset', n, m[0])} ? ({m[2]}) + 16 : ({m[2]}))]", line, count=1
            )
            line = _TRANSPOSED.sub(
                lambda m, n=number: f"{m[1]}({new('layout', n, m[2])} ? !{m[2]} : {m[2]}){m[3]}", line, count=1
            )
        line = _SHRINK.sub(
            lambda m, n=number: f"{m[1]}({new('shrink', n, m[0])} ? ({m[2]}) / 2 : ({m[2]})){m[3]}", line
        )
        line = _FLAG.sub(
            lambda m, n=number: f"{m[1]}({new('layout', n, m[0])} ? {_other(m[2])} : ({m[2]})){m[3]}", line
        )
        lines[index] = line
    return _PRELUDE + "#line 1\n" + "\n".join(lines), mutants


def _other(value: str) -> str:
    if value.strip() in ("true", "false") or "==" in value or "!" in value:
        return f"!({value})"
    return f"({value}) + 1"


def _device_lines(lines: list[str]) -> Iterator[bool]:
    """Lines outside of main."""
    outside = True
    for line in lines:
        if re.match(r"(?:int|int32_t)\s+main\(", line):
            outside = False
        yield outside
