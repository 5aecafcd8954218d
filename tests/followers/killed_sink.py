"""A program that writes into a copy until it is killed; each transaction has a state.

Transaction n adds the ids ``10 n … 10 n + 9``, deletes rows, re-inserts them, and stores ``n``
as the state. Some transactions add a column. From time to time the program rebuilds the copy, in
several transactions, while readers still see the old one.
"""

from __future__ import annotations

import json
import sys

import pyarrow as pa

from ingester.followers.destination import open_destination
from ingester.followers.duckdb_sink import DuckDBSink
from ingester.followers.parquet_sink import ParquetSink
from ingester.followers.sink import FollowedTable, Rows, Run, StateKey

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64())])
REBUILD_EVERY, REBUILD_STEP = 7, 40


def table(into: str) -> FollowedTable:
    """Return the table, with a primary key if the destination supports one."""
    key = ("id",) if into.startswith("duckdb:") else ()
    return FollowedTable("shop", "visits", 1, SCHEMA, key)


def rows(first: int, last: int, at: int, columns: int) -> Rows:
    """Return the current rows of these ids, with at most ``columns`` further columns."""
    ids = pa.array(range(first, last), pa.int64())
    more = {f"c{n}": ids for n in range(columns)}
    return Rows(pa.table({"id": ids, "v": ids, **more}), (Run("p", at, len(ids)),))


def main(into: str) -> None:
    followed = table(into)
    sink = open_destination(into).sink(followed)
    assert isinstance(sink, DuckDBSink | ParquetSink)
    states, key = sink.checkpoint_store(), followed.key()
    with sink.transaction():
        found = states.get(key)
        state = {"n": -1, "columns": 0} if found is None else json.loads(found)
        if found is None:
            sink.on_start_version([], is_current=True)
            states.put(key, json.dumps(state).encode())
        else:
            sink.on_recovery()
    if state.pop("building", 0):
        rebuild(sink, key, state)
    print("ready", flush=True)
    while True:
        n = state["n"] + 1
        state = {"n": n, "columns": n // 25}
        with sink.transaction():
            sink.put(rows(10 * n, 10 * n + 10, n, state["columns"]))
            again = rows(n, n + 1, n, state["columns"])
            if followed.keyed:
                sink.delete(again.batch.select(["id"]))
                sink.put(again)
            else:
                sink.put(rows(-10, -5, n + 1_000_000, 0))
                sink.take_back("p", [n + 1_000_000])
            states.put(key, json.dumps(state).encode())
        print(n, flush=True)
        if n % REBUILD_EVERY == 0:
            rebuild(sink, key, state)


def rebuild(sink: DuckDBSink | ParquetSink, key: StateKey, state: dict[str, int]) -> None:
    """Rebuild the copy while readers see the old one, then write to the new one.

    The state records an unfinished rebuild: after a kill the next process repeats it.
    """
    n, states = state["n"], sink.checkpoint_store()
    with sink.transaction():
        sink.on_start_version([], is_current=False)
        states.put(key, json.dumps(state | {"building": 1}).encode())
    for first in range(0, 10 * n + 10, REBUILD_STEP):
        with sink.transaction():
            last = min(first + REBUILD_STEP, 10 * n + 10)
            sink.put(rows(first, last, n, state["columns"]))
    with sink.transaction():
        sink.on_end_version(current=True)
        states.put(key, json.dumps(state).encode())


if __name__ == "__main__":
    main(sys.argv[1])
