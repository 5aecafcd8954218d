"""Coalesces small batches of one schema that wait for the log together into one record.

    reader threads     arrival ─▶ log (as a draft) ┐      while the last group is written and synced
    the log's writer                               └─▶ one coalesced batch per schema ─▶ next group

A coalesced batch stands for many operations, each with its own sequence; one call into Arrow serves
all of them. It has at most ``MAX_OPERATIONS`` batches or ``MAX_BYTES``. The log's writer is its own
thread or that of a caller that finds nobody writing. All writers wait for it, so the batches of a
table with many partitions are prepared by the threads that read them for a while.

Every arrival is answered once, in the order of its stream. An error in one batch is reported to its
own stream only (tests/write/test_small_batches_refused).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from ingester.buffer import TableBuffer
from ingester.dml.operation import Operation
from ingester.errors import Stopping
from ingester.observability.metrics import Metrics
from ingester.write.operation_log import OperationLog, log_refusal
from ingester.write.operation_maker import OperationMaker
from ingester.write.stream import OfferedDraft, Post, Waiting, WriteStream, for_streams
from wal import Draft, Entry, LogError

if TYPE_CHECKING:
    from ingester.observability.tracing.writes import WriteTrace

MAX_OPERATIONS = 4096
MAX_BYTES = 1 << 20
"""The limits of one coalesced batch, which is one record of the log and one chunk of a buffer."""
MANY_PARTITIONS = 256
"""This many partitions take the log's writer about 3 ms, for which all other writers wait."""
SCATTERED_S = 60.0
"""How long a table's batches are prepared by their own threads after one with more partitions."""


class Arrival(OfferedDraft):
    """A small batch of a stream that waits to be coalesced."""

    __slots__ = ("batch", "checked", "stream", "trace")

    def __init__(
        self, stream: WriteStream, batch: pa.RecordBatch, nbytes: int, sequence: int | None = None
    ) -> None:
        """``nbytes`` were admitted for the batch, and bound its size."""
        super().__init__(nbytes, (stream.session,))
        self.stream = stream
        self.batch = batch
        self.sequence = sequence
        self.slot = []
        self.trace: WriteTrace | None = None
        self.checked: threading.Event | None = None
        """Set when the batch is known to be valid, or refused."""

    def answer(self, error: BaseException | None) -> None:
        """Refuse the batch, which did not become an operation. On the loop."""
        assert error is not None, "a draft is answered only if it is refused"
        if self.slot:
            return  # it was answered before the log broke down
        reason = error.reason if isinstance(error, Unfit) else log_refusal(error)
        if self.trace is not None:
            self.trace.answered(reason, {})
        self.stream.leave(self.stored_bytes)
        if self.sequence is not None and self.stream.origin_table is not None:
            self.stream.origin_table.fates.end(self.sequence, reason)
        self.stream.reject(self.slot, reason)
        self.stream.hand_out()
        self.note_checked()

    def note_checked(self) -> None:
        """Wake a thread that waits until the batch is known to be valid, or refused."""
        if self.checked is not None:
            self.checked.set()


class Unfit(LogError):
    """A batch was refused for its content, and so are the later ones of its stream."""

    def __init__(self, reason: BaseException) -> None:
        super().__init__(str(reason))
        self.reason = reason


class Coalescer:
    """Makes operations of waiting batches. Only in the thread that writes the log.

    Args:
        log: binds entries to their acknowledgements.
        post: calls a function on the loop.
    """

    def __init__(
        self, log: OperationLog, metrics: Metrics, operations: OperationMaker, post: Post
    ) -> None:
        self._log = log
        self._metrics = metrics
        self._operations = operations
        self._post = post
        self._entries: list[Entry] = []

    def make(self, drafts: Iterable[Draft]) -> list[Entry]:
        """Make the log entries of these arrivals, and answer those that are refused.

        See :meth:`wal.Log.run`.
        """
        by_plan: dict[int, list[Arrival]] = {}
        for draft in drafts:
            assert isinstance(draft, Arrival)
            by_plan.setdefault(draft.stream.plan.schema.number, []).append(draft)
        for arrivals in by_plan.values():
            for batch in _cut(arrivals):
                self._coalesce(batch)
        entries, self._entries = self._entries, []
        return entries

    def _coalesce(self, arrivals: list[Arrival]) -> None:
        plan = arrivals[0].stream.plan
        if len(arrivals) > 1 and not any(each.stream.session.refusal for each in arrivals):
            try:
                most_bytes = sum(each.stored_bytes for each in arrivals)
                operation = self._operations.coalesce(
                    plan,
                    [each.batch for each in arrivals],
                    most_bytes,
                    [each.stream.numbered(each.sequence) for each in arrivals],
                )
                _note_scattered(plan.table, len(operation.parts))
                arrivals[0].stream.claim(operation)
            except Exception:  # it is raised again where its batch is known
                pass
            else:
                self._submit(operation, arrivals)
                return
        for arrival in arrivals:
            self._make_one(arrival)

    def _make_one(self, arrival: Arrival) -> None:
        stream = arrival.stream
        if stream.session.refusal is not None:
            self._refuse(arrival, stream.session.refusal)
            return

        def check(partitions: int) -> None:
            _note_scattered(stream.plan.table, partitions)
            stream.check_partitions(partitions, None)

        try:
            operation = self._operations.make(
                stream.plan,
                arrival.batch,
                stream.numbered(arrival.sequence),
                most_bytes=arrival.stored_bytes,
                check=check,
            )
            stream.claim(operation)
        except Exception as exc:
            stream.session.refusal = Unfit(exc)
            self._refuse(arrival, stream.session.refusal)
        else:
            self._submit(operation, [arrival])

    def _refuse(self, arrival: Arrival, error: LogError) -> None:
        with contextlib.suppress(Stopping):  # the loop has ended
            self._post(arrival.answer, error)

    def _submit(self, operation: Operation, arrivals: list[Arrival]) -> None:
        operation.admitted_bytes = sum(each.stored_bytes for each in arrivals)
        operation.traces = tuple([each.trace for each in arrivals if each.trace is not None])
        batches = [Waiting(each.stream, each.slot, each.sequence) for each in arrivals]
        acknowledgement = for_streams(batches, operation, self._metrics)
        self._entries.append(self._log.entry_of(acknowledgement))
        for arrival in arrivals:
            if arrival.checked is not None:
                arrival.note_checked()


def _note_scattered(table: TableBuffer, partitions: int) -> None:
    """Let readers prepare a table's next batches, if one has many partitions."""
    if partitions > MANY_PARTITIONS:
        table.scattered_until = time.monotonic() + SCATTERED_S


def _cut(arrivals: list[Arrival]) -> Iterator[list[Arrival]]:
    """Cut arrivals into groups of at most the size of a coalesced batch."""
    group: list[Arrival] = []
    nbytes = 0
    for arrival in arrivals:
        if group and (len(group) == MAX_OPERATIONS or nbytes + arrival.stored_bytes > MAX_BYTES):
            yield group
            group, nbytes = [], 0
        group.append(arrival)
        nbytes += arrival.stored_bytes
    yield group
