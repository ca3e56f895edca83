"""Makes plain C++ of Ascend C: kernel launches `name<<<blocks, l2ctrl, stream>>>(args)` become calls of the emulator.

It works on what the preprocessor wrote (so macros, conditions and included headers are settled) or on bare source text.
Only the launches, the words that say which cores a kernel runs on, and `if constexpr` on the core's type change; every
newline stays where it was.
"""

from __future__ import annotations

import bisect
import dataclasses
import enum
import re
from collections.abc import Iterable, Iterator, Sequence


class Kind(enum.StrEnum):
    """Which cores one block of a kernel is made of: `Mix12` is one cube core with two vector cores."""

    VECTOR = "Vector"
    CUBE = "Cube"
    MIX11 = "Mix11"
    MIX12 = "Mix12"
    MIX01 = "Mix01"
    MIX10 = "Mix10"


class RewriteError(ValueError):
    """Something in the source that cannot be understood; the text starts with `file:line: error:`."""

    def __init__(self, file: str, line: int, message: str) -> None:
        super().__init__(f"{file}:{line}: error: {message}")
        self.file, self.line, self.message = file, line, message


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_MIXES = {("1", "1"): Kind.MIX11, ("1", "2"): Kind.MIX12, ("0", "1"): Kind.MIX01, ("1", "0"): Kind.MIX10}
_TASK_TYPES = {
    "KERNEL_TYPE_AIV_ONLY": Kind.VECTOR,
    "KERNEL_TYPE_AIC_ONLY": Kind.CUBE,
    "KERNEL_TYPE_MIX_AIV_1_0": Kind.MIX01,
    "KERNEL_TYPE_MIX_AIC_1_0": Kind.MIX10,
    "KERNEL_TYPE_MIX_AIC_1_1": Kind.MIX11,
    "KERNEL_TYPE_MIX_AIC_1_2": Kind.MIX12,
}

# What tells a plain kernel's cores apart when its body, or what the body reaches, names it. Calls count only where the
# program does not define a function of that name itself.
_CUBE_CALLS = _words(
    """
    Mmad MmadWithSparse LoadData LoadDataWithTranspose LoadDataWithSparse LoadDataUnzip LoadImageToLocal Fixpipe
    SetFixPipeConfig SetFixPipeClipRelu SetFixPipeAddr SetFixpipeNz2ndFlag SetFixpipePreQuantFlag InitConstValue
    SetHF32Mode SetHF32TransMode SetMMLayoutTransform SetMMRowMajor SetMMColumnMajor SetLoadDataBoundary
    SetLoadDataRepeat SetLoadDataPaddingValue SetFmatrix Gemm Conv2D BroadCastVecToMM REGIST_MATMUL_OBJ Matmul
    MatmulImpl
    """
)
_VECTOR_CALLS = _words(
    """
    Exp Ln Abs Sqrt Rsqrt Reciprocal Relu Not Add Sub Mul Div Max Min And Or MulAddDst AddRelu AddReluCast SubRelu
    SubReluCast MulCast FusedMulAdd FusedMulAddRelu AddDeqRelu Adds Muls Maxs Mins LeakyRelu Axpy ShiftLeft ShiftRight
    Cast CastDeq Duplicate Brcb CreateVecIndex ArithProgression Compare Compares CompareScalar Select GetCmpMask
    SetCmpMask Gather Gatherb GatherMask Scatter ReduceSum ReduceMax ReduceMin WholeReduceSum WholeReduceMax
    WholeReduceMin BlockReduceSum BlockReduceMax BlockReduceMin PairReduceSum RepeatReduceSum ReduceRepeat
    ReduceDataBlock ReducePairElem Transpose TransDataTo5HD DataCopyPad Copy Sort Sort32 MrgSort MrgSort4 RpSort16
    ProposalConcat ProposalExtract Concat Extract VectorPadding BilinearInterpolation GetReduceMaxMinCount
    GetAccVal SetDeqScale SetVectorMask Truncate Silu Gelu FasterGelu SoftMax SimpleSoftMax Tanh Sigmoid Erf Broadcast
    """
)
_CUBE_PLACES = _words("A1 A2 B1 B2 C1 C2 CO1 TSCM C2PIPE2GM L1 L0A L0B L0C BIAS FIXBUF")
_VECTOR_PLACES = _words("VECIN VECOUT VECCALC UB")
_PLACE_TYPES = frozenset(("TPosition", "QuePosition", "Hardware"))

# Attributes that may stand between `__global__` and a kernel's name with parentheses of their own.
_ATTRIBUTES = _words("__mix__ __attribute__ __schedmode__ __launch_bounds__ __declspec alignas decltype noexcept")
# Words of Ascend C that mark kernels; the compiler does not know them.
_MARKS = frozenset(("__global__", "__vector__", "__cube__", "__mix__", "KERNEL_TASK_TYPE_DEFAULT", "KERNEL_TASK_TYPE"))
_CORE_TESTS = {
    "ASCEND_IS_AIC": "(::atbfn::emulator::IsCubeCore())",
    "ASCEND_IS_AIV": "(::atbfn::emulator::IsVectorCore())",
}
# Definitions of the preprocessor that keep all of the above in its output, for `rewrite`.
KEEP_MARKS = "".join(
    f"#undef {word}\n#define {word}{arguments} {word}{arguments}\n"
    for word, arguments in (
        ("__global__", ""),
        ("__vector__", ""),
        ("__cube__", ""),
        ("__mix__", "(cube, vector)"),
        ("KERNEL_TASK_TYPE_DEFAULT", "(type)"),
        ("KERNEL_TASK_TYPE", "(key, type)"),
        ("ASCEND_IS_AIC", ""),
        ("ASCEND_IS_AIV", ""),
    )
) + "".join(f"#undef {word}\n#define {word} {word}\n" for word in _TASK_TYPES)


_OPERATORS = frozenset("+-*/&|<=")

# ------------------------------------------------------------------------------------------------------------- tokens

_TOKEN = re.compile(
    r"""
      (?P<space>(?:[ \t\r\f\v\n]|\\\r?\n)+)
    | (?P<comment>//(?:\\\r?\n|[^\n])*|/\*.*?\*/)
    | (?P<raw>(?:u8|u|U|L)?R"(?P<delimiter>[^()\\\s]{0,16})\(.*?\)(?P=delimiter)")
    | (?P<string>(?:u8|u|U|L)?"(?:\\.|[^"\\\n])*")
    | (?P<char>(?:u8|u|U|L)?'(?:\\.|[^'\\\n])*')
    | (?P<number>\.?[0-9](?:[eEpP][+-]|'[0-9a-zA-Z]|[0-9a-zA-Z_.])*)
    | (?P<name>[^\W\d][\w$]*)
    | (?P<punctuation>::|->|<<<|.)
    """,
    re.DOTALL | re.VERBOSE,
)
_MARKER = re.compile(r'^#[ \t]*(?:line[ \t]+)?(\d+)[ \t]+"((?:\\.|[^"\\])*)"([ \t\d]*)$')
_MARKER_LINE = re.compile(r"\n(?=#[ \t]*(?:line[ \t]+)?\d)")
_OPEN, _CLOSE = {"(": ")", "[": "]", "{": "}"}, frozenset(")]}")


@dataclasses.dataclass(frozen=True, slots=True)
class Token:
    """`kind` is a group of the pattern above; `start` and `end` are offsets into the text."""

    kind: str
    text: str
    start: int
    end: int


class Source:
    """One translation unit, cut into tokens. Spaces, comments, directives and system headers are left out.

    Attributes:
      text: what it was made of.
      tokens: in order.
      match: for the index of an opening bracket the index of its closing one, and the other way round.
    """

    def __init__(self, text: str, name: str, skip: Sequence[str] = ()) -> None:
        """Cuts `text` up.

        Args:
          name: the file's name, until a line marker says otherwise.
          skip: folders of headers whose definitions do not count; of them only the tests of the core's type are kept.
        """
        self.text = text
        self.tokens: list[Token] = []
        self._starts: list[int] = [0]  # where a stretch begins that comes from one file,
        self._origins: list[tuple[str, int]] = [(name, 1)]  # and its file and first line
        self._scan(tuple(folder.rstrip("/") + "/" for folder in skip))
        self.match = self._brackets()

    def _scan(self, skip: tuple[str, ...]) -> None:
        text, position, at_line_start, system, skipped = self.text, 0, True, False, False
        ours = {self._origins[0][0]}
        while position < len(text):
            if system:  # on to the next line marker; a #pragma leaves the file as it is
                following = _MARKER_LINE.search(text, position)
                if following is None:
                    return
                position, system, at_line_start = following.end(), False, True
            found = _TOKEN.match(text, position)
            assert found is not None, "the last alternative matches any character"
            kind = str(found.lastgroup)
            if kind == "delimiter":
                kind = "raw"
            if kind == "space":
                at_line_start = at_line_start or "\n" in found[0]
            elif kind != "comment":
                if at_line_start and found[0] == "#":
                    end = self._directive_end(position)
                    if marker := _MARKER.match(text[position:end]):
                        file = re.sub(r"\\(.)", r"\1", marker[2])
                        self._starts.append(end + 1)
                        self._origins.append((file, int(marker[1])))
                        # What a system header's macro expands to is marked as its own, in the file that uses it.
                        system, skipped = "3" in marker[3].split() and file not in ours, file.startswith(skip)
                        if not system:
                            ours.add(file)
                    position = end
                    continue
                at_line_start = False
                if not skipped or found[0] in _CORE_TESTS:
                    self.tokens.append(Token(kind, found[0], position, found.end()))
            position = found.end()

    def _directive_end(self, position: int) -> int:
        """The newline that ends the directive at `position`: one that is not spliced and not in a comment."""
        while position < len(self.text):
            found = _TOKEN.match(self.text, position)
            assert found is not None
            if found.lastgroup == "space":
                unspliced = re.sub(r"\\\r?\n", lambda m: " " * len(m[0]), found[0])
                if (newline := unspliced.find("\n")) >= 0:
                    return position + newline
            position = found.end()
        return position

    def _brackets(self) -> dict[int, int]:
        match, stack = {}, []
        for index, token in enumerate(self.tokens):
            if token.kind != "punctuation":
                continue
            if token.text in _OPEN:
                stack.append(index)
            elif token.text in _CLOSE and stack and _OPEN[self.tokens[stack[-1]].text] == token.text:
                match[index] = stack[-1]
                match[stack.pop()] = index
        return match

    def place(self, index: int) -> tuple[str, int]:
        """File and line of a token."""
        start = self.tokens[index].start
        stretch = bisect.bisect_right(self._starts, start) - 1
        file, line = self._origins[stretch]
        return file, line + self.text.count("\n", self._starts[stretch], start)

    def error(self, index: int, message: str) -> RewriteError:
        return RewriteError(*self.place(index), message)

    def words(self, first: int, last: int) -> str:
        """The tokens `[first, last)` with single spaces where two words meet."""
        parts: list[str] = []
        for token in self.tokens[first:last]:
            before = parts[-1] if parts else ""
            words = re.match(r"\w", token.text) and re.search(r"\w$", before)
            operators = before in _OPERATORS and token.text in _OPERATORS  # `a & &b`
            if words or operators or before == ",":
                parts.append(" ")
            parts.append(token.text)
        return "".join(parts)


# -------------------------------------------------------------------------------------------------------- definitions


@dataclasses.dataclass
class _Region:
    """Tokens `[first, last)` of a source, which define a name."""

    source: Source
    first: int
    last: int
    _names: frozenset[str] | None = None

    def names(self) -> frozenset[str]:
        if self._names is None:
            tokens = self.source.tokens[self.first : self.last]
            self._names = frozenset(token.text for token in tokens if token.kind == "name")
        return self._names


@dataclasses.dataclass
class Kernel:
    """A `__global__` function. `kind` is None for a plain one, whose body says it, or a mere declaration."""

    path: tuple[str, ...]
    file: str
    line: int
    kind: Kind | None
    body: _Region | None
    parameters: tuple[str, ...]  # their names
    template: bool

    @property
    def name(self) -> str:
        return "::".join(self.path)


class Program:
    """The kernels and other definitions of some translation units, which may refer to each other."""

    def __init__(self, sources: Iterable[Source]) -> None:
        self.sources = list(sources)
        self.kernels: list[Kernel] = []
        self._definitions: dict[str, list[_Region]] = {}
        self._scopes: set[str] = {"AscendC"}
        for source in self.sources:
            self._scope(source, 0, len(source.tokens), (), False)

    # The statements of a namespace or class body: [first, last).
    def _scope(self, source: Source, first: int, last: int, path: tuple[str, ...], in_class: bool) -> None:
        tokens, index, start = source.tokens, first, first
        while index < last:
            text = tokens[index].text if tokens[index].kind == "punctuation" else ""
            if text == "{":
                end = min(source.match.get(index, last), last)
                if self._block(source, start, index, end, path, in_class):
                    start = end + 1  # a namespace or a function: no semicolon needs to follow
                index = end + 1
            elif text == ";":
                self._declaration(source, start, index, path, in_class)
                index = start = index + 1
            elif text in ("(", "["):
                index = source.match.get(index, index) + 1
            elif text == ":" and index == start + 1 and tokens[start].text in ("public", "private", "protected"):
                index = start = index + 1
            else:
                index += 1

    def _block(self, source: Source, start: int, brace: int, end: int, path: tuple[str, ...], in_class: bool) -> bool:
        """What stands before a `{` at `brace`. Returns whether the statement ends with its `}`."""
        whole, start = start, _after_templates(source, start, brace)
        head = [token.text for token in source.tokens[start:brace]]
        if "namespace" in head[:2]:
            names = tuple(t.text for t in source.tokens[start:brace] if t.kind == "name" and t.text not in _NOT_SCOPES)
            self._scopes.update(names)
            self._scope(source, brace + 1, end, path + names, False)
            return True
        if len(head) == 2 and head[0] == "extern":
            self._scope(source, brace + 1, end, path, in_class)
            return True
        if "enum" in head:
            return False
        if (kind := self._class_name(source, start, brace)) is not None:
            self._define(kind, source, start, end)
            self._scope(source, brace + 1, end, (*path, kind), True)
            return False
        called = self._declarator(source, start, brace)
        if called is None:
            return False
        name, parenthesis = called
        before = [token.text for token in source.tokens[start : name + 1]]
        if "=" in before and "operator" not in before:
            return False  # a variable: its value is read at the semicolon
        if "__global__" in before:
            self._kernel(source, whole, name, parenthesis, path, _Region(source, brace, end))
        elif not in_class:
            self._define(self._owner(source, name, start), source, start, end)
        return True

    def _declaration(self, source: Source, start: int, end: int, path: tuple[str, ...], in_class: bool) -> None:
        tokens, whole, start = source.tokens, start, _after_templates(source, start, end)
        if start >= end or in_class:
            return
        head = [token.text for token in tokens[start:end]]
        if "__global__" in head and "friend" not in head and (called := self._declarator(source, start, end)):
            self._kernel(source, whole, *called, path, None)
        elif "=" in head:
            equals = start + head.index("=")
            names = [token.text for token in tokens[start:equals] if token.kind == "name"]
            if names:
                self._define(names[-1], source, start, end)
        elif head[0] == "typedef":
            names = [token.text for token in tokens[start:end] if token.kind == "name"]
            self._define(names[-1], source, start, end)

    def _define(self, name: str, source: Source, first: int, last: int) -> None:
        self._definitions.setdefault(name, []).append(_Region(source, first, last))

    @staticmethod
    def _class_name(source: Source, start: int, brace: int) -> str | None:
        """The class that the tokens before a `{` begin to define, if they do."""
        depth, index, last = 0, start, None
        keyword = False
        while index < brace:
            token = source.tokens[index]
            if token.text in ("(", "["):
                index = source.match.get(index, index)
            elif token.text == "<":
                depth += 1
            elif token.text == ">":
                depth -= 1
            elif depth == 0 and token.text in ("class", "struct", "union"):
                keyword = True
            elif keyword and depth == 0 and token.text == ":":
                break
            elif keyword and depth == 0 and token.kind == "name" and token.text not in ("final", *_ATTRIBUTES):
                if last is not None and source.tokens[index - 1].text not in ("::", ")"):
                    return None  # `struct Point make() {`: a function
                last = token.text
            index += 1
        # `Thing Make(class X x) {` has its keyword inside parentheses, which were stepped over.
        if last is None or any(t.text == "(" for t in source.tokens[index - 1 : brace]):
            return None
        return last

    @staticmethod
    def _declarator(source: Source, start: int, end: int) -> tuple[int, int] | None:
        """The name of the function that a statement declares, and its opening parenthesis."""
        index = start
        while index < end:
            token = source.tokens[index]
            if token.text == "(":
                before = source.tokens[index - 1] if index > start else None
                if before is not None and before.kind == "name" and before.text not in _ATTRIBUTES:
                    return index - 1, index
                if before is not None and any(t.text == "operator" for t in source.tokens[start:index]):
                    return index - 1, index
                index = source.match.get(index, end)
            elif token.text == "[":
                index = source.match.get(index, end)
            index += 1
        return None

    @staticmethod
    def _owner(source: Source, name: int, start: int) -> str:
        """`Class` for the name of `Class<T>::Method`: a class is used by its own name. Else the name itself."""
        index = name
        if index - 1 > start and source.tokens[index - 1].text == "~":
            index -= 1
        if index - 2 < start or source.tokens[index - 1].text != "::":
            return source.tokens[name].text
        index -= 2
        if source.tokens[index].text == ">":
            index = _angle_start(source, index) - 1
        return source.tokens[index].text if index >= start else source.tokens[name].text

    def _kernel(
        self, source: Source, start: int, name: int, parenthesis: int, path: tuple[str, ...], body: _Region | None
    ) -> None:
        tokens = source.tokens
        if tokens[name].text.startswith("__aicpu") or "__aicpu__" in [t.text for t in tokens[start:name]]:
            return
        kind: Kind | None = None
        for index in range(start, name):
            if tokens[index].text == "__vector__":
                kind = Kind.VECTOR
            elif tokens[index].text == "__cube__":
                kind = Kind.CUBE
            elif tokens[index].text == "__mix__":
                kind = self._mix(source, index)
        if kind is None and body is not None:
            kind = self._task_type(body)
        file, line = source.place(name)
        qualified: list[str] = []
        while name - 2 >= start and tokens[name - 1].text == "::" and tokens[name - 2].kind == "name":
            qualified.insert(0, tokens[name].text)
            name -= 2
        qualified.insert(0, tokens[name].text)
        parameters = tuple(self._parameters(source, parenthesis))
        template = tokens[start].text == "template" and tokens[start + 1].text == "<"
        self.kernels.append(Kernel((*path, *qualified), file, line, kind, body, parameters, template))

    @staticmethod
    def _mix(source: Source, index: int) -> Kind:
        end = source.match.get(index + 1, index + 1)
        arguments = tuple(source.words(*span) for span in _split(source, index + 2, end))
        if len(arguments) != 2 or arguments not in _MIXES:
            raise source.error(
                index,
                f"`{source.words(index, end + 1)}`: one block has (1, 1), (1, 2), (1, 0) or (0, 1) cube and vector "
                "cores",
            )
        return _MIXES[arguments[0], arguments[1]]

    @staticmethod
    def _task_type(body: _Region) -> Kind | None:
        """What KERNEL_TASK_TYPE_DEFAULT or KERNEL_TASK_TYPE in a body says."""
        source = body.source
        found: dict[str, list[tuple[int, Kind]]] = {"KERNEL_TASK_TYPE_DEFAULT": [], "KERNEL_TASK_TYPE": []}
        for index in range(body.first, body.last):
            word = source.tokens[index].text
            if word not in found:
                continue
            end = source.match.get(index + 1, index + 1)
            spans = list(_split(source, index + 2, end))
            value = source.words(*spans[-1]) if spans else ""
            if value not in _TASK_TYPES:
                raise source.error(index, f"`{source.words(index, end + 1)}`: expected one of {', '.join(_TASK_TYPES)}")
            found[word].append((index, _TASK_TYPES[value]))
        for types in found.values():
            if len({kind for _, kind in types}) > 1:
                raise source.error(
                    types[-1][0], "the kernel has several task types; a launch with <<<>>> has no tiling key to choose"
                )
            if types:
                return types[0][1]
        return None

    @staticmethod
    def _parameters(source: Source, parenthesis: int) -> Iterator[str]:
        """The names of a function's parameters, "" for those that have none."""
        for first, last in _split(source, parenthesis + 1, source.match.get(parenthesis, parenthesis + 1), True):
            equals = next((i for i in range(first, last) if source.tokens[i].text == "="), last)
            names = [t for t in source.tokens[first:equals] if t.kind == "name"]
            yield names[-1].text if len(names) > 1 or (names and equals - first > 1) else ""

    # --------------------------------------------------------------------------------------------------------- kinds

    def find(self, name: str) -> list[Kernel]:
        """The kernels that `name` (with or without scopes and template arguments) may mean."""
        source, index = Source(name, ""), 0
        parts: tuple[str, ...] = ()
        while index < len(source.tokens):
            if source.tokens[index].text == "<":
                index = _angle_end(source, index, len(source.tokens))
            elif source.tokens[index].kind == "name":
                parts = (*parts, source.tokens[index].text)
            index += 1
        if not parts:
            return []
        return [kernel for kernel in self.kernels if kernel.path[-len(parts) :] == parts]

    def kind(self, kernels: Sequence[Kernel], source: Source, index: int, name: str) -> Kind:
        """The kind that these kernels share; declarations follow their definitions.

        Raises:
          RewriteError: at token `index` of `source`: there are none, none is defined, or they differ.
        """
        if not kernels:
            raise source.error(index, f"kernel `{name}` is launched here but never defined as __global__")
        kinds: dict[Kind, Kernel] = {}
        for kernel in kernels:
            kind = kernel.kind
            if kind is None and kernel.body is not None:
                kind = self.infer(kernel.body)
            if kind is not None:
                kinds.setdefault(kind, kernel)
        if not kinds:
            raise source.error(index, f"kernel `{name}` is launched here but never defined, only declared")
        if len(kinds) > 1:
            all_of_them = ", ".join(f"{kind} at {k.file}:{k.line}" for kind, k in kinds.items())
            raise source.error(index, f"`{name}` may mean kernels of several kinds: {all_of_them}")
        return next(iter(kinds))

    def infer(self, body: _Region) -> Kind:
        """The kind of a plain kernel: which cores' instructions and memories its body reaches."""
        cube = vector = False
        seen: set[str] = set()
        waiting = [body]
        while waiting:
            region = waiting.pop()
            uses_cube, uses_vector = self._uses(region)
            cube, vector = cube or uses_cube, vector or uses_vector
            for name in region.names() - seen:
                seen.add(name)
                waiting += self._definitions.get(name, ())
        if cube and vector:
            return Kind.MIX12
        return Kind.CUBE if cube else Kind.VECTOR

    def _uses(self, region: _Region) -> tuple[bool, bool]:
        tokens, cube, vector = region.source.tokens, False, False
        for index in range(region.first, region.last):
            token = tokens[index]
            if token.kind != "name":
                continue
            word = token.text
            before = tokens[index - 1].text if index else ""
            if word in _CUBE_PLACES or word in _VECTOR_PLACES:
                if before == "::" and tokens[index - 2].text in _PLACE_TYPES:
                    cube, vector = cube or word in _CUBE_PLACES, vector or word in _VECTOR_PLACES
            elif word in ("ASCEND_IS_AIC", "AIC"):
                cube = cube or word == "ASCEND_IS_AIC" or "g_coreType" in region.names()
            elif word in ("ASCEND_IS_AIV", "AIV"):
                vector = vector or word == "ASCEND_IS_AIV" or "g_coreType" in region.names()
            elif word in _CUBE_CALLS or word in _VECTOR_CALLS:
                following = tokens[index + 1].text if index + 1 < len(tokens) else ""
                ours = before == "::" and tokens[index - 2].text == "AscendC"
                if before in (".", "->") or following not in ("(", "<") or (word in self._definitions and not ours):
                    continue
                cube, vector = cube or word in _CUBE_CALLS, vector or word in _VECTOR_CALLS
        return cube, vector

    def assigned(self, name: str) -> list[Kernel]:
        """The kernels that a variable may hold: those named where the program gives it a value."""
        kernels = {kernel.path[-1]: self.find(kernel.path[-1]) for kernel in self.kernels}
        found: dict[int, Kernel] = {}
        for source in self.sources:
            tokens = source.tokens
            for index, token in enumerate(tokens[:-1]):
                if token.text != name or tokens[index + 1].text not in ("=", "{", "["):
                    continue
                end = index + 1
                while end < len(tokens) and tokens[end].text != ";":
                    end = source.match.get(end, end) + 1 if tokens[end].text in _OPEN else end + 1
                for inner in tokens[index + 1 : end]:
                    for kernel in kernels.get(inner.text, ()):
                        found[id(kernel)] = kernel
        return list(found.values())


_NOT_SCOPES = frozenset(("namespace", "inline", "using"))


def _after_templates(source: Source, start: int, end: int) -> int:
    """Steps over `template <...>`."""
    while start + 1 < end and source.tokens[start].text == "template" and source.tokens[start + 1].text == "<":
        start = _angle_end(source, start + 1, end) + 1
    return start


def _angle_end(source: Source, index: int, end: int) -> int:
    """The `>` that closes the template bracket at `index`, or `end`."""
    depth = 0
    while index < end:
        text = source.tokens[index].text
        if text in ("(", "[", "{"):
            index = source.match.get(index, end)
        elif text == "<":
            depth += 1
        elif text == ">":
            depth -= 1
            if depth == 0:
                return index
        index += 1
    return end


def _angle_start(source: Source, index: int) -> int:
    """The `<` that opens the template bracket which the `>` at `index` closes, or -1."""
    depth = 0
    while index >= 0:
        text = source.tokens[index].text
        if text in _CLOSE:
            if text == "}":
                return -1
            index = source.match.get(index, -1)
        elif text == ">":
            depth += 1
        elif text == "<":
            depth -= 1
            if depth == 0:
                return index
        elif text in (";", "{"):
            return -1
        index -= 1
    return -1


def _split(source: Source, first: int, last: int, types: bool = False) -> Iterator[tuple[int, int]]:
    """The spans between the commas of `[first, last)` that stand in no bracket, template brackets included.

    `types`: a name may follow a template bracket, as in a list of parameters.
    """
    start = index = first
    while index < last:
        text = source.tokens[index].text
        if text in _OPEN:
            index = source.match.get(index, last)
        elif text == "<" and index > first and source.tokens[index - 1].kind == "name":
            # A template's bracket, or "less than": only a template is followed by a call, a scope or the end.
            end = _angle_end(source, index, last)
            words = {token.text for token in source.tokens[index:end]}
            following = source.tokens[end + 1].text if end + 1 < last else ","
            if types and end + 1 < last and source.tokens[end + 1].kind == "name":
                following = "::"
            if end < last and following in ("(", "::", "{", ",", ">", "*", "&") and not words & {";", "&&", "||"}:
                index = end
        elif text == ",":
            yield start, index
            start = index + 1
        index += 1
    if start < last:
        yield start, last


# ----------------------------------------------------------------------------------------------------------- launches


@dataclasses.dataclass(frozen=True)
class Launch:
    """A launch in the source: token spans `[first, last)` of its parts."""

    callee: tuple[int, int]
    configuration: tuple[tuple[int, int], ...]
    chevrons: tuple[int, int]  # the tokens `<<<` and the first `>` of `>>>`
    arguments: tuple[int, int]  # the parentheses
    name: str
    simple: bool  # the callee is a name, maybe qualified, maybe with template arguments


def launches(source: Source) -> list[Launch]:
    """Every launch in the source, in order.

    Raises:
      RewriteError: `<<<` that no launch follows.
    """
    found = []
    for index, token in enumerate(source.tokens):
        if token.text == "<<<" and token.kind == "punctuation":
            if index and source.tokens[index - 1].text == "operator":
                continue  # operator<<<T>(...)
            found.append(_launch(source, index))
    return found


def _launch(source: Source, chevron: int) -> Launch:
    tokens = source.tokens
    first, simple = _callee_start(source, chevron)
    index, commas = chevron + 1, 0
    while index < len(tokens):
        text = tokens[index].text
        if text == ",":
            commas += 1
        elif text in _OPEN:
            index = source.match.get(index, len(tokens))
        elif text in _CLOSE or text == ";":
            index = len(tokens)
        elif text == ">" and commas and _closes(tokens, index):
            break
        index += 1
    if index >= len(tokens) - 3:
        raise source.error(chevron, "this launch has no `>>>(...)`: expected kernel<<<blocks, l2ctrl, stream>>>(...)")
    configuration = tuple(_split(source, chevron + 1, index))
    name = source.words(first, chevron)
    if len(configuration) == 4:
        raise source.error(
            chevron, f"`{name}` is launched with four values, as SIMT kernels are; the emulator runs SIMD kernels"
        )
    if len(configuration) not in (2, 3):
        raise source.error(
            chevron,
            f"`{name}` is launched with {len(configuration)} values between <<< and >>>; expected blocks, l2ctrl and "
            "stream",
        )
    opening = index + 3
    closing = source.match.get(opening)
    if closing is None:
        raise source.error(opening, f"the arguments of the launch of `{name}` have no end")
    return Launch((first, chevron), configuration, (chevron, index), (opening, closing), name, simple)


def _closes(tokens: Sequence[Token], index: int) -> bool:
    """Whether `>>>(` stands at `index`."""
    three = tokens[index : index + 3]
    return (
        len(three) == 3
        and all(token.text == ">" for token in three)
        and three[0].end == three[1].start
        and three[1].end == three[2].start
        and index + 3 < len(tokens)
        and tokens[index + 3].text == "("
    )


def _callee_start(source: Source, chevron: int) -> tuple[int, bool]:
    """Where the expression before `<<<` begins, and whether it is a mere name."""
    tokens, index, simple = source.tokens, chevron, True
    while True:
        last = index - 1
        if last >= 0 and tokens[last].text == ">":
            last = _angle_start(source, last) - 1
        elif last >= 0 and tokens[last].text in (")", "]"):
            simple = False
            opening = source.match.get(last, -1)
            if tokens[last].text == ")" and not (opening > 0 and tokens[opening - 1].kind == "name"):
                return (opening, False) if opening >= 0 else _no_callee(source, chevron)
            last = opening - 1
        if last < 0 or tokens[last].kind != "name":
            return _no_callee(source, chevron)
        index = last
        if index and tokens[index - 1].text in (".", "->"):
            simple, index = False, index - 1
        elif index and tokens[index - 1].text == "::":
            index -= 1
            before = tokens[index - 1] if index else None
            if before is None or not (before.kind == "name" or before.text == ">") or before.text in _KEYWORDS:
                return index, simple
        elif index and tokens[index - 1].text == "template":
            index -= 1
            continue
        else:
            return index, simple


_KEYWORDS = frozenset(("return", "else", "do", "case", "throw", "co_await", "co_return"))


def _no_callee(source: Source, chevron: int) -> tuple[int, bool]:
    raise source.error(chevron, "no kernel stands before <<<")


def rewrite(program: Program, preprocessed: bool = True) -> list[str]:
    """The program's sources as plain C++, each with the newlines where they were.

    Args:
      program: a launch in one of its translation units may name a kernel that another defines.
      preprocessed: they were preprocessed after `KEEP_MARKS`, so that words which are macros otherwise are still there
        and have to go.

    Raises:
      RewriteError: a launch that is malformed, or whose kernel or its kind cannot be found.
    """
    return [_rewrite(program, source, preprocessed) for source in program.sources]


def _rewrite(program: Program, source: Source, preprocessed: bool) -> str:
    tokens = source.tokens
    edits: list[tuple[int, int, str]] = []
    for launch in launches(source):
        edits += _launch_edits(program, source, launch)
    for index, token in enumerate(tokens):
        if token.kind != "name":
            continue
        if token.text == "constexpr" and index and tokens[index - 1].text == "if" and tokens[index + 1].text == "(":
            inside = tokens[index + 1 : source.match.get(index + 1, index + 1)]
            if any(t.text == "g_coreType" or t.text in _CORE_TESTS for t in inside):
                edits.append((token.start, token.end, ""))
        elif preprocessed and token.text in _CORE_TESTS:
            edits.append((token.start, token.end, _CORE_TESTS[token.text]))
        elif preprocessed and token.text in _MARKS:
            last = index
            if "mix" in token.text or "TASK" in token.text:
                last = source.match.get(index + 1, index)
            edits.append((token.start, tokens[last].end, ""))
    out, position = [], 0
    for start, end, replacement in sorted(edits):
        old = source.text[start:end]
        out += [source.text[position:start], replacement, "\n" * (old.count("\n") - replacement.count("\n"))]
        position = end
    out.append(source.text[position:])
    return "".join(out)


def _launch_edits(program: Program, source: Source, launch: Launch) -> list[tuple[int, int, str]]:
    tokens = source.tokens
    first, chevron = launch.callee
    kernels = program.find(launch.name) if launch.simple else []
    capture = ""
    if not kernels:  # not a kernel's name: a variable that holds one, or an element of a table of them
        capture = "="
        names = [token.text for token in tokens[first:chevron] if token.kind == "name"]
        kernels = [kernel for name in names for kernel in program.assigned(name)]
        if not kernels and (not launch.simple or _is_parameter(program, names[-1])):
            kernels = program.kernels
    kind = program.kind(kernels, source, first, launch.name)
    file, line = source.place(first)
    head = (
        f"::atbfn::emulator::Launch{{::atbfn::emulator::Kind::{kind}, {_quoted(launch.name)}, {_quoted(file)}, {line}"
    )
    edits = [(tokens[first].start, tokens[chevron].end, head + ", static_cast<::std::int64_t>(")]
    for one, other in zip(launch.configuration, launch.configuration[1:], strict=False):
        comma = tokens[one[1]]
        assert other[0] == one[1] + 1
        edits.append((comma.start, comma.end, "), ("))
    close, (opening, closing) = launch.chevrons[1], launch.arguments
    spans = list(_split(source, opening + 1, closing))
    if any(tokens[first].text == "{" or source.words(first, last) == "0" for first, last in spans):
        # Only in a direct call do these become what the kernel declares: a structure, a null pointer.
        edits.append((tokens[close].start, tokens[opening].end, f")}}([&]() {{ return {launch.name}("))
        edits.append((tokens[closing].start, tokens[closing].end, "); })"))
        return edits
    comma_or_not = ", " if spans else ""
    call = f")}}([{capture}](auto&... atbfn_a) {{ return {launch.name}(atbfn_a...); }}{comma_or_not}"
    edits.append((tokens[close].start, tokens[opening].end, call))
    for first, last in spans:
        if last == first + 1 and tokens[first].text in ("NULL", "__null"):
            edits.append((tokens[first].start, tokens[first].end, "nullptr"))
    return edits


def _is_parameter(program: Program, name: str) -> bool:
    """Whether a function or template has a parameter of that name, which then stands for some kernel."""
    for source in program.sources:
        tokens = source.tokens
        for before, token, after in zip(tokens, tokens[1:], tokens[2:], strict=False):
            if token.text == name and (before.kind == "name" or before.text in "*&") and after.text in ",)>":
                return True
    return False


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
