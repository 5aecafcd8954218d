"""Query filters over files and buffers return exactly the matching rows, or a named refusal."""

from __future__ import annotations

import base64
import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from tests.drivers.mixed_rows import ROWS, WHEN
from tests.drivers.wire import Table, query, rows


def _where(matches: Any) -> list[int]:
    return [row["i"] for row in ROWS if matches(row)]


def _some(column: str, test: Any) -> list[int]:
    return _where(lambda row: row.get(column) is not None and test(row[column]))


ISO = (WHEN + dt.timedelta(hours=8)).isoformat()
FILTERS: list[tuple[str, Any, list[int]]] = [
    ("=", [["i", "=", 7]], [7]),
    ("= without a match", [["i", "=", 400]], []),
    ("!=", [["i", "!=", 7]], _where(lambda row: row["i"] != 7)),
    ("<", [["i", "<", 3]], [0, 1, 2]),
    ("<=", [["i", "<=", 3]], [0, 1, 2, 3]),
    (">", [["i", ">", 37]], [38, 39]),
    (">=", [["i", ">=", 37]], [37, 38, 39]),
    ("in", [["i", "in", [1, 25, 99]]], [1, 25]),
    ("in nothing", [["i", "in", []]], []),
    ("not in", [["i", "not in", [1, 25]]], _where(lambda row: row["i"] not in (1, 25))),
    ("not in nothing", [["s", "not in", []]], _some("s", lambda value: True)),
    ("!= and nulls", [["s", "!=", "s1"]], _some("s", lambda value: value != "s1")),
    ("not in and nulls", [["s", "not in", ["s1"]]], _some("s", lambda value: value != "s1")),
    ("= null", [["s", "=", None]], []),
    ("!= null", [["s", "!=", None]], []),
    ("< null", [["i", "<", None]], []),
    ("in with a null", [["s", "in", ["s1", None]]], _some("s", lambda value: value == "s1")),
    ("not in with a null", [["s", "not in", ["s1", None]]], []),
    ("is null", [["s", "is null"]], _where(lambda row: row.get("s") is None)),
    ("is not null", [["s", "is not null"]], _some("s", lambda value: True)),
    ("is null of a list", [["l", "is null"]], _where(lambda row: row.get("l") is None)),
    ("string order", [["s", ">", "s2"]], _some("s", lambda value: value > "s2")),
    ("float", [["f", ">=", 9.5]], _some("f", lambda value: value >= 9.5)),
    ("float by an integer", [["f", "=", 2]], [8]),
    ("float32", [["f32", "=", 0.25]], [1]),
    ("integer by a float", [["i", ">", 37.5]], [38, 39]),
    ("integer out of the type's range", [["small", "<", 1000]], _some("small", lambda v: True)),
    ("integer never in the type's range", [["small", "=", 1000]], []),
    ("integer list out of range", [["small", "in", [1000, -5]]], _some("small", lambda v: v == -5)),
    ("large unsigned", [["u", ">", 2**63 + 37]], [38]),
    ("bool", [["b", "=", True]], _some("b", lambda value: value)),
    ("binary", [["y", "=", base64.b64encode(b"\x05").decode()]], [5]),
    ("date", [["d", "<", "2026-11-23"]], [0, 1]),
    ("decimal", [["dec", ">=", "9.50"]], _some("dec", lambda value: value >= Decimal("9.5"))),
    ("decimal by a number", [["dec", ">=", 9.5]], _some("dec", lambda v: v >= Decimal("9.5"))),
    ("decimal between two", [["dec", "<", 0.305]], [0, 1]),
    ("not below", [["f", "not <", 9.5]], _some("f", lambda value: value >= 9.5)),
    ("not below, of an integer", [["i", "not <", 37.5]], [38, 39]),
    ("not above what no value is", [["small", "not >", 1000]], _some("small", lambda v: True)),
    ("not below null", [["i", "not <", None]], []),
    ("timestamp", [["t", "=", ISO]], [8]),
    ("timestamp with Z", [["t", "=", "2026-11-21T20:00:00Z"]], [8]),
    ("timestamp with a zone", [["t", "=", "2026-11-21T21:00:00+01:00"]], [8]),
    ("timestamp by a day", [["t", "<", "2026-11-22"]], _some("t", lambda v: v.day == 21)),
    ("timestamp without a zone", [["naive", "=", "2026-11-21T20:00:00"]], [8]),
    ("and", [["i", ">", 3], ["s", "=", "s1"]], _some("s", lambda v: v == "s1")[1:]),
]


@pytest.mark.parametrize(
    ("terms", "expected"), [f[1:] for f in FILTERS], ids=[f[0] for f in FILTERS]
)
def test_a_filter_finds_exactly_its_rows(
    client: fl.FlightClient, mixed: Table, terms: Any, expected: list[int]
) -> None:
    assert rows(client, mixed, filter=[terms]) == expected


def test_a_filter_is_a_disjunction_of_conjunctions(client: fl.FlightClient, mixed: Table) -> None:
    either = [[["i", "<", 2]], [["i", ">", 30], ["s", "is null"]], [["i", "=", 1]]]
    assert rows(client, mixed, filter=either) == [0, 1, 31, 35, 39]


@pytest.mark.parametrize("nothing", [[], None, [[]], [[], [["i", "=", 1]]]])
def test_an_empty_filter_is_none(client: fl.FlightClient, mixed: Table, nothing: Any) -> None:
    assert len(rows(client, mixed, filter=nothing)) == 40


WRONG: list[tuple[str, Any, str]] = [
    ("unknown column", [["nope", "=", 1]], "nope"),
    ("unknown operator", [["i", "like", 1]], "like"),
    ("no value", [["i", "="]], "="),
    ("a value too many", [["i", "is null", 1]], "is null"),
    ("text for a number", [["i", "=", "1"]], "'1'"),
    ("number for a text", [["s", "=", 1]], "1"),
    ("number for a bool", [["b", "=", 1]], "1"),
    ("bool for a number", [["i", "=", True]], "True"),
    ("no date", [["d", "=", "yesterday"]], "'yesterday' .*write it as '2026-11-21'"),
    ("no day of the calendar", [["d", "=", "2026-02-30"]], "2026-02-30"),
    ("no time", [["t", ">", "25 o'clock"]], "25 o'clock.*write it as '2026-11-21T12:00:00Z'"),
    ("another zone", [["t", ">", "2026-11-21T12:00:00 Mars/Phobos"]], r"Mars.*'\+01:00'"),
    ("a zone's name", [["t", ">", "2026-11-21T12:00:00UTC+1"]], r"UTC\+1.*'\+01:00'"),
    ("number for a time", [["t", ">", 17]], "17"),
    ("no base64", [["y", "=", "*"]], r"\*"),
    ("no decimal", [["dec", "=", "1,5"]], "1,5"),
    ("more digits than the decimal has", [["dec", ">", "9.4999"]], "9.4999"),
    ("a time without a zone", [["t", "=", "2026-11-21T20:00:00"]], "as '2026-11-21T12:00:00Z'"),
    ("text for a decimal", [["dec", "=", "x"]], "at most 2 digits after the point"),
    ("one value for a list", [["i", "in", 3]], "in"),
    ("a list for one value", [["i", "=", [3]]], "3"),
    ("an object", [["i", "=", {"a": 1}]], "a"),
    ("comparison of a list", [["l", "=", [1]]], "'l'"),
    ("not a term", ["i"], "filter"),
    ("not a conjunction", "i", "filter"),
    ("an empty term", [[]], "filter"),
]


@pytest.mark.parametrize(("terms", "named"), [w[1:] for w in WRONG], ids=[w[0] for w in WRONG])
def test_a_wrong_filter_is_refused_with_what_is_wrong(
    client: fl.FlightClient, mixed: Table, terms: Any, named: str
) -> None:
    with pytest.raises(pa.ArrowInvalid, match=named):
        query(client, mixed, filter=[terms])
