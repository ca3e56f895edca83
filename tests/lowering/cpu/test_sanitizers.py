"""The native drivers and kernels under the sanitizers, with every instruction set of this machine (`make sanitize`)."""

from __future__ import annotations

import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

KERNELS = Path(__file__).parents[3] / "kernels"
SANITIZERS = ("address", "undefined", "thread")
PLAIN = ("isa", "parallel", "machine", "product", "ffn_driver", "attend", "vectors_portable")
AVX2 = ("-mavx2", "-mfma", "-mf16c")
AVX512 = (*AVX2, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq")
SETS = {
    "avx2": AVX2,
    "avx512": AVX512,
    "amx": (*AVX512, "-mavx512bf16", "-mamx-tile", "-mamx-bf16"),
}  # as CMakeLists.txt


def compile_all(compiler: str, sanitizer: str, folder: Path) -> Path:
    sets = SETS if os.uname().machine == "x86_64" else {}
    common = [
        compiler,
        "-O1",
        "-g",
        "-w",
        "-std=gnu++17",
        "-ffp-contract=fast",
        f"-fsanitize={sanitizer}",
        f"-I{KERNELS}",
    ]
    common += [
        "-fno-sanitize-recover=all",
        "-fno-omit-frame-pointer",
        *(f"-DATBFN_HAVE_{name.upper()}" for name in sets),
    ]
    sources = [(KERNELS / "cpu" / f"{name}.cc", ()) for name in PLAIN]
    sources += [(KERNELS / "cpu" / f"vectors_{name}.cc", flags) for name, flags in sets.items()]
    sources.append((Path(__file__).parent / "native_test.cc", ()))

    def build(source: Path, flags: tuple[str, ...]) -> str:
        out = folder / f"{source.stem}.o"
        subprocess.run([*common, *flags, "-c", str(source), "-o", str(out)], check=True)
        return str(out)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(lambda source: build(*source), sources))
    program = folder / "native_test"
    subprocess.run([compiler, f"-fsanitize={sanitizer}", *objects, "-o", str(program), "-pthread"], check=True)
    return program


@pytest.mark.slow
@pytest.mark.skipif(
    os.environ.get("ATBFN_TEST_SANITIZE") != "all", reason="set ATBFN_TEST_SANITIZE=all, or make sanitize"
)
@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_is_clean(sanitizer: str, tmp_path: Path) -> None:
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    result = subprocess.run([compile_all(compiler, sanitizer, tmp_path)], capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, (result.stdout + result.stderr)[-4000:]
    assert result.stderr == ""
