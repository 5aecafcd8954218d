"""A stream of writes: its batches are admitted, submitted in order and answered in order.

Law of this file: answers of one stream leave in the order of its batches. Without an origin they
leave as soon as the log has them, while the loop applies them: who asks then finds them applied.
After a refusal nothing later from that stream is applied.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ingester.dml.operation import Operation
from ingester.errors import DiskFull, MemoryFull, Superseded
from ingester.observability.metrics import Metrics
from ingester.origins.checkpoint_state import Checkpoint
from ingester.origins.checkpoints import Checkpoints
from ingester.origins.origin_table import OriginTable
from ingester.origins.registry import Origins
from ingester.quotas.use import NO_QUOTA
from ingester.write.acknowledgement import Acknowledgement
from ingester.write.admission import AdmissionControl, Relief
from ingester.write.answer import PutAnswer
from ingester.write.dedup import Deduplication
from ingester.write.metadata import fitted
from ingester.write.operation_log import OperationLog
from ingester.write.partition_room import PartitionRoom
from ingester.write.plan import WritePlan
from wal import Draft, Entry, OrderedSession

Outcome = PutAnswer | BaseException
Slot = list[Outcome]
"""The place of a batch among its stream's answers: empty until its outcome is known."""
Deliver = Callable[[list[Outcome]], None]
"""A callback that hands outcomes to the stream's own thread. Any thread; must not wait."""
Post = Callable[..., None]
"""A callback that runs a function on the loop, soon and in order, without waiting for it."""


@dataclass(frozen=True, slots=True)
class WritePath:
    """The way of a batch into the log and the buffers, which all streams of a daemon share."""

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
        """Has room made for a batch that was refused for the want of it."""
        if isinstance(refusal, DiskFull):
            self.relief.relieve_disk()
        elif isinstance(refusal, MemoryFull):
            # Whoever has all it may have gets room from its own buffers, not from others'.
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
        """What the table's namespace has, and this stream's batches count for."""
        self.origin = origin
        self.origin_table: OriginTable | None = None
        """The origin's sequences into the table; None until the first batch with a sequence."""
        self.refusal: BaseException | None = None
        """The error of a batch of this stream that failed: nothing later from it is applied."""
        self.superseded: Superseded | None = None
        """The refusal of batches that come to the loop after a newer stream was opened."""
        self.session = OrderedSession()
        """The session of the stream: none of its operations follows a refused one in the log."""
        self._path = path
        self._era = path.admission.era
        self._latch = plan.table.write_latch if plan.table.definition.keyed else None
        self._deliver = deliver
        self._on_closed = on_closed
        # One thread adds to it; the loop and the thread that writes the log take from it, under the
        # lock.
        self._slots: deque[Slot] = deque()
        self._handing_out = threading.Lock()
        self._on_drained: Callable[[], None] | None = None

    def admit(self, nbytes: int, sequence: int | None) -> int:
        """Admit the next batch; return the bytes that it counts for. Any thread.

        They count until it is applied, or refused.

        A batch that is known to be written already costs nothing and is always let in.

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
                # What was made for the table as it was before a copy must not get in any more.
                self.plan.table.check_shape(self.plan.normaliser.definition)
            except BaseException:
                self.leave(nbytes)
                raise
        return nbytes

    def leave(self, nbytes: int, batches: int = 1) -> None:
        """Stop counting what was admitted: it is applied, or never will be."""
        self._path.admission.leave(nbytes, self.use)
        if self._latch is not None:
            self._latch.leave(batches)

    def would_admit(self, nbytes: int, sequence: int | None) -> None:
        """Raise what :meth:`admit` would raise now, before anything is asked of the store.

        Raises:
            IngesterError
        """
        if not self._is_known(sequence) and (
            reasons := self._path.admission.reasons(nbytes, self.use)
        ):
            raise reasons[0]

    def check_rate(self, sequence: int | None) -> None:
        """Raise what :meth:`admit` would raise for a batch of any size, before it is worked on.

        Raises:
            OverQuota: the namespace has written as much of late as it may.
        """
        if self.use.quota is not NO_QUOTA and not self._is_known(sequence):
            self._path.admission.check_rate(self.use)

    def check_partitions(self, count: int, sequence: int | None) -> None:
        """Raise what :meth:`claim` would raise for so many partitions, before they are made.

        Some are open already, at most as many as the table has open. Any thread.

        Raises:
            IngesterError: there is no room for the others.
        """
        table = self.plan.table
        if count > len(table.partitions) and not self._is_known(sequence):
            self._path.partitions.check(table.key, count)

    def fitted(self, checkpoint: Checkpoint) -> Checkpoint:
        """Make a state later than the one that the table has. Any thread.

        Raises:
            InvalidRequest: the table has no room for it.
        """
        return fitted(self.plan.table, self._path.checkpoints, checkpoint)

    def _is_known(self, sequence: int | None) -> bool:
        """Whether the batch is known to be written already. Raises what has ended the stream."""
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
        """Send one batch on its way, to be answered in its turn.

        With an origin on the loop, without one in the thread that reads the stream, or in that to
        which it is passed on: nothing can fail there but the log, which keeps the stream's order by
        its session.

        Args:
            slot: the slot that was reserved for the batch.

        Raises:
            IngesterError: it cannot open its partitions; it counts no longer, and has no slot but
                the given one.
        """
        # A repeated batch, which was let in as one, opens nothing.
        if operation.admitted_bytes:
            self._open_partitions(operation)
        slot = self.reserve() if slot is None else slot
        if self.origin is None:
            batches = [(self, slot)]
            self._path.log.append(for_streams(batches, operation, self._path.metrics))
            return
        # What was let in before a newer stream was opened, and comes to the loop after that, would
        # stand behind it: whoever has asked in between how far the origin is was told less.
        if (refusal := self.refusal or self._ended_by()) is not None:
            self.leave_with(operation)
            for trace in operation.traces:
                trace.answered(refusal, {})
            self.reject(slot, refusal)
            self.hand_out()
            return

        self._path.dedup.submit(_OfStreams([(self, slot)], operation, self._path.metrics))

    def claim(self, operation: Operation) -> None:
        """Let an operation open its partitions, until :meth:`leave_with`. Any thread.

        Raises:
            IngesterError: there is no room for them.
        """
        self._path.partitions.enter(self.plan.table, operation)

    def leave_with(self, operation: Operation, batches: int = 1) -> None:
        """Stop counting an operation of so many batches: it is applied, or never will be."""
        self._path.partitions.leave(operation)
        self.leave(operation.admitted_bytes, batches)

    def _open_partitions(self, operation: Operation) -> None:
        try:
            self.claim(operation)
        except BaseException:
            self.leave(operation.admitted_bytes)
            raise

    def offer(self, draft: Draft, *, here: bool = False) -> None:
        """Send what will become an operation on its way, to be answered in its turn. Any thread.

        Only without an origin.

        Args:
            here: the caller waits for the outcome; if nobody writes the log, it writes the next
                group itself.

        Raises:
            Stopping
        """
        self._path.log.offer(draft, here=here)

    def answered_here(self) -> None:
        """Note that the caller, which offered ``here``, has sent the answer."""
        self._path.log.tell()

    def accept(self, slot: Slot, sequence: int) -> None:
        """Note that a batch is in the log under this sequence. :meth:`hand_out` has to follow.

        Any thread. Whoever asks the daemon for its rows from now on finds them.
        """
        slot.append(PutAnswer(accepted=True, sequence=sequence, epoch=self._path.epoch))

    def reject(self, slot: Slot, error: BaseException) -> None:
        """Note that a batch is refused, or one before it. :meth:`hand_out` has to follow."""
        self.refusal = self.refusal or error
        slot.append(error)

    def refuse(self, error: BaseException, slot: Slot | None = None) -> None:
        """Refuse a batch that never became an operation, which ends the stream in its turn."""
        self._path.relieve(error)
        self.reject(self.reserve() if slot is None else slot, error)
        self.hand_out()

    def hand_out(self) -> None:
        """Deliver the outcomes that are known, up to the first that is not. Any thread."""
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
        """Call ``then`` when everything submitted so far has been answered."""
        with self._handing_out:
            drained = not self._slots
            if not drained:
                self._on_drained = then
        if drained:
            then()

    def close(self) -> None:
        """End the stream: the client has gone or has finished."""
        self._on_closed(self)

    def _ended_by(self) -> BaseException | None:
        """The error that refuses batches not seen by the loop yet; those on their way go on."""
        table = self.origin_table
        if self.superseded is None and table is not None:
            return table.refusal
        return self.superseded

    def applied(self, slot: Slot, operation: Operation) -> None:
        """Note that a batch of an origin is applied, or a duplicate. :meth:`hand_out` follows."""
        assert self.origin is not None, "without one it is answered when it is in the log"
        origin = self._path.origins.get(self.origin)
        first, origin.answered = not origin.answered, True
        slot.append(
            PutAnswer(
                accepted=True,
                # A duplicate has no sequence of its own: its rows are visible up to the newest one.
                sequence=operation.seq or self._path.newest_seq(),
                epoch=self._path.epoch,
                duplicate=operation.duplicate,
                memory_sequence=origin.memory_sequence,
                durable_sequence=origin.durable_sequence,
                first=first,
            )
        )


class _OfStreams(Acknowledgement):
    """Answers the batches that an operation was made of, each in its stream's order."""

    __slots__ = ("_batches", "_streams")

    def __init__(
        self,
        batches: Sequence[tuple[WriteStream, Slot]],
        operation: Operation,
        metrics: Metrics,
    ) -> None:
        super().__init__(operation, metrics)
        self._batches = batches
        self._streams = {stream for stream, _ in batches}

    def stored(self, entry: Entry) -> None:
        """Accept the batches: without an origin they need not be applied first."""
        for number, (stream, slot) in enumerate(self._batches):
            stream.accept(slot, entry.seq + number)
        for stream in self._streams:
            stream.hand_out()

    def answer(self, error: BaseException | None) -> None:
        """Release what was admitted, and answer what was not answered in :meth:`stored`."""
        one, slot = self._batches[0]
        one.leave_with(self.operation, len(self._batches))
        if slot:
            return
        for stream, each in self._batches:
            if error is None:
                stream.applied(each, self.operation)
            else:
                stream.reject(each, error)
        for stream in self._streams:
            stream.hand_out()


def for_streams(
    batches: Sequence[tuple[WriteStream, Slot]], operation: Operation, metrics: Metrics
) -> Acknowledgement:
    """Make the acknowledgement of an operation made of these batches, none of an origin.

    They are answered in the thread that writes the log, before the loop applies the operation.
    """
    acknowledgement = _OfStreams(batches, operation, metrics)
    entry = operation.entry
    assert entry is not None, "it was made just now"
    # Assigned, not handed to a constructor: who waits is known only once the entry is encoded.
    entry.sessions = tuple(stream.session for stream, _ in batches)
    entry.on_stored = acknowledgement.stored
    return acknowledgement
