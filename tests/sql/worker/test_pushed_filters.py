"""DuckDB over our source answers as DuckDB over a table of its own, whatever the condition."""

from __future__ import annotations

import os
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from ingester.sql.worker.sources import Source
from tests.drivers.sql_filters import (
    COLUMNS,
    SCHEMA,
    conditions,
    connection,
    quoted,
    scans_of,
    tables,
)

TABLES = int(os.environ.get("INGESTER_TEST_EXAMPLES", "12"))
"""More with ``INGESTER_TEST_EXAMPLES``."""
CONDITIONS = 12
"""How many conditions each table is asked."""


@pytest.fixture(scope="module")
def database() -> duckdb.DuckDBPyConnection:
    return connection()


def answer(database: duckdb.DuckDBPyConnection, query: str) -> str:
    """The rows as text, in which NaN is equal to NaN."""
    return repr(database.execute(query).fetchall())


@settings(max_examples=TABLES)
@given(
    tables(),
    st.lists(conditions(), min_size=CONDITIONS, max_size=CONDITIONS),
    st.lists(st.sampled_from(sorted(COLUMNS)), max_size=3, unique=True),
)
def test_every_condition_finds_the_same_rows(
    database: duckdb.DuckDBPyConnection, table: pa.Table, texts: list[str], columns: list[str]
) -> None:
    database.register("arrow", table)
    database.execute("CREATE OR REPLACE TABLE native AS SELECT * FROM arrow")
    database.register("ours", Source(SCHEMA, scans_of(table)))
    chosen = ", ".join(["id", *map(quoted, columns)])
    for text in texts:
        note(text)
        expected = answer(database, f"SELECT {chosen} FROM native WHERE {text} ORDER BY id")
        assert answer(database, f"SELECT {chosen} FROM ours WHERE {text} ORDER BY id") == expected


class Seen:
    """A source that notes what DuckDB asks it for."""

    def __init__(self, database: duckdb.DuckDBPyConnection, rows: pa.Table | None = None) -> None:
        self.asked: list[tuple[list[str], Any]] = []
        self.table = SCHEMA.empty_table() if rows is None else rows
        self._database = database
        database.register("seen", Source(self.table.schema, self._open))

    def terms(self, condition: str) -> Any:
        """The filter that the scan gets; "nothing" if DuckDB pushes none."""
        self.asked.clear()
        self._database.execute(f"SELECT id FROM seen WHERE {condition}").fetchall()
        ((columns, terms),) = self.asked
        return terms if columns == ["id"] else "nothing"

    def _open(self, columns: list[str], terms: Any) -> Any:
        self.asked.append((columns, terms))
        return scans_of(self.table)(columns, terms)


PUSHED: dict[str, Any] = {
    "i8 > 5": [[["i8", ">", 5]]],
    "5 > i8": [[["i8", "<", 5]]],
    "i8 IN (1, 2)": [[["i8", "in", [1, 2]]]],
    "i8 NOT IN (1, 2)": [[["i8", "not in", [1, 2]]]],
    "NOT (i8 IS NULL)": [[["i8", "is not null"]]],
    "u64 = 18446744073709551615": [[["u64", "=", 2**64 - 1]]],
    "f64 < 1": [[["f64", "<", 1.0]]],
    "f64 IN (-0.0, 7)": [[["f64", "in", [0.0, 7.0]]]],
    "f32 = 0.1": [[["f32", "=", 0.10000000149011612]]],
    "t >= '2020-01-01'": [[["t", ">=", "2020-01-01T00:00:00"]]],
    "tz = '2020-01-01 00:00:00.5+01'": [[["tz", "=", "2019-12-31T23:00:00.500000Z"]]],
    "berlin < '2020-01-01'": [[["berlin", "<", "2020-01-01T00:00:00Z"]]],
    "CAST(t AS DATE) = DATE '2020-01-01'": [
        [["t", ">=", "2020-01-01T00:00:00"], ["t", "<", "2020-01-02T00:00:00"]]
    ],
    "day IN ('2020-01-01', '2020-01-02')": [[["day", "in", ["2020-01-01", "2020-01-02"]]]],
    "d3 = 1.5": [[["d3", "=", "1.50"]]],
    "b = true": [[["b", "=", True]]],
    "\"Name\" = 'a' || chr(0)": [[["Name", "=", "a\0"]]],
    '"odd ""name"".x" > \'\\xff\'::BLOB': [[['odd "name".x', ">", "/w=="]]],
    "i8 BETWEEN 1 AND 2": [[["i8", ">=", 1], ["i8", "<=", 2]]],
    "l IS NULL": [[["l", "is null"]]],
    "i8 = 1 OR i8 > 5 OR i8 IS NULL": [[["i8", ">", 5]], [["i8", "is null"]], [["i8", "in", [1]]]],
    "(id = 1 AND i8 = 2) OR (id = 2 AND i8 = 3)": [
        [["id", "=", 1], ["i8", "=", 2]],
        [["id", "=", 2], ["i8", "=", 3]],
    ],
    # DuckDB applies these itself: NaN is its greatest number, and Arrow's equals nothing.
    "f64 > 1": "nothing",
    "f64 <> 1": "nothing",
    "f64 = 'nan'": "nothing",
    "f64 < 'inf'": "nothing",
    # Neither does it push nanoseconds, years above 9999, a null in a list, or LIKE.
    "ns > '2020-01-01'": "nothing",
    "t < 'infinity'": "nothing",
    "i8 IN (1, NULL)": "nothing",
    "\"Name\" LIKE 'a%'": "nothing",
}


@pytest.mark.parametrize("condition", PUSHED)
def test_duckdb_pushes(condition: str, database: duckdb.DuckDBPyConnection) -> None:
    assert Seen(database).terms(condition) == PUSHED[condition]
