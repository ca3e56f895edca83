"""Runs one kernel on NumPy arrays, in this process."""

from __future__ import annotations

import ctypes
import dataclasses
import json
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from atbfn.ascendc import build, report
from atbfn.ascendc.errors import AscendCError
from atbfn.ascendc.rewrite import Kernel, Program
from atbfn.fusion.chips import ChipProfile

ALIGNMENT = 512  # of global memory, as aclrtMalloc aligns it

# One lock for all: a launch has all cores to itself, as on a device.
_lock = threading.Lock()


@dataclasses.dataclass(frozen=True)
class Result:
    """What a launch did.

    Attributes:
      outputs: new arrays with the shapes and dtypes of those passed, one for each index in `outputs`.
      counters: bytes per level, instructions per pipe, peak use, simulated time (see `docs/ascendc.md`).
      warnings: what the vendor's compiler would repair, and other things to look at.
    """

    outputs: list[np.ndarray]
    counters: dict[str, Any]
    warnings: list[str]

    def report(self) -> str:
        """The counters as a table."""
        return report.text([self.counters])


class _Parameter(ctypes.Structure):
    """A kernel parameter as the compiler sees it (see `_ENTRY`). `to` is what a pointer points to, 'v' for void."""

    _fields_ = [("code", ctypes.c_char), ("size", ctypes.c_int), ("to", ctypes.c_char), ("to_size", ctypes.c_int)]


# The entry of the shared library: what the parameters are, and a launch with packed arguments.
_MAX_BLOCKS = 65535

_ENTRY = """
# 1 "<atbfn.ascendc.run>"
namespace atbfn_entry {
struct Parameter { char code; int size; char to; int to_size; };
template <class T> constexpr char Code() {
  using U = ::std::remove_cv_t<T>;
  if (::std::is_pointer<U>::value) return 'p';
  if (::std::is_same<U, bool>::value) return '?';
  if (::std::is_same<U, ::half>::value) return 'h';
  if (::std::is_same<U, ::bfloat16_t>::value) return 'b';
  if (::std::is_floating_point<U>::value) return 'f';
  if constexpr (::std::is_enum<U>::value) return Code<::std::underlying_type_t<U>>();
  if (::std::is_integral<U>::value) return ::std::is_signed<U>::value ? 'i' : 'u';
  return ::std::is_trivially_copyable<U>::value ? 's' : 'x';
}
template <class T> struct Size { static constexpr int value = sizeof(T); };
template <> struct Size<void> { static constexpr int value = 0; };
template <class T> struct Of { static constexpr Parameter value{Code<T>(), sizeof(T), 'v', 0}; };
template <class T> struct Of<T*> {
  using To = ::std::remove_cv_t<T>;
  static constexpr char to = ::std::is_void<To>::value ? 'v' : Code<To>();
  static constexpr Parameter value{'p', sizeof(T*), to, Size<To>::value};
};
template <class... P> int Describe(void (*)(P...), Parameter* to, int room) {
  const Parameter all[] = {Of<::std::decay_t<P>>::value..., Parameter{}};
  const int count = sizeof...(P);
  for (int i = 0; i < count && i < room; ++i) to[i] = all[i];
  return count;
}
}
constexpr auto atbfn_kernel = &KERNEL;
extern "C" int atbfn_parameters(::atbfn_entry::Parameter* to, int room) {
  return ::atbfn_entry::Describe(atbfn_kernel, to, room);
}
extern "C" int atbfn_launch(long long blocks, void** arguments, const ::std::size_t* sizes, int count) {
  using ::atbfn::emulator::Kind;
  return ::atbfn::emulator::LaunchPacked(Kind::KIND, NAME, blocks, atbfn_kernel, arguments, sizes, count);
}
"""


def run(
    source: str | Path,
    kernel: str,
    arrays: Sequence[Any],
    *,
    blocks: int = 1,
    chip: str | ChipProfile = "910b",
    strict: bool = False,
    defines: Mapping[str, object] | None = None,
    includes: Sequence[str | Path] = (),
    outputs: Sequence[int] | None = None,
    workspace: int = 0,
    threads: int | None = None,
    seed: int | None = None,
    trace: str | Path | None = None,
) -> Result:
    """Compiles a source for the emulator and launches a kernel of it, as `kernel<<<blocks, nullptr, stream>>>` does.

    Args:
      source: the path of a file, or Ascend C text. It needs no `main`.
      kernel: the kernel's name, with its template arguments if it has any: `"add"`, `"ops::add<2048>"`.
      arrays: the kernel's arguments in order. Arrays become global memory; their dtype must be what the parameter
        points to (`half*` float16, `bfloat16_t*` ml_dtypes.bfloat16; `GM_ADDR` and `void*` take any). For parameters
        passed by value: numbers, bytes, ctypes structures and NumPy structured scalars of the same size. Bytes and
        structures for a pointer are copied to global memory. None for a pointer is the workspace, or null without one.
      blocks: how many blocks.
      chip: a name that `atbfn.fusion.chips.chip_profile` knows.
      strict: refuse what the vendor's compiler would repair (auto-sync), instead of warning.
      defines: macros for the source.
      includes: folders with its headers; those beside `source` are found anyway.
      outputs: indices into `arrays` of the arrays that come back; None: all of them. The arrays passed never change.
        An array that is not named may not be written either: that raises.
      workspace: bytes of uninitialised global memory for the argument that is None.
      threads: host threads that run cores at the same time (None: all processors). Results do not depend on it.
      seed: run the cores in an order drawn from this seed. Results do not depend on it.
      trace: where to write a timeline for ui.perfetto.dev.

    Raises:
      AscendCError: the source does not compile, or the kernel broke a rule; the text has file, line and rule.
      EmulatorUnavailable: this machine has no suitable compiler.
      TypeError, ValueError: an argument does not fit the kernel's parameter.
      FileNotFoundError: there is no such source.
    """
    if isinstance(blocks, bool) or not isinstance(blocks, (int, np.integer)):
        raise TypeError(f"atbfn.ascendc.run: blocks: got {blocks!r}; expected an int; pass how many blocks to launch")
    if not 1 <= blocks <= _MAX_BLOCKS:
        raise ValueError(f"atbfn.ascendc.run: blocks: got {blocks}; expected 1 to {_MAX_BLOCKS}, as a device takes")
    if isinstance(outputs, (str, bytes)) or not (outputs is None or isinstance(outputs, Sequence)):
        raise TypeError(
            f"atbfn.ascendc.run: outputs: got {outputs!r}; expected a list of indices into arrays; write outputs=[1]"
        )
    if isinstance(source, str) and not source.strip():
        raise ValueError("atbfn.ascendc.run: source: got an empty text; expected a path or Ascend C text")
    path = _file(source, kernel)
    chosen: list[Kernel] = []

    def entry(program: Program) -> str:
        found = _find(program, kernel, str(path))
        chosen.append(found)
        angle = kernel.find("<")
        full = "::" + found.name + ("" if angle < 0 else kernel[angle:])
        kind = program.kind([found], program.sources[0], 0, kernel)
        quoted = json.dumps(kernel)
        return _ENTRY.replace("KERNEL", full).replace("KIND", kind).replace("NAME", quoted)

    built = build.build([path], chip=chip, defines=defines, includes=includes, entry=entry)
    library = ctypes.CDLL(str(built.path))
    library.atbfn_emulator_error.restype = ctypes.c_char_p
    library.atbfn_emulator_report.restype = ctypes.c_char_p
    library.atbfn_emulator_register.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    library.atbfn_emulator_unregister.argtypes = [ctypes.c_void_p]
    library.atbfn_emulator_options.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_char_p]
    library.atbfn_launch.argtypes = [ctypes.c_longlong, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int]

    parameters = (_Parameter * 256)()
    count = library.atbfn_parameters(parameters, 256)
    names = [name or "unnamed" for name in chosen[0].parameters]
    if len(arrays) != count:
        raise ValueError(
            f"atbfn.ascendc.run: arrays: got {len(arrays)}; expected the {count} arguments of {kernel}"
            f"({', '.join(names)})"
        )
    arguments = [_Argument(i, names[i], v, parameters[i]) for i, v in enumerate(arrays)]
    wanted = _outputs(outputs, arguments)
    _give_workspace(arguments, workspace)

    with _lock:
        memory = [argument for argument in arguments if argument.memory is not None]
        for argument in memory:
            library.atbfn_emulator_register(argument.address, argument.bytes, argument.name.encode())
        try:
            library.atbfn_emulator_options(
                int(strict),
                0 if threads is None else int(threads),
                -1 if seed is None else int(seed),
                None if trace is None else str(trace).encode(),
            )
            values = [argument.packed() for argument in arguments]
            pointers = (ctypes.c_void_p * max(count, 1))(*(value.ctypes.data for value in values))
            sizes = (ctypes.c_size_t * max(count, 1))(*(len(value) for value in values))
            refused = library.atbfn_launch(blocks, pointers, sizes, count)
            message = library.atbfn_emulator_error() or b""
            told = library.atbfn_emulator_report() or b""
        finally:
            for argument in memory:
                library.atbfn_emulator_unregister(argument.address)
    if refused:
        raise AscendCError(message.decode("utf-8", "replace").rstrip("\n"))
    for argument in arguments:
        if argument.index not in wanted and argument.changed():
            raise AscendCError(
                f"{path}: error: {kernel} wrote to argument {argument.index} ({argument.name}), which is not in "
                f"outputs={list(wanted)}; name it there or pass outputs=None"
            )
    counters = json.loads(told) | {"file": chosen[0].file, "line": chosen[0].line}
    return Result([arguments[index].array() for index in wanted], counters, list(counters.get("warnings", ())))


def _file(source: str | Path, kernel: str) -> Path:
    """The file to compile; text is written to one, so that messages can point into it."""
    if isinstance(source, Path) or ("\n" not in source and "{" not in source):
        path = Path(source)
        if not path.is_file():
            raise FileNotFoundError(f"atbfn.ascendc.run: source: there is no file {path}")
        return path
    name = kernel.partition("<")[0].rpartition("::")[2] or "kernel"
    folder = build.cache_dir() / "text" / build.digest(source)
    return build.once(folder / f"{name}.asc", lambda path: path.write_text(source, encoding="utf-8"))


def _find(program: Program, kernel: str, path: str) -> Kernel:
    found = [k for k in program.find(kernel) if k.body is not None]
    if len(found) > 1:  # the whole name decides between ops::add and add
        found = [k for k in found if k.name == kernel.partition("<")[0].removeprefix("::")] or found
    if not found:
        known = ", ".join(sorted({k.name for k in program.kernels if k.body is not None})) or "none"
        raise AscendCError(f"{path}: error: there is no kernel `{kernel}`; kernels here: {known}")
    if len(found) > 1:
        where = ", ".join(f"{k.name} ({k.file}:{k.line})" for k in found)
        raise AscendCError(f"{path}: error: `{kernel}` may mean {where}; write its namespaces")
    if found[0].template and "<" not in kernel:
        place = f"{found[0].file}:{found[0].line}"
        raise AscendCError(f"{place}: error: `{kernel}` is a template; write its arguments: {kernel}<...>")
    return found[0]


_INTEGERS = {size: (np.dtype(f"i{size}"), np.dtype(f"u{size}")) for size in (1, 2, 4, 8)}


def _bfloat16() -> np.dtype:
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16)


def _dtype(code: str, size: int) -> np.dtype | None:
    """The dtype of a C++ type; None for structures."""
    if code == "?":
        return np.dtype(np.bool_)
    if code == "h":
        return np.dtype(np.float16)
    if code == "b":
        return _bfloat16()
    if code == "f" and size in (4, 8):
        return np.dtype(f"f{size}")
    if code in "iu" and size in _INTEGERS:
        return _INTEGERS[size][code == "u"]
    return None


def _aligned(size: int) -> np.ndarray:
    """So many uninitialised bytes, as aligned as global memory is."""
    raw = np.empty(size + ALIGNMENT, np.uint8)
    offset = -raw.ctypes.data % ALIGNMENT
    return raw[offset : offset + size]


class _Argument:
    """An argument on its way to the kernel: a value, or global memory with a copy of it."""

    def __init__(self, index: int, name: str, value: Any, parameter: _Parameter) -> None:
        self.index, self.name, self.value = index, name, value
        self.code, self.size = parameter.code.decode(), parameter.size
        self.to, self.to_size = parameter.to.decode(), parameter.to_size
        self.memory: np.ndarray | None = None
        self.address, self.bytes = 0, 0
        self.given: np.ndarray | None = None  # the array that was passed, if one was
        self.scalar = b""
        if self.code == "p":
            self._pointer()
        else:
            self._value()

    def _wrong(self, expected: str, kind: type[Exception] = TypeError) -> NoReturn:
        value = self.value
        shown = f"{value.dtype} array" if isinstance(value, np.ndarray) else f"{type(value).__name__} {value!r:.60}"
        raise kind(f"atbfn.ascendc.run: argument {self.index} ({self.name}): got {shown}; expected {expected}")

    def _pointer(self) -> None:
        value = self.value
        if value is None:
            return
        if isinstance(value, (bytes, bytearray, ctypes.Structure, ctypes.Array)):
            self.allocate(np.frombuffer(bytes(value), np.uint8))
            return
        if np.isscalar(value) or not (isinstance(value, np.ndarray) or hasattr(value, "__array__")):
            self._wrong("an array, bytes, a ctypes structure or None, for a pointer")
        array = np.asarray(value)
        self.value = array
        if array.dtype.hasobject or array.dtype.byteorder == ">":
            self._wrong("an array of numbers in this machine's byte order")
        pointee = _dtype(self.to, self.to_size)
        any_dtype = self.to in "vs" or pointee == np.uint8
        if not any_dtype and pointee is not None and array.dtype != pointee:
            self._wrong(f"{pointee}, which the kernel's parameter points to")
        self.given = array
        self.allocate(np.ascontiguousarray(array).reshape(-1).view(np.uint8))

    def allocate(self, contents: np.ndarray | int) -> None:
        """Global memory with these bytes, or of so many."""
        self.bytes = contents if isinstance(contents, int) else contents.size
        self.memory = _aligned(self.bytes)
        self.address = self.memory.ctypes.data
        if not isinstance(contents, int):
            self.memory[:] = contents

    def _value(self) -> None:
        value, dtype = self.value, _dtype(self.code, self.size)
        if isinstance(value, np.ndarray) and value.ndim == 0:
            value = value[()]
        if dtype is None:
            if self.code != "s":
                self._wrong(f"nothing: a parameter of this type ({self.size} bytes) cannot be passed from Python")
            if isinstance(value, (bytes, bytearray, ctypes.Structure, ctypes.Array)):
                self.scalar = bytes(value)
            elif isinstance(value, np.generic):
                self.scalar = value.tobytes()
            else:
                self._wrong(f"bytes, a ctypes structure or a NumPy structured scalar of {self.size} bytes")
            if len(self.scalar) != self.size:
                raise ValueError(
                    f"atbfn.ascendc.run: argument {self.index} ({self.name}): got {len(self.scalar)} bytes; expected "
                    f"{self.size}, the size of the kernel's parameter"
                )
            return
        # bfloat16 scalars are neither np.floating nor Python numbers.
        if not isinstance(value, (bool, int, float, np.bool_, np.integer, np.floating, _bfloat16().type)):
            self._wrong(f"a number, for a parameter of type {dtype}")
        if dtype.kind in "iu":
            whole = int(value)
            if value != whole:
                self._wrong(f"a whole number, for a parameter of type {dtype}", ValueError)
            limits = np.iinfo(dtype)
            if not limits.min <= whole <= limits.max:
                self._wrong(f"a number from {limits.min} to {limits.max}, for a parameter of type {dtype}", ValueError)
            self.scalar = np.array(whole, dtype).tobytes()
        else:
            self.scalar = np.array(value).astype(dtype).tobytes()

    def packed(self) -> np.ndarray:
        """The argument's bytes, as the kernel's parameter holds them."""
        data = self.address.to_bytes(self.size, sys.byteorder) if self.code == "p" else self.scalar
        value = _aligned(len(data))
        value[:] = np.frombuffer(data, np.uint8)
        return value

    def changed(self) -> bool:
        if self.given is None or self.memory is None:
            return False
        return not np.array_equal(self.memory, np.ascontiguousarray(self.given).reshape(-1).view(np.uint8))

    def array(self) -> np.ndarray:
        assert self.given is not None and self.memory is not None
        return self.memory.view(self.given.dtype).reshape(self.given.shape).copy()


def _outputs(outputs: Sequence[int] | None, arguments: Sequence[_Argument]) -> list[int]:
    if outputs is None:
        return [argument.index for argument in arguments if argument.given is not None]
    wanted = []
    for index in outputs:
        if not -len(arguments) <= index < len(arguments) or arguments[index].given is None:
            raise ValueError(
                f"atbfn.ascendc.run: outputs: got {index}; expected indices of arrays among the {len(arguments)} "
                "arguments"
            )
        wanted.append(index % len(arguments))
    return wanted


def _give_workspace(arguments: Sequence[_Argument], workspace: int) -> None:
    if workspace < 0:
        raise ValueError(f"atbfn.ascendc.run: workspace: got {workspace}; expected a number of bytes")
    empty = [argument for argument in arguments if argument.code == "p" and argument.value is None]
    if workspace > 0:
        if len(empty) != 1:
            raise ValueError(
                f"atbfn.ascendc.run: workspace: got {workspace} bytes and {len(empty)} arguments that are None; "
                "expected None for exactly the pointer that is the workspace"
            )
        empty[0].allocate(workspace)
