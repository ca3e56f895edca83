"""The chips: what the emulator enforces and what a planner plans with, in one table.

Every number has a source, by its key in `SOURCES`; a number marked `assumed` is ours, with the reason in the table.
What no public source tells is None, and a plan that needs it has to say so. Sizes are in bytes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType

KB, MB, GB = 1024, 1024**2, 1024**3

SOURCES: Mapping[str, str] = MappingProxyType(
    {
        "ini": "asc-tools, cpudebug/src/api_check/inc/ascend*_ini.h",
        "constants": "asc-tools, cpudebug/utils/include/utils/kernel_utils_constants.h",
        "cpu_mode": "asc-tools, cpudebug/utils/include/utils/kernel_utils_mode_cpu.h",
        "sys_constants": "asc-devkit, include/utils/base/sys_constants.h",
        "cube_table": "asc-devkit documentation, appendix on the theoretical throughput of cube instructions",
        "vector_table": "asc-devkit documentation, appendix on the theoretical throughput of vector instructions",
        "matmul_example": "asc-devkit, examples/.../matmul_basic_api_high_performance/README_en.md",
        "l2_guide": "asc-devkit documentation, guide on splitting for the L2 cache",
        "arch_hpp": "catlass, arch.hpp",
        "platform_config": "platform configuration, as quoted in the torchair documentation on core counts",
        "op_tests": "ops-transformer, hardware descriptions of the tiling tests",
        "hami": "HAMi, device configuration for Ascend (cores and memory of each part)",
        "announcement": "Huawei's announcement of the 950 series (2025)",
        "hot_chips": "Huawei at Hot Chips 31 (2019), the DaVinci architecture",
        "derived": "follows from other fields of the same row",
        "assumed": "no public source; see the comment in the table",
    }
)


@dataclasses.dataclass(frozen=True)
class ChipProfile:
    """One chip. Bytes, hertz, bytes per second; None is unknown, 0 is absent.

    `ub_reserved` and `l1_reserved` are the parts that the framework keeps for itself. Cores are those of a whole chip;
    where `unified`, cube and vector instructions run on the same core and the two counts are the same cores.
    `sources` maps fields to keys of `SOURCES`.
    """

    name: str
    arch: int
    aliases: tuple[str, ...]
    ub: int
    ub_reserved: int
    l1: int
    l1_reserved: int
    l0a: int
    l0b: int
    l0c: int
    bt: int
    fb: int
    l2: int | None
    hbm: int | None
    cube_cores: int
    vector_cores: int
    unified: bool
    clock_hz: float | None
    hbm_bytes_per_s: float | None
    l2_bytes_per_s: float | None
    cube_macs_per_cycle_f16: int
    vector_bytes_per_cycle: int
    mte_bytes_per_cycle: int
    l1_to_l0a_bytes_per_cycle: int | None
    l1_to_l0b_bytes_per_cycle: int | None
    fixpipe_bytes_per_cycle: int | None
    sources: Mapping[str, str] = dataclasses.field(repr=False)

    def usable(self, level: str) -> int:
        """Bytes of an on-chip level (`UB L1 L0A L0B L0C BT FB`) that a kernel may use.

        Raises:
          KeyError: there is no such level.
        """
        field = {"UB": "ub", "L1": "l1", "L0A": "l0a", "L0B": "l0b", "L0C": "l0c", "BT": "bt", "FB": "fb"}[level]
        return int(getattr(self, field)) - int(getattr(self, f"{field}_reserved", 0))

    def assumed(self) -> tuple[str, ...]:
        """The fields that no public source tells."""
        return tuple(field for field, source in self.sources.items() if source == "assumed")


# A cube core multiplies 16 x 16 x 16 halves per cycle on every one of these chips; a vector repeat is 256 bytes.
# `mte_bytes_per_cycle` is what one core moves to or from L2: the examples give 5 TB/s for all of them, 113 bytes per
# cycle for each of 24 cores at 1.85 GHz; 128, the width of the fixpipe's port, is the power of two next to it.
_ALL = {
    "cube_macs_per_cycle_f16": "cube_table",
    "vector_bytes_per_cycle": "vector_table",
    "mte_bytes_per_cycle": "assumed",
}

_910A = ChipProfile(
    name="Ascend910A",
    arch=1001,
    aliases=("910", "910a", "910proa", "910prob", "910premiuma"),
    ub=256 * KB,
    ub_reserved=8 * KB,
    l1=1 * MB,
    l1_reserved=0,
    l0a=64 * KB,
    l0b=64 * KB,
    l0c=256 * KB,
    bt=0,
    fb=0,
    l2=None,
    hbm=32 * GB,
    cube_cores=32,
    vector_cores=32,
    unified=True,
    clock_hz=1.0e9,  # 256 TFLOP/s over 32 cores of 8192 operations per cycle
    hbm_bytes_per_s=None,
    l2_bytes_per_s=None,
    cube_macs_per_cycle_f16=4096,
    vector_bytes_per_cycle=256,
    mte_bytes_per_cycle=128,
    l1_to_l0a_bytes_per_cycle=None,
    l1_to_l0b_bytes_per_cycle=None,
    fixpipe_bytes_per_cycle=None,
    sources=MappingProxyType(
        _ALL
        | dict.fromkeys(("ub", "l1", "l0a", "l0b", "l0c", "bt", "fb"), "ini")
        | {"ub_reserved": "constants", "cube_cores": "hot_chips", "vector_cores": "hot_chips"}
        | {"clock_hz": "hot_chips", "cube_macs_per_cycle_f16": "hot_chips", "vector_bytes_per_cycle": "hot_chips"}
        | {"hbm": "hami"}
    ),
)

_910B1 = ChipProfile(
    name="Ascend910B1",
    arch=2201,
    aliases=("910b", "910b1", "a2"),
    ub=192 * KB,
    ub_reserved=8 * KB,
    l1=512 * KB,
    l1_reserved=128,
    l0a=64 * KB,
    l0b=64 * KB,
    l0c=128 * KB,
    bt=1 * KB,
    fb=7 * KB,
    l2=192 * MB,
    hbm=64 * GB,
    cube_cores=24,
    vector_cores=48,
    unified=False,
    clock_hz=1.85e9,
    hbm_bytes_per_s=1.6e12,  # the guide's figure; the examples reckon with 1.8e12
    l2_bytes_per_s=5.0e12,  # the examples' figure; the guide has 7e12 for reads and writes mixed
    cube_macs_per_cycle_f16=4096,
    vector_bytes_per_cycle=256,
    mte_bytes_per_cycle=128,
    l1_to_l0a_bytes_per_cycle=256,
    l1_to_l0b_bytes_per_cycle=128,
    fixpipe_bytes_per_cycle=128,
    sources=MappingProxyType(
        _ALL
        | dict.fromkeys(("ub", "l1", "l0a", "l0b", "l0c", "bt", "fb"), "ini")
        | dict.fromkeys(("ub_reserved", "l1_reserved"), "constants")
        | {"l2": "arch_hpp", "hbm": "hami", "cube_cores": "platform_config", "vector_cores": "platform_config"}
        | {"clock_hz": "matmul_example", "hbm_bytes_per_s": "l2_guide", "l2_bytes_per_s": "matmul_example"}
        | dict.fromkeys(
            ("l1_to_l0a_bytes_per_cycle", "l1_to_l0b_bytes_per_cycle", "fixpipe_bytes_per_cycle"), "cube_table"
        )
    ),
)


def _like(base: ChipProfile, sources: Mapping[str, str], **changes: object) -> ChipProfile:
    told = {field: source for field, source in {**base.sources, **sources}.items() if changes.get(field, 0) is not None}
    return dataclasses.replace(base, sources=MappingProxyType(told), **changes)  # type: ignore[arg-type]


_CORES = ("cube_cores", "vector_cores")

_910B2 = _like(_910B1, dict.fromkeys(_CORES, "hami"), name="Ascend910B2", aliases=("910b2", "910b2c"))
_910B3 = _like(
    _910B1,
    dict.fromkeys(_CORES, "arch_hpp"),
    name="Ascend910B3",
    aliases=("910b3",),
    cube_cores=20,
    vector_cores=40,
)
_910B4 = _like(
    _910B1,
    dict.fromkeys((*_CORES, "hbm"), "hami") | {"l2": "op_tests"},
    name="Ascend910B4",
    aliases=("910b4", "910b4_1"),
    cube_cores=20,
    vector_cores=40,
    hbm=32 * GB,
    hbm_bytes_per_s=None,  # half the memory stacks; no source says at which rate
)
# One die of the two in the package: that is what a program sees as a device.
_910_93 = _like(
    _910B1,
    {},
    name="Ascend910_93",
    aliases=("910_93", "910c", "a3", "910_9391", "910_9392", "910_9381", "910_9382", "910_9372", "910_9362"),
)

_310P = ChipProfile(
    name="Ascend310P",
    arch=2002,
    aliases=("310p", "310p1", "310p3"),
    ub=256 * KB,
    ub_reserved=8 * KB,
    l1=1 * MB,
    l1_reserved=0,
    l0a=64 * KB,
    l0b=64 * KB,
    l0c=256 * KB,
    bt=0,
    fb=0,
    l2=16 * MB,
    hbm=None,
    cube_cores=8,
    vector_cores=8,
    unified=True,
    clock_hz=None,
    hbm_bytes_per_s=None,
    l2_bytes_per_s=None,
    cube_macs_per_cycle_f16=4096,
    vector_bytes_per_cycle=256,
    mte_bytes_per_cycle=128,
    l1_to_l0a_bytes_per_cycle=None,
    l1_to_l0b_bytes_per_cycle=None,
    fixpipe_bytes_per_cycle=None,
    sources=MappingProxyType(
        _ALL
        | dict.fromkeys(("ub", "l1", "l0a", "l0b", "l0c", "bt"), "sys_constants")
        | {"ub_reserved": "constants", "fb": "derived", "l2": "op_tests", "cube_cores": "hami", "vector_cores": "hami"}
        | {"cube_macs_per_cycle_f16": "assumed", "vector_bytes_per_cycle": "assumed"}  # as its relatives
    ),
)

_950 = ChipProfile(
    name="Ascend950",
    arch=3510,
    aliases=("950", "950pr", "950dt", "950pr_9599", "a5"),
    ub=256 * KB,
    ub_reserved=8 * KB,
    l1=512 * KB,
    l1_reserved=0,
    l0a=64 * KB,
    l0b=64 * KB,
    l0c=256 * KB,
    bt=4 * KB,
    fb=16 * KB,
    l2=128 * MB,
    hbm=128 * GB,
    cube_cores=32,
    vector_cores=64,
    unified=False,
    clock_hz=1.65e9,
    hbm_bytes_per_s=1.6e12,
    l2_bytes_per_s=5.0e12,
    cube_macs_per_cycle_f16=4096,
    vector_bytes_per_cycle=256,
    mte_bytes_per_cycle=128,
    l1_to_l0a_bytes_per_cycle=256,
    l1_to_l0b_bytes_per_cycle=256,
    fixpipe_bytes_per_cycle=128,
    sources=MappingProxyType(
        _ALL
        | dict.fromkeys(("l1", "l0a", "l0b", "l0c", "bt"), "sys_constants")
        | {"ub": "cpu_mode", "ub_reserved": "constants", "fb": "cpu_mode", "l2": "op_tests", "hbm": "announcement"}
        | dict.fromkeys(_CORES, "op_tests")
        | dict.fromkeys(("clock_hz", "hbm_bytes_per_s", "l2_bytes_per_s"), "matmul_example")
        | dict.fromkeys(
            ("l1_to_l0a_bytes_per_cycle", "l1_to_l0b_bytes_per_cycle", "fixpipe_bytes_per_cycle"), "cube_table"
        )
    ),
)

CHIPS: tuple[ChipProfile, ...] = (_910A, _910B1, _910B2, _910B3, _910B4, _910_93, _310P, _950)

_BY_ALIAS = {alias: chip for chip in CHIPS for alias in chip.aliases}


def chip_profile(name: str) -> ChipProfile:
    """The chip of that name: a part (`Ascend910B1`, `910b1`), a family (`910b`, `950`) or a product (`a2`, `a3`).

    Case, the word Ascend, and `-` for `_` do not matter. `910b` is the 910B1.

    Raises:
      ValueError: no chip has that name; the message lists them.
    """
    plain = name.strip().lower().replace("-", "_").replace(" ", "").removeprefix("ascend").removeprefix("_")
    found = _BY_ALIAS.get(plain)
    if found is None:
        known = ", ".join(alias for chip in CHIPS for alias in chip.aliases)
        raise ValueError(f"chip: got {name!r}; expected one of {known}")
    return found
