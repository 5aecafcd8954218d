"""Followers of a copied table: readers see the whole old table, then the whole new one."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path

import pyarrow as pa

from ingester.client import Client
from ingester.followers import Follower, FollowOptions, open_copy
from ingester.followers.duckdb_sink import DuckDBDatabase
from tests.drivers.daemon import Daemon
from tests.drivers.waiting import until
from tests.drivers.wire import Table

Rows = list[tuple[object, ...]]


def in_duckdb(path: Path, table: str) -> Rows:
    with open_copy(path, wait_s=30.0) as reader:
        return sorted(reader.execute(f"SELECT * FROM {table}").fetchall())


def test_readers_of_a_local_copy_see_one_table_or_the_other(
    shared: Daemon, tmp_path: Path, table: Table
) -> None:
    path, name = tmp_path / "copy", table[1]
    into = DuckDBDatabase(path)
    shapes = [
        pa.record_batch({"id": pa.array(range(50)), "v": [f"v{i:02}" for i in range(50)]}),
        pa.record_batch({"v": [f"k{i:02}" for i in range(30)], "n": pa.array(range(30))}),
        pa.record_batch({"id": [f"t{i:02}" for i in range(20)], "v": pa.array([1.5] * 20)}),
    ]
    whole = [sorted(tuple(row.values()) for row in each.to_pylist()) for each in shapes]
    seen: list[int] = []
    stop, failures = threading.Event(), list[BaseException]()

    def look() -> None:
        try:
            while not stop.wait(0.02):
                found = whole.index(in_duckdb(path, name))
                if found not in seen[-1:]:
                    seen.append(found)
        except BaseException as exc:
            failures.append(exc)

    def copy(client: Client, turn: int) -> None:
        with client.copy(*table, [shapes[turn].schema.names[0]]) as copying:
            copying.write(shapes[turn])
            copying.finish("source", str(turn).encode())

    def is_seen(turn: int) -> bool:
        return seen[-1:] == [turn] or bool(failures)

    follower = Follower(shared.flight, into.sink, options=FollowOptions(wait_s=0.2))
    follower.follow(*table)
    reader = threading.Thread(target=look)
    with Client(shared.flight) as client:
        copy(client, 0)
        with follower:
            follower.wait_current(30.0)
            reader.start()
            try:
                for turn in (1, 2):
                    copy(client, turn)
                    until(partial(is_seen, turn), "the new table")
            finally:
                stop.set()
                reader.join()
            assert failures == []
            assert seen == [0, 1, 2]
            # The follower continues with the new columns.
            client.write(*table, {"id": ["t00", "u"], "v": [2.5, 3.5]})
            wanted = sorted([("t00", 2.5), ("u", 3.5), *whole[2][1:]])
            until(lambda: in_duckdb(path, name) == wanted, "what was written since")
    into.close()
