"""Pages match the code: settings, error codes, formats, the demo's totals."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from ingester.config.sources import known_keys
from ingester.demo.report import SHOWN_TOTALS
from ingester.demo.source import flights_file, read_flights
from ingester.demo.totals import totals_of
from ingester.errors import ERRORS
from persist.manifest.actions import Action
from persist.manifest.files import decode_changelog, decode_commit
from wal import format as segment_format

from .generated import DOCS, errors_table, pages, settings_table, with_table

FIGURE = r"(?<![\w.])\d[\d.,]*\d(?![\w.]*\w)"


@pytest.mark.parametrize(
    ("page", "expected"), list(pages()), ids=lambda value: Path(value).name[:9]
)
def test_a_page_has_the_table_that_make_docs_makes(page: Path, expected: str) -> None:
    assert page.read_text() == expected, "run `make docs`"


def test_every_setting_and_every_code_is_in_its_table() -> None:
    assert re.findall(r"^\| `([^`]+)`", settings_table(), re.M) == list(known_keys())
    codes = set(re.findall(r"^\| `([^`]+)`", errors_table(), re.M))
    assert codes == {kind.code for kind in ERRORS.values()}


def test_a_page_without_marks_is_noticed() -> None:
    with pytest.raises(AssertionError, match="0 tables"):
        with_table("# A page\n", "| a |\n")


def test_the_manifest_files_of_the_page_are_read_by_the_code() -> None:
    examples = re.findall(r"^```jsonl\n(.*?)^```$", (DOCS / "formats.md").read_text(), re.M | re.S)
    changelog, commit = (example.encode() for example in examples)
    read, made = decode_changelog(changelog), decode_commit(commit)
    assert read.lineage[-1] == (made.version, made.uid)
    assert read.lineage[-2][1] == made.parent


def test_the_layout_of_segments_and_records_is_that_of_the_code() -> None:
    fields = re.findall(r"^ +(\d+ {2}\w.*?) *$", str(segment_format.__doc__), re.M)
    shown = [line.strip() for line in (DOCS / "formats.md").read_text().splitlines()]
    assert len(fields) > 15
    assert [field for field in fields if not any(line.startswith(field) for line in shown)] == []


def test_every_action_of_the_manifest_is_on_the_page() -> None:
    kinds = {kind.__struct_config__.tag for kind in get_args(Action)}
    section = (DOCS / "formats.md").read_text().split("\n### Actions\n")[1].split("\n### ")[0]
    assert set(re.findall(r"^\| `(\w+)`", section, re.M)) == kinds


def test_the_front_page_has_no_figure_that_its_own_page_does_not_have() -> None:
    front = (DOCS.parent / "README.md").read_text()
    for heading, page in (("Promises", "guarantees.md"), ("Three figures", "performance.md")):
        section = front.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
        known = set(re.findall(FIGURE, (DOCS / page).read_text()))
        assert set(re.findall(FIGURE, section)) - known == set(), heading


def test_the_totals_shown_are_those_of_the_real_flights() -> None:
    flights = read_flights(flights_file())
    totals = totals_of(flights, flights.schema)
    page = (DOCS / "tour.md").read_text()
    for name in SHOWN_TOTALS:
        (line,) = re.findall(rf"│ {re.escape(name)} +│([^\n]*)│", page)
        assert [cell.strip() for cell in line.split("│")] == [f"{totals[name]:,}"] * 3, name
