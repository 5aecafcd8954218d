"""The log stands as a sink before the buffer tree: nothing reaches the tree that is not on disk.

Law of this file: operations enter the tree in log order, each group in one step of the event loop.
That step comes some time after the sync: the loop looks for groups every 20 ms while they come, or
when it is told (`wal.apply_queue`). A query has the loop catch up first. The outcome of who has an
origin is known after that step; that of who has none, as soon as its entry is synced. What cannot
be applied was refused before it came here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import trio

from ingester.dml.operation import Answer, DmlSink, Operation, Transaction
from ingester.errors import DiskFull, IngesterError, InternalFailure, Stopping
from ingester.write.admission import DISK_RETRY_S, Relief
from wal import Draft, Entry, Log, LogClosed, LogFull

if TYPE_CHECKING:
    from ingester.observability.tracing.writes import WriteTrace

Done = Callable[[BaseException | None], None]
"""A callback, called once: with None when all is durable and visible, else with the error."""


class Innermost(DmlSink, Protocol):
    """The innermost sink, which takes transactions as well as operations."""

    def apply_together(self, operations: Sequence[Operation]) -> None:
        """Make all operations visible at once."""


class WalSink:
    """Logs operations, then hands them on; a :class:`ingester.dml.DmlSink`.

    Args:
        on_group: called with the operations and bytes of each group, and the traces of those that
            are traced, when it is applied.
    """

    def __init__(
        self,
        log: Log,
        inner: Innermost,
        *,
        epoch: int,
        relief: Relief,
        on_group: Callable[[int, int, Sequence[WriteTrace]], None],
    ) -> None:
        self._log = log
        self._inner = inner
        self._epoch = epoch
        self._relief = relief
        self._on_group = on_group
        self._loop = trio.lowlevel.current_trio_token()

    def submit(self, operation: Operation, answer: Answer) -> None:
        """Queue the operation for the next group commit."""
        self.offer(self.entry_of(operation, answer))

    def entry_of(self, operation: Operation, answer: Answer) -> Entry:
        """Bind the operation's log entry to its answer, for whoever appends the entry."""
        entry = operation.entry
        assert entry is not None, "an operation is encoded before it is submitted"

        def done(_entry: Entry, error: BaseException | None) -> None:
            operation.entry = None
            answer(operation, self._refusal(error))

        # Assigned, not handed to a constructor: the entry was encoded before it came here.
        entry.tag, entry.on_done = operation, done
        return entry

    def submit_together(self, transaction: Transaction, answer: Done) -> None:
        """Queue a transaction for the next group commit; answered as one operation is."""
        entry = transaction.entry
        assert entry is not None, "a transaction is encoded before it is submitted"

        def done(_entry: Entry, error: BaseException | None) -> None:
            transaction.entry = None
            answer(self._refusal(error))

        entry.tag, entry.on_done = transaction, done
        self.offer(entry)

    def submit_note(self, note: Entry, answer: Done) -> None:
        """Queue a record that is no operation; answered when it is durable."""
        note.on_done = lambda _entry, error: answer(None if error is None else log_refusal(error))
        self.offer(note)

    def offer(self, item: Entry | Draft, *, here: bool = False) -> None:
        """Queue an entry, or what becomes one just before the next group; see `Log.append_nowait`.

        Args:
            here: as `Log.append`.

        Raises:
            Stopping: there is no loop any more to answer on.
        """
        append = self._log.append if here else self._log.append_nowait
        try:
            append(item)
        except LogClosed as exc:
            try:
                self._loop.run_sync_soon(item.answer, exc)
            except trio.RunFinishedError:
                raise _closed() from None

    def tell(self) -> None:
        """See that what was written ``here`` is applied soon; see `Log.tell`. Any thread."""
        self._log.tell()

    def apply(self, entries: Sequence[Entry]) -> None:
        """Put a durable group into the tree. Atomic: no await until all are in."""
        nbytes = operations = 0
        traces: list[WriteTrace] = []
        for entry in entries:
            nbytes += entry.stored_bytes
            operations += entry.operations
            tag = entry.tag
            if tag is None:
                continue  # a note for the next start
            if isinstance(tag, Transaction):
                for number, operation in enumerate(tag.operations):
                    self._number(operation, entry, number)
                self._inner.apply_together(tag.operations)
                continue
            assert isinstance(tag, Operation)
            self._number(tag, entry)
            self._inner.submit(tag, _nobody)
            if tag.traces:
                traces += tag.traces
        self._on_group(operations, nbytes, traces)

    def _number(self, operation: Operation, entry: Entry, number: int = 0) -> None:
        operation.seq = entry.seq + number
        operation.segment = entry.segment
        operation.epoch = self._epoch

    def _refusal(self, error: BaseException | None) -> IngesterError | None:
        if isinstance(error, LogFull):
            self._relief.relieve_disk()
        return None if error is None else log_refusal(error)


class EntryCollector:
    """Keeps the entries of operations instead of appending them; a :class:`ingester.dml.DmlSink`.

    It ends the chain of sinks under the coalescer, whose entries the log itself takes.
    """

    def __init__(self, wal_sink: WalSink) -> None:
        self._wal_sink = wal_sink
        self._entries: list[Entry] = []

    def submit(self, operation: Operation, answer: Answer) -> None:
        """Keep the operation's entry."""
        self._entries.append(self._wal_sink.entry_of(operation, answer))

    def take(self) -> list[Entry]:
        """Return the entries that were kept since the last call."""
        entries, self._entries = self._entries, []
        return entries


def _nobody(_operation: Operation, error: BaseException | None) -> None:
    assert error is None, "the tree cannot refuse"


def log_refusal(error: BaseException) -> IngesterError:
    """Translate a refusal of the log for clients."""
    if isinstance(error, LogFull):
        return DiskFull(
            "the log's disk is full; nothing of this batch was kept", retry_after_s=DISK_RETRY_S
        )
    if isinstance(error, LogClosed):
        return _closed()
    return InternalFailure(f"the log could not be written: {error}")


def _closed() -> Stopping:
    return Stopping("the log is closed: the daemon is stopping")
