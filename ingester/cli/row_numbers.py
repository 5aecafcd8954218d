"""The rows of an input go out, under their numbers where an origin is named.

    ask ─▶ leave out what is there ─▶ one row alone ─▶ ask again ─▶ the rest, a batch to each mark
     ─▶ ask once more, where another process has answered

Law of this file: a batch's sequence is the number of its last row, whatever the batch size, so that
files are repeated exactly. The row that goes alone opens the stream: from it on the origin is this
process's, at this daemon, and what the daemon then says of the table stays so. A batch ends at each
of its marks, and every row is judged as the batch was that it came in before. Rows that were there,
and are lost with a daemon's disk while this runs, are an error that names them.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator

import pyarrow as pa

from ingester.client import Ack, Client, OriginState, Unreachable, Writer, WriteResult
from ingester.client.cluster import merging

from .exits import CommandFailed

Sent = Callable[[Ack, int], None]


class RowSender:
    """Sends the rows of one input after those of the inputs before it.

    ``next_row`` is the number of the next row that is given, ``known_rows`` counts those that were
    left out because they are there. Without an origin, rows have no numbers to be repeated by: the
    client's writer alone sees to it that each is there once.
    """

    def __init__(
        self,
        client: Client,
        table: tuple[str, str],
        schema: pa.Schema,
        origin: str | None,
        first: int | None,
    ) -> None:
        """Ask the daemon how far the origin has come, if there is one.

        Args:
            first: the number of the first row; by default one after the last that is known. Where
                it is said, daemons that are away are left out of the question.

        Raises:
            ClientError: the daemon did not answer.
        """
        self._client = client
        self._table = table
        self._origin = origin
        self._appends = first is None
        self._marks: tuple[int, ...] = ()
        self._missing: frozenset[str] = frozenset()
        """The endpoints of daemons, of several, that are away."""
        self._writer: Writer | None = None
        self._first_row: int | None = None
        self._epoch: int | None = None
        """The epoch of the daemon that took the first row, once more may follow it."""
        self.next_row = 1
        self.known_rows = 0
        if origin is None:
            self._writer = client.writer(*table, schema)
            return
        state = self._ask(origin)
        newest = max((*state.marks, state.memory_sequence or 0), default=0)
        self.next_row = newest + 1 if first is None else first
        self._there = -1 if state.table_sequence is None else state.table_sequence

    @property
    def acknowledged(self) -> WriteResult:
        """The acknowledged part of the rows that were sent."""
        return WriteResult() if self._writer is None else self._writer.acknowledged

    def write(self, batch: pa.RecordBatch, sent: Sent) -> None:
        """Send what of the batch is not there, and give each promise with its rows to ``sent``.

        Raises:
            ClientError: the writer has failed.
            CommandFailed: somebody else writes as this origin.
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
            ClientError: a batch was refused, or has no answer.
            CommandFailed: rows were lost with a daemon's disk meanwhile.
        """
        if self._writer is None:
            return
        epoch = self._writer.close().epoch
        if self._origin is None or self._epoch is None:
            return  # behind a first row that was refused nothing was sent
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
            *self._table, one_row.schema, origin=origin, first_sequence=number, numbers_rows=True
        )
        ack = self._writer.write(one_row)
        sent(ack, 1)
        if ack.result().duplicate and self._appends:
            raise CommandFailed(
                f"origin {origin!r}: somebody else writes as this origin: its row {number:,}"
                " was there already; give each writer its own, or repeat with --first-sequence"
            )
        known = self._ask(origin)
        self._check(known, number)
        self._marks, self._epoch = known.marks, ack.result().epoch

    def _check(self, known: OriginState, last: int) -> None:
        """See that rows up to ``last`` are there; those of daemons that are away may be.

        Raises:
            CommandFailed: some are not.
        """
        if self._missing or self._first_row is None or not known.there:
            return  # of a daemon of before nothing can be told
        if lost := _lacking(known, self._first_row, last):
            told = ", ".join(f"{a:,} to {b:,}" if a != b else f"{a:,}" for a, b in lost[:5])
            raise CommandFailed(
                f"origin {self._origin!r}: rows {told}{' …' if len(lost) > 5 else ''} were there,"
                f" and were lost with a daemon's disk meanwhile; with --first-sequence"
                f" {self._first_row} they are sent again"
            )

    def _of_several(self) -> bool:
        daemons = self._client.daemons()
        for daemon in daemons:
            daemon.close()
        return len(daemons) > 1

    def _pieces(self, batch: pa.RecordBatch, row: int, start: int) -> Iterator[pa.RecordBatch]:
        """The rest of a batch from ``start`` on, cut behind each mark; ``row`` is its first."""
        while start < batch.num_rows:
            at = bisect_left(self._marks, row + start)
            end = batch.num_rows
            if at < len(self._marks):
                end = min(end, self._marks[at] - row + 1)
            yield batch.slice(start, end - start)
            start = end

    def _ask(self, origin: str) -> OriginState:
        # Without the table there is no state: what the origin has elsewhere is not asked about.
        return next(iter(self._states(origin)), OriginState(origin))

    def _states(self, origin: str) -> list[OriginState]:
        if not self._missing:
            try:
                return self._client.origins(origin, self._table)
            except Unreachable as exc:
                if self._appends or "missing" not in exc.details:
                    raise
                # Where the numbers are said, whoever takes the rows judges by what it knows.
                self._missing = frozenset(exc.details["missing"])
        found: list[list[OriginState]] = []
        for daemon in self._client.daemons():
            with daemon:
                if daemon.endpoint not in self._missing:
                    found.append(daemon.origins(origin, self._table))
        return merging.origins(found)


def _lacking(known: OriginState, first: int, last: int) -> list[tuple[int, int]]:
    """The rows of a stretch that are not there, as stretches."""
    found: list[tuple[int, int]] = []
    while first <= last:
        at = bisect_left(known.marks, first)
        end = min(last, known.marks[at]) if at < len(known.marks) else last
        if not known.has(end):
            begin = found.pop()[0] if found and found[-1][1] == first - 1 else first
            found.append((begin, end))
        first = end + 1
    return found
