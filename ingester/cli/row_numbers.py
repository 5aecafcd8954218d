"""Sending the rows of an input, numbered if an origin is given.

    ask the daemon ─▶ skip known rows ─▶ send one row alone ─▶ ask again ─▶ send the rest, cut at
    the origin's marks ─▶ ask once more if another process has answered

A batch's sequence is the number of its last row, so a file is repeated exactly with any batch size.
The first row is sent alone to open the stream: from then the origin belongs to this process at this
daemon, and the daemon's answer about the table stays valid. Batches are cut at the marks (ends of
earlier batches), so every row is accepted or skipped as its earlier batch was. Rows that were known
and are lost with a daemon's disk meanwhile are an error that names them
(``tests/origins/test_cut_anew.py``).
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pyarrow as pa

from ingester.client import Ack, AckLevel, Client, OriginState, Unreachable, Writer, WriteResult
from ingester.client.cluster import merging

from .exits import CommandFailed

Sent = Callable[[Ack, int], None]


class SentAs(NamedTuple):
    """How rows are sent.

    Attributes:
        first: Number of the first row; by default one after the last known. If it is given,
            unreachable daemons are not asked.
        ack: Level of the acknowledgements; None for the table's.
    """

    origin: str | None = None
    first: int | None = None
    ack: AckLevel | None = None


class RowSender:
    """Sends the rows of one input.

    Without an origin rows have no numbers, and only the client's writer makes each row arrive once.

    Attributes:
        next_row: Number of the next row.
        known_rows: Rows that were not sent because the table has them.
    """

    def __init__(
        self,
        client: Client,
        table: tuple[str, str],
        schema: pa.Schema,
        how: SentAs,
    ) -> None:
        """Ask the daemon for the origin's progress, if an origin is given.

        Raises:
            ClientError: The daemon did not answer.
        """
        self._client = client
        self._table = table
        origin, first = how.origin, how.first
        self._origin = origin
        self._ack = how.ack
        self._appends = first is None
        self._marks: tuple[int, ...] = ()
        self._missing: frozenset[str] = frozenset()
        """Endpoints of unreachable daemons, if there are several daemons."""
        self._writer: Writer | None = None
        self._first_row: int | None = None
        self._epoch: int | None = None
        """Epoch of the daemon that accepted the first row, once more rows may follow."""
        self.next_row = 1
        self.known_rows = 0
        if origin is None:
            self._writer = client.writer(*table, schema, ack=how.ack)
            return
        state = self._ask(origin)
        newest = max((*state.marks, state.memory_sequence or 0), default=0)
        self.next_row = newest + 1 if first is None else first
        self._there = -1 if state.table_sequence is None else state.table_sequence

    @property
    def acknowledged(self) -> WriteResult:
        """The result of the rows acknowledged so far."""
        return WriteResult() if self._writer is None else self._writer.acknowledged

    def write(self, batch: pa.RecordBatch, sent: Sent) -> None:
        """Send the unknown rows of the batch; call ``sent`` with each future and its row count.

        Raises:
            ClientError: The writer has failed.
            CommandFailed: Another process writes as this origin.
        """
        row = self.next_row
        self.next_row += batch.num_rows
        self._first_row = row if self._first_row is None else self._first_row
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
        """Wait for all answers.

        Raises:
            ClientError: A batch was refused, or has no answer.
            CommandFailed: Rows were lost with a daemon's disk meanwhile.
        """
        if self._writer is None:
            return
        epoch = self._writer.close().epoch
        if self._origin is None or self._epoch is None:
            return  # the first row was refused, and nothing else was sent
        if epoch != self._epoch or self._of_several():
            try:
                self._check(self._ask(self._origin), self.next_row - 1)
            except Unreachable as exc:
                if "missing" not in exc.details:
                    raise

    def abort(self) -> None:
        """Stop without waiting."""
        if self._writer is not None:
            self._writer.abort()

    def _begin(self, one_row: pa.RecordBatch, number: int, sent: Sent) -> None:
        origin = self._origin
        assert origin is not None
        self._writer = self._client.writer(
            *self._table,
            one_row.schema,
            origin=origin,
            first_sequence=number,
            numbers_rows=True,
            ack=self._ack,
        )
        ack = self._writer.write(one_row)
        sent(ack, 1)
        if ack.result().duplicate and self._appends:
            raise CommandFailed(
                f"origin {origin!r}: another process writes as this origin: its row {number:,}"
                " was already known; give each writer its own origin, or use --first-sequence"
            )
        known = self._ask(origin)
        self._check(known, number)
        self._marks, self._epoch = known.marks, ack.result().epoch

    def _check(self, known: OriginState, last: int) -> None:
        """Check that the daemons know all rows up to ``last``; skipped if one is unreachable.

        Raises:
            CommandFailed: Some rows are lost.
        """
        if self._missing or self._first_row is None or not known.there:
            return  # an older daemon does not send its progress
        if lost := _lacking(known, self._first_row, last):
            told = ", ".join(f"{a:,} to {b:,}" if a != b else f"{a:,}" for a, b in lost[:5])
            raise CommandFailed(
                f"origin {self._origin!r}: rows {told}{' …' if len(lost) > 5 else ''} were known,"
                f" and were lost with a daemon's disk meanwhile; send them again with"
                f" --first-sequence {self._first_row}"
            )

    def _of_several(self) -> bool:
        daemons = self._client.daemons()
        for daemon in daemons:
            daemon.close()
        return len(daemons) > 1

    def _pieces(self, batch: pa.RecordBatch, row: int, start: int) -> Iterator[pa.RecordBatch]:
        """The rest of a batch from ``start`` on, cut after each mark; ``row`` is its first row."""
        while start < batch.num_rows:
            at = bisect_left(self._marks, row + start)
            end = batch.num_rows
            if at < len(self._marks):
                end = min(end, self._marks[at] - row + 1)
            yield batch.slice(start, end - start)
            start = end

    def _ask(self, origin: str) -> OriginState:
        # No state if the table does not exist: other tables of the origin do not matter.
        return next(iter(self._states(origin)), OriginState(origin))

    def _states(self, origin: str) -> list[OriginState]:
        if not self._missing:
            try:
                return self._client.origins(origin, self._table)
            except Unreachable as exc:
                if self._appends or "missing" not in exc.details:
                    raise
                # The numbers are given, so the daemon that receives the rows skips known ones.
                self._missing = frozenset(exc.details["missing"])
        found: list[list[OriginState]] = []
        for daemon in self._client.daemons():
            with daemon:
                if daemon.endpoint not in self._missing:
                    found.append(daemon.origins(origin, self._table))
        return merging.origins(found)


def _lacking(known: OriginState, first: int, last: int) -> list[tuple[int, int]]:
    """The unknown rows between ``first`` and ``last``, as ranges."""
    found: list[tuple[int, int]] = []
    while first <= last:
        at = bisect_left(known.marks, first)
        end = min(last, known.marks[at]) if at < len(known.marks) else last
        if not known.has(end):
            begin = found.pop()[0] if found and found[-1][1] == first - 1 else first
            found.append((begin, end))
        first = end + 1
    return found
