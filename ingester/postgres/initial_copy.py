"""The first copy of the source's tables, as the messages that are sent for it.

    a table here ──▶ deletes of all its keys ──▶ the source's rows at the slot's snapshot

Law of this file: it has all of the snapshot, and leaves nothing of what was here before. Sequences
are given by whoever sends.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from ingester.client import Client, NotFound
from ingester.client.sync_stream import SyncColumn
from ingester.postgres.collector import SyncMessage
from ingester.postgres.source import Source, SourceTable, TextRow, shape_of, table_name
from ingester.postgres.types import arrow_values

KEYS_AT_ONCE = 50_000


def copied(
    source: Source, tables: list[SourceTable], snapshot: str, client: Client, namespace: str
) -> Iterator[SyncMessage]:
    """Copy all rows of the tables, table by table; the daemon is asked for what it has of each.

    Raises:
        SourceFailed, ValueNotKept, ClientError
    """
    for table in tables:
        # What an earlier copy has left may be gone from the source.
        yield from _cleared(table, client, namespace)
        for rows in source.copy(table, snapshot):
            yield _message(table, rows)


def _message(table: SourceTable, rows: list[TextRow]) -> SyncMessage:
    """The inserts of rows."""
    shape = shape_of(table.relation, table.key)
    texts = dict(
        zip((column.source for column in shape.columns), zip(*rows, strict=True), strict=True)
    )
    arrays = {
        column.source: arrow_values(column.type, texts[column.source], column.source)
        for column in shape.columns
    }
    keys = [arrays.pop(name) for name in shape.key]
    nothing = [pa.nulls(len(rows), key.type) for key in keys]
    roles = [(role, name) for role in ("old_pk", "new_pk") for name in shape.key]
    roles += [("value", name) for name in arrays]
    numbers = [str(number) for number in range(len(roles))]
    batch = pa.record_batch([*nothing, *keys, *arrays.values()], names=numbers)
    return SyncMessage(shape.target, tuple(SyncColumn(*role) for role in roles), batch)


def _cleared(table: SourceTable, client: Client, namespace: str) -> Iterator[SyncMessage]:
    """The messages that delete all rows that a table has here."""
    name = table_name(table.relation)
    try:
        found = client.query(namespace, name, columns=list(table.key))
    except NotFound:
        return
    columns = tuple(
        SyncColumn(role, column) for role in ("old_pk", "new_pk") for column in table.key
    )
    for keys in found.combine_chunks().to_batches(max_chunksize=KEYS_AT_ONCE):
        gone = [pa.nulls(keys.num_rows, column.type) for column in keys.columns]
        names = [str(number) for number in range(2 * len(gone))]
        yield SyncMessage(name, columns, pa.record_batch([*keys.columns, *gone], names=names))
