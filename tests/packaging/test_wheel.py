"""What an installation holds, and that it works without the extras and without a compiler."""

from __future__ import annotations

import email
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

import atbfn

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
ROOMS = PROJECT["tool"]["scikit-build"]["wheel"]["packages"]
EXTRA_MODULES = ("gguf", "jinja2", "safetensors", "tokenizers", "typer", "rich", "torch", "transformers")

USE = """
import json, logging, sys
blocked = set(sys.argv[1].split(","))
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in blocked:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Block())
records = []
class Keep(logging.Handler):
    def emit(self, record):
        records.append([record.name, record.levelname, record.getMessage()])
logging.getLogger("atbfn").addHandler(Keep())

import jax, jax.numpy as jnp
import atbfn, atbfn.models, atbfn.doctor
from atbfn.lowering.cpu import native
x, w = jnp.ones((2, 8)), jnp.eye(8)
y = atbfn.fused_ffn(x, w, w, w, activation="relu")
native.reason(), native.reason()
print(json.dumps({
    "file": atbfn.__file__, "y": y.tolist(), "reason": native.reason(), "records": records,
    "doctor": atbfn.doctor.plain(atbfn.doctor.report()), "loaded": sorted(blocked & set(sys.modules)),
}))
"""


def use(installed: Any, *blocked: str) -> dict[str, Any]:
    return json.loads(installed.python(USE, ",".join(blocked)).stdout)


def metadata(installed: Any) -> Any:
    archive = zipfile.ZipFile(installed.wheel)
    (name,) = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA")]
    return email.message_from_bytes(archive.read(name))


def test_every_room_is_installed_under_atbfn(with_kernels: Any) -> None:
    names = set(with_kernels.names)
    assert {n.split("/")[0] for n in names} == {"atbfn", f"atbfn-{PROJECT['project']['version']}.dist-info"}
    for installed, source in ROOMS.items():
        for path in (ROOT / source).rglob("*.py"):
            assert f"{installed}/{path.relative_to(ROOT / source).as_posix()}" in names
    assert {"atbfn/py.typed", "atbfn/_build_info.py"} <= names
    for path in (ROOT / "kernels" / "emulator").rglob("*"):  # compiled on the user's machine, with the user's kernels
        if path.suffix in (".h", ".cc"):
            assert f"atbfn/_emulator/{path.relative_to(ROOT / 'kernels' / 'emulator').as_posix()}" in names
    ours = [n for n in names if not n.startswith("atbfn/_emulator/")]
    assert not [n for n in ours if re.search(r"(^|/)(tests|benchmarks|kernels|emulator)/|\.(cc|h)$", n)]


def test_kernels_are_built_where_a_compiler_is(with_kernels: Any) -> None:
    # The tests of compiled kernels skip without them, so this is what notices that the build broke.
    built = [n for n in with_kernels.names if n.startswith("atbfn/_kernels") and n.endswith(".so")]
    compiler = next((c for c in ("c++", "g++", "clang++") if shutil.which(c)), None)
    assert bool(built) == bool(compiler), f"compiler: {compiler}, built: {built}"


def test_the_emulator_is_found_in_an_installation(with_kernels: Any) -> None:
    code = "from atbfn.ascendc import build; print(build.emulator_root(), build.status())"
    out = with_kernels.python(code).stdout
    assert out.startswith(str(with_kernels.folder / "atbfn" / "_emulator"))
    assert ("(True, " in out) == bool(shutil.which("g++"))


def test_metadata(with_kernels: Any) -> None:
    assert atbfn.__version__ == PROJECT["project"]["version"]
    found = metadata(with_kernels)
    assert found["Name"] == "atbfn" and found["Version"] == PROJECT["project"]["version"]
    assert found["License-Expression"] == "Apache-2.0" and found["Requires-Python"] == ">=3.11"
    always = [Requirement(r) for r in found.get_all("Requires-Dist") if "extra ==" not in r]
    assert {r.name.lower() for r in always} == {"jax", "numpy", "pyyaml"}
    (jax_requirement,) = [r for r in always if r.name == "jax"]
    assert all(v in jax_requirement.specifier for v in ("0.10.0", "0.10.2", "0.11.0", "0.12.0"))
    assert not any(v in jax_requirement.specifier for v in ("0.9.9", "0.11.1", "0.13.0"))
    assert set(found.get_all("Provides-Extra")) == {"models", "cli", "all", "bench", "test", "dev"}
    archive = zipfile.ZipFile(with_kernels.wheel)
    (licence,) = [n for n in archive.namelist() if n.endswith("LICENSE")]
    assert b"Apache License" in archive.read(licence)
    (entries,) = [n for n in archive.namelist() if n.endswith("entry_points.txt")]
    assert "atbfn=atbfn.__main__:main" in archive.read(entries).decode().replace(" ", "")


def test_works_without_the_extras(with_kernels: Any) -> None:
    got = use(with_kernels, *EXTRA_MODULES)
    assert got["file"].startswith(str(with_kernels.folder))
    assert got["y"] == [[1.0] * 8] * 2 and got["loaded"] == []
    assert got["reason"] is None and got["records"] == []
    assert re.search(r"\+ compiled kernels +\S", got["doctor"])


def test_doctor_runs_without_the_extras_and_the_rest_says_what_to_install(with_kernels: Any) -> None:
    code = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("typer", "rich"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Block())
from atbfn.__main__ import main
for command in ("doctor", "generate"):
    sys.argv = ["atbfn", command]
    try:
        main()
    except SystemExit as error:
        print("exit:", error.code)
"""
    out = with_kernels.python(code).stdout
    assert re.search(r"\+ xla .*fused_ffn", out) and "exit: 0" in out
    assert 'exit: atbfn: the command line needs the package typer; pip install "atbfn[cli]"' in out


def test_import_does_not_load_the_extras(with_kernels: Any) -> None:
    heavy = ",".join(EXTRA_MODULES)
    code = f"import sys, atbfn, atbfn.models; print(sorted(set({heavy!r}.split(',')) & set(sys.modules)))"
    assert with_kernels.python(code).stdout.strip() == "[]"


def test_without_a_compiler_the_reason_is_logged_once_and_xla_works(without_compiler: Any) -> None:
    assert not [n for n in without_compiler.names if n.endswith(".so")]
    got = use(without_compiler)
    assert got["file"].startswith(str(without_compiler.folder))
    assert got["y"] == [[1.0] * 8] * 2
    cause = "they were not built: no working C++ compiler was found (CXX is /bin/false)"
    assert got["reason"] == cause
    assert [r[:2] for r in got["records"] if cause in r[2]] == [["atbfn", "WARNING"]]
    assert re.search(rf"- compiled kernels +not available: {re.escape(cause)}", got["doctor"])
    assert re.search(rf"- cpu +.*{re.escape(cause)}", got["doctor"])


def test_without_kernels_an_explicit_cpu_target_raises_with_the_reason(without_compiler: Any) -> None:
    code = """
import jax.numpy as jnp, atbfn
x = jnp.zeros((1, 1, 4, 2))
try:
    atbfn.kv_cache_update(x, x, x[:, :, :1], x[:, :, :1], 0, target="cpu")
except Exception as error:
    print(type(error).__name__, error)
"""
    assert re.search(r"kv_cache_update: target: got 'cpu'.*CXX is /bin/false", without_compiler.python(code).stdout)


def test_the_source_distribution_can_build_the_kernels(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "build", "--sdist", "--no-isolation", "-o", str(tmp_path), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as members:
        names = {n.split("/", 1)[1] for n in members.getnames() if "/" in n}
    assert {"CMakeLists.txt", "LICENSE", "README.md", "pyproject.toml", "kernels/cpu/kv_cache.cc"} <= names
    assert {f"{source}/__init__.py" for source in ROOMS.values()} <= names
    assert {"kernels/emulator/include/kernel_operator.h", "kernels/emulator/runtime/launch.cc"} <= names
