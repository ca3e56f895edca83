"""The YAML file: what it may hold, and what a mistake in it says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from atbfn.fusion import ConfigError
from atbfn.fusion.sources import read, read_file


def write(tmp_path: Path, text: str) -> str:
    path = tmp_path / "atbfn.yaml"
    path.write_text(text)
    return str(path)


def test_everything_a_file_may_hold(tmp_path: Path) -> None:
    text = """\
        # a comment
        mode: fused_with_checkpoints
        target: xla
        cross_precision: true
        layers:
          decoder/*: {mode: step_by_step}
          decoder/3/mlp:
            target: cpu
            cross_precision: no
    """
    config = read({"ATBFN_CONFIG": write(tmp_path, text)})
    assert config.config.mode == "fused_with_checkpoints"
    assert config.config.target == "xla"
    assert config.config.cross_precision is True
    assert config.layers == (
        ("decoder/*", (("mode", "step_by_step"),)),
        ("decoder/3/mlp", (("target", "cpu"), ("cross_precision", False))),
    )


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n"])
def test_an_empty_file_sets_nothing(text: str, tmp_path: Path) -> None:
    assert read_file(write(tmp_path, text)) == ((), ())


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("moed: fused\n", 1, "the file: unknown key 'moed'; expected one of mode, .*; did you mean 'mode'?"),
        ("\n\nmode: fusd\n", 3, "mode: got 'fusd'; expected one of .*; did you mean 'fused'?"),
        ("mode: fused\ntarget: [xla]\n", 2, "target: got a list; expected a single value"),
        ("mode: {a: b}\n", 1, "mode: got a mapping; expected a single value"),
        ("mode: on\n", 1, "mode: got True of type bool; expected one of"),
        ("mode:\n", 1, "mode: got None of type NoneType; expected one of"),
        ("cross_precision: 1\n", 1, "cross_precision: got 1 of type int; expected True or False"),
        ("cross_precision: 'true'\n", 1, "cross_precision: got 'true' of type str"),
        ("mode: fused\nmode: fused\n", 2, "the key 'mode' occurs twice (first in line 1); keep one"),
        ("- mode\n", 1, "the file: got a list; expected a mapping with the keys mode, target"),
        ("fused\n", 1, "the file: got 'fused'; expected a mapping"),
        ("? [a]\n: b\n", 1, "got a key that is not a string"),
        ("layers: decoder/3\n", 1, "layers: got 'decoder/3'; expected a mapping of layer patterns to settings"),
        ("layers:\n  a: fused\n", 2, "layers: a: got 'fused'; expected a mapping with the keys"),
        ("layers:\n  a: {}\n", 2, "layers: a: sets nothing; give one of mode"),
        ("layers:\n  a:\n    moed: fused\n", 3, "layers: a: unknown key 'moed'; .*did you mean 'mode'?"),
        ("layers:\n  a:\n    mode: slow\n", 3, "mode: got 'slow'; expected one of"),
        ("layers:\n  a//b: {mode: fused}\n", 2, "layers: got the pattern 'a//b'"),
        ("layers:\n  a: {mode: fused}\n  a: {mode: fused}\n", 3, "layers: the key 'a' occurs twice"),
        ("mode: fused\n\tx: 1\n", 2, "not valid YAML: found character '\\t' that cannot start any token"),
        ("mode: 'fused\n", 2, "not valid YAML: found unexpected end of stream"),
        ("mode: *nowhere\n", 1, "not valid YAML: found undefined alias 'nowhere'"),
        ("mode: fused\n---\nmode: fused\n", 2, "not valid YAML: but found another document"),
        ("mode: !!python/object:os.system {}\n", 1, "mode: got a mapping"),
        ("cross_precision: !!int x\n", 1, "cross_precision: not valid YAML: invalid literal"),
        ("mode: !mine fused\n", 1, "mode: not valid YAML: could not determine a constructor for the tag '!mine'"),
    ],
)
def test_mistakes_name_file_and_line(text: str, line: int, message: str, tmp_path: Path) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        read_file(path)
    said = str(caught.value)
    assert said.startswith(f"{path}:{line}: ")
    parts = message.split(".*")
    assert all(part in said for part in parts), said


def test_a_file_that_is_not_text(tmp_path: Path) -> None:
    path = tmp_path / "atbfn.yaml"
    path.write_bytes(b"mode: \xff\xfe\n")
    with pytest.raises(ConfigError, match="not a text file in UTF-8"):
        read_file(path)
    path.write_bytes(b"mode: \x00\n")
    with pytest.raises(ConfigError, match="not valid YAML: unacceptable character"):
        read_file(path)
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        read_file(tmp_path)


def test_a_bad_file_at_import_is_a_clear_error(tmp_path: Path) -> None:
    path = write(tmp_path, "mode: fused\nlayerz: {}\n")
    environment = {**os.environ, "ATBFN_CONFIG": path, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", "import atbfn.fusion"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last == (
        f"atbfn.fusion.config.ConfigError: {path}:2: the file: unknown key 'layerz'; "
        "expected one of mode, target, cross_precision, layers; did you mean 'layers'?"
    )
    assert "yaml" not in done.stderr.replace(path, "")


def test_environment_is_read_at_import(tmp_path: Path) -> None:
    path = write(tmp_path, "target: xla\nmode: fused\n")
    environment = {**os.environ, "ATBFN_CONFIG": path, "ATBFN_MODE": "step_by_step", "JAX_PLATFORMS": "cpu"}
    code = "import atbfn.fusion as f; r = f.resolve('op'); print(r.mode, r.target)"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["step_by_step", "xla"]
