"""Rows of an origin go out under their numbers, so that files are repeated exactly.

    ask ─▶ leave out what is there ─▶ one row alone ─▶ ask again ─▶ the rest, a batch to each mark

Law of this file: a batch's sequence is the number of its last row, whatever the batch size. The row
that goes alone opens the stream: from it on the origin is this process's, at this daemon, and what
the daemon then says of the table stays so. A batch ends at each of its marks, and every row is
judged as the batch was that it came in before.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pyarrow as pa

from ingester.client import Ack, Client, OriginState, Writer, WriteResult

from .exits import CommandFailed

Sent = Callable[[Ack, int], None]


class Target(NamedTuple):
    """Where rows go, and as whose."""

    namespace: str
    table: str
    origin: str | None


def rows_of(
    client: Client, target: Target, schema: pa.Schema, first: int | None
) -> "RowNumbers | PlainRows":
    """What sends the rows of an input, numbered where somebody is named who writes.

    Args:
        first: the number of its first row; default: one after the last that is known.

    Raises:
        ClientError
    """
    if target.origin is None:
        return PlainRows(client.writer(target.namespace, target.table, schema))
    return RowNumbers(client, target, first)


class PlainRows:
    """Rows without numbers of their own: the writer sees to it that each is there once."""

    known_rows = 0

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self.next_row = 1

    @property
    def acknowledged(self) -> WriteResult:
        """What was acknowledged."""
        return self._writer.acknowledged

    def write(self, batch: pa.RecordBatch, sent: Sent) -> None:
        """Send a batch and give its promise to ``sent``. Raises ClientError."""
        sent(self._writer.write(batch), int(batch.num_rows))

    def close(self) -> None:
        """Wait for all answers. Raises ClientError."""
        self._writer.close()

    def abort(self) -> None:
        """Stop without waiting."""
        self._writer.abort()


class RowNumbers:
    """The rows of one input after those of the inputs before it.

    ``next_row`` is the number of the next row that is given, ``known_rows`` counts those that were
    left out, because they are there.
    """

    def __init__(self, client: Client, target: Target, first: int | None) -> None:
        """Ask the daemon how far the origin has come. Without ``first`` its rows are new.

        Raises:
            ClientError
        """
        self._client = client
        self._target = target
        state = self._ask()
        self._appends = first is None
        newest = max((*state.marks, state.memory_sequence or 0), default=0)
        self.next_row = newest + 1 if first is None else first
        self._there = -1 if state.table_sequence is None else state.table_sequence
        self._marks: tuple[int, ...] = ()
        self._writer: Writer | None = None
        self.known_rows = 0

    @property
    def acknowledged(self) -> WriteResult:
        """What was acknowledged of the rows that were sent."""
        return WriteResult() if self._writer is None else self._writer.acknowledged

    def write(self, batch: pa.RecordBatch, sent: Sent) -> None:
        """Send what of the batch is not there, and give each promise with its rows to ``sent``.

        Raises:
            ClientError, CommandFailed
        """
        row = self.next_row
        self.next_row += batch.num_rows
        start = 0
        if self._writer is None:
            start = min(batch.num_rows, max(0, self._there + 1 - row))
            self.known_rows += start
            if start == batch.num_rows:
                return
            self._begin(batch.slice(start, 1), row + start, sent)
            start += 1
        assert self._writer is not None
        for piece in self._pieces(batch, row, start):
            sent(self._writer.write(piece), int(piece.num_rows))

    def close(self) -> None:
        """Wait for all answers. Raises ClientError."""
        if self._writer is not None:
            self._writer.close()

    def abort(self) -> None:
        """Stop without waiting."""
        if self._writer is not None:
            self._writer.abort()

    def _begin(self, one_row: pa.RecordBatch, number: int, sent: Sent) -> None:
        target = self._target
        assert target.origin is not None
        self._writer = self._client.writer(
            target.namespace,
            target.table,
            one_row.schema,
            origin=target.origin,
            first_sequence=number,
            numbers_rows=True,
        )
        ack = self._writer.write(one_row)
        sent(ack, 1)
        if ack.result().duplicate and self._appends:
            raise CommandFailed(
                f"origin {target.origin!r}: somebody else writes as this origin: its row {number:,}"
                " was there already; give each writer its own, or repeat with --first-sequence"
            )
        self._marks = self._ask().marks

    def _pieces(self, batch: pa.RecordBatch, row: int, start: int) -> Iterator[pa.RecordBatch]:
        """The rest of a batch from ``start`` on, cut behind each mark; ``row`` is its first."""
        while start < batch.num_rows:
            at = bisect_left(self._marks, row + start)
            end = batch.num_rows
            if at < len(self._marks):
                end = min(end, self._marks[at] - row + 1)
            yield batch.slice(start, end - start)
            start = end

    def _ask(self) -> OriginState:
        target = self._target
        assert target.origin is not None
        found = self._client.origins(target.origin, (target.namespace, target.table))
        # No such table: what the origin has elsewhere is not asked about.
        return found[0] if found else OriginState(target.origin)
