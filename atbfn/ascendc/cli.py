"""`atbfn ascendc run` and `atbfn ascendc check`."""

from __future__ import annotations

import enum
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

app = typer.Typer(
    name="ascendc",
    help="Run and check Ascend C kernels on this machine's CPU.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


class Sanitizer(enum.StrEnum):
    """What the host compiler watches for besides the emulator's own checks."""

    ADDRESS = "address"
    UNDEFINED = "undefined"
    THREAD = "thread"


class _WithProgramArguments(TyperCommand):
    """A command whose arguments after `--` are kept apart, for the program it runs."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ours, rest = args, []
        if "--" in args:
            ours, rest = args[: args.index("--")], args[args.index("--") + 1 :]
        ctx.meta["atbfn.program_arguments"] = rest
        return super().parse_args(ctx, ours)


Files = Annotated[list[Path], typer.Argument(help="Ascend C sources (.asc, .cpp) of one program.", show_default=False)]
Chip = Annotated[str, typer.Option(help="910a, 910b (= 910b1), 910b2, 910b3, 910b4, a3, 310p or 950.")]
Defines = Annotated[
    list[str], typer.Option("-D", metavar="NAME[=VALUE]", help="Define a macro, as the compiler's -D does.")
]
Includes = Annotated[list[Path], typer.Option("-I", metavar="DIR", help="A folder with headers.")]


@app.callback()
def _main() -> None:
    """Run and check Ascend C kernels on this machine's CPU."""


@app.command(cls=_WithProgramArguments)
def run(
    context: typer.Context,
    files: Files,
    define: Defines = [],  # noqa: B006 - typer copies it
    include: Includes = [],  # noqa: B006
    chip: Chip = "910b",
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse what the vendor's compiler would repair by auto-sync.")
    ] = False,
    report: Annotated[
        bool,
        typer.Option(
            "--report",
            help="Afterwards, show what each launch did, and write a timeline for ui.perfetto.dev to "
            "NAME.timeline.json here.",
        ),
    ] = False,
    json_: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Afterwards, write what each launch did to stdout as JSON; the program's own output goes to stderr.",
        ),
    ] = False,
    trace: Annotated[Path | None, typer.Option(help="Write the timeline there.")] = None,
    sanitize: Annotated[Sanitizer | None, typer.Option(help="Compile with one of the compiler's sanitizers.")] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Cores that run at the same time. Results do not depend on it.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Run cores in an order drawn from this. Results do not depend on it.")
    ] = None,
) -> None:
    """Compile FILES and run the program here. Its exit status is passed on; arguments after -- are its own.

    A launch that breaks a rule ends the program with status 1 and a message like a compiler's.
    """
    from atbfn.ascendc import report as tables

    program = _build(files, define, include, chip, sanitize)
    timeline = trace or (Path(f"{files[0].stem}.timeline.json") if report else None)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "launches.jsonl"
        environment = dict(os.environ)
        if strict:
            environment["ATBFN_ASCENDC_STRICT"] = "1"
        for name, value in (("THREADS", threads), ("SEED", seed), ("TRACE", timeline)):
            if value is not None:
                environment[f"ATBFN_ASCENDC_{name}"] = str(value)
        if report or json_:
            environment["ATBFN_ASCENDC_REPORT"] = str(log)
        if sys.stderr.isatty() and not os.environ.get("NO_COLOR"):
            environment["ATBFN_ASCENDC_COLOR"] = "1"
        command = [str(program), *context.meta["atbfn.program_arguments"]]
        sys.stdout.flush()
        try:
            status = subprocess.run(
                command, env=environment, stdout=sys.stderr if json_ else None, check=False
            ).returncode
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
        launches = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    if json_:
        print(json.dumps(launches, indent=1))
    elif report and launches:
        terminal = sys.stdout.isatty()
        width = os.get_terminal_size().columns if terminal else None
        print(tables.text(launches, width, terminal and not os.environ.get("NO_COLOR")), flush=True)
    if timeline is not None and timeline.exists():
        print(f"timeline: {timeline} (open it at ui.perfetto.dev)", file=sys.stderr)
    if status < 0:
        print(f"atbfn: error: the program was ended by signal {-status}", file=sys.stderr)
        status = 128 - status
    raise typer.Exit(status)


@app.command()
def check(
    files: Files,
    define: Defines = [],  # noqa: B006
    include: Includes = [],  # noqa: B006
    chip: Chip = "910b",
) -> None:
    """Compile FILES, the sources of one program, and run nothing. Says which kernels there are and on which cores."""
    from atbfn.ascendc import build
    from atbfn.ascendc.errors import AscendCError

    try:
        built = build.build(files, chip=chip, defines=_macros(define), includes=include, check=True)
    except (AscendCError, ValueError) as error:
        _fail(error)
    print(built.messages, end="", file=sys.stderr)
    for kernel in built.kernels:
        if kernel.body is not None:
            kind = kernel.kind or built.program.infer(kernel.body)
            print(f"{kernel.file}:{kernel.line}: kernel {kernel.name}: {_CORES[kind]}")


_CORES = {
    "Vector": "vector cores",
    "Cube": "cube cores",
    "Mix11": "one cube and one vector core per block",
    "Mix12": "one cube and two vector cores per block",
    "Mix01": "vector cores that synchronise as a mix kernel's do",
    "Mix10": "cube cores that synchronise as a mix kernel's do",
}


def _build(files: list[Path], define: list[str], include: list[Path], chip: str, sanitize: str | None) -> Path:
    from atbfn.ascendc import build
    from atbfn.ascendc.errors import AscendCError

    try:
        built = build.build(files, chip=chip, defines=_macros(define), includes=include, sanitize=sanitize)
    except (AscendCError, ValueError) as error:
        _fail(error)
    print(built.messages, end="", file=sys.stderr)
    return built.path


def _macros(define: list[str]) -> dict[str, object]:
    macros: dict[str, object] = {}
    for text in define:
        name, equals, value = text.partition("=")
        macros[name] = value if equals else None
    return macros


def _fail(error: Exception) -> Any:
    text = str(error)
    # What the compiler or the rewriter says starts with a place; the rest is ours.
    print(text if re.search(r"error:", text) else f"atbfn: error: {text}", file=sys.stderr)
    raise typer.Exit(1) from None
