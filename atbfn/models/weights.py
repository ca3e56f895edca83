"""Checkpoints on disk: GGUF files and Hugging Face safetensors, read tensor by tensor into stacked parameters.

The formats are read by the packages `gguf` and `safetensors`. Every refusal is a `WeightError` that names the file,
the tensor, and what to do.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from atbfn.models.extras import require

Progress = Callable[[int, int, str], None]
"""Called as progress(done, total, tensor name), in elements, before each tensor and once at the end."""


class WeightError(ValueError):
    """A weight file that cannot be used: truncated, foreign, incomplete or of another shape."""


class Checkpoint(Protocol):
    """Named tensors and the metadata that came with them.

    Attributes:
      path: the file or folder, for messages.
      kind: "gguf" or "safetensors".
      metadata: GGUF fields, or the contents of config.json.
      shapes: row-major shape of every tensor by name.
    """

    path: Path
    kind: str

    @property
    def metadata(self) -> Mapping[str, Any]: ...

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]: ...

    def read(self, name: str) -> np.ndarray:
        """One tensor: in its stored dtype, or float32 where the file holds it quantised."""
        ...


def open_checkpoint(path: str | Path | Checkpoint) -> Checkpoint:
    """Open a GGUF file, a safetensors file, or a folder with config.json and safetensors.

    An open checkpoint is returned as it is, so that weights and tokenizer can share one.

    Raises:
      WeightError: nothing there, neither format, truncated, or a folder with several candidates.
      ModuleNotFoundError: the format's package is not installed.
    """
    if not isinstance(path, str | Path):
        return path
    path = Path(path).expanduser()
    if not path.exists():
        raise WeightError(f"{path}: no such file or folder; pass a GGUF file, or a folder with model.safetensors")
    if path.is_dir():
        return _open_folder(path)
    with path.open("rb") as file:
        start = file.read(9)
    if start[:4] == b"GGUF":
        return GGUFCheckpoint(path)
    if path.suffix == ".safetensors" or start[8:9] == b"{":
        return SafetensorsCheckpoint(path, [path])
    if path.name.endswith(".index.json"):
        return _open_index(path)
    raise WeightError(
        f"{path}: neither GGUF nor safetensors (it starts with {start!r}); "
        "convert the model to one of these formats and pass that file"
    )


def _open_folder(folder: Path) -> Checkpoint:
    index, single = folder / "model.safetensors.index.json", folder / "model.safetensors"
    if index.exists():
        return _open_index(index)
    if single.exists():
        return SafetensorsCheckpoint(folder, [single])
    found = sorted(folder.glob("*.gguf")) or sorted(folder.glob("*.safetensors"))
    if len(found) == 1:
        return open_checkpoint(found[0])
    have = f"several: {_listed(p.name for p in found)}" if found else "none"
    raise WeightError(
        f"{folder}: expected model.safetensors, model.safetensors.index.json or one GGUF file, found {have}; "
        "pass the weight file itself"
    )


def _open_index(index: Path) -> Checkpoint:
    entries = read_json(index).get("weight_map")
    if not isinstance(entries, dict) or not entries:
        raise WeightError(f"{index}: has no weight_map; download the checkpoint's index again")
    files = [index.parent / name for name in sorted(set(entries.values()))]
    absent = [file.name for file in files if not file.exists()]
    if absent:
        raise WeightError(f"{index}: the shards {_listed(absent)} are missing; download them into {index.parent}")
    checkpoint = SafetensorsCheckpoint(index.parent, files)
    lost = sorted(set(entries) - set(checkpoint.shapes))
    if lost:
        raise WeightError(f"{index}: no shard holds {_listed(lost)}; download the shards again")
    return checkpoint


class GGUFCheckpoint:
    """A GGUF file, memory mapped; quantised tensors are dequantised as they are read."""

    kind = "gguf"

    def __init__(self, path: Path) -> None:
        gguf = require("gguf", "reading GGUF files")
        self.path = path
        try:
            reader = gguf.GGUFReader(path)
        except (ValueError, IndexError, KeyError, OSError, UnicodeDecodeError) as error:
            raise WeightError(
                f"{path}: a GGUF file that is truncated or damaged ({error}); download it again, or convert it again"
            ) from error
        self._fields = reader.fields
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        self._metadata: dict[str, Any] = {}

    @cached_property
    def metadata(self) -> Mapping[str, Any]:
        """Every field by name, converted when first asked for."""
        return _Fields(self._fields)

    @cached_property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Row-major shapes: GGUF itself lists the fastest dimension first."""
        return {name: tuple(int(n) for n in reversed(t.shape)) for name, t in self._tensors.items()}

    def read(self, name: str) -> np.ndarray:
        """See `Checkpoint.read`."""
        quants = require("gguf.quants", "reading GGUF files")
        tensor = self._tensors[name]
        try:
            values = quants.dequantize(tensor.data, tensor.tensor_type)
        except NotImplementedError as error:
            raise WeightError(
                f"{self.path}: {name}: the quantisation {tensor.tensor_type.name} cannot be read by the installed gguf "
                "package; upgrade it, or requantise the model, e.g. to Q8_0"
            ) from error
        return values.reshape(self.shapes[name])


class _Fields(Mapping[str, Any]):
    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._fields = fields
        self._known: dict[str, Any] = {}

    def __getitem__(self, key: str) -> Any:
        if key not in self._known:
            self._known[key] = self._fields[key].contents()
        return self._known[key]

    def __iter__(self) -> Any:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)


class SafetensorsCheckpoint:
    """One or more safetensors files with the config.json beside them, memory mapped."""

    kind = "safetensors"

    def __init__(self, path: Path, files: list[Path]) -> None:
        safetensors = require("safetensors", "reading safetensors files")
        self.path = path
        self._folder = files[0].parent
        self._where: dict[str, Any] = {}
        shapes = {}
        for file in files:
            try:
                opened = safetensors.safe_open(file, framework="numpy")
            except (safetensors.SafetensorError, OSError) as error:
                raise WeightError(
                    f"{file}: a safetensors file that is truncated or damaged, or another format ({error}); "
                    "download it again"
                ) from error
            for name in opened.keys():  # noqa: SIM118 - not a dictionary
                self._where[name] = opened
                shapes[name] = tuple(opened.get_slice(name).get_shape())
        self.shapes: Mapping[str, tuple[int, ...]] = shapes

    @cached_property
    def metadata(self) -> Mapping[str, Any]:
        """The contents of config.json."""
        file = self._folder / "config.json"
        if not file.exists():
            raise WeightError(f"{file}: missing; put the model's config.json beside its safetensors files")
        return read_json(file)

    def read(self, name: str) -> np.ndarray:
        """See `Checkpoint.read`."""
        values = self._where[name].get_tensor(name)
        if not jnp.issubdtype(values.dtype, jnp.floating):
            raise WeightError(
                f"{self.path}: {name}: holds {values.dtype}, not floating point; "
                "quantised safetensors are not supported, pass the unquantised checkpoint"
            )
        return values


def read_json(file: Path) -> dict[str, Any]:
    """The object that a JSON file holds.

    Raises:
      WeightError: it cannot be read, is no JSON, or holds something else.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise WeightError(f"{file}: cannot be read as JSON ({error}); download it again") from error
    if not isinstance(content, dict):
        raise WeightError(f"{file}: holds {type(content).__name__}, not an object; download it again")
    return content


@dataclasses.dataclass(frozen=True)
class Leaf:
    """Where one parameter comes from.

    Attributes:
      names: its tensor in the checkpoint; one per layer for a stacked parameter.
      shape: of one tensor.
      stacked: whether the parameter has a leading layer axis.
      full_precision: kept in float32 whatever the model's dtype (norms).
      transform: applied to each tensor as read.
    """

    names: tuple[str, ...]
    shape: tuple[int, ...]
    stacked: bool = False
    full_precision: bool = False
    transform: Callable[[np.ndarray], np.ndarray] | None = None


def load_parameters(
    checkpoint: Checkpoint,
    plan: Any,
    dtype: Any,
    *,
    expected_extra: Callable[[str], bool] = lambda name: False,
    progress: Progress | None = None,
) -> Any:
    """Read the parameters that `plan`, a pytree of `Leaf`, describes.

    Only one tensor at a time is held besides the parameters themselves.

    Args:
      checkpoint: open checkpoint.
      plan: pytree of `Leaf`.
      dtype: of the parameters, e.g. float32 or bfloat16.
      expected_extra: says of a tensor that the plan does not use whether that is known to be harmless.
      progress: see `Progress`.

    Raises:
      WeightError: tensors that are missing, unexpected, of another shape, or that overflow `dtype`. All of one kind are
        listed in one message.
    """
    is_leaf = lambda node: isinstance(node, Leaf)  # noqa: E731
    leaves: list[Leaf] = jax.tree.leaves(plan, is_leaf=is_leaf)
    wanted = {name: leaf for leaf in leaves for name in leaf.names}
    _check_names(checkpoint, wanted, expected_extra)
    total = sum(_size(checkpoint.shapes[name]) for name in wanted)
    done = 0

    def load(leaf: Leaf) -> jax.Array:
        nonlocal done
        kept = np.dtype(np.float32) if leaf.full_precision else jnp.dtype(dtype)
        values = np.empty((len(leaf.names), *leaf.shape), kept)
        for i, name in enumerate(leaf.names):
            if progress is not None:
                progress(done, total, name)
            tensor = checkpoint.read(name)
            tensor = tensor if leaf.transform is None else leaf.transform(tensor)
            with np.errstate(over="ignore"):
                values[i] = tensor.astype(kept)
            if kept == np.float16 and np.isfinite(tensor).all() and not np.isfinite(values[i]).all():
                raise WeightError(
                    f"{checkpoint.path}: {name}: has values beyond float16's range (65504); load it as bfloat16"
                )
            done += tensor.size
        return jnp.asarray(values if leaf.stacked else values[0])

    parameters = jax.tree.map(load, plan, is_leaf=is_leaf)
    if progress is not None:
        progress(total, total, "")
    return parameters


def _check_names(checkpoint: Checkpoint, wanted: Mapping[str, Leaf], expected_extra: Callable[[str], bool]) -> None:
    missing = sorted(name for name in wanted if name not in checkpoint.shapes)
    extra = sorted(name for name in checkpoint.shapes if name not in wanted and not expected_extra(name))
    if missing or extra:
        parts = []
        if missing:
            parts.append(f"{len(missing)} of {len(wanted)} tensors are missing: {_listed(missing)}")
        if extra:
            parts.append(f"{len(extra)} are unexpected: {_listed(extra)}")
        raise WeightError(
            f"{checkpoint.path}: {'; '.join(parts)}; the file belongs to another architecture or is incomplete: "
            "pass the complete checkpoint of a supported model"
        )
    wrong = [
        f"{name} is {list(checkpoint.shapes[name])}, expected {list(leaf.shape)}"
        for name, leaf in sorted(wanted.items(), key=lambda entry: entry[0])
        if checkpoint.shapes[name] != leaf.shape
    ]
    if wrong:
        raise WeightError(
            f"{checkpoint.path}: tensors do not have the shapes that the configuration gives: {_listed(wrong, '; ')}; "
            "the weights and the configuration come from different models: download both from one place"
        )


def _size(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape, dtype=np.int64))


def _listed(items: Iterable[str], separator: str = ", ", most: int = 8) -> str:
    items = list(items)
    rest = f"{separator}and {len(items) - most} more" if len(items) > most else ""
    return separator.join(items[:most]) + rest


def setting(checkpoint: Checkpoint, key: str, kind: type, default: Any = None) -> Any:
    """The metadata entry `key` converted to `kind`; `default` if absent, which None makes an error.

    Raises:
      WeightError: it is absent without a default, or is no `kind`.
    """
    value = checkpoint.metadata.get(key)
    if value is None:
        if default is None:
            raise WeightError(f"{checkpoint.path}: the configuration lacks {key}; download the complete checkpoint")
        return default
    try:
        converted = kind(value)
        if kind is int and converted != value:
            raise ValueError
    except (TypeError, ValueError):
        raise WeightError(
            f"{checkpoint.path}: {key} is {value!r}, expected {kind.__name__}; download the configuration again"
        ) from None
    return converted
