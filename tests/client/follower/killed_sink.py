"""A program that writes into a DuckDB file until it is killed; each transaction has a state.

Transaction n adds the ids ``10 n … 10 n + 9``, takes the id ``n`` away and brings it back with
``n`` for its value, and leaves ``n`` as the state. Now and then the copy is built anew beside the
one that is shown, in several transactions; or a column is added.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pyarrow as pa

from ingester.client.follower.duckdb_sink import DuckDBDatabase
from ingester.client.follower.sink import FollowedTable, Rows, Run
from ingester.daemon.process_tuning import do_without_pandas

TABLE = FollowedTable(
    "shop", "visits", 1, pa.schema([("id", pa.int64()), ("v", pa.int64())]), primary_key=("id",)
)
REBUILD_EVERY, REBUILD_STEP = 7, 40


def rows(first: int, last: int, at: int, columns: int) -> Rows:
    """The rows of these ids, as they are when they come; at most so many columns beside them."""
    ids = pa.array(range(first, last), pa.int64())
    more = {f"c{n}": ids for n in range(columns)}
    return Rows(pa.table({"id": ids, "v": ids, **more}), (Run("p", at, len(ids)),))


def main(path: Path) -> None:
    do_without_pandas()
    database = DuckDBDatabase(path)
    sink = database.sink(TABLE)
    states = sink.checkpoint_store()
    with sink.transaction():
        found = states.get(TABLE.key())
        state = {"n": -1, "columns": 0} if found is None else json.loads(found)
        if found is None:
            sink.on_start_version([], is_current=True)
        else:
            sink.on_recovery()
    print("ready", flush=True)
    while True:
        n = state["n"] + 1
        state = {"n": n, "columns": n // 25}
        with sink.transaction():
            sink.put(rows(10 * n, 10 * n + 10, n, state["columns"]))
            sink.delete(pa.table({"id": [n]}))
            sink.put(rows(n, n + 1, n, state["columns"]))
            states.put(TABLE.key(), json.dumps(state).encode())
        print(n, flush=True)
        if n % REBUILD_EVERY == 0:
            with sink.transaction():
                sink.on_start_version([], is_current=False)
            for first in range(0, 10 * n + 10, REBUILD_STEP):
                with sink.transaction():
                    last = min(first + REBUILD_STEP, 10 * n + 10)
                    sink.put(rows(first, last, n, state["columns"]))
            with sink.transaction():
                sink.on_end_version(current=True)
                states.put(TABLE.key(), json.dumps(state | {"rebuilt": n}).encode())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
