"""Builds the wheel once with its kernels and once where no compiler works, from a copy of the sources."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@dataclasses.dataclass(frozen=True)
class Installed:
    """A wheel, unpacked. `python(code)` runs code that sees it, the test environment's packages, and nothing else."""

    wheel: Path
    folder: Path

    @property
    def names(self) -> list[str]:
        return zipfile.ZipFile(self.wheel).namelist()

    def python(self, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        # -S leaves out the .pth files, among them the one of an editable install of the sources.
        path = os.pathsep.join([str(self.folder), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
        environ = {k: v for k, v in os.environ.items() if not k.startswith("ATBFN_")} | {"PYTHONPATH": path}
        command = [sys.executable, "-S", "-c", code, *arguments]
        done = subprocess.run(command, env=environ, cwd=self.folder, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return done


def _build(folder: Path, environ: dict[str, str]) -> Installed:
    source = folder / "source"
    ignore = shutil.ignore_patterns(".git", ".venv", "build", "dist", "__pycache__", ".*_cache", ".hypothesis")
    shutil.copytree(ROOT, source, ignore=ignore)
    # Without isolation nothing is downloaded; the tools are in the `dev` extra.
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(folder),
        source,
    ]
    done = subprocess.run(command, env=os.environ | environ, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = folder.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(folder / "installed")
    return Installed(wheel, folder / "installed")


@pytest.fixture(scope="session")
def with_kernels(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return _build(tmp_path_factory.mktemp("kernels"), {})


@pytest.fixture(scope="session")
def without_compiler(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return _build(tmp_path_factory.mktemp("no_compiler"), {"CXX": "/bin/false"})
