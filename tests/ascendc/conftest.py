"""Tests that compile need a compiler; what they compile stays in the user's cache, as for any user."""

from __future__ import annotations

from pathlib import Path

import pytest

from atbfn.ascendc import build


@pytest.fixture(scope="session")
def compiler() -> build.Compiler:
    works, what = build.status()
    if not works:
        pytest.skip(what)
    return build.compiler()


@pytest.fixture(scope="session")
def sources(compiler: build.Compiler) -> Path:
    """The folder with the programs that several tests share."""
    return Path(__file__).parent / "sources"
