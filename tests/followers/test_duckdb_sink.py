"""Copies in a DuckDB file: visible rows, transactions and states."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ingester.client.errors import ClientError, InvalidRequest
from ingester.followers.duckdb_sink import DuckDBDatabase, DuckDBSink
from ingester.followers.errors import FollowerError
from ingester.followers.sink import (
    FileRows,
    FollowedTable,
    Rows,
    Run,
    TakesBack,
    TakesFiles,
    Transactional,
)

SCHEMA = pa.schema([("id", pa.int64()), ("host", pa.string())])
APPENDED = FollowedTable("shop", "visits", 1, SCHEMA)
KEYED = FollowedTable("shop", "visits", 1, SCHEMA, primary_key=("id",))
KEY = APPENDED.key()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "copy.duckdb"


@pytest.fixture
def database(path: Path) -> Iterator[DuckDBDatabase]:
    opened = DuckDBDatabase(path)
    yield opened
    opened.close()


def rows(ids: list[int], part: str = "p", at: int = 0, **more: Any) -> Rows:
    columns = {"id": pa.array(ids, pa.int64()), "host": [f"h{id_}" for id_ in ids], **more}
    return Rows(pa.table(columns), (Run(part, at, len(ids)),))


def begun(database: DuckDBDatabase, table: FollowedTable = APPENDED) -> DuckDBSink:
    """Return a sink with an empty copy that readers see."""
    sink = database.sink(table)
    with sink.transaction():
        sink.on_start_version([], is_current=True)
    return sink


def seen(path: Path, query: str = "SELECT * FROM visits ORDER BY id") -> list[Any]:
    """Return a reader's rows; to DuckDB its connection is another process."""
    with duckdb.connect(str(path), read_only=True) as reader:
        return reader.execute(query).fetchall()


def test_a_sink_does_all_that_a_follower_can_ask(database: DuckDBDatabase) -> None:
    sink = database.sink(APPENDED)
    assert isinstance(sink, Transactional)
    assert isinstance(sink, TakesBack)
    assert isinstance(sink, TakesFiles)
    assert database.sink(KEYED).fingerprint() == sink.fingerprint()


def test_stored_states_of_earlier_releases_name_the_sink(database: DuckDBDatabase) -> None:
    name = "ingester.client.follower.duckdb_sink.DuckDBSink:1"
    assert database.sink(KEYED).fingerprint() == name


def test_readers_see_the_columns_of_the_table_and_no_others(
    path: Path, database: DuckDBDatabase
) -> None:
    sink = begun(database)
    with sink.transaction():
        sink.put(rows([1, 2], at=5))
    assert seen(path) == [(1, "h1"), (2, "h2")]
    with duckdb.connect(str(path), read_only=True) as reader:
        assert [name for name, *_ in reader.execute("FROM visits").description or ()] == [
            "id",
            "host",
        ]
        assert reader.execute("SHOW TABLES").fetchall() == [("visits",)]


def test_rows_and_states_are_kept_together_or_not_at_all(
    path: Path, database: DuckDBDatabase
) -> None:
    sink = begun(database)
    states = sink.checkpoint_store()
    with sink.transaction():
        sink.put(rows([1]))
        states.put(KEY, b"one")
    with contextlib.suppress(RuntimeError), sink.transaction():
        sink.put(rows([2], new=["x"]))
        states.put(KEY, b"two")
        raise RuntimeError
    with sink.transaction():
        assert states.get(KEY) == b"one"
        sink.put(rows([3]))
    assert seen(path) == [(1, "h1"), (3, "h3")]


def test_states_are_kept_by_all_that_their_key_says(path: Path, database: DuckDBDatabase) -> None:
    sink = begun(database)
    states = sink.checkpoint_store()
    keys = [
        KEY,
        KEY._replace(partition="x"),
        KEY._replace(table_version=2),
        KEY._replace(table="other"),
        KEY._replace(namespace="other"),
    ]
    with sink.transaction():
        for number, key in enumerate(keys):
            assert states.get(key) is None
            states.put(key, bytes([number]) * 300_000)
            states.put(key, bytes([number]))
        states.delete(keys[1])
        states.delete(keys[1])
    with sink.transaction():
        assert [states.get(key) for key in keys] == [b"\0", None, b"\2", b"\3", b"\4"]


def test_a_row_of_a_keyed_table_takes_the_place_of_the_one_before(
    path: Path, database: DuckDBDatabase
) -> None:
    sink = begun(database, KEYED)
    with sink.transaction():
        sink.put(rows([1, 2, 3]))
    with sink.transaction():
        sink.delete(pa.table({"id": [3, 99]}))
        sink.put(rows([2, 4], host=["new", "four"]))
    assert seen(path) == [(1, "h1"), (2, "new"), (4, "four")]
    with sink.transaction():
        sink.delete(pa.table({"id": [2]}))
        sink.put(rows([2], host=["again"]))
    assert seen(path) == [(1, "h1"), (2, "again"), (4, "four")]


def test_groups_are_taken_back_by_partition(path: Path, database: DuckDBDatabase) -> None:
    sink = begun(database)
    with sink.transaction():
        sink.put(rows([1, 2], "a", 0))
        sink.put(rows([3], "a", 1))
        sink.put(Rows(rows([4, 5, 6]).batch, (Run("a", 2, 1), Run("b", 1, 2))))
    with sink.transaction():
        sink.take_back("a", [1])
        sink.take_back("nobody", [1])
    assert [id_ for id_, _ in seen(path)] == [1, 2, 4, 5, 6]
    with sink.transaction():
        sink.take_back_all("a", keep=[2])
    assert [id_ for id_, _ in seen(path)] == [4, 5, 6]
    with sink.transaction():
        sink.take_back_all("b")
    assert [id_ for id_, _ in seen(path)] == [4]


def test_a_new_column_is_added_to_the_view_with_the_rows_that_bring_it(
    path: Path, database: DuckDBDatabase
) -> None:
    sink = begun(database)
    with sink.transaction():
        sink.put(rows([1]))
    with sink.transaction():
        sink.put(rows([2], v=[2.5]))
        sink.put(rows([3], v=[3.5], w=[[1, 2]]))
    assert seen(path) == [(1, "h1", None, None), (2, "h2", 2.5, None), (3, "h3", 3.5, [1, 2])]
    with sink.transaction():
        sink.put(rows([4]))
    assert seen(path)[-1] == (4, "h4", None, None)


def test_readers_see_the_earlier_copy_until_the_new_one_is_whole(
    path: Path, database: DuckDBDatabase
) -> None:
    sink = begun(database)
    with sink.transaction():
        sink.put(rows([1]))
    with sink.transaction():
        sink.on_start_version(["p"], is_current=False)
        sink.put(rows([2], v=[1]))
    assert seen(path) == [(1, "h1")]
    # A second begin discards the first one's rows.
    with sink.transaction():
        sink.on_start_version(["p"], is_current=False)
        sink.put(rows([7], v=[1]))
    with sink.transaction():
        sink.on_end_version(current=True)
    assert seen(path) == [(7, "h7", 1)]
    assert seen(path, "SELECT count(*) FROM duckdb_tables() WHERE table_name LIKE 'shop/%'") == [
        (1,)
    ]


def test_a_copy_that_was_given_up_goes(path: Path, database: DuckDBDatabase) -> None:
    sink = begun(database)
    with sink.transaction():
        sink.put(rows([1]))
    with sink.transaction():
        sink.on_start_version([], is_current=False)
        sink.put(rows([2]))
    with sink.transaction():
        sink.on_end_version(current=False)
        sink.put(rows([3]))
    assert seen(path) == [(1, "h1"), (3, "h3")]


def test_files_are_read_with_what_columns_they_have(
    path: Path, database: DuckDBDatabase, tmp_path: Path
) -> None:
    folder = tmp_path / "host=folder" / "it's [a] *?"
    folder.mkdir(parents=True)
    files = []
    for number, place in enumerate([tmp_path, tmp_path / "host=folder", folder]):
        file = place / f"{number}.parquet"
        table = pa.table({"filename": [f"f{number}"], "id": [number], "unasked": [1]})
        pq.write_table(table, file)
        files.append(FileRows(str(file), f"part{number}", 1, ("id", "filename")))
    schema = pa.schema([*SCHEMA, ("filename", pa.string())])
    sink = begun(database, FollowedTable("shop", "visits", 1, schema))
    with sink.transaction():
        sink.put_files(files)
        sink.put(rows([9], "part1", 3))
        sink.take_back_all("part1", keep=[3])
    assert seen(path) == [(0, None, "f0"), (2, None, "f2"), (9, "h9", None)]


def test_a_file_with_a_column_of_later_brings_it(
    path: Path, database: DuckDBDatabase, tmp_path: Path
) -> None:
    for number in range(2):
        later = pa.table(
            {"when": pa.array([number]).cast(pa.timestamp("us", "UTC")), "id": [number]}
        )
        pq.write_table(later, tmp_path / f"[{number}].parquet"[number:])
    sink = begun(database)
    with sink.transaction():
        names = ("[0].parquet", "1].parquet")
        sink.put_files([FileRows(str(tmp_path / n), "p", 1, ("when", "id")) for n in names])
    found = seen(path, 'SELECT id, host, epoch_us("when"), typeof("when") FROM visits ORDER BY id')
    assert found == [(n, None, n, "TIMESTAMP WITH TIME ZONE") for n in range(2)]


def test_files_of_one_version_are_put_in_several_transactions(
    path: Path, database: DuckDBDatabase, tmp_path: Path
) -> None:
    sink = begun(database, KEYED)
    files = [
        FileRows(str(tmp_path / f"{number}.parquet"), "p", 2, ("id", "host")) for number in range(3)
    ]
    for number, file in enumerate(files):
        pq.write_table(rows([number, number + 10]).batch, file.path)
        with sink.transaction():
            sink.put_files([file])
    with sink.transaction():
        sink.put(rows([0], host=["live"]))
        sink.put_files(files[-1:])
    assert [id_ for id_, _ in seen(path)] == [0, 1, 2, 10, 11, 12]
    assert seen(path)[0] == (0, "live")


@pytest.mark.parametrize("unit", ["us", "ns"])
def test_rows_of_files_replace_those_of_their_keys(
    path: Path, database: DuckDBDatabase, tmp_path: Path, unit: str
) -> None:
    schema = pa.schema([("id", pa.timestamp(unit, "UTC")), ("host", pa.string())])
    before = pa.table({"id": pa.array([1000, 2000]), "host": ["a", "b"]}).cast(schema)
    after = pa.table({"id": pa.array([2000, 3000]), "host": ["c", "d"]}).cast(schema)
    pq.write_table(after, tmp_path / "f.parquet")
    sink = begun(database, FollowedTable("shop", "visits", 1, schema, primary_key=("id",)))
    with sink.transaction():
        sink.put(Rows(before, (Run("p", 1, 2),)))
        sink.put_files([FileRows(str(tmp_path / "f.parquet"), "p", 2, ("id", "host"))])
    assert [host for _, host in seen(path)] == ["a", "c", "d"]


def test_two_tables_share_a_file_and_a_view_that_was_dropped_comes_back(
    path: Path, database: DuckDBDatabase
) -> None:
    one, other = begun(database), begun(database, FollowedTable("shop", "sales", 1, SCHEMA))
    with one.transaction():
        one.put(rows([1]))
    with other.transaction():
        other.put(rows([2]))
    assert (seen(path), seen(path, "FROM sales")) == ([(1, "h1")], [(2, "h2")])
    with duckdb.connect(str(path)) as someone:
        someone.execute("DROP VIEW visits")
    again = database.sink(APPENDED)
    with again.transaction():
        again.on_recovery()
    assert seen(path) == [(1, "h1")]


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("CREATE TABLE Visits (i INT)", r"table 'visits' that is not a copy of shop/visits"),
        ("CREATE VIEW visits AS SELECT 1", r"view 'visits' that is not a copy of shop/visits"),
    ],
)
def test_a_name_that_is_something_elses_is_refused(
    path: Path, statement: str, message: str
) -> None:
    with duckdb.connect(str(path)) as someone:
        someone.execute(statement)
    database = DuckDBDatabase(path)
    with pytest.raises(InvalidRequest, match=message):
        database.sink(APPENDED)
    database.close()


@pytest.mark.parametrize("other", [("net", "visits"), ("shop", "VISITS")])
def test_two_tables_of_one_name_do_not_share_a_file(
    database: DuckDBDatabase, other: tuple[str, str]
) -> None:
    begun(database)
    with pytest.raises(InvalidRequest, match=r"copy of shop/visits.*into another file"):
        database.sink(FollowedTable(*other, 1, SCHEMA))


def test_a_newer_follower_takes_the_file_over(path: Path, database: DuckDBDatabase) -> None:
    sink = begun(database)
    newer = DuckDBDatabase(path)
    with pytest.raises(FollowerError, match="has taken the file over"), sink.transaction():
        sink.put(rows([1]))
    assert seen(path) == []
    newer.close()


def test_a_file_of_a_newer_layout_is_refused(path: Path, database: DuckDBDatabase) -> None:
    database.close()
    with duckdb.connect(str(path)) as someone:
        someone.execute("UPDATE _ingester.format SET number = 7")
    with pytest.raises(InvalidRequest, match="layout 7 of copies"):
        DuckDBDatabase(path)


def test_a_file_that_went_away_is_not_taken_for_an_empty_copy(
    path: Path, database: DuckDBDatabase
) -> None:
    sink = begun(database)
    path.unlink()
    with pytest.raises(FollowerError, match="was deleted or moved away"), sink.transaction():
        sink.put(rows([1]))
    assert not path.exists()


def test_a_file_that_was_replaced_is_not_taken_for_an_empty_copy(
    path: Path, database: DuckDBDatabase
) -> None:
    sink = begun(database)
    path.unlink()
    duckdb.connect(path).close()
    with pytest.raises(FollowerError, match="replaced while it was followed"), sink.transaction():
        sink.put(rows([1]))


def test_calls_out_of_order_are_told(database: DuckDBDatabase) -> None:
    sink = database.sink(APPENDED)
    with pytest.raises(FollowerError, match="outside of a transaction"):
        sink.put(rows([1]))
    with pytest.raises(FollowerError, match="before a version was begun"), sink.transaction():
        sink.put(rows([1]))


def test_a_map_with_a_key_twice_is_refused_by_its_column(database: DuckDBDatabase) -> None:
    schema = pa.schema([("id", pa.int64()), ("tags", pa.map_(pa.string(), pa.int64()))])
    sink = begun(database, FollowedTable("shop", "visits", 1, schema))
    batch = pa.table({"id": [1], "tags": [[("a", 1), ("a", 2)]]}, schema)
    with pytest.raises(ClientError, match=r"column 'tags'.*a key twice"), sink.transaction():
        sink.put(Rows(batch, (Run("p", 1, 1),)))
