"""TRUNCATE becomes deletes of all rows that a table has here, in the same transaction.

Law of this file: what is deleted is what the daemon answers now: all that was sent before is in
that, and nothing of a transaction that is open.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from ingester.client import NotFound
from ingester.client.sync_stream import SyncColumn
from ingester.postgres.collector import SyncMessage
from ingester.postgres.states import TableState
from ingester.postgres.tables import Tables

KEYS_AT_ONCE = 50_000
MOST_ROWS = 1_000_000
"""A table that has more is copied anew instead: a transaction has to be held by the daemon."""


class TooManyRows(Exception):
    """A table that was truncated had too many rows here to delete them one by one."""

    def __init__(self, target: str) -> None:
        super().__init__(f"it was truncated, and had more than {MOST_ROWS:,} rows here")
        self.target = target


def deletes_of_all(tables: Tables, target: str, state: TableState) -> Iterator[SyncMessage]:
    """Return messages that delete all rows that a table has at the daemon.

    Raises:
        TooManyRows, ClientError
    """
    by_source = {column.source: column.name for column in state.columns}
    key = [by_source[name] for name in state.facts.key]
    columns = tuple(SyncColumn(role, name) for role in ("old_pk", "new_pk") for name in key)
    names = [str(number) for number in range(len(columns))]
    try:
        found = tables.client.query(tables.namespace, target, columns=key, limit=MOST_ROWS + 1)
    except NotFound:
        return
    if found.num_rows > MOST_ROWS:
        raise TooManyRows(target)
    for keys in found.combine_chunks().to_batches(max_chunksize=KEYS_AT_ONCE):
        gone = [pa.nulls(keys.num_rows, column.type) for column in keys.columns]
        yield SyncMessage(target, columns, pa.record_batch([*keys.columns, *gone], names=names))
