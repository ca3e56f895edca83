"""Programs that break a rule are refused, at the right line, for the right reason.

A file of `violations/` breaks one rule in several ways: `// rule:` names it, `// <- N` marks where case N is refused,
`// <- N strict` where only --strict refuses it and it is a warning otherwise.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.ascendc.running import build, run

FOLDER = Path(__file__).parent / "violations"


def cases() -> list[tuple[str, int, int, str, bool]]:
    """File name, case, line, the rules that may be named, and whether it takes --strict, of every case."""
    found = []
    for path in sorted(FOLDER.glob("*.asc")):
        lines = path.read_text().splitlines()
        (rule,) = [line.removeprefix("// rule: ") for line in lines if line.startswith("// rule: ")]
        for number, line in enumerate(lines, 1):
            if match := re.search(r"// <- (\d+)( strict)?$", line):
                strict = match.group(2) is not None or rule == "auto-sync"
                found.append((path.name, int(match.group(1)), number, rule, strict))
    return found


@pytest.mark.parametrize(
    ("name", "case", "line", "rule", "strict"),
    [pytest.param(*c, id=f"{c[0].removesuffix('.asc')}-{c[1]}") for c in cases()],
)
@pytest.mark.parametrize("threads", [1, 2])
def test_is_refused_where_and_why(name: str, case: int, line: int, rule: str, strict: bool, threads: int) -> None:
    result = run(build(FOLDER / name), str(case), strict=strict, threads=threads)
    assert result.returncode == 1, result.stdout + result.stderr
    first = next(text for text in result.stderr.splitlines() if ": error: " in text)
    assert re.fullmatch(rf".*{re.escape(name)}:{line}: error: .* \[({rule})\]", first), result.stderr
    assert "in: kernel" in result.stderr


@pytest.mark.parametrize(("name", "case", "rule"), [(c[0], c[1], c[3]) for c in cases() if c[4]])
def test_what_devices_let_pass_is_a_warning(name: str, case: int, rule: str) -> None:
    result = run(build(FOLDER / name), str(case))
    assert result.returncode == 0, result.stderr
    assert "warning: " in result.stderr
    assert f"[{rule}]" in result.stderr


def test_every_rule_is_broken_in_three_ways() -> None:
    rules: dict[str, int] = {}
    for _, _, _, rule, _ in cases():
        rules[rule] = rules.get(rule, 0) + 1
    assert all(count >= 3 for count in rules.values()), rules
    assert len(rules) >= 14
