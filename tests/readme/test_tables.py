"""README's tables against the code: settings and defaults, error codes, the demo's totals."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ingester.config.settings import MemorySettings, Settings
from ingester.config.sources import known_keys, shown_values
from ingester.demo.report import SHOWN_TOTALS
from ingester.demo.source import flights_file, read_flights
from ingester.demo.totals import totals_of
from ingester.errors import ERRORS

README = (Path(__file__).resolve().parents[2] / "README.md").read_text()
RAM = 8 * 1024**3


def rows_of(heading: str) -> list[list[str]]:
    """The cells of the first table under a heading, without its head."""
    section = README.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|"))] for line in lines]


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def defaults() -> dict[str, str]:
    """Each key's default as the page shows it."""
    settings = Settings(id="host-name", memory=MemorySettings(limit=RAM // 2))
    values = shown_values(settings).items()
    shown = {key: _text(value) for key, value in values}
    assert settings.memory.low == RAM // 4
    assert settings.memory.high == RAM // 2 * 9 // 10
    return shown | {
        "id": "host name",
        "store": "file://<data_dir>/store",
        "memory.limit": "half of RAM",
        "memory.low": "50% of memory.limit",
        "memory.high": "90% of memory.limit",
    }


def test_the_settings_are_all_there_and_no_others() -> None:
    assert [row[0].strip("`") for row in rows_of("Settings")] == list(known_keys())


@pytest.mark.parametrize("row", rows_of("Settings"), ids=lambda row: row[0].strip("`"))
def test_the_default_of_a_setting_is_the_one_in_the_code(row: list[str]) -> None:
    assert row[1].replace("`", "") == defaults()[row[0].strip("`")]


def test_every_error_code_stands_in_the_table_with_its_status() -> None:
    stated = {row[0].strip("`"): row[1] for row in rows_of("Errors")}
    assert stated == {kind.code: kind.status for kind in ERRORS.values()}


def test_the_totals_shown_are_those_of_the_real_flights() -> None:
    flights = read_flights(flights_file())
    totals = totals_of(flights, flights.schema)
    for name in SHOWN_TOTALS:
        (line,) = re.findall(rf"│ {re.escape(name)} +│([^\n]*)│", README)
        assert [cell.strip() for cell in line.split("│")] == [f"{totals[name]:,}"] * 3, name
