"""Each entry of the threat model names a test, and that test is there and is run."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "threat_model.md"
HEADING = "| who | tries | what holds | tried in |"
NAMED = re.compile(r"\[([\w/]+)\]\(\.\./tests/([\w/]+)\.py\)((?: `\w+`)+)")


def sections() -> dict[str, list[list[str]]]:
    """The entries of each section that has any, as the cells of their rows."""
    found: dict[str, list[list[str]]] = {}
    for section in PAGE.read_text().split("\n## ")[1:]:
        lines = section.splitlines()
        if HEADING not in lines:
            continue
        below = lines[lines.index(HEADING) + 2 :]
        rows = [line.strip("| ").split(" | ") for line in below if line.startswith("|")]
        found[lines[0]] = rows
    return found


ENTRIES = [(title, row) for title, rows in sections().items() for row in rows]


@cache
def found_in(path: str) -> dict[str, bool]:
    """The tests of a file; with each whether it is always skipped or expected to fail."""
    tree = ast.parse((ROOT / "tests" / f"{path}.py").read_text())
    return {
        node.name: any(
            re.search(r"mark\.(skip|xfail)\b", ast.unparse(each)) for each in node.decorator_list
        )
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
    }


@pytest.mark.parametrize(
    ("title", "row"), ENTRIES, ids=[f"{title}: {row[1]}"[:70] for title, row in ENTRIES]
)
def test_an_entry_names_tests_that_are_there_and_are_run(title: str, row: list[str]) -> None:
    assert len(row) == 4, f"{title}: four cells, and no '|' in them: {row}"
    named = NAMED.findall(row[3])
    assert named, f"{title}: {row[1]!r} names no test: [room/test_file](../tests/…) `test_name`"
    assert NAMED.sub("", row[3]).strip(" ·") == "", f"{title}: more than tests in {row[3]!r}"
    for shown, path, names in named:
        assert shown == path
        there = found_in(path)
        for name in re.findall(r"\w+", names):
            assert there.get(name) is False, f"{path}.py has no {name} that is run"


def test_an_entry_is_made_by_someone_whom_the_page_introduces() -> None:
    page = PAGE.read_text()
    introduced = set(re.findall(r"^\| an? ([a-z ]+?) \|", page, re.M))
    assert {row[0] for _, row in ENTRIES} <= introduced
    assert len(ENTRIES) >= 12


def test_every_section_has_entries() -> None:
    assert [title for title, rows in sections().items() if not rows] == []
