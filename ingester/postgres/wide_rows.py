"""Rows of the source that are too large to be read as one message: read piece by piece.

    find_wide ──▶ places of rows over 8 MiB ──▶ COPY has all others
                                           └──▶ read_wide: large columns in pieces

Law of this file: a message of the server is held three times before it is a value, a piece of 1 MiB
too; the value itself is held once. A row keeps its place (ctid) within a snapshot, under a lock.
"""

from __future__ import annotations

import binascii
from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa

from ingester.postgres.catalog import TableFacts
from ingester.postgres.collector import Shape
from ingester.postgres.connection import ask
from ingester.postgres.copy_batches import key_text, read_texts, to_batch
from ingester.postgres.copy_blocks import CopyBlocks
from ingester.postgres.snapshot import Snapshot

WIDE_BYTES = 8 << 20
"""A row whose large columns have more bytes of text is read in pieces."""
PIECE_BYTES = 1 << 20
LARGE_BYTES = 1 << 20
"""A column of such a row with fewer bytes of text is read as it is in other rows."""
_COMPRESSED_BYTES = 1 << 15
"""A value of this size may be 255 times as large when it is not compressed (lz4)."""
_BYTEA, _BPCHAR = 17, 1042
_TEXTS = {25, 1043, _BPCHAR}


class WideRow(NamedTuple):
    """A row by its place, with the bytes of the texts of its columns, as far as they matter."""

    table: int
    place: str
    sizes: tuple[int, ...]


def source_of(facts: TableFacts) -> Any:
    """What a table's rows are selected from, as psycopg2's ``Composed``."""
    from psycopg2 import sql

    # Tables that inherit from it are copied by themselves; partitions belong to it.
    only = sql.SQL("" if facts.kind == "p" else "ONLY ")
    return sql.SQL("{}{}").format(only, sql.Identifier(facts.schema, facts.name))


def wide_condition(facts: TableFacts, shape: Shape) -> Any:
    """Whether a row is wide, as SQL; each row is, or is not."""
    from psycopg2 import sql

    sizes = sql.SQL(" + ").join(_sizes(facts, shape))
    return sql.SQL("{} > {}").format(sizes, sql.Literal(WIDE_BYTES))


def find_wide(snapshot: Snapshot, facts: TableFacts, shape: Shape) -> list[WideRow]:
    """The wide rows of a locked table; where no value is stored apart from its row, there are none.

    Raises:
        Stopped, SourceFailed, psycopg2.OperationalError
    """
    from psycopg2 import sql

    oids = [leaf.oid for leaf in facts.leaves] or [facts.oid]
    [(toasted,)] = ask(
        snapshot.connection,
        "SELECT coalesce(sum(pg_relation_size(reltoastrelid)), 0) > 0 FROM pg_class"
        " WHERE oid = ANY (%s::oid[]) AND reltoastrelid <> 0",
        oids,
    )
    if not toasted or not any(_is_text(column.type.arrow) for column in shape.columns):
        return []
    sizes = _sizes(facts, shape)
    query = sql.SQL("SELECT tableoid::bigint, ctid::text, {} FROM {} WHERE {}").format(
        sql.SQL(", ").join(sizes), source_of(facts), wide_condition(facts, shape)
    )
    found = snapshot.ask(query)
    return [WideRow(int(table), place, tuple(sizes)) for table, place, *sizes in found]


def read_wide(
    snapshot: Snapshot, facts: TableFacts, shape: Shape, row: WideRow
) -> tuple[pa.RecordBatch, int, str]:
    """One row, with the bytes of its texts, and where they are: its key and its largest column.

    Raises:
        ValueNotKept: with the table's name here, the row's key and the column.
        Stopped, SourceFailed, psycopg2.OperationalError
    """
    from psycopg2 import sql

    there = sql.SQL("FROM {} WHERE tableoid = {} AND ctid = {}::tid").format(
        source_of(facts), sql.Literal(row.table), sql.Literal(row.place)
    )
    large = [size > LARGE_BYTES for size in row.sizes]
    columns = [
        sql.SQL("NULL") if is_large else sql.Identifier(column.source)
        for column, is_large in zip(shape.columns, large, strict=True)
    ]
    select = sql.SQL("SELECT {} {}").format(sql.SQL(", ").join(columns), there)
    [block] = _blocks(snapshot, select)
    texts = read_texts(block, len(shape.columns))
    key = key_text(shape, texts, 0)
    nbytes = len(block)
    values: list[pa.Array | None] = [None] * len(texts)
    for at, (column, is_large) in enumerate(zip(shape.columns, large, strict=True)):
        if is_large:
            raw = _raw(facts, column.source)
            value = _value(snapshot, sql.SQL("SELECT {} AS b {}").format(raw, there))
            nbytes += len(value)
            found = _array(value)
            if pa.types.is_binary(column.type.arrow):
                values[at] = found
            else:
                texts[at] = found
    largest = shape.columns[row.sizes.index(max(row.sizes))].source
    return to_batch(shape, texts, values), nbytes, f"row {key}, column {largest!r}"


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def _sizes(facts: TableFacts, shape: Shape) -> list[Any]:
    """The bytes of each column's text, as SQL; those of small values do not matter."""
    from psycopg2 import sql

    types = {column.name: column.base_oid for column in facts.columns}
    found = []
    for column in shape.columns:
        size = "0"
        if not _is_text(column.type.arrow):
            pass
        elif types[column.source] in _TEXTS:
            size = "coalesce(octet_length({0}), 0)"  # Known without the value.
        elif types[column.source] == _BYTEA:
            size = "coalesce(2 * octet_length({0})::bigint, 0)"
        else:
            size = (
                "CASE WHEN pg_column_size({0}) > {1}"
                " THEN octet_length(format('%s', {0}))::bigint ELSE 0 END"
            )
        name = sql.Identifier(column.source)
        found.append(sql.SQL(size).format(name, sql.Literal(_COMPRESSED_BYTES)))
    return found


def _raw(facts: TableFacts, name: str) -> Any:
    """The bytes of a column's text as its type writes it, or of a bytea itself, as SQL."""
    from psycopg2 import sql

    types = {column.name: column.base_oid for column in facts.columns}
    form = "convert_to(format('%s', {}), 'UTF8')"
    if types[name] == _BYTEA:
        form = "{} || ''::bytea"  # Fetched once, and not for each piece.
    elif types[name] in _TEXTS - {_BPCHAR}:  # Which a cast would cut.
        form = "convert_to({}, 'UTF8')"
    return sql.SQL(form).format(sql.Identifier(name))


def _value(snapshot: Snapshot, select: Any) -> pa.Buffer:
    """The one value that a query answers as ``b``."""
    from psycopg2 import sql

    pieces = sql.SQL(
        "SELECT i, octet_length(b), encode(substring(b FROM i FOR {0}), 'hex')"
        " FROM ({1} OFFSET 0) AS x, generate_series(1, octet_length(b), {0}) AS i"
    ).format(sql.Literal(PIECE_BYTES), select)
    found: pa.Buffer | None = None
    for block in _blocks(snapshot, pieces):
        at, size, digits = block.rstrip(b"\n").split(b",")
        if found is None:
            found = pa.allocate_buffer(int(size))
        piece = binascii.unhexlify(digits)
        memoryview(found).cast("B")[int(at) - 1 : int(at) - 1 + len(piece)] = piece
    assert found is not None, "a large value has a piece"
    return found


def _array(value: pa.Buffer) -> pa.Array:
    offsets = pa.array([0, len(value)], pa.int32()).buffers()[1]
    return pa.Array.from_buffers(pa.binary(), 1, [None, offsets, value])


def _blocks(snapshot: Snapshot, select: Any) -> Iterator[bytes]:
    """The rows that a query answers, as CSV, one by one."""
    from psycopg2 import sql

    statement = sql.SQL("COPY ({}) TO STDOUT (FORMAT csv)").format(select)
    blocks = CopyBlocks(snapshot.connection, statement, 1, snapshot.stopped)
    try:
        yield from blocks
    finally:
        blocks.end()
