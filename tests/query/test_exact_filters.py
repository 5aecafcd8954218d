"""Buffers and files give the rows that a filter has in exact Python."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pyarrow as pa
import pytest
from hypothesis import given

from ingester.client import Client
from tests.drivers.daemon import Daemon
from tests.drivers.filter_model import (
    OPPOSITE,
    SCHEMA,
    Filter,
    Literal,
    batch_of,
    comparisons,
    filters,
    found_by,
    tempting_rows,
)

ROWS = tempting_rows()
FILE_ROWS = 4
PLACES = ("buffer", "files", "both")


@pytest.fixture(scope="module")
def places(shared: Daemon) -> Iterator[Client]:
    """The rows in a buffer, in small files, and half in one file and half in a buffer."""
    with Client(shared.flight) as client:
        for start in range(0, len(ROWS), FILE_ROWS):
            client.write("exact", "files", batch_of(ROWS[start : start + FILE_ROWS]))
            client.persist("exact", "files")
        client.write("exact", "both", batch_of(ROWS[::2]))
        client.persist("exact", "both")
        client.write("exact", "both", batch_of(ROWS[1::2]))
        client.write("exact", "buffer", batch_of(ROWS))
        yield client


def ids(client: Client, place: str, text: str) -> list[int]:
    return sorted(client.query("exact", place, ["id"], filter=text)["id"].to_pylist())


@given(filters)
def test_a_filter_finds_the_rows_of_exact_python_in_buffers_and_files(
    places: Client, asked: Filter
) -> None:
    expected = found_by(asked, ROWS)
    for place in PLACES:
        assert ids(places, place, asked.text) == expected, (place, asked.text)


@given(comparisons)
def test_each_value_but_nan_satisfies_one_of_an_operator_and_its_opposite(
    places: Client, asked: tuple[str, Literal]
) -> None:
    column, literal = asked
    values = {row["id"]: row[column] for row in ROWS if row[column] is not None}
    numbers = [n for n, value in values.items() if value == value]
    for name, opposite in OPPOSITE.items():
        for place in ("buffer", "files"):
            first = ids(places, place, f"{column} {name} {literal.text}")
            second = ids(places, place, f"{column} {opposite} {literal.text}")
            denied_too = ids(places, place, f"not {column} {name} {literal.text}")
            assert [n for n in sorted(first + second) if n in numbers] == numbers
            assert sorted(first + denied_too) == [*values]


def test_large_integers_beside_a_float(places: Client) -> None:
    """From the buffer came all rows, from the file none."""
    near = [10**18 - 1, 10**18 - 1, 10**18 - 2]
    rows = pa.record_batch({"v": pa.array(near, pa.int64())})
    for persisted in (False, True):
        table = f"near-{persisted}"
        places.write("exact", table, rows)
        if persisted:
            places.persist("exact", table)
        assert places.query("exact", table, filter="v >= 1e18").num_rows == 0
        assert places.query("exact", table, filter="v < 1e18").num_rows == 3
        assert places.query("exact", table, filter=[("v", "<", 1e18)]).num_rows == 3


def test_nan_is_in_the_result_where_the_comparison_is_not_true(places: Client) -> None:
    values = pa.array([math.nan, 1.0, 100.0, None])
    places.write("exact", "nan", pa.record_batch({"f": values}))
    for _ in range(2):
        found = places.query("exact", "nan", filter="not f < 65.5")["f"].to_pylist()
        assert len(found) == 2
        assert 100.0 in found
        assert any(map(math.isnan, found))
        assert places.query("exact", "nan", filter="f >= 65.5")["f"].to_pylist() == [100.0]
        outside = places.query("exact", "nan", filter="f not between 0 and 2")["f"].to_pylist()
        assert len(outside) == 2
        places.persist("exact", "nan")


def test_the_schema_of_the_model_is_the_tables(places: Client) -> None:
    assert places.schema("exact", "files").remove_metadata().equals(SCHEMA)
