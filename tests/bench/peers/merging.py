"""Changes merged into a Delta Lake table, in a process that has ``deltalake``.

    python -m tests.bench.peers.merging FOLDER KIND TABLE_ROWS MESSAGES ROWS

prints JSON: the seconds of each merge, and the bytes that each has written. ``touch`` as kind is
one merge that updates this many keys, spread over the table.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tests.bench.changes import Message, base_rows, messages, some_keys, updates


def merged(folder: Path, base: pa.Table, changes: list[Message]) -> dict[str, Any]:
    """Return the seconds and the bytes written of one merge per message."""
    from deltalake import DeltaTable, write_deltalake

    write_deltalake(str(folder), base)
    seconds, written = [], []
    for message in changes:
        table = DeltaTable(str(folder))
        before = {path.name for path in folder.glob("*.parquet")}
        source = _rows_of(message)
        began = time.perf_counter()
        merge = table.merge(source, "t.id = s.id", source_alias="s", target_alias="t")
        merge.when_matched_delete("s.gone").when_matched_update_all(
            except_cols=["gone"]
        ).when_not_matched_insert_all("not s.gone", except_cols=["gone"]).execute()
        seconds.append(time.perf_counter() - began)
        files = [path for path in folder.glob("*.parquet") if path.name not in before]
        written.append(sum(path.stat().st_size for path in files))
    return {"seconds": seconds, "written": written}


def _rows_of(message: Message) -> pa.Table:
    """Return the input of Delta's merge: a row per key, and whether the key is deleted."""
    stays = message.new >= 0
    left = (message.old >= 0) & (message.old != message.new)
    kept = pa.Table.from_batches([message.values]).filter(pa.array(stays))
    upserts = kept.add_column(0, "id", pa.array(message.new[stays]))
    upserts = upserts.append_column("gone", pa.array(np.zeros(upserts.num_rows, bool)))
    gone = pa.table({"id": message.old[left], "gone": np.ones(int(left.sum()), bool)})
    return pa.concat_tables([upserts, gone], promote_options="default")


def main(arguments: list[str]) -> None:
    folder, kind, numbers = Path(arguments[0]), arguments[1], [int(n) for n in arguments[2:]]
    table_rows, count, rows = numbers
    changes = (
        [updates(some_keys(table_rows, rows / table_rows))]
        if kind == "touch"
        else messages(kind, table_rows, count, rows)
    )
    print(json.dumps(merged(folder, base_rows(table_rows), changes)))


if __name__ == "__main__":
    main(sys.argv[1:])
