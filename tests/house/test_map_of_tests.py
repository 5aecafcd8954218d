"""The map in ``tests/README.md`` lists every folder of tests, and tests for every guarantee.

Its links are checked together with those of all documents.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MAP = ROOT / "tests" / "README.md"
LINKED = set(re.findall(r"\]\(([\w/]+)(?:\.py)?\)", MAP.read_text()))


def test_every_folder_of_tests_is_on_the_map() -> None:
    folders = {page.parent.name for page in (ROOT / "tests").glob("*/__init__.py")}
    assert folders - LINKED == set()


def test_every_folder_has_a_test_or_is_said_to_have_none() -> None:
    tested = {file.relative_to(ROOT / "tests").parts[0] for file in MAP.parent.rglob("test_*.py")}
    folders = {page.parent.name for page in (ROOT / "tests").glob("*/__init__.py")}
    assert folders - tested == {"drivers", "s3a"}


def test_every_promise_of_the_guarantees_names_tests_that_try_it() -> None:
    page = (ROOT / "docs" / "guarantees.md").read_text().split("\n## ")[1]
    promised = re.findall(r"^(\d+\. \*\*[^*]+?)\.?\*\*", page, flags=re.MULTILINE)
    assert len(promised) >= 8
    tried = dict(re.findall(r"^\| (\d+\. [^|]+?) \| (.+) \|$", MAP.read_text(), re.MULTILINE))
    assert list(tried) == [promise.replace("*", "") for promise in promised]
    assert [name for name, tests in tried.items() if tests.count(".py)") < 3] == []
