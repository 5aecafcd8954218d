"""One table of the source, copied whole into a new version of the table here.

    Snapshot.locked ──▶ copy_blocks ──▶ copy_batches ──▶ client.copy ──▶ files ──▶ the version
       a guard          a thread: psycopg2   a thread: Arrow   this thread       and its state

Law of this file: a copy has all rows of the snapshot, as many as the server says that it has sent,
or there is none. What fails on the way leaves no row, no version and no slot.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

import pyarrow as pa

from ingester.client import Client, InvalidRequest
from ingester.client.copying import TableCopy
from ingester.postgres.catalog import TableFacts
from ingester.postgres.collector import Shape
from ingester.postgres.connection import SourceFailed, ask
from ingester.postgres.copy_batches import read_block, rows_at_most
from ingester.postgres.copy_blocks import CopyBlocks
from ingester.postgres.snapshot import Snapshot
from ingester.postgres.wide_rows import find_wide, read_wide, source_of, wide_condition
from persist.prefetch import one_ahead

Progress = Callable[[int, int, int | None], None]
"""Told the rows so far, the bytes of their texts, and how many rows there may be in all."""


class CopiedTable(NamedTuple):
    """A table that was copied."""

    table_version: int
    rows: int
    bytes: int
    """The texts' bytes, as the server sent them."""


def copy_table(
    snapshot: Snapshot,
    facts: TableFacts,
    shape: Shape,
    client: Client,
    namespace: str,
    partition: str,
    state: Callable[[], bytes],
    progress: Progress = lambda rows, nbytes, total: None,
) -> CopiedTable:
    """Copy a table as it is in the snapshot; it is a version of the table here when this returns.

    Args:
        facts: what the table is in the snapshot.
        shape: the columns that are wanted, and what they become.
        partition: of the checkpoint that is committed with the rows.
        state: its state, asked for when all rows are there.
        progress: told after each batch, in this thread.

    Raises:
        ValueNotKept: with the table's name here, the row's key and the column.
        ChangedMeanwhile: the table is not what it is in the snapshot: take another one.
        Stopped: the snapshot was to end.
        SourceFailed: the source refuses, and no retry helps.
        psycopg2.OperationalError: the source is lost; a retry may help.
        ClientError: the daemon refuses, or is lost: InvalidRequest is what no retry helps.
    """
    names = {column.source: column.name for column in shape.columns}
    key = [names[name] for name in shape.key]
    with client.copy(namespace, shape.target, key) as copy:
        copy.write(_no_rows(shape))
        with snapshot.locked(facts):
            nbytes = _copy_rows(snapshot, facts, shape, copy, progress)
        return CopiedTable(copy.finish(partition, state()), copy.rows, nbytes)


def _copy_rows(
    snapshot: Snapshot, facts: TableFacts, shape: Shape, copy: TableCopy, progress: Progress
) -> int:
    """Write all rows; the bytes of their texts."""
    total = estimate_rows(snapshot.connection, facts)
    progress(0, 0, total)
    wide = find_wide(snapshot, facts, shape)
    nbytes = 0
    with contextlib.closing(_batches(snapshot, facts, shape, wide=bool(wide))) as batches:
        for batch, size in batches:
            copy.write(batch)
            nbytes += size
            progress(copy.rows, nbytes, total)
    largest = (0, "")
    for row in wide:
        batch, size, where = read_wide(snapshot, facts, shape, row)
        largest = max(largest, (batch.nbytes, where))
        try:
            copy.write(batch)
        except InvalidRequest as exc:
            raise InvalidRequest(_too_large(shape, *largest, exc)) from exc
        nbytes += size
        del batch  # Not kept while the next one is read.
        progress(copy.rows, nbytes, total)
    return nbytes


def _too_large(shape: Shape, nbytes: int, where: str, exc: InvalidRequest) -> str:
    """What the daemon has said of a large row, if it was about its size."""
    if "max_batch_bytes" not in str(exc):
        return str(exc)
    return (
        f"table {shape.target!r}, {where}: the row has {nbytes} bytes, more than the daemon takes"
        " at once: raise its flight.max_batch_bytes"
    )


def estimate_rows(connection: Any, facts: TableFacts) -> int | None:
    """How many rows the table may have; None where it was never analysed.

    As the server's planner does: by the rows on a page when that was last counted.

    Raises:
        SourceFailed, psycopg2.OperationalError
    """
    oids = [leaf.oid for leaf in facts.leaves] or [facts.oid]
    [(rows,)] = ask(
        connection,
        "SELECT sum(reltuples::float8 / relpages * pg_relation_size(oid)"
        " / current_setting('block_size')::int) FROM pg_class"
        " WHERE oid = ANY (%s::oid[]) AND relpages > 0 AND reltuples >= 0",
        oids,
    )
    return None if rows is None else round(rows)


def copy_statement(facts: TableFacts, shape: Shape, *, wide: bool = False) -> Any:
    """The statement that sends the rows of a table, as psycopg2's ``Composed``.

    Args:
        wide: leave out the rows that are wide.
    """
    from psycopg2 import sql

    columns = sql.SQL(", ").join(sql.Identifier(column.source) for column in shape.columns)
    which = sql.SQL("")
    if wide:
        which = sql.SQL(" WHERE NOT ({})").format(wide_condition(facts, shape))
    return sql.SQL("COPY (SELECT {} FROM {}{}) TO STDOUT (FORMAT csv)").format(
        columns, source_of(facts), which
    )


def _batches(
    snapshot: Snapshot, facts: TableFacts, shape: Shape, *, wide: bool
) -> Generator[tuple[pa.RecordBatch, int], None, None]:
    """The table's rows, with the bytes of their texts."""
    statement = copy_statement(facts, shape, wide=wide)
    blocks = CopyBlocks(snapshot.connection, statement, rows_at_most(shape), snapshot.stopped)
    rows = 0
    read = ((read_block(block, shape), len(block)) for block in blocks)
    with contextlib.closing(one_ahead(read)) as batches:
        try:
            for batch, size in batches:
                rows += batch.num_rows
                yield batch, size
            sent = blocks.rows
        finally:
            blocks.end()  # First: the thread of the next batch waits for blocks.
    if rows != sent:
        raise SourceFailed(
            f"table {facts.full_name}: the source sent {sent} rows, of which {rows} were read;"
            " nothing was kept. This is a fault of ingester: report it"
        )


def _no_rows(shape: Shape) -> pa.RecordBatch:
    """What says the columns of a table that may have no rows."""
    return pa.schema([(column.name, column.type.arrow) for column in shape.columns]).empty_table()
