"""`atbfn doctor`: what it reports, and where each setting is said to come from."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

from atbfn import doctor, fusion
from atbfn.lowering import status
from atbfn.lowering.cpu import native


def rows(title: str) -> dict[str, doctor.Row]:
    (section,) = [s for s in doctor.report() if s.title == title]
    return {row.name: row for row in section.rows}


def test_versions_are_those_installed() -> None:
    found = rows("versions")
    for package in ("atbfn", "jax", "jaxlib", "numpy"):
        assert found[package].value == importlib.metadata.version(package)


def test_a_missing_package_comes_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = importlib.metadata.version

    def version(name: str) -> str:
        if name == "tokenizers":
            raise importlib.metadata.PackageNotFoundError(name)
        return installed(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    row = rows("versions")["atbfn[models]"]
    assert row.ok is False
    assert "gguf" in row.value and row.value.endswith('missing tokenizers: pip install "atbfn[models]"')


def test_every_target_works_or_says_why_not() -> None:
    found = rows("targets")
    assert list(found) == [target.name for target in status()]
    assert found["xla"].ok and "fused_ffn" in found["xla"].value
    for target in status():
        assert found[target.name].ok == (target.reason is None)
        assert target.reason is None or target.reason in found[target.name].value
    assert found["cpu"].ok == native.available()


def test_settings_name_their_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MODE", "TARGET", "CROSS_PRECISION", "CONFIG"):
        monkeypatch.delenv(f"ATBFN_{name}", raising=False)
    path = tmp_path / "atbfn.yaml"
    path.write_text("mode: step_by_step\ntarget: xla\nlayers:\n  decoder/3: {mode: fused}\n")
    monkeypatch.setenv("ATBFN_CONFIG", str(path))
    monkeypatch.setenv("ATBFN_TARGET", "auto")
    fusion.reload_config()
    try:
        found = {name: row.value for name, row in rows("configuration").items()}
    finally:
        monkeypatch.delenv("ATBFN_CONFIG")
        monkeypatch.delenv("ATBFN_TARGET")
        fusion.reload_config()
    assert found == {
        "mode": f"step_by_step (file {path})",
        "target": "auto (environment variable ATBFN_TARGET)",
        "cross_precision": "False (default)",
        "layers decoder/3": f"mode=fused (file {path})",
    }


@pytest.mark.parametrize(
    ("machine", "line", "expected"),
    [
        ("x86_64", "flags\t\t: fpu sse2 avx2 fma f16c amx_bf16 avx512f", "avx2 fma f16c avx512f amx_bf16"),
        ("aarch64", "Features\t: fp asimd sve bf16", "asimd bf16 sve"),
        ("riscv64", "isa\t: rv64", "baseline"),
    ],
)
def test_instruction_sets(
    machine: str, line: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor\t: 0\n{line}\n")
    monkeypatch.setattr(doctor.platform, "machine", lambda: machine)
    assert doctor._instruction_sets(cpuinfo).value == f"{machine}: {expected}"


def test_a_broken_jax_is_reported_and_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def devices() -> None:
        raise RuntimeError("no backend")

    monkeypatch.setattr(doctor.jax, "devices", devices)
    assert doctor.run() == 1
    assert "- devices" in (out := capsys.readouterr().out) and "JAX has none: no backend" in out


def test_run_prints_aligned_text_where_stdout_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.run() == 0
    lines = capsys.readouterr().out.splitlines()
    assert "versions" in lines and any(line.split()[:2] == ["+", "xla"] for line in lines)
