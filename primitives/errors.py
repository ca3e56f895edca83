"""The one wording of every refusal: operator, argument, what came, what was expected, and the fix."""

from __future__ import annotations

from typing import NoReturn


def message(operator: str, argument: str, got: object, expected: str, fix: str) -> str:
    """`operator: argument: got ...; expected ...; fix` as every error of the library reads."""
    return f"{operator}: {argument}: got {got}; expected {expected}; {fix}"


def bad_value(operator: str, argument: str, got: object, expected: str, fix: str) -> NoReturn:
    """Raise ValueError: a wrong shape, rank, range or name."""
    raise ValueError(message(operator, argument, got, expected, fix))


def bad_type(operator: str, argument: str, got: object, expected: str, fix: str) -> NoReturn:
    """Raise TypeError: a wrong dtype or kind of object."""
    raise TypeError(message(operator, argument, got, expected, fix))
