"""Reading files for a copy: only requested columns and rows."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ingester.client import Client
from ingester.followers import files as files_module
from ingester.followers.files import FileReading, TableFiles
from persist.manifest import Manifest
from persist.predicate.parse import BadFilter
from persist.store import open_store
from tests.drivers.daemon import Daemon
from tests.drivers.wire import Table


@pytest.fixture
def manifest(shared: Daemon, table: Table) -> Manifest:
    """Three files; the last two have one more column."""
    with Client(shared.flight) as client:
        for start, more in ((0, {}), (10, {"w": [1.5] * 10}), (20, {"w": [2.5] * 10})):
            rows = {"id": list(range(start, start + 10)), "v": [f"v{start}"] * 10, **more}
            client.write(*table, rows)
            client.persist(*table)
    return Manifest(open_store(f"file://{shared.data_dir}/store"), *table)


def read(manifest: Manifest, names: list[str] | None = None, **asked: Any) -> pa.Table:
    files = TableFiles(manifest, FileReading(**asked))
    state = files.newest()
    adds = [state.files[path] for path in sorted(state.files)]
    pieces = list(files.pieces(state, adds, names))
    assert [piece.add for piece in pieces if piece.last] == adds, "in the order of the files"
    assert sum(files.count(state, add) for add in adds) == sum(p.rows.num_rows for p in pieces) or (
        names is not None
    )
    return pa.concat_tables([piece.rows for piece in pieces]).sort_by("id")


def test_files_lack_columns_that_came_later(manifest: Manifest) -> None:
    rows = read(manifest)
    assert rows.column_names == ["id", "v", "w"]
    assert rows["w"].to_pylist() == [None] * 10 + [1.5] * 10 + [2.5] * 10


def test_only_the_columns_that_are_asked_for_in_that_order(manifest: Manifest) -> None:
    assert read(manifest, columns=("w", "id")).column_names == ["w", "id"]


def test_only_the_rows_that_match_also_by_a_column_that_is_not_asked_for(
    manifest: Manifest,
) -> None:
    rows = read(manifest, columns=("id",), filter=[[["w", ">", 2]], [["id", "=", 3]]])
    assert rows["id"].to_pylist() == [3, *range(20, 30)]
    assert read(manifest, filter=[[["w", "is null"]]])["id"].to_pylist() == list(range(10))
    assert read(manifest, filter=[[["id", ">", 99]]]).num_rows == 0


def test_keys_of_all_rows_whatever_the_filter(manifest: Manifest) -> None:
    rows = read(manifest, names=["id"], filter=[[["id", ">", 99]]])
    assert rows["id"].to_pylist() == list(range(30))


def test_a_filter_that_is_none(manifest: Manifest) -> None:
    with pytest.raises(BadFilter, match="unknown column 'x'"):
        read(manifest, filter=[[["x", "=", 1]]])


@pytest.mark.parametrize("readers", [1, 2, 8])
def test_pieces_are_small_and_a_room_of_one_is_enough(
    manifest: Manifest, readers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_module, "PIECE_BYTES", 64)
    files = TableFiles(manifest, FileReading(readers=readers, room=1))
    state = files.newest()
    pieces = list(files.pieces(state, list(state.files.values())))
    assert len(pieces) > 6
    assert sum(piece.rows.num_rows for piece in pieces) == 30


def test_whoever_takes_no_more_pieces_leaves_no_thread_behind(manifest: Manifest) -> None:
    before = set(threading.enumerate())
    files = TableFiles(manifest, FileReading(readers=2, room=1))
    state = files.newest()
    pieces = files.pieces(state, list(state.files.values()))
    assert next(iter(pieces)).rows.num_rows
    pieces.close()  # type: ignore[attr-defined]
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
        assert not thread.is_alive()


def test_local_files_are_named_with_the_columns_that_they_have(manifest: Manifest) -> None:
    files = TableFiles(manifest, FileReading(columns=("id", "w")))
    adds = list(files.newest().files.values())
    found = files.local(adds)
    assert found is not None
    assert sorted(file.columns for file in found) == [("id",), ("id", "w"), ("id", "w")]
    for file, add in zip(found, adds, strict=True):
        assert Path(file.path).exists() and file.rows == add.rows
        assert pq.read_metadata(file.path).num_rows == add.rows
    assert TableFiles(manifest, FileReading(filter=[[["id", ">", 1]]])).local(adds) is None
