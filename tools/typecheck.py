"""Runs mypy on the rooms as they are installed: under `atbfn.`.

The source folders `primitives lowering reference` lie beside `atbfn`, where a type checker would not find
`atbfn.primitives`. This lays them out under build/typing with links, which needs no install, checks that, and reports
the files by their names in the repository. The layout is read from pyproject.toml, so a new room needs no change here.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TREE = ROOT / "build" / "typing"


def main() -> int:
    rooms = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["scikit-build"]["wheel"]["packages"]
    shutil.rmtree(TREE, ignore_errors=True)
    for installed, source in sorted(rooms.items()):
        target = TREE / installed
        if "/" in installed:
            target.symlink_to(ROOT / source, target_is_directory=True)
            continue
        target.mkdir(parents=True)
        for entry in (ROOT / source).iterdir():
            if entry.name != "__pycache__":
                (target / entry.name).symlink_to(entry)

    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml")]
    command += ["--cache-dir", str(ROOT / "build" / "mypy"), "-p", "atbfn", *sys.argv[1:]]
    done = subprocess.run(command, cwd=TREE, capture_output=True, text=True)
    moved = "|".join(re.escape(installed) for installed in rooms if "/" in installed)
    output = re.sub(rf"^({moved})/", lambda m: rooms[m[1]] + "/", done.stdout, flags=re.MULTILINE)
    print(output, end="")
    print(done.stderr, end="", file=sys.stderr)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
