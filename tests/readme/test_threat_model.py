"""Each row of the threat model links to tests that are run."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "threat_model.md"
HEADING = "| threat | protection | tested in |"
LINK = re.compile(r"\[([\w/]+)\]\(\.\./tests/([\w/]+)\.py\)")
BOUNDARIES = ["Network", "Tenant", "Operator", "Store", "Supply chain"]


def sections() -> dict[str, list[str]]:
    """The lines of each boundary's section, by name."""
    found = (part.splitlines() for part in PAGE.read_text().split("\n## ")[1:])
    return {lines[0].partition(":")[0]: lines for lines in found}


def rows(lines: list[str]) -> list[list[str]]:
    """The cells of each row of a section's table."""
    below = lines[lines.index(HEADING) + 2 :]
    return [line.strip("| ").split(" | ") for line in below if line.startswith("|")]


ENTRIES = [(name, row) for name, lines in sections().items() for row in rows(lines)]


@cache
def runs_a_test(path: str) -> bool:
    """Whether a file has a test that is neither always skipped nor expected to fail."""
    tree = ast.parse((ROOT / "tests" / f"{path}.py").read_text())
    return any(
        isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
        and not re.search(r"mark\.(skip|xfail)\b", " ".join(map(ast.unparse, node.decorator_list)))
        for node in ast.walk(tree)
    )


@pytest.mark.parametrize(
    ("name", "row"), ENTRIES, ids=[f"{name}: {row[0]}"[:70] for name, row in ENTRIES]
)
def test_a_row_links_to_tests_that_are_run(name: str, row: list[str]) -> None:
    assert len(row) == 3, f"{name}: three cells, and no '|' in them: {row}"
    links = LINK.findall(row[2])
    assert links, f"{name}: {row[0]!r} links to no test: [room/test_file](../tests/…)"
    assert LINK.sub("", row[2]).strip(" ·") == "", f"{name}: more than links in {row[2]!r}"
    for shown, path in links:
        assert shown == path
        assert runs_a_test(path), f"tests/{path}.py has no test that is run"


def test_each_boundary_says_what_it_protects_and_what_not() -> None:
    found = sections()
    assert list(found) == BOUNDARIES
    for name, lines in found.items():
        assert rows(lines), name
        assert any(line.startswith("**Not protected.**") for line in lines), name


def test_the_page_is_short_and_says_what_a_tenant_can_do() -> None:
    page = PAGE.read_text()
    assert len(page.splitlines()) <= 110
    assert "a malicious tenant with a valid token can force a restart" in page
