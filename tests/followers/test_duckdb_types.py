"""Each value of a table keeps its value in DuckDB, or its column is refused."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ingester.client.errors import InvalidRequest
from ingester.followers.duckdb_catalog import (
    columns_sql,
    duckdb_type,
    is_read_alike,
    to_written,
)
from ingester.followers.duckdb_times import check_times, may_have_unfit_times
from tests.cli.test_output_values import batches, counted
from tests.drivers.all_types import all_types

ZONE = "SET TimeZone = 'America/New_York'"
"""Not UTC, so that a cast by the session's time zone fails the test."""


def there_and_back(connection: duckdb.DuckDBPyConnection, rows: pa.Table) -> pa.Table:
    """Return the rows after a round trip through a table of the declared types."""
    connection.execute(f"CREATE OR REPLACE TABLE t ({columns_sql(rows.schema)})")
    connection.register("sent", to_written(rows))
    connection.execute("INSERT INTO t SELECT * FROM sent")
    connection.unregister("sent")
    return connection.table("t").to_arrow_table()


def check_same(found: pa.Table, sent: pa.Table) -> None:
    """Assert that all values are the same, NaN and the sign of zero included."""
    assert found.column_names == sent.column_names
    for ours, theirs in zip(found.columns, sent.columns, strict=True):
        assert repr(counts(ours)) == repr(counts(theirs))


def counts(column: pa.ChunkedArray) -> list[object]:
    """Return the values, times as integers: Python cannot represent the distant ones."""
    found: list[object] = column.cast(counted(column.type)).to_pylist()
    return found


@given(batch=batches(), data=st.data())
def test_any_batch_is_the_same_after_it_was_in_duckdb(
    batch: pa.RecordBatch, data: st.DataObject
) -> None:
    with duckdb.connect() as connection:
        # A slice begins in the middle of its batch's memory.
        cut = pa.Table.from_batches([batch.slice(data.draw(st.integers(0, batch.num_rows)))])
        try:
            found = there_and_back(connection, cut)
        except duckdb.InvalidInputException as exc:
            assume("duplicate key" not in str(exc))  # DuckDB's maps have no duplicate keys
            raise
        check_same(found, cut)


@pytest.mark.parametrize("unit", ["us", "ns"])
def test_every_type_with_its_hard_values_is_the_same(unit: str) -> None:
    with duckdb.connect() as connection:
        connection.execute(ZONE)
        rows = all_types(unit)
        check_same(there_and_back(connection, rows), rows)


def test_files_that_are_read_alike_have_the_same_values(tmp_path: Path) -> None:
    rows = all_types("us")
    assert is_read_alike(rows.schema)
    assert not is_read_alike(all_types("ns").schema)
    pq.write_table(rows, tmp_path / "rows.parquet")
    with duckdb.connect() as connection:
        connection.execute(ZONE)
        connection.execute(f"CREATE TABLE t ({columns_sql(rows.schema)})")
        source = f"read_parquet('{tmp_path}/rows.parquet', hive_partitioning = false)"
        connection.execute(f"INSERT INTO t BY NAME SELECT * FROM {source}")
        check_same(connection.table("t").to_arrow_table(), rows)


FIRST_US = -9_223_372_022_400_000_000
US, NS = pa.timestamp("us"), pa.timestamp("ns", "UTC")
ENDS = [
    (US, FIRST_US, FIRST_US - 1),
    (US, 2**63 - 2, 2**63 - 1),
    (US, FIRST_US, -(2**63)),
    (NS, 2**63 - 2, 2**63 - 1),
    (NS, -(2**63), -(2**63) + 1),
    (pa.date32(), 2**31 - 2, 2**31 - 1),
    (pa.date32(), -(2**31), -(2**31) + 1),
]


@pytest.mark.parametrize(("kind", "kept", "refused"), ENDS, ids=str)
def test_a_time_that_duckdb_cannot_keep_is_refused_with_its_column(
    tmp_path: Path, kind: pa.DataType, kept: int, refused: int
) -> None:
    plain = pa.int32() if kind == pa.date32() else pa.int64()
    for count, fits in ((kept, True), (refused, False)):
        times = pa.array([None, 0, count], plain).view(kind)
        rows = pa.table({"at": times})
        inside = pa.ListArray.from_arrays([0, 1, 2, 3], times)
        pq.write_table(rows, tmp_path / "rows.parquet")
        for each in (rows, pa.table({"at": inside})):
            if fits:
                check_times(each)
                continue
            with pytest.raises(InvalidRequest, match=rf"'at'.* first is {count} .*--columns"):
                check_times(each)
        if not fits:
            assert may_have_unfit_times(str(tmp_path / "rows.parquet"))
            continue
        with duckdb.connect() as connection:
            there_and_back(connection, rows)
            shown = 'SELECT CAST("at" AS VARCHAR), isfinite("at") FROM t'
            told = connection.execute(shown).fetchall()
            assert [finite for _, finite in told] == [None, True, True]


def test_files_of_ordinary_times_are_left_to_duckdb(tmp_path: Path) -> None:
    rows = pa.table(
        {
            "at": pa.array([0, None, 2**50]).view(US),
            "day": pa.array([None, None, None], pa.date32()),
            "v": pa.array([2**63 - 1, -(2**63), 0]),
        }
    )
    pq.write_table(rows, tmp_path / "rows.parquet", row_group_size=2)
    assert not may_have_unfit_times(str(tmp_path / "rows.parquet"))
    pq.write_table(rows, tmp_path / "rows.parquet", write_statistics=False)
    assert may_have_unfit_times(str(tmp_path / "rows.parquet"))


@pytest.mark.parametrize(
    "kind",
    [
        pa.float16(),
        pa.time64("us"),
        pa.duration("s"),
        pa.date64(),
        pa.timestamp("s"),
        pa.decimal256(40, 2),
        pa.list_(pa.float16()),
        pa.map_(pa.string(), pa.duration("s")),
        pa.struct([("a", pa.time32("s"))]),
        pa.struct([]),
        pa.null(),
    ],
    ids=str,
)
def test_a_type_without_counterpart_is_refused_with_its_column(kind: pa.DataType) -> None:
    with pytest.raises(InvalidRequest, match=r"column 'price': DuckDB has no equivalent of type"):
        duckdb_type("price", kind)


def test_a_name_that_duckdb_cannot_keep_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="NUL"):
        columns_sql(pa.schema([("a\0b", pa.int8())]))
    with pytest.raises(InvalidRequest, match=r"column 's': .*NUL"):
        duckdb_type("s", pa.struct([("a\0b", pa.int8())]))


@pytest.mark.parametrize(
    "name", ['a"b', "a'b", "a\nb", "ü", "select", "rowid", "x" * 255, "A.b", "$1"]
)
def test_any_other_name_is_kept(name: str) -> None:
    with duckdb.connect() as connection:
        rows = pa.table({name: [1], "s": [{name: 2}]})
        assert there_and_back(connection, rows).to_pylist() == rows.to_pylist()
