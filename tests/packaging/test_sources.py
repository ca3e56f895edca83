"""The source folder by itself, where the rooms are not inside the package."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_an_import_from_the_source_folder_says_what_to_do():
    # -S: without the site packages, and so without what an editable install would find.
    done = subprocess.run(
        [sys.executable, "-S", "-c", "import atbfn"],
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "pip install -e" in done.stderr.splitlines()[-1]
