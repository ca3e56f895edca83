"""`python -m atbfn`, and the command `atbfn`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line. Exits with status 1 and the command to install them if its packages are missing."""
    if sys.argv[1:] == ["doctor"]:  # it says which packages are missing, so it must not need them
        from atbfn.doctor import run

        sys.exit(run())
    try:
        if sys.argv[1:2] == ["ascendc"]:  # needs none of what the other commands import
            from atbfn.ascendc.cli import app as ascendc

            ascendc(args=sys.argv[2:], prog_name="atbfn ascendc")
        from atbfn.cli import app
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ("typer", "rich"):
            raise
        sys.exit(f'atbfn: the command line needs the package {error.name}; pip install "atbfn[cli]"')
    app(prog_name="atbfn")


if __name__ == "__main__":
    main()
