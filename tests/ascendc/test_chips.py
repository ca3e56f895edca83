"""The table of chips."""

from __future__ import annotations

import dataclasses

import pytest

from atbfn.fusion.chips import CHIPS, KB, SOURCES, ChipProfile, chip_profile

NUMBERS = [f.name for f in dataclasses.fields(ChipProfile) if f.name not in ("name", "arch", "aliases", "sources")]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("910b", "Ascend910B1"),
        ("910B1", "Ascend910B1"),
        ("Ascend910B1", "Ascend910B1"),
        ("ascend910b3", "Ascend910B3"),
        ("A2", "Ascend910B1"),
        ("a3", "Ascend910_93"),
        ("Ascend910_9391", "Ascend910_93"),
        ("910-93", "Ascend910_93"),
        ("310P", "Ascend310P"),
        ("Ascend310P3", "Ascend310P"),
        ("910", "Ascend910A"),
        (" 950 ", "Ascend950"),
        ("Ascend950PR", "Ascend950"),
    ],
)
def test_names(name: str, expected: str) -> None:
    assert chip_profile(name).name == expected


@pytest.mark.parametrize("name", ["", "910x", "ascend", "b200"])
def test_an_unknown_name_lists_the_known_ones(name: str) -> None:
    with pytest.raises(ValueError, match=r"chip: got .*; expected one of .*910b1.*310p.*950"):
        chip_profile(name)


def test_every_name_means_one_chip_and_every_chip_has_its_own_name() -> None:
    aliases = [alias for chip in CHIPS for alias in chip.aliases]
    assert len(aliases) == len(set(aliases))
    assert [chip_profile(chip.name) for chip in CHIPS] == list(CHIPS)


@pytest.mark.parametrize("chip", CHIPS, ids=lambda chip: chip.name)
def test_every_number_has_a_source_and_nothing_else_has(chip: ChipProfile) -> None:
    known = {field for field in NUMBERS if getattr(chip, field) is not None and field != "unified"}
    assert known - set(chip.sources) <= {"l1_reserved"}  # 0 where nothing is reserved
    assert set(chip.sources) <= known
    assert set(chip.sources.values()) <= set(SOURCES)
    assert set(chip.assumed()) <= {"mte_bytes_per_cycle", "cube_macs_per_cycle_f16", "vector_bytes_per_cycle"}


@pytest.mark.parametrize(
    ("name", "arch", "ub", "l1", "l0c", "cores"),
    [
        ("910a", 1001, 248 * KB, 1024 * KB, 256 * KB, (32, 32)),
        ("910b", 2201, 184 * KB, 512 * KB - 128, 128 * KB, (24, 48)),
        ("910b3", 2201, 184 * KB, 512 * KB - 128, 128 * KB, (20, 40)),
        ("310p", 2002, 248 * KB, 1024 * KB, 256 * KB, (8, 8)),
        ("950", 3510, 248 * KB, 512 * KB, 256 * KB, (32, 64)),
    ],
)
def test_what_kernels_may_use(name: str, arch: int, ub: int, l1: int, l0c: int, cores: tuple[int, int]) -> None:
    chip = chip_profile(name)
    assert chip.arch == arch
    assert (chip.usable("UB"), chip.usable("L1"), chip.usable("L0C")) == (ub, l1, l0c)
    assert chip.usable("L0A") == chip.usable("L0B") == 64 * KB
    assert (chip.cube_cores, chip.vector_cores) == cores
    with pytest.raises(KeyError):
        chip.usable("GM")


def test_unified_chips_have_one_kind_of_core() -> None:
    assert [chip.name for chip in CHIPS if chip.unified] == ["Ascend910A", "Ascend310P"]
    assert all(chip.cube_cores == chip.vector_cores for chip in CHIPS if chip.unified)
    assert all(2 * chip.cube_cores == chip.vector_cores for chip in CHIPS if not chip.unified)


def test_a_profile_cannot_be_changed() -> None:
    chip = chip_profile("910b")
    with pytest.raises(dataclasses.FrozenInstanceError):
        chip.ub = 1  # type: ignore[misc]
    with pytest.raises(TypeError):
        chip.sources["ub"] = "assumed"  # type: ignore[index]
