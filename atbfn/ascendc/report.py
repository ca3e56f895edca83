"""What launches did, as tables: bytes per level of memory, peak use against capacity, instructions per pipe."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

# In the order data flows through them.
LEVELS = ("HBM", "L2", "L1", "UB", "L0A", "L0B", "L0C", "BT", "FB")
PIPES = ("S", "MTE2", "MTE1", "M", "V", "FIX", "MTE3")


def text(launches: Sequence[dict[str, Any]], width: int | None = None, colour: bool = False) -> str:
    """The launches' counters as tables. `width` in columns; None: as wide as they need."""
    from rich.console import Console

    out = io.StringIO()
    console = Console(
        file=out, width=width or 100, force_terminal=colour, no_color=not colour, highlight=False, legacy_windows=False
    )
    for launch in launches:
        _print(console, launch)
    return "\n".join(line.rstrip() for line in out.getvalue().rstrip("\n").split("\n"))


def _print(console: Any, launch: dict[str, Any]) -> None:
    from rich.text import Text

    cores = launch["cores"]
    kinds = {kind: sum(core["kind"] == kind for core in cores) for kind in ("AIC", "AIV", "unified")}
    of = " + ".join(f"{count} {kind}" for kind, count in kinds.items() if count)
    line = f":{launch['line']}" if launch["line"] else ""
    console.print(Text(f"{launch['kernel']} ({launch['file']}{line})", style="bold"))
    blocks = f"{launch['blocks']} block{'s' if launch['blocks'] != 1 else ''}"
    console.print(Text(f"{launch['chip']}, {blocks} on {of} cores, {seconds(launch['time_s'])} simulated"))
    for table in (_levels(launch), _pipes(launch)):
        console.print()
        console.print(table)
    console.print()
    done = launch["operations"]
    console.print(Text(f"cube: {done['cube_macs']:,} multiply-adds; vector: {done['vector_elements']:,} elements"))
    for warning in launch["warnings"]:
        console.print(Text(warning, style="yellow"), soft_wrap=True)
    console.print()


def _table(*columns: str) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right", no_wrap=True)
    return table


def _levels(launch: dict[str, Any]) -> Any:
    table = _table("memory", "read", "written", "peak of a core", "capacity", "used")
    for level in LEVELS:
        moved = launch["bytes"].get(level, {"read": 0, "written": 0})
        capacity = launch["capacity"].get(level)
        peak = max((core["peak"].get(level, 0) for core in launch["cores"]), default=0)
        if not (moved["read"] or moved["written"] or peak):
            continue
        row = [level, size(moved["read"]), size(moved["written"])]
        if capacity:
            row += [size(peak), size(capacity), f"{100 * peak / capacity:.0f} %"]
        table.add_row(*row)
    return table


def _pipes(launch: dict[str, Any]) -> Any:
    table = _table("pipe", "instructions", "busy, all cores", "utilisation")
    for pipe in PIPES:
        count = launch["instructions"].get(pipe, 0)
        if not count:
            continue
        busy = sum(core["pipes"].get(pipe, {}).get("busy_s", 0.0) for core in launch["cores"])
        used = launch["utilisation"].get(pipe)
        table.add_row(pipe, f"{count:,}", seconds(busy), "" if used is None else f"{100 * used:.0f} %")
    if (used := launch["utilisation"].get("HBM")) is not None:
        table.add_row("HBM", "", "", f"{100 * used:.0f} %")
    return table


def size(count: int) -> str:
    """Bytes in the unit that shows them best."""
    for unit, divisor in (("GB", 1024**3), ("MB", 1024**2), ("KB", 1024)):
        if count >= divisor:
            value = count / divisor
            return f"{value:.0f} {unit}" if value == int(value) else f"{value:.1f} {unit}"
    return f"{count} B"


def seconds(value: float) -> str:
    """A time in the unit that shows it best."""
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if value * factor >= 1:
            return f"{value * factor:.3g} {unit}"
    return f"{value * 1e9:.3g} ns"
