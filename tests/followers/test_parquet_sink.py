"""Copies in Parquet folders: visible rows, transactions and states."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ingester.client.errors import InvalidRequest, Unavailable
from ingester.followers import parquet_commits as parquet_files
from ingester.followers.errors import FollowerError
from ingester.followers.parquet_sink import ParquetFolder, ParquetSink
from ingester.followers.sink import FollowedTable, Rows, Run, TakesBack, Transactional
from tests.crash.worlds import mount, no_small_disk
from tests.drivers.all_types import all_types
from tests.followers.test_duckdb_types import check_same

SCHEMA = pa.schema([("id", pa.int64()), ("host", pa.string())])
TABLE = FollowedTable("shop", "visits", 1, SCHEMA)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "it's [a] copy"


@pytest.fixture
def sink(folder: Path) -> Iterator[ParquetSink]:
    """A sink with an empty copy that readers see."""
    opened = ParquetFolder(folder).sink(TABLE)
    with opened.transaction():
        opened.on_start_version([], is_current=True)
    yield opened
    opened.close()


def rows(ids: list[int], part: str = "p", at: int = 0, **more: list[object]) -> Rows:
    columns = {"id": pa.array(ids, pa.int64()), "host": [f"h{id_}" for id_ in ids], **more}
    return Rows(pa.table(columns), (Run(part, at, len(ids)),))


def seen(folder: Path) -> list[int]:
    """Return the ids that a reader sees."""
    return sorted(pq.read_table(folder / "visits", columns=["id"])["id"].to_pylist())


def test_a_sink_does_what_a_follower_of_appended_tables_can_ask(sink: ParquetSink) -> None:
    assert isinstance(sink, Transactional)
    assert isinstance(sink, TakesBack)


def test_stored_states_of_earlier_releases_name_the_sink(sink: ParquetSink) -> None:
    assert sink.fingerprint() == "ingester.client.follower.parquet_sink.ParquetSink:1"


def test_readers_see_the_columns_of_the_table_and_no_others(
    folder: Path, sink: ParquetSink
) -> None:
    assert pq.read_table(folder / "visits").schema.names == ["id", "host"]
    with sink.transaction():
        sink.put(rows([1, 2], at=5))
        sink.put(rows([3], at=6))
    assert pq.read_table(folder / "visits").to_pylist() == rows([1, 2, 3]).batch.to_pylist()
    # One file per transaction; DuckDB finds it, as does any other reader that lists the folder.
    assert [path.name for path in folder.iterdir() if path.name != ".ingester"] == ["visits"]
    assert len(list((folder / "visits").glob("*.parquet"))) == 1
    pattern = str(folder / "visits" / "*.parquet").replace("'", "''").replace("[a]", "?a?")
    with duckdb.connect() as connection:
        found = connection.execute(f"SELECT count(*) FROM '{pattern}'").fetchall()
    assert found == [(3,)]


def test_rows_and_states_are_kept_together_or_not_at_all(folder: Path, sink: ParquetSink) -> None:
    states, key = sink.checkpoint_store(), TABLE.key()
    with sink.transaction():
        assert states.get(key) is None
        sink.put(rows([1]))
        states.put(key, b"one")
    with suppress(RuntimeError), sink.transaction():
        sink.put(rows([2]))
        states.put(key, b"two")
        raise RuntimeError
    with sink.transaction():
        assert states.get(key) == b"one"
        states.put(key._replace(partition="x"), b"other")
    with sink.transaction():
        states.delete(key)
    assert seen(folder) == [1]
    sink.close()
    again = ParquetFolder(folder).sink(TABLE)
    with again.transaction():
        assert again.checkpoint_store().get(key) is None
        assert again.checkpoint_store().get(key._replace(partition="x")) == b"other"
    again.close()


def test_groups_are_taken_back_by_partition(folder: Path, sink: ParquetSink) -> None:
    with sink.transaction():
        sink.put(rows([1, 2], "a", 0))
        sink.put(rows([3], "a", 1))
    with sink.transaction():
        sink.put(Rows(rows([4, 5, 6]).batch, (Run("a", 2, 1), Run("b", 1, 2))))
        sink.take_back("a", [1])
        sink.take_back("nobody", [1])
    assert seen(folder) == [1, 2, 4, 5, 6]
    with sink.transaction():
        sink.take_back_all("a", keep=[2])
    assert seen(folder) == [4, 5, 6]
    with sink.transaction():
        sink.take_back_all("b")
        sink.take_back_all("a")
    assert seen(folder) == []


def test_readers_see_the_earlier_copy_until_the_new_one_is_whole(
    folder: Path, sink: ParquetSink
) -> None:
    with sink.transaction():
        sink.put(rows([1]))
    for ids in ([2], [7]):
        with sink.transaction():
            sink.on_start_version([], is_current=False)
        with sink.transaction():
            sink.put(rows(ids))
        assert seen(folder) == [1]
    with sink.transaction():
        sink.put(rows([8]))
        sink.on_end_version(current=True)
    assert seen(folder) == [7, 8]
    with sink.transaction():
        sink.on_start_version([], is_current=False)
        sink.put(rows([9]))
    with sink.transaction():
        sink.on_end_version(current=False)
        sink.put(rows([3]))
    assert seen(folder) == [3, 7, 8]


def test_a_reader_finds_the_files_that_it_has_listed(folder: Path, sink: ParquetSink) -> None:
    with sink.transaction():
        sink.put(rows([1]))
    listed = list((folder / "visits").resolve().glob("*.parquet"))
    with sink.transaction():
        sink.take_back_all("p")
    assert [pq.read_table(path).num_rows for path in listed] == [1]


def test_many_small_files_become_one_with_all_their_columns(
    folder: Path, sink: ParquetSink
) -> None:
    count = parquet_files.MANY_FILES + 5
    for number in range(count):
        with sink.transaction():
            if number % 2:
                sink.put(rows([number], at=number, v=[number]))
            else:
                sink.put(rows([number], at=number))
    assert seen(folder) == list(range(count))
    assert len(list((folder / "visits").glob("*.parquet"))) < 10
    with sink.transaction():
        sink.take_back("p", list(range(0, count, 2)))
    found = pq.read_table(folder / "visits", columns=["id", "v"]).to_pylist()
    assert all(row["id"] == row["v"] for row in found)
    assert len(found) == count // 2


@pytest.mark.parametrize("unit", ["us", "ns"])
def test_every_type_is_the_same(folder: Path, unit: str) -> None:
    sent = all_types(unit)
    sink = ParquetFolder(folder).sink(FollowedTable("shop", "visits", 1, sent.schema))
    with sink.transaction():
        sink.on_start_version([], is_current=True)
        sink.put(Rows(sent, (Run("p", 1, sent.num_rows),)))
    found = pq.read_table(folder / "visits")
    assert found.schema.equals(sent.schema)
    check_same(found, sent)
    sink.close()


def test_a_keyed_table_is_refused(folder: Path) -> None:
    keyed = FollowedTable("shop", "visits", 1, SCHEMA, primary_key=("id",))
    with pytest.raises(InvalidRequest, match=r"shop/visits has a primary key.*DuckDB"):
        ParquetFolder(folder).sink(keyed)


def test_a_second_follower_and_a_name_that_is_taken_are_refused(
    folder: Path, sink: ParquetSink
) -> None:
    with pytest.raises(FollowerError, match="another follower keeps the copy of shop/visits"):
        ParquetFolder(folder).sink(TABLE)
    with pytest.raises(InvalidRequest, match="exists and is not a copy of net/visits"):
        ParquetFolder(folder).sink(FollowedTable("net", "visits", 1, SCHEMA))
    (folder / "sales").mkdir()
    with pytest.raises(InvalidRequest, match="sales exists and is not a copy of shop/sales"):
        ParquetFolder(folder).sink(FollowedTable("shop", "sales", 1, SCHEMA))


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(InvalidRequest, match="file"):
        ParquetFolder(tmp_path / "file")


def test_calls_out_of_order_are_told(folder: Path) -> None:
    sink = ParquetFolder(folder).sink(TABLE)
    with pytest.raises(FollowerError, match="outside of a transaction"):
        sink.put(rows([1]))
    with pytest.raises(FollowerError, match="before a version was begun"), sink.transaction():
        sink.put(rows([1]))
    sink.close()


def test_a_full_disk_leaves_what_was_there(tmp_path: Path) -> None:
    if why := no_small_disk(tmp_path):
        pytest.skip(why)
    small = tmp_path / "small"
    small.mkdir()
    assert mount(small)
    try:
        sink = ParquetFolder(small).sink(TABLE)
        with sink.transaction():
            sink.on_start_version([], is_current=True)
            sink.put(rows([1]))
        filler = small / "filler"
        with suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 20))
        ids = list(range(100_000))
        with pytest.raises(Unavailable, match="the disk is full"), sink.transaction():
            sink.put(rows(ids))
        assert seen(small) == [1]
        filler.unlink()
        with sink.transaction():
            sink.put(rows([2]))
        assert seen(small) == [1, 2]
        sink.close()
    finally:
        subprocess.run(["umount", "--lazy", str(small)], check=True)
