"""A stream of writes: its batches are admitted, queued in order and answered in order.

    admit ─▶ append ─▶ the log ─▶ stored: answered, by the thread that writes ─▶ applied: released
               └──▶ decide, on the loop: a duplicate, or the log ─▶ applied: answered, released

Answers of a stream leave in the order of its batches, as soon as the log has them, while the loop
applies them: a query that follows finds them applied. A batch of an origin that the loop had to
decide about is answered when it is applied. After a refusal nothing later of the stream is applied.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from ingester.buffer import TableBuffer
from ingester.config.levels import LEVELS, AckLevels
from ingester.dml.operation import Operation
from ingester.errors import DiskFull, MemoryFull, Superseded
from ingester.observability.metrics import Metrics
from ingester.origins.checkpoint_state import SourceCheckpoint
from ingester.origins.checkpoints import Checkpoints
from ingester.origins.origin_table import OriginTable
from ingester.origins.registry import Origins
from ingester.quotas.use import NO_QUOTA
from ingester.write.acknowledgement import Acknowledgement, PutAnswer
from ingester.write.admission import AdmissionControl, Relief
from ingester.write.dedup import Deduplication
from ingester.write.metadata import fitted
from ingester.write.operation_log import OperationLog, log_refusal
from ingester.write.operation_maker import Numbered
from ingester.write.partition_room import PartitionRoom
from ingester.write.plan import WritePlan
from wal import Draft, Entry, LogError, OrderedSession

if TYPE_CHECKING:
    from ingester.observability.tracing.writes import WriteTrace

Outcome = PutAnswer | BaseException
Deliver = Callable[[list[Outcome]], None]
"""A callback that receives outcomes for the stream's own thread. Any thread; must not wait."""
Post = Callable[..., None]
"""A callback that runs a function on the loop, soon and in order, without waiting for it."""


@dataclass(frozen=True, slots=True)
class WritePath:
    """The way of a batch into the log and the buffers, shared by all streams of a daemon."""

    admission: AdmissionControl
    dedup: Deduplication
    log: OperationLog
    metrics: Metrics
    origins: Origins
    relief: Relief
    checkpoints: Checkpoints
    epoch: int
    partitions: PartitionRoom
    upto: Callable[[TableBuffer], int]
    """Returns a table's position."""
    levels: AckLevels

    def relieve(self, refusal: BaseException) -> None:
        """Make room after a batch was refused for lack of it."""
        if isinstance(refusal, DiskFull):
            self.relief.relieve_disk()
        elif isinstance(refusal, MemoryFull):
            # A namespace at its limit gets room from its own buffers, not from others'.
            namespace = refusal.details.get("namespace")
            self.relief.relieve_memory(None if namespace is None else str(namespace))


class WriteStream:
    """One DoPut stream. Loop only, but for methods that say otherwise."""

    def __init__(
        self,
        path: WritePath,
        plan: WritePlan,
        origin: str | None,
        deliver: Deliver,
        on_closed: Callable[[WriteStream], None],
    ) -> None:
        self.plan = plan
        self.use = plan.table.use
        """The use of the table's namespace, which this stream's batches count for."""
        self.origin = origin
        self.origin_table: OriginTable | None = None
        """The origin's sequences into the table; None until the first batch with a sequence."""
        self.notes_contents = False
        """Whether a repeat of a sequence has to have the same rows."""
        self.refusal: BaseException | None = None
        """The error of the stream's first failed batch: nothing later of it is applied."""
        self.superseded: Superseded | None = None
        """The error of batches that reach the loop after a newer stream was opened."""
        self.at_store = False
        """Whether batches are acknowledged when the store has them."""
        self.session = OrderedSession()
        """Keeps operations of the stream from following a refused one in the log."""
        self._path = path
        self._era = path.admission.era
        self._latch = plan.table.write_latch if plan.table.definition.keyed else None
        self._deliver = deliver
        self._on_closed = on_closed
        # One thread appends; the loop and the thread that writes the log remove, under the lock.
        self._unanswered: deque[Write] = deque()
        self._handing_out = threading.Lock()

    def numbered(self, sequence: int | None) -> Numbered | None:
        """Return a sequence with the stream's origin."""
        if sequence is None or self.origin is None:
            return None
        return Numbered(self.origin, sequence, self.notes_contents)

    def admit(self, nbytes: int, sequence: int | None) -> int:
        """Admit the next batch; return the bytes that count until it is applied or refused.

        Any thread but the loop's: it may wait for the store. A batch that is known to be written
        costs nothing and is always admitted.

        Raises:
            IngesterError: why it is refused; it ends the stream.
        """
        if self._is_known(sequence):
            nbytes = 0
        else:
            route = self.plan.table.route
            self._path.log.wait_for_room(route, nbytes, at_store=self.at_store)
            if (refusal := self._path.admission.enter(nbytes, self.use)) is not None:
                raise refusal
        if self._latch is not None:
            try:
                self._latch.enter()
            except BaseException:
                self._path.admission.leave(nbytes, self.use)
                raise
            try:
                # An operation made for the table before a copy replaced it must not be applied.
                self.plan.table.check_shape(self.plan.normaliser.definition)
            except BaseException:
                self.leave(nbytes)
                raise
        return nbytes

    def admit_operation(self, operation: Operation) -> None:
        """Admit a prepared batch, and the partitions that it opens, until :meth:`leave_with`.

        Any thread. A repeated batch, admitted with 0 bytes, opens nothing.

        Raises:
            IngesterError: why it is refused; it ends the stream.
        """
        nbytes = operation.admitted_bytes = self.admit(operation.nbytes, operation.origin_sequence)
        if nbytes:
            try:
                self.claim(operation)
            except BaseException:
                self.leave(nbytes)
                raise

    def leave(self, nbytes: int, batches: int = 1) -> None:
        """Stop counting admitted bytes: the batch is applied, or never will be."""
        self._path.admission.leave(nbytes, self.use)
        if self._latch is not None:
            self._latch.leave(batches)

    def claim(self, operation: Operation) -> None:
        """Admit the partitions of an operation until :meth:`leave_with`. Any thread.

        Raises:
            IngesterError: there is no room for them.
        """
        self._path.partitions.enter(self.plan.table, operation)

    def leave_with(self, operation: Operation, batches: int = 1) -> None:
        """Stop counting an operation of ``batches``: it is applied, or never will be."""
        self._path.partitions.leave(operation)
        self.leave(operation.admitted_bytes, batches)

    def would_admit(self, nbytes: int, sequence: int | None) -> None:
        """Raise what :meth:`admit` would raise now, before any request to the store.

        Raises:
            IngesterError
        """
        if not self._is_known(sequence) and (
            reasons := self._path.admission.reasons(nbytes, self.use)
        ):
            raise reasons[0]

    def check_rate(self, sequence: int | None) -> None:
        """Raise what :meth:`admit` would raise for a batch of any size, before it is prepared.

        Raises:
            OverQuota: the namespace has reached its rate.
        """
        if self.use.quota is not NO_QUOTA and not self._is_known(sequence):
            self._path.admission.check_rate(self.use)

    def check_partitions(self, count: int, sequence: int | None) -> None:
        """Raise what :meth:`claim` would raise for ``count`` partitions, before they are made.

        At most the table's open partitions are assumed to be among them. Any thread.

        Raises:
            IngesterError: there is no room for the others.
        """
        table = self.plan.table
        if count > len(table.partitions) and not self._is_known(sequence):
            self._path.partitions.check(table.key, count)

    def fitted(self, checkpoint: SourceCheckpoint) -> SourceCheckpoint:
        """Return the state, dated later than the one that the table has. Any thread.

        Raises:
            BadRequest: the table has no room for it.
        """
        return fitted(self.plan.table, self._path.checkpoints, checkpoint)

    def _is_known(self, sequence: int | None) -> bool:
        """Whether the batch is known to be written. Raises the error that has ended the stream."""
        if self._era != self._path.admission.era:
            raise self._path.admission.refusal()
        ended_by = self.superseded if self.origin_table is None else self._ended_by()
        if (refusal := ended_by or self.refusal) is not None:
            raise refusal
        return (
            self.origin is not None
            and sequence is not None
            and self._path.origins.is_applied(self.origin, self.plan.table.key, sequence)
        )

    def append(self, write: Write, operation: Operation | None = None, *, here: bool) -> bool:
        """Queue a batch for the log, in its turn. In the thread that reads the stream.

        A sequence is begun in the same step, so that the log has an origin's in rising order.

        Args:
            operation: what was prepared of the batch; None for a draft.
            here: the caller waits for the outcome; if no thread writes the log, it writes the next
                group itself.

        Returns:
            False if the batch may be a repeat, and the loop has to :meth:`decide` about it.

        Raises:
            Stopping
        """
        if write.sequence is None:
            due = self._queue(write, operation, here=here)
        else:
            assert self.origin_table is not None
            with self.origin_table.fates.lock:
                if not self._begin(self.origin_table, write.sequence):
                    return False
                due = self._queue(write, operation, here=here)
        if due:
            self._path.log.carry_on(here=here)
        return True

    def _queue(self, write: Write, operation: Operation | None, *, here: bool) -> bool:
        path = self._path
        item: Write | Entry = write
        if operation is not None:
            item = path.log.entry_of(acknowledge([write], operation, path.metrics))
        self._unanswered.append(write)
        return path.log.queue(item, here=here)

    def _begin(self, table: OriginTable, sequence: int) -> bool:
        """Begin a sequence that needs no decision of the loop. Under the lock of its fates."""
        settled = self._path.origins.get(table.name).settled_sequence
        return (
            self.superseded is None
            and self.refusal is None
            # The durable sequence will fall below it, and the answer must not say otherwise.
            and (settled is None or sequence > settled)
            and table.reserve(sequence, self.plan.spec_id, self.session)
        )

    def decide(self, write: Write, operation: Operation) -> None:
        """Submit a batch that may be a repeat, in its turn."""
        self._unanswered.append(write)
        # A batch that reaches the loop after a newer stream was opened would follow that stream's:
        # a client that has asked for the origin's position in between was told less.
        if (refusal := self.refusal or self._ended_by()) is not None:
            self.leave_with(operation)
            write.refuse(refusal)
            self.hand_out()
            return
        acknowledgement = WritesAcknowledgement([write], operation, self._path.metrics)
        self._path.dedup.submit(acknowledgement)

    def supersede(self, error: Superseded) -> None:
        """Refuse all batches that are not submitted yet: a newer stream takes over."""
        if self.origin_table is None:
            self.superseded = error
            return
        with self.origin_table.fates.lock:
            self.superseded = error

    def answered_here(self) -> None:
        """Note that the caller that offered ``here`` has sent the answer."""
        self._path.log.tell()

    def refuse(self, error: BaseException) -> None:
        """Refuse a batch that did not become an operation; it ends the stream in its turn."""
        self._path.relieve(error)
        write = Write(self)
        self._unanswered.append(write)
        write.end(error)
        self.hand_out()

    def hand_out(self) -> None:
        """Deliver the known outcomes, up to the first unknown one. Any thread."""
        with self._handing_out:
            outcomes = []
            while self._unanswered and (known := self._unanswered[0].outcome) is not None:
                self._unanswered.popleft()
                outcomes.append(known)
            if outcomes:
                self._deliver(outcomes)

    def close(self) -> None:
        """End the stream: the client has disconnected or finished."""
        self._on_closed(self)

    def _ended_by(self) -> BaseException | None:
        """The error for batches that the loop has not seen yet; submitted ones are not affected."""
        table = self.origin_table
        if self.superseded is None and table is not None:
            return table.refusal
        return self.superseded

    def stored(self, entry: Entry, number: int, own: int | None) -> PutAnswer:
        """Return the answer to a batch that is in the log. Any thread.

        Queries that start from now on find its rows.

        Args:
            number: the batch's number in the entry.
            own: the batch's sequence of its origin.
        """
        sequence, ack = entry.seq + number, LEVELS[entry.shipped]
        if self.origin is None:
            return PutAnswer(accepted=True, sequence=sequence, epoch=self._path.epoch, ack=ack)
        origin = self._path.origins.get(self.origin)
        numbers = (own, origin.memory_sequence)
        return PutAnswer(
            accepted=True,
            sequence=sequence,
            epoch=self._path.epoch,
            memory_sequence=max((each for each in numbers if each is not None), default=None),
            durable_sequence=origin.settled_sequence,
            files_sequence=origin.settled_files,
            first=origin.is_first_answer(),
            ack=ack,
        )

    def applied(self, operation: Operation, shipped: bool) -> PutAnswer:
        """Return the answer to a batch of an origin that is applied, or a duplicate.

        Args:
            shipped: whether the store has it.
        """
        assert self.origin is not None, "without one it is answered when it is in the log"
        origin = self._path.origins.get(self.origin)
        return PutAnswer(
            accepted=True,
            # A duplicate has no sequence of its own: its rows are visible at the table's position.
            sequence=operation.seq or self._path.upto(self.plan.table),
            epoch=self._path.epoch,
            duplicate=operation.duplicate,
            memory_sequence=origin.memory_sequence,
            durable_sequence=origin.durable_sequence,
            files_sequence=origin.files_sequence,
            first=origin.is_first_answer(),
            ack=LEVELS[shipped],
        )


class Write(Draft):
    """One batch of a stream, until its outcome is handed out; the log's draft of a small one."""

    __slots__ = ("batch", "checked", "outcome", "sequence", "stream", "trace")

    def __init__(
        self, stream: WriteStream, sequence: int | None = None, trace: WriteTrace | None = None
    ) -> None:
        super().__init__(0, (stream.session,))
        self.stream = stream
        self.sequence = sequence
        """The sequence of the stream's origin."""
        self.trace = trace
        self.outcome: Outcome | None = None
        self.batch: pa.RecordBatch | None = None
        """The rows of a draft, until they are an operation."""
        self.checked: threading.Event | None = None
        """Set when the batch is known to be valid, or refused."""

    @property
    def is_good(self) -> bool:
        """False if the batch is known to be refused; waits if its sender waits for that."""
        if self.checked is None:
            return True
        self.checked.wait()
        return self.stream.session.refusal is None

    def end(self, error: BaseException) -> None:
        """Refuse the batch, and with it all later ones. :meth:`WriteStream.hand_out` follows."""
        self.stream.refusal = self.stream.refusal or error
        self.outcome = error

    def refuse(self, error: BaseException) -> None:
        """As :meth:`end`, for a batch without an acknowledgement that ends its trace."""
        if self.trace is not None:
            self.trace.answered(error, {})
        self.end(error)

    def answer(self, error: BaseException | None) -> None:
        """Refuse a draft, which did not become an operation. On the loop."""
        assert error is not None, "a draft is answered only if it is refused"
        if self.outcome is not None:
            return  # it was answered before the log broke down
        reason = error.reason if isinstance(error, Unfit) else log_refusal(error)
        stream, table = self.stream, self.stream.origin_table
        stream.leave(self.stored_bytes)
        if self.sequence is not None and table is not None:
            table.fates.end(self.sequence, reason)
        self.refuse(reason)
        stream.hand_out()
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


class WritesAcknowledgement(Acknowledgement):
    """Answers the writes that became one operation, each in its stream's order."""

    __slots__ = ("_streams", "_writes")

    def __init__(self, writes: Sequence[Write], operation: Operation, metrics: Metrics) -> None:
        operation.traces = tuple([each.trace for each in writes if each.trace is not None])
        super().__init__(operation, metrics)
        self._writes = writes
        self._streams = {write.stream for write in writes}
        self.sessions = tuple([stream.session for stream in self._streams])
        stream = writes[0].stream
        self.routes, self.at_store = (stream.plan.table.route,), stream.at_store

    @property
    def whose(self) -> OrderedSession:
        """The session of the first write's stream."""
        return self._writes[0].stream.session

    def stored(self, entry: Entry) -> None:
        """Answer the writes: they need not be applied first."""
        for number, write in enumerate(self._writes):
            write.outcome = write.stream.stored(entry, number, write.sequence)
        for stream in self._streams:
            stream.hand_out()

    def answer(self, error: BaseException | None) -> None:
        """Release what was admitted, and answer what :meth:`stored` does not."""
        first, operation = self._writes[0], self.operation
        first.stream.leave_with(operation, len(self._writes))
        # The loop may apply a group before the thread that wrote it calls `stored`.
        if first.outcome is not None or (error is None and self.answered_when_stored):
            return
        for write in self._writes:
            if error is None:
                write.outcome = write.stream.applied(operation, self.shipped)
            else:
                write.end(error)
        for stream in self._streams:
            stream.hand_out()


def acknowledge(
    writes: Sequence[Write], operation: Operation, metrics: Metrics
) -> WritesAcknowledgement:
    """Make the acknowledgement of an operation made of these writes, whose sequences are begun.

    They are answered in the thread that writes the log, before the loop applies the operation.
    """
    made = WritesAcknowledgement(writes, operation, metrics)
    made.answered_when_stored = True
    for write in writes:
        if write.sequence is not None and write.stream.origin_table is not None:
            made.is_first_copy(write.stream.origin_table.fates, write.sequence)
    return made
