"""The rows of one table from the server: ``COPY`` as blocks, as record batches, and wide rows.

    server ──CopyData, a row each──▶ psycopg2's thread ──▶ a queue of two blocks ──▶ CopyBlocks
    a block ──pyarrow.csv──▶ a column of texts each ──types──▶ record batch
    find_wide ──▶ places of rows over 8 MiB ──▶ COPY has all others
                                           └──▶ read_wide: large columns in pieces

Memory is bounded: by the queue, and for wide rows by pieces of 1 MiB, as libpq and psycopg2 hold
three copies of a message. A row keeps its place (ctid) within a snapshot, under a lock. In CSV an
unquoted empty field is NULL and a quoted one is the empty text.

Source: PostgreSQL's documentation, "COPY", CSV format.
"""

from __future__ import annotations

import binascii
import threading
from collections.abc import Callable, Iterator, Sequence
from queue import Empty, Full, Queue
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.csv

from ingester.postgres.connection import StatementThread, Stopped, ask, source_errors
from ingester.postgres.facts import TableFacts
from ingester.postgres.snapshot import SourceSnapshot
from ingester.postgres.states import Shape
from ingester.postgres.types import ValueNotKept, arrow_values

BLOCK_BYTES = 8 << 20
QUEUED = 2
"""One block for the reader, and one in reserve."""
_STOP_WITHIN_S = 0.1
BATCH_BYTES = 16 << 20
_BOM = b"\xef\xbb\xbf"
WIDE_BYTES = 8 << 20
"""A row whose large columns have more bytes of text is read in pieces."""
PIECE_BYTES = 1 << 20
LARGE_BYTES = 1 << 20
"""Smaller columns of such a row are read as usual."""
_COMPRESSED_BYTES = 1 << 15
"""lz4 may have compressed a value of this size by a factor of 255."""
_BYTEA, _BPCHAR = 17, 1042
_TEXTS = {25, 1043, _BPCHAR}


class CopyBlocks:
    """The rows of one COPY. Iterate once, then read ``rows``; always call :meth:`end`."""

    def __init__(
        self, connection: Any, statement: Any, rows_at_most: int, stopped: Callable[[], bool]
    ) -> None:
        """Start the statement.

        Args:
            statement: ``COPY … TO STDOUT`` as psycopg2's ``Composed``.
            rows_at_most: the most rows of a block.
            stopped: polled several times a second.
        """
        self._stopped = stopped
        self._blocks: Queue[bytes] = Queue(QUEUED)
        self._over = threading.Event()
        self._rows: list[bytes] = []
        self._nbytes = 0
        self._rows_at_most = rows_at_most
        self._thread = StatementThread(connection, lambda: self._copy(connection, statement))

    @property
    def rows(self) -> int:
        """The number of rows sent, according to the server."""
        return self._thread.result()

    def __iter__(self) -> Iterator[bytes]:
        """The blocks.

        Raises:
            Stopped: ``stopped`` returned true.
        """
        while True:
            if self._stopped():
                raise Stopped("stopped while a table was copied")
            done = self._thread.wait(0)
            try:
                yield self._blocks.get(timeout=0 if done else _STOP_WITHIN_S)
            except Empty:
                if done:
                    self._thread.result()
                    return

    def end(self) -> None:
        """Cancel the statement if it is running, and end its thread."""
        self._over.set()
        self._thread.interrupt()

    def write(self, row: bytes) -> None:
        """Take a row from psycopg2."""
        self._rows.append(row)
        self._nbytes += len(row)
        if self._nbytes >= BLOCK_BYTES or len(self._rows) >= self._rows_at_most:
            self._hand_over()

    def _copy(self, connection: Any, statement: Any) -> int:
        with source_errors(), connection.cursor() as cursor:
            cursor.copy_expert(statement, self)
            rows = int(cursor.rowcount)
        if self._rows:
            self._hand_over()
        return rows

    def _hand_over(self) -> None:
        block = self._rows[0] if len(self._rows) == 1 else b"".join(self._rows)
        self._rows, self._nbytes = [], 0
        while not self._over.is_set():  # The rest of a cancelled COPY is read and dropped.
            try:
                self._blocks.put(block, timeout=_STOP_WITHIN_S)
                return
            except Full:
                continue


def rows_at_most(shape: Shape) -> int:
    """The most rows of a block, so that its batch has about :data:`BATCH_BYTES`.

    A null takes one byte of a block, and up to 16 in a batch.
    """
    return max(1, BATCH_BYTES // sum(_width(column.type.arrow) for column in shape.columns))


def read_block(block: bytes, shape: Shape) -> pa.RecordBatch:
    """Convert a block with the shape's columns in order.

    Raises:
        ValueNotKept: with the table's name, the row's key and the column.
    """
    texts = read_texts(block, len(shape.columns))
    return to_batch(shape, texts, [None] * len(texts))


def to_batch(
    shape: Shape, texts: Sequence[pa.BinaryArray], values: Sequence[pa.Array | None]
) -> pa.RecordBatch:
    """Convert texts; ``values`` replace the texts of their columns.

    Raises:
        ValueNotKept: with the table's name, the row's key and the column.
    """
    arrays = []
    for column, found, array in zip(shape.columns, texts, values, strict=True):
        if array is None:
            try:
                array = arrow_values(column.type, found, column.source)
            except ValueNotKept as exc:
                raise exc.of(shape.target, key_text(shape, texts, exc.row_index)) from exc
        if array.null_count and column.source in shape.key:
            row = array.is_null().index(True).as_py()
            raise _null_key(shape, texts, column.source, row)
        arrays.append(array)
    return pa.record_batch(arrays, names=[column.name for column in shape.columns])


def read_texts(block: bytes, columns: int) -> list[pa.BinaryArray]:
    """The texts of each column as bytes; null for NULL."""
    names = [str(number) for number in range(columns)]
    # The CSV reader removes a byte order mark, which may belong to the first value.
    source = pa.BufferReader(_BOM + block if block.startswith(_BOM) else block)
    table = pa.csv.read_csv(
        source,
        read_options=pa.csv.ReadOptions(
            use_threads=False, block_size=len(block) + len(_BOM), column_names=names
        ),
        # An empty line is a row of one NULL.
        parse_options=pa.csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        convert_options=pa.csv.ConvertOptions(
            check_utf8=False,  # The types check it, with the value's row.
            column_types=dict.fromkeys(names, pa.binary()),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    return [_one(column) for column in table.columns]


def _one(column: pa.ChunkedArray) -> pa.BinaryArray:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _null_key(shape: Shape, texts: Sequence[pa.BinaryArray], column: str, row: int) -> ValueNotKept:
    at = [each.source for each in shape.columns].index(column)
    error = ValueNotKept(column, row, _shown(texts[at], row), "is not allowed in the key")
    return error.of(shape.target, key_text(shape, texts, row))


def key_text(shape: Shape, texts: Sequence[pa.BinaryArray], row: int) -> str:
    """A row's key, as ``id=7, day=2026-11-26``."""
    places = {column.source: at for at, column in enumerate(shape.columns)}
    return ", ".join(f"{name}={_shown(texts[places[name]], row)}" for name in shape.key)


def _shown(texts: pa.BinaryArray, row: int) -> str:
    value = texts[row].as_py()
    return "null" if value is None else value.decode(errors="backslashreplace")


def _width(kind: pa.DataType) -> int:
    """Bytes of a value in a batch, without the text itself."""
    return 4 if pa.types.is_string(kind) or pa.types.is_binary(kind) else -(-kind.bit_width // 8)


class WideRow(NamedTuple):
    """The place of a row, with the approximate text sizes of its columns."""

    table: int
    place: str
    sizes: tuple[int, ...]


def source_of(facts: TableFacts) -> Any:
    """The table as a FROM item, as psycopg2's ``Composed``."""
    from psycopg2 import sql

    # Inheriting tables are copied separately; partitions belong to the table.
    only = sql.SQL("" if facts.kind == "p" else "ONLY ")
    return sql.SQL("{}{}").format(only, sql.Identifier(facts.schema, facts.name))


def wide_condition(facts: TableFacts, shape: Shape) -> Any:
    """An SQL condition that is true for wide rows."""
    from psycopg2 import sql

    sizes = sql.SQL(" + ").join(_sizes(facts, shape))
    return sql.SQL("{} > {}").format(sizes, sql.Literal(WIDE_BYTES))


def find_wide(snapshot: SourceSnapshot, facts: TableFacts, shape: Shape) -> list[WideRow]:
    """The wide rows of a locked table; empty if no value is stored out of line."""
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
    snapshot: SourceSnapshot, facts: TableFacts, shape: Shape, row: WideRow
) -> tuple[pa.RecordBatch, int, str]:
    """One wide row, the bytes of its texts, and a description of its key and largest column.

    Raises:
        ValueNotKept: with the table's name, the row's key and the column.
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
    """SQL for the text bytes of each column; small values count as 0."""
    from psycopg2 import sql

    types = {column.name: column.base_oid for column in facts.columns}
    found = []
    for column in shape.columns:
        size = "0"
        if not _is_text(column.type.arrow):
            pass
        elif types[column.source] in _TEXTS:
            size = "coalesce(octet_length({0}), 0)"  # Known without reading the value.
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
    """SQL for the bytes of a column's text, or of a bytea itself."""
    from psycopg2 import sql

    types = {column.name: column.base_oid for column in facts.columns}
    form = "convert_to(format('%s', {}), 'UTF8')"
    if types[name] == _BYTEA:
        form = "{} || ''::bytea"  # Detoasted once, not for each piece.
    elif types[name] in _TEXTS - {_BPCHAR}:  # A cast would trim it.
        form = "convert_to({}, 'UTF8')"
    return sql.SQL(form).format(sql.Identifier(name))


def _value(snapshot: SourceSnapshot, select: Any) -> pa.Buffer:
    """The single value of a query's column ``b``."""
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


def _blocks(snapshot: SourceSnapshot, select: Any) -> Iterator[bytes]:
    """The rows of a query as CSV, one by one."""
    from psycopg2 import sql

    statement = sql.SQL("COPY ({}) TO STDOUT (FORMAT csv)").format(select)
    blocks = CopyBlocks(snapshot.connection, statement, 1, snapshot.stopped)
    try:
        yield from blocks
    finally:
        blocks.end()
