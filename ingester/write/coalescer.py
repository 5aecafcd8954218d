"""Coalesces small batches of one schema and level that wait for the log into one record.

    reader threads     write ─▶ log (as a draft) ┐        while the last group is written and synced
    the log's writer                             └─▶ one coalesced batch per schema ─▶ next group

A coalesced batch stands for many operations, each with its own sequence; one call into Arrow serves
all of them. It has at most ``MAX_OPERATIONS`` batches or ``MAX_BYTES``. The log's writer is its own
thread or that of a caller that finds nobody writing. All writers wait for it, so the batches of a
table with many partitions are prepared by the threads that read them for a while.

Every write is answered once, in the order of its stream. An error in one batch is reported to its
own stream only (tests/write/test_small_batches_refused).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator

from ingester.buffer import TableBuffer
from ingester.dml.operation import Operation
from ingester.errors import Stopping
from ingester.observability.metrics import Metrics
from ingester.write.operation_log import OperationLog
from ingester.write.operation_maker import OperationMaker
from ingester.write.stream import Post, Unfit, Write, acknowledge
from wal import Draft, Entry, LogError

MAX_OPERATIONS = 4096
MAX_BYTES = 1 << 20
"""The limits of one coalesced batch, which is one record of the log and one chunk of a buffer."""
MANY_PARTITIONS = 256
"""This many partitions take the log's writer about 3 ms, for which all other writers wait."""
SCATTERED_S = 60.0
"""How long a table's batches are prepared by their own threads after one with more partitions."""


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
        """Make the log entries of these writes, and answer those that are refused.

        See :meth:`wal.Log.run`.
        """
        alike: dict[tuple[int, bool], list[Write]] = {}
        for draft in drafts:
            assert isinstance(draft, Write)
            stream = draft.stream
            alike.setdefault((stream.plan.schema.number, stream.at_store), []).append(draft)
        for writes in alike.values():
            for together in _cut(writes):
                self._coalesce(together)
        entries, self._entries = self._entries, []
        return entries

    def _coalesce(self, writes: list[Write]) -> None:
        plan = writes[0].stream.plan
        if len(writes) > 1 and not any(each.stream.session.refusal for each in writes):
            try:
                operation = self._operations.coalesce(
                    plan,
                    [each.batch for each in writes if each.batch is not None],
                    sum(each.stored_bytes for each in writes),
                    [each.stream.numbered(each.sequence) for each in writes],
                )
                _note_scattered(plan.table, len(operation.parts))
                writes[0].stream.claim(operation)
            except Exception:  # it is raised again where its batch is known
                pass
            else:
                self._submit(operation, writes)
                return
        for write in writes:
            self._make_one(write)

    def _make_one(self, write: Write) -> None:
        stream, batch = write.stream, write.batch
        assert batch is not None
        if stream.session.refusal is not None:
            self._refuse(write, stream.session.refusal)
            return

        def check(partitions: int) -> None:
            _note_scattered(stream.plan.table, partitions)
            stream.check_partitions(partitions, None)

        try:
            operation = self._operations.make(
                stream.plan,
                batch,
                stream.numbered(write.sequence),
                most_bytes=write.stored_bytes,
                check=check,
            )
            stream.claim(operation)
        except Exception as exc:
            stream.session.refusal = Unfit(exc)
            self._refuse(write, stream.session.refusal)
        else:
            self._submit(operation, [write])

    def _refuse(self, write: Write, error: LogError) -> None:
        with contextlib.suppress(Stopping):  # the loop has ended
            self._post(write.answer, error)

    def _submit(self, operation: Operation, writes: list[Write]) -> None:
        operation.admitted_bytes = sum(each.stored_bytes for each in writes)
        self._entries.append(self._log.entry_of(acknowledge(writes, operation, self._metrics)))
        for write in writes:
            write.batch = None  # a coalesced batch has copied it
            write.note_checked()


def _note_scattered(table: TableBuffer, partitions: int) -> None:
    """Let readers prepare a table's next batches, if one has many partitions."""
    if partitions > MANY_PARTITIONS:
        table.scattered_until = time.monotonic() + SCATTERED_S


def _cut(writes: list[Write]) -> Iterator[list[Write]]:
    """Cut writes into groups of at most the size of a coalesced batch."""
    group: list[Write] = []
    nbytes = 0
    for write in writes:
        if group and (len(group) == MAX_OPERATIONS or nbytes + write.stored_bytes > MAX_BYTES):
            yield group
            group, nbytes = [], 0
        group.append(write)
        nbytes += write.stored_bytes
    yield group
