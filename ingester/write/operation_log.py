"""The log in front of the buffers: nothing reaches a buffer that is not on disk.

Operations enter the buffers in log order, each group in one step of the event loop. The loop looks
for synced groups every 20 ms while they come, or when it is told (`wal.group_writer`); a query has
it catch up first. Whatever cannot be applied was refused before it came here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

import trio

from ingester.dml.operation import Operation, Transaction
from ingester.errors import DiskFull, FencedOff, IngesterError, InternalFailure, Stopping
from ingester.store_log.shipper import Shipper
from ingester.write.acknowledgement import Acknowledgement
from ingester.write.admission import DISK_RETRY_S, Relief
from wal import Draft, Entry, Log, LogClosed, LogFull, OutcomeUnknown, RecordKind, Route

if TYPE_CHECKING:
    from ingester.observability.tracing.writes import WriteTrace

Done = Callable[[BaseException | None], None]
"""A callback, called once: with None when all is durable and visible, else with the error."""


class Buffers(Protocol):
    """The buffers that operations are applied to; see :class:`ingester.buffer.BufferTree`."""

    def apply(self, operation: Operation) -> None:
        """Make an operation visible."""

    def apply_together(self, operations: Sequence[Operation]) -> None:
        """Make all operations visible at once."""

    def routes_with(self, own: tuple[Route, ...], origins: Iterable[str]) -> tuple[Route, ...]:
        """Return these routes and those of all tables of the origins. Any thread."""


class OperationLog:
    """Queues operations for the log and applies those that are durable.

    Args:
        on_group: called with the operations and bytes of each group, and the traces of those that
            are traced, when it is applied.
    """

    def __init__(
        self,
        log: Log,
        buffers: Buffers,
        *,
        epoch: int,
        relief: Relief,
        on_group: Callable[[int, int, Sequence[WriteTrace]], None],
    ) -> None:
        self._log = log
        self._buffers = buffers
        self._epoch = epoch
        self._relief = relief
        self._on_group = on_group
        self.shipper: Shipper | None = None
        """Bounds what waits for the store."""
        self._loop = trio.lowlevel.current_trio_token()

    def append(self, acknowledgement: Acknowledgement) -> None:
        """Queue an operation for the next group commit, on the loop.

        Raises:
            Stopping: there is no loop any more to answer on.
        """
        self._append(self.entry_of(acknowledgement))

    def entry_of(self, acknowledgement: Acknowledgement) -> Entry:
        """Bind the operation's log entry to its acknowledgement, for the caller to queue."""
        entry = acknowledgement.operation.entry
        assert entry is not None, "an operation is encoded before it is submitted"
        # Assigned here: the entry was encoded before.
        entry.tag, entry.on_done = acknowledgement, self._done
        entry.sessions = acknowledgement.sessions
        entry.routes = acknowledgement.routes
        if origins := {write.origin for write in acknowledgement.operation.numbered}:
            entry.routes = self._buffers.routes_with(entry.routes, origins)
        entry.at_store = acknowledgement.at_store
        when_stored = acknowledgement.answered_when_stored
        entry.on_stored = acknowledgement.stored if when_stored else None
        return entry

    def wait_for_room(self, route: Route, nbytes: int, *, at_store: bool) -> None:
        """Return when a table's operation of this size may wait for the store. In any thread but
        the loop's.

        Raises:
            StoreUnreachable: there is no room.
        """
        if (at_store or route.ships) and self.shipper is not None:
            self.shipper.wait_for_room(nbytes)

    def check_room(self, routes: Iterable[Route], nbytes: int, *, at_store: bool) -> None:
        """Check as :meth:`wait_for_room`, without waiting.

        Raises:
            StoreUnreachable: there is no room.
        """
        shipper = self.shipper
        ships = at_store or any(route.ships for route in routes)
        if ships and shipper is not None and shipper.is_full(nbytes):
            raise shipper.refusal()

    def append_transaction(self, transaction: Transaction, answer: Done) -> None:
        """Queue a transaction for the next group commit; answered as one operation is."""
        entry = transaction.entry
        assert entry is not None, "a transaction is encoded before it is submitted"

        def done(_entry: Entry, error: BaseException | None) -> None:
            transaction.entry = None
            answer(self._refusal(error))

        entry.tag, entry.on_done = transaction, done
        origins = {one.origin for one in transaction.operations if one.origin is not None}
        entry.routes = self._buffers.routes_with(transaction.routes, origins)
        entry.at_store = transaction.at_store
        self._append(entry)

    def append_barrier(self, routes: tuple[Route, ...], answer: Done) -> None:
        """Call ``answer`` when the store has all that was applied of these tables before.

        What follows for them ships. The record says nothing to the next start.
        """
        # Not of kind ORIGINS: the newest one of those replaces all others.
        barrier = Entry(RecordKind.SHARED, [b"\0"])
        barrier.routes = routes
        self.append_note(barrier, answer, at_store=True)

    def append_note(self, note: Entry, answer: Done, *, at_store: bool = False) -> None:
        """Queue a record that is no operation; answered when it is durable.

        Args:
            at_store: whether it is durable only when the store has it.
        """
        note.at_store = at_store
        note.on_done = lambda _entry, error: answer(None if error is None else log_refusal(error))
        self._append(note)

    def _append(self, entry: Entry) -> None:
        if self.queue(entry, here=False):
            self.carry_on(here=False)

    def queue(self, item: Entry | Draft, *, here: bool) -> bool:
        """Queue an entry, or a draft that becomes one just before the next group. Any thread.

        It waits for nothing, so that the caller may hold a lock.

        Args:
            here: the caller's thread may write the next group: it waits for the outcome anyway, and
                calls :meth:`tell` after it has passed that on.

        Returns:
            Whether :meth:`carry_on` has to follow.

        Raises:
            Stopping: there is no loop any more to answer on.
        """
        try:
            return self._log.queue(item, here=here)
        except LogClosed as exc:
            try:
                self._loop.run_sync_soon(item.answer, exc)
            except trio.RunFinishedError:
                raise _closed() from None
            return False

    def carry_on(self, *, here: bool) -> None:
        """Write what is queued, or wake the thread that does."""
        self._log.carry_on(here=here)

    def tell(self) -> None:
        """Have a group that was written ``here`` applied soon; see `Log.tell`. Any thread."""
        self._log.tell()

    def apply(self, entries: Sequence[Entry]) -> None:
        """Put a durable group into the buffers. Atomic: no await until all are in."""
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
                self._buffers.apply_together(tag.operations)
                _let_pass(entry)
                continue
            assert isinstance(tag, Acknowledgement)
            operation = tag.operation
            self._number(operation, entry)
            self._buffers.apply(operation)
            _let_pass(entry)
            if operation.traces:
                traces += operation.traces
        self._on_group(operations, nbytes, traces)

    def _number(self, operation: Operation, entry: Entry, number: int = 0) -> None:
        operation.seq = entry.seq + number
        operation.segment = entry.segment
        operation.epoch = self._epoch
        operation.in_store = entry.shipped

    def _done(self, entry: Entry, error: BaseException | None) -> None:
        acknowledgement = entry.tag
        assert isinstance(acknowledgement, Acknowledgement)
        acknowledgement.operation.entry, acknowledgement.shipped = None, entry.shipped
        acknowledgement.finish(self._refusal(error))

    def _refusal(self, error: BaseException | None) -> IngesterError | None:
        if isinstance(error, LogFull):
            self._relief.relieve_disk()
        return None if error is None else log_refusal(error)


def _let_pass(entry: Entry) -> None:
    """Let positions of other tables, whose routes it had to ship with, pass an applied entry."""
    if entry.shipped:
        for route in entry.routes:
            route.applied(entry.seq)


def log_refusal(error: BaseException) -> IngesterError:
    """Translate a refusal of the log for clients."""
    if isinstance(error, LogFull):
        return DiskFull(
            "the log's disk is full; nothing of this batch was kept", retry_after_s=DISK_RETRY_S
        )
    if isinstance(error, LogClosed):
        return _closed()
    if isinstance(error, OutcomeUnknown):
        return FencedOff(str(error))
    return InternalFailure(f"the log could not be written: {error}")


def _closed() -> Stopping:
    return Stopping("the log is closed: the daemon is stopping")
