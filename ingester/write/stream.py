"""A stream of writes: its batches are admitted, submitted in order and answered in order.

Answers of a stream leave in the order of its batches, as soon as the log has them, while the loop
applies them: a query that follows finds them applied. A batch of an origin that the loop had to
decide about is answered when it is applied. After a refusal nothing later of the stream is applied.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

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
from ingester.write.operation_log import OperationLog
from ingester.write.operation_maker import Numbered
from ingester.write.partition_room import PartitionRoom
from ingester.write.plan import WritePlan
from wal import Draft, Entry, OrderedSession

Outcome = PutAnswer | BaseException
Slot = list[Outcome]
"""The place of a batch among its stream's answers: empty until its outcome is known."""
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
    newest_seq: Callable[[], int]
    """The newest sequence that is applied."""

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
        self.session = OrderedSession()
        """Keeps operations of the stream from following a refused one in the log."""
        self._path = path
        self._era = path.admission.era
        self._latch = plan.table.write_latch if plan.table.definition.keyed else None
        self._deliver = deliver
        self._on_closed = on_closed
        # One thread appends; the loop and the thread that writes the log remove, under the lock.
        self._slots: deque[Slot] = deque()
        self._handing_out = threading.Lock()
        self._on_drained: Callable[[], None] | None = None

    def numbered(self, sequence: int | None) -> Numbered | None:
        """Return a sequence with the stream's origin."""
        if sequence is None or self.origin is None:
            return None
        return Numbered(self.origin, sequence, self.notes_contents)

    def admit(self, nbytes: int, sequence: int | None) -> int:
        """Admit the next batch; return the bytes that count until it is applied or refused.

        Any thread. A batch that is known to be written costs nothing and is always admitted.

        Raises:
            IngesterError: why it is refused; it ends the stream.
        """
        if self._is_known(sequence):
            nbytes = 0
        elif (refusal := self._path.admission.enter(nbytes, self.use)) is not None:
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

    def leave(self, nbytes: int, batches: int = 1) -> None:
        """Stop counting admitted bytes: the batch is applied, or never will be."""
        self._path.admission.leave(nbytes, self.use)
        if self._latch is not None:
            self._latch.leave(batches)

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

    def reserve(self) -> Slot:
        """Make a slot for the batch that was read. In the thread that reads the stream."""
        slot: Slot = []
        self._slots.append(slot)
        return slot

    def submit(self, operation: Operation, slot: Slot | None = None) -> None:
        """Submit a batch, to be answered in its turn.

        On the loop with a sequence; otherwise in the thread that has prepared the operation. Only
        the log can fail there, which keeps the stream's order by its session.

        Args:
            slot: the slot that was reserved for the batch.

        Raises:
            IngesterError: it cannot open its partitions. It no longer counts as admitted, and has
                no slot other than the given one.
        """
        # A repeated batch, admitted with 0 bytes, opens nothing.
        if operation.admitted_bytes:
            self._open_partitions(operation)
        slot = self.reserve() if slot is None else slot
        if operation.origin_sequence is None:
            batches = [Waiting(self, slot, None)]
            self._path.log.append(for_streams(batches, operation, self._path.metrics))
            return
        # A batch that reaches the loop after a newer stream was opened would follow that stream's:
        # a client that has asked for the origin's position in between was told less.
        if (refusal := self.refusal or self._ended_by()) is not None:
            self.leave_with(operation)
            for trace in operation.traces:
                trace.answered(refusal, {})
            self.reject(slot, refusal)
            self.hand_out()
            return

        batches = [Waiting(self, slot, operation.origin_sequence)]
        acknowledgement = _OfStreams(batches, operation, self._path.metrics)
        assert operation.entry is not None
        operation.entry.sessions = (self.session,)
        self._path.dedup.submit(acknowledgement)

    def submit_new(self, operation: Operation, *, here: bool) -> bool:
        """Submit a batch of an origin, unless the loop has to decide about it.

        In the thread that has prepared the operation.

        Args:
            here: as in :meth:`offer`.

        Returns:
            Whether it was submitted. Otherwise it still counts as admitted.

        Raises:
            IngesterError: it cannot open its partitions. It no longer counts as admitted.
        """
        sequence = operation.origin_sequence
        assert sequence is not None
        if not operation.admitted_bytes or not self._may_follow(sequence):
            return False
        self._open_partitions(operation)

        def entry(slot: Slot) -> Entry:
            batches = [Waiting(self, slot, sequence)]
            return self._path.log.entry_of(for_streams(batches, operation, self._path.metrics))

        if self._queue_new(sequence, entry, here=here):
            return True
        self._path.partitions.leave(operation)
        return False

    def offer_new(self, draft: OfferedDraft, begun: Callable[[], None], *, here: bool) -> bool:
        """Submit a draft of an operation, unless the loop has to decide about it.

        In the thread that reads. Result as for :meth:`submit_new`.

        Args:
            begun: called before the draft can be answered, if it is submitted.
            here: as in :meth:`offer`.
        """
        assert draft.sequence is not None

        def item(slot: Slot) -> Draft:
            draft.slot = slot
            begun()
            return draft

        may_follow = self._may_follow(draft.sequence)
        return may_follow and self._queue_new(draft.sequence, item, here=here)

    def _may_follow(self, sequence: int) -> bool:
        assert self.origin_table is not None
        return self.origin_table.fates.follows(sequence, self.session)

    def _queue_new(
        self, sequence: int, item: Callable[[Slot], Entry | Draft], *, here: bool
    ) -> bool:
        """Reserve a sequence and queue its item in one step; False if it needs a decision."""
        table, log = self.origin_table, self._path.log
        assert table is not None and self.origin is not None
        origin = self._path.origins.get(self.origin)
        with table.fates.lock:
            if (
                self.superseded is not None
                or self.refusal is not None
                # The durable sequence will fall below it, and the answer must not say otherwise.
                or sequence <= (-1 if (done := origin.settled_sequence) is None else done)
                or not table.reserve(sequence, self.plan.spec_id, self.session)
            ):
                return False
            due = log.queue(item(self.reserve()), here=here)
        if due:
            log.carry_on(here=here)
        return True

    def supersede(self, error: Superseded) -> None:
        """Refuse all batches that are not submitted yet: a newer stream takes over."""
        if self.origin_table is None:
            self.superseded = error
            return
        with self.origin_table.fates.lock:
            self.superseded = error

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

    def _open_partitions(self, operation: Operation) -> None:
        try:
            self.claim(operation)
        except BaseException:
            self.leave(operation.admitted_bytes)
            raise

    def offer(self, draft: OfferedDraft, *, here: bool = False) -> None:
        """Submit a draft of an operation, to be answered in its turn. In the thread that reads.

        Only without a sequence.

        Args:
            here: the caller waits for the outcome; if no thread writes the log, it writes the next
                group itself.

        Raises:
            Stopping
        """
        draft.slot = self.reserve()
        self._path.log.offer(draft, here=here)

    def answered_here(self) -> None:
        """Note that the caller that offered ``here`` has sent the answer."""
        self._path.log.tell()

    def accept(self, slot: Slot, sequence: int) -> None:
        """Note that a batch is in the log under this sequence. :meth:`hand_out` has to follow.

        Any thread. Queries that start from now on find its rows.
        """
        slot.append(PutAnswer(accepted=True, sequence=sequence, epoch=self._path.epoch))

    def accept_of_origin(self, slot: Slot, origin_sequence: int | None, sequence: int) -> None:
        """As :meth:`accept`, for a batch of the stream's origin."""
        assert self.origin is not None
        origin = self._path.origins.get(self.origin)
        numbers = (origin_sequence, origin.memory_sequence)
        slot.append(
            PutAnswer(
                accepted=True,
                sequence=sequence,
                epoch=self._path.epoch,
                memory_sequence=max((each for each in numbers if each is not None), default=None),
                durable_sequence=origin.settled_sequence,
                first=origin.is_first_answer(),
            )
        )

    def reject(self, slot: Slot, error: BaseException) -> None:
        """Note that a batch, or an earlier one, is refused. :meth:`hand_out` has to follow."""
        self.refusal = self.refusal or error
        slot.append(error)

    def refuse(self, error: BaseException, slot: Slot | None = None) -> None:
        """Refuse a batch that did not become an operation; it ends the stream in its turn."""
        self._path.relieve(error)
        self.reject(self.reserve() if slot is None else slot, error)
        self.hand_out()

    def hand_out(self) -> None:
        """Deliver the known outcomes, up to the first unknown one. Any thread."""
        with self._handing_out:
            outcomes = []
            while self._slots and self._slots[0]:
                outcomes.append(self._slots.popleft()[0])
            if outcomes:
                self._deliver(outcomes)
            drained = None
            if not self._slots:
                drained, self._on_drained = self._on_drained, None
        if drained is not None:
            drained()

    def finish(self, then: Callable[[], None]) -> None:
        """Call ``then`` when all batches submitted so far have been answered."""
        with self._handing_out:
            drained = not self._slots
            if not drained:
                self._on_drained = then
        if drained:
            then()

    def close(self) -> None:
        """End the stream: the client has disconnected or finished."""
        self._on_closed(self)

    def _ended_by(self) -> BaseException | None:
        """The error for batches that the loop has not seen yet; submitted ones are not affected."""
        table = self.origin_table
        if self.superseded is None and table is not None:
            return table.refusal
        return self.superseded

    def applied(self, slot: Slot, operation: Operation) -> None:
        """Note that a batch of an origin is applied, or a duplicate. :meth:`hand_out` follows."""
        assert self.origin is not None, "without one it is answered when it is in the log"
        origin = self._path.origins.get(self.origin)
        slot.append(
            PutAnswer(
                accepted=True,
                # A duplicate has no sequence of its own: its rows are visible up to the newest one.
                sequence=operation.seq or self._path.newest_seq(),
                epoch=self._path.epoch,
                duplicate=operation.duplicate,
                memory_sequence=origin.memory_sequence,
                durable_sequence=origin.durable_sequence,
                first=origin.is_first_answer(),
            )
        )


class Waiting(NamedTuple):
    """A batch that waits for the outcome of its operation."""

    stream: WriteStream
    slot: Slot
    sequence: int | None
    """The sequence of the stream's origin."""


class OfferedDraft(Draft):
    """A draft of an operation that has a place among its stream's answers."""

    __slots__ = ("sequence", "slot")
    slot: Slot
    sequence: int | None
    """The sequence of the stream's origin."""


class _OfStreams(Acknowledgement):
    """Answers the batches that an operation was made of, each in its stream's order."""

    __slots__ = ("_batches", "_streams", "answered_when_stored")

    def __init__(self, batches: Sequence[Waiting], operation: Operation, metrics: Metrics) -> None:
        super().__init__(operation, metrics)
        self._batches = batches
        self._streams = {batch.stream for batch in batches}
        self.answered_when_stored = False

    @property
    def whose(self) -> OrderedSession:
        """The session of the first batch's stream."""
        return self._batches[0].stream.session

    def stored(self, entry: Entry) -> None:
        """Accept the batches: they need not be applied first."""
        for number, (stream, slot, sequence) in enumerate(self._batches):
            if stream.origin is None:
                stream.accept(slot, entry.seq + number)
            else:
                stream.accept_of_origin(slot, sequence, entry.seq + number)
        for stream in self._streams:
            stream.hand_out()

    def answer(self, error: BaseException | None) -> None:
        """Release what was admitted, and answer what :meth:`stored` does not."""
        one, slot, _ = self._batches[0]
        one.leave_with(self.operation, len(self._batches))
        # The loop may apply a group before the thread that wrote it calls `stored`.
        if slot or (error is None and self.answered_when_stored):
            return
        for stream, each, _ in self._batches:
            if error is None:
                stream.applied(each, self.operation)
            else:
                stream.reject(each, error)
        for stream in self._streams:
            stream.hand_out()


def for_streams(
    batches: Sequence[Waiting], operation: Operation, metrics: Metrics
) -> Acknowledgement:
    """Make the acknowledgement of an operation made of these batches, whose sequences are begun.

    They are answered in the thread that writes the log, before the loop applies the operation.
    """
    acknowledgement = _OfStreams(batches, operation, metrics)
    acknowledgement.answered_when_stored = True
    for stream, _, sequence in batches:
        if sequence is not None and stream.origin_table is not None:
            acknowledgement.is_first_copy(stream.origin_table.fates, sequence)
    entry = operation.entry
    assert entry is not None, "it was made just now"
    # Assigned here: the streams that wait are known only after the entry was encoded.
    entry.sessions = tuple(batch.stream.session for batch in batches)
    entry.on_stored = acknowledgement.stored
    return acknowledgement
