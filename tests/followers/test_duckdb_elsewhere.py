"""Regression tests for reported bugs with small writes to DuckDB files.

duckdb#15836     a log with a key that was deleted and inserted could not be replayed
duckdb#19712, #22044, #18732   a log with DDL could not be replayed after a kill
duckdb#25399, #16520   a deleted key is refused in the same transaction, also after DDL
duckdb#25360     replacing all rows after a new column: an error without a rollback
duckdb#3127      rows put before and after a new column in one transaction: its values lost
distillery#650   a full disk truncated a log: no start until a manual delete
spiceai#13985    a checkpoint on a full disk empties the file
duckdb#8261, #109   repeated replacement of rows: the file grows without bound
rill#3356        repeated attach and detach: memory grows without bound
kafka-connect-jdbc#1562   deletes ran after the updates of their batch
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ingester.client.errors import Unavailable
from ingester.followers.duckdb_file import RENEW_AFTER
from ingester.followers.duckdb_sink import DuckDBDatabase
from ingester.followers.place import SinkCalls
from ingester.followers.sink import FileRows, FollowedTable, Rows, Run
from tests.crash.worlds import FILE_SYSTEM_BYTES
from tests.followers.test_duckdb_file import small_disk
from tests.followers.test_duckdb_sink import KEYED, begun, rows, seen

__all__ = ["small_disk"]  # a fixture

ROOT = Path(__file__).resolve().parents[3]
KILLED_BEFORE_THE_CHECKPOINT = """
import os, signal, sys
from pathlib import Path
import pyarrow as pa
from ingester.followers.duckdb_file import DuckDBFile
from ingester.followers.duckdb_sink import DuckDBDatabase
from tests.followers.test_duckdb_sink import KEYED, rows

database = DuckDBDatabase(Path(sys.argv[1]))
sink = database.sink(KEYED)
states = sink.checkpoint_store()
with sink.transaction():
    sink.on_start_version([], is_current=True)
    sink.put(rows([1, 2]))
    states.put(KEYED.key(), b"0")
# What is committed from here on stays in DuckDB's log.
DuckDBFile._detach = lambda self: None
for number in range(1, 6):
    with sink.transaction():
        sink.delete(pa.table({"id": [1]}))
        sink.put(rows([1], host=[f"n{number}"], **{f"c{number}": [number]}))
        if number == 3:
            sink.on_start_version([], is_current=False)
        if number >= 3:
            sink.put(rows([1, 2, number + 10], c=[1, 2, 3]))
        if number == 4:
            sink.on_end_version(current=True)
        states.put(KEYED.key(), str(number).encode())
os.kill(os.getpid(), signal.SIGKILL)
"""


def killed(path: Path) -> None:
    """Leave a file whose last transactions exist only in its log."""
    command = [sys.executable, "-c", KILLED_BEFORE_THE_CHECKPOINT, str(path)]
    assert subprocess.run(command, cwd=ROOT).returncode == -9
    assert log_of(path).stat().st_size > 0


def log_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.wal")


def check(path: Path) -> int:
    """Check that rows and state agree in the program's file; return the last transaction."""
    database = DuckDBDatabase(path)
    sink = database.sink(KEYED)
    with sink.transaction():
        state = sink.checkpoint_store().get(KEYED.key())
    database.close()
    number = int(state or b"-1")
    shown = {row[0]: row[1] for row in seen(path, "SELECT id, host FROM visits")}
    if number in (1, 2, 3):
        assert shown == {1: f"n{number}", 2: "h2"}
    elif number >= 4:
        assert shown == {1: "h1", 2: "h2", **{n + 10: f"h{n + 10}" for n in range(3, number + 1)}}
    return number


def test_a_file_is_gone_on_from_whose_last_transactions_are_in_the_log_alone(
    tmp_path: Path,
) -> None:
    path = tmp_path / "c.duckdb"
    killed(path)
    # A reader also finds them before any follower has opened the file.
    assert len(seen(path)) == 5
    assert check(path) == 5


def test_a_log_that_is_cut_anywhere_is_a_beginning_of_what_was_committed(tmp_path: Path) -> None:
    path = tmp_path / "c.duckdb"
    killed(path)
    log = log_of(path).read_bytes()
    rng, reached = random.Random(31), set()
    for cut in sorted(rng.sample(range(len(log)), 25)):
        copy = tmp_path / "cut.duckdb"
        shutil.copy(path, copy)
        log_of(copy).write_bytes(log[:cut])
        reached.add(check(copy))
        log_of(copy).unlink(missing_ok=True)
    assert len(reached) > 3
    assert max(reached) < 5


def test_a_full_disk_takes_nothing_that_was_committed(small_disk: Path) -> None:
    table = FollowedTable("shop", "visits", 1, pa.schema([("id", pa.int64()), ("h", pa.uint64())]))
    database = DuckDBDatabase(small_disk / "f.duckdb")
    sink = begun(database, table)
    (small_disk / "filler").write_bytes(bytes(FILE_SYSTEM_BYTES - (16 << 20)))
    states, rng = sink.checkpoint_store(), np.random.default_rng(1)
    batches, refusals = 0, list[str]()
    while len(refusals) < 4:
        many = 10_000 if refusals else 100_000
        hashes = rng.integers(0, 1 << 63, many, np.uint64)
        sent = pa.table({"id": np.full(many, batches), "h": hashes})
        try:
            with sink.transaction():
                sink.put(Rows(sent, (Run("p", 1, many),)))
                states.put(table.key(), str(batches).encode())
            batches += 1
        except Unavailable as exc:
            refusals.append(exc.code)
    assert set(refusals) == {"disk_full"}
    subprocess.run(["mount", "-o", "remount,size=1g", str(small_disk)], check=True)
    with sink.transaction():
        last = int(states.get(table.key()) or b"-1")
    assert last >= batches - 1
    query = "SELECT id, count(*) FROM visits GROUP BY ALL ORDER BY ALL"
    found = seen(small_disk / "f.duckdb", query)
    assert [id_ for id_, _ in found] == list(range(last + 1))
    assert {count for _, count in found} <= {100_000, 10_000}
    database.close()


def test_all_rows_are_replaced_after_a_new_column(tmp_path: Path) -> None:
    path = tmp_path / "c.duckdb"
    database = DuckDBDatabase(path)
    sink = begun(database, KEYED)
    with sink.transaction():
        sink.put(rows(list(range(9_500))))
    with sink.transaction():
        sink.put(rows([9_501], late=["x"]))
    ids = list(range(30_000))
    for number in range(2):
        with sink.transaction():
            sink.delete(pa.table({"id": ids}))
            sink.put(rows(ids, late=[f"x{number}"] * 30_000, later=[number] * 30_000))
    found = seen(path, "SELECT count(*), max(late), sum(later) FROM visits")
    assert found == [(30_000, "x1", 30_000)]
    database.close()


def test_neither_the_file_nor_memory_grows_with_transactions(tmp_path: Path) -> None:
    path = tmp_path / "c.duckdb"
    database = DuckDBDatabase(path)
    sink = begun(database, KEYED)
    states = sink.checkpoint_store()
    sizes, connections = [], []
    for number in range(RENEW_AFTER + 40):
        with sink.transaction():
            sink.put(rows(list(range(200)), host=[str(number)] * 200))
            states.put(KEYED.key(), os.urandom(2_000))
            connections.append(sink.connection)
        sizes.append(path.stat().st_size)
    # Two megabytes allow one block for each of a few structures; replaced rows leave no garbage.
    assert max(sizes[-40:]) <= max(sizes[:40]) + (2 << 20)
    # DuckDB frees memory with the connection.
    assert connections[0] is connections[1] is not connections[-1]
    with duckdb.connect(str(path), read_only=True) as reader:
        assert reader.execute("SELECT count(*) FROM visits").fetchall() == [(200,)]
    database.close()


@pytest.mark.parametrize("also", [False, True])
def test_deletes_come_before_the_rows_of_their_transaction(tmp_path: Path, also: bool) -> None:
    path = tmp_path / "c.duckdb"
    database = DuckDBDatabase(path)
    sink = begun(database, KEYED)
    with sink.transaction():
        sink.put(rows([1, 2]))
    with sink.transaction():
        sink.delete(pa.table({"id": [1, 2]}))
        sink.put(rows([2], host=["back"], late=[1]) if also else rows([2], host=["back"]))
    assert seen(path, "SELECT id, host FROM visits") == [(2, "back")]
    database.close()


def test_a_disk_that_is_full_in_the_middle_of_a_call_is_waited_for(small_disk: Path) -> None:
    table = FollowedTable("shop", "visits", 1, pa.schema([("h", pa.uint64())]))
    sink = begun(DuckDBDatabase(small_disk / "f.duckdb"), table)
    guard = SinkCalls(sink, lambda call, seconds, error: None)
    (small_disk / "filler").write_bytes(bytes(FILE_SYSTEM_BYTES - (16 << 20)))
    many = 4_000_000  # DuckDB does not buffer this many rows until the transaction ends
    hashes = np.random.default_rng(1).integers(0, 1 << 63, many, np.uint64)
    sent = Rows(pa.table({"h": hashes}), (Run("p", 1, many),))
    pq.write_table(sent.batch, small_disk.with_name("rows.parquet"), compression="none")
    file = FileRows(str(small_disk.with_name("rows.parquet")), "p", many, ("h",))
    puts: list[Callable[[], None]] = [partial(guard.put, sent), partial(guard.put_files, [file])]
    for put in puts:
        with pytest.raises(Unavailable, match="the disk is full") as refused, guard.transaction():
            put()
        assert refused.value.code == "disk_full"
    subprocess.run(["mount", "-o", "remount,size=1g", str(small_disk)], check=True)
    with guard.transaction():
        guard.put_files([file])
    assert seen(small_disk / "f.duckdb", "SELECT count(*) FROM visits") == [(many,)]
