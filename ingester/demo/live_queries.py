"""Queries while writers write: what was acknowledged before a query must be in its answer.

A look counts a table's rows and asks for the row that was acknowledged last. It knows three
numbers: acknowledged before the query, seen by it, sent by its end. They must be in this order.
"""

from collections import Counter

import msgspec
import pyarrow as pa

from ingester.client import Client

from .source import TIME_COLUMN
from .streaming import NAMESPACE, Meter


class WritesNotSeen(Exception):
    """An answer lacked acknowledged rows, or had rows that nobody sent."""


class Look(msgspec.Struct, frozen=True):
    """One query's answer: rows by where they came from, and what had been acknowledged before."""

    table: str
    acknowledged_before: int
    seen: int
    from_buffer: int
    from_files: int


def look(client: Client, table: str, meter: Meter) -> Look:
    """Count the table's rows while writers write, and find the newest acknowledged row.

    Raises:
        WritesNotSeen: the numbers are not in order, or the row is missing.
    """
    newest = meter.newest
    acknowledged = meter.acknowledged_rows
    rows: Counter[str] = Counter()
    with client.query_stream(NAMESPACE, table, [TIME_COLUMN]) as stream:
        for batch, source in stream:
            rows[source.source] += batch.num_rows
    sent = meter.sent_rows
    seen = rows.total()
    if not acknowledged <= seen <= sent:
        raise WritesNotSeen(
            f"{table}: {acknowledged} rows were acknowledged before the query, it saw {seen}, "
            f"{sent} were sent by its end"
        )
    if newest is not None and not _holds_last_row(client, table, newest):
        raise WritesNotSeen(f"{table}: the row acknowledged last is not in the answer")
    return Look(table, acknowledged, seen, rows["buffer"], rows["file"])


def _holds_last_row(client: Client, table: str, batch: pa.RecordBatch) -> bool:
    row = batch.slice(batch.num_rows - 1).to_pylist()[0]
    same = [(name, "is null") if v is None else (name, "=", v) for name, v in row.items()]
    return int(client.query(NAMESPACE, table, [TIME_COLUMN], same).num_rows) > 0
