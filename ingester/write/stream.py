"""One stream of writes: admitted, submitted in order, answered in order.

Law of this file: answers of one stream leave in the order of its batches. Without an origin they
leave as soon as the log has them, while the loop applies them: who asks then finds them applied.
After a refusal nothing later from that stream is applied.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from ingester.dml.ipc import MessageTemplate
from ingester.dml.operation import Operation
from ingester.dml.sink import DmlSink
from ingester.errors import DiskFull, MemoryFull
from ingester.origins.registry import Origins
from ingester.schema import Normaliser
from ingester.write.admission import AdmissionGate
from ingester.write.answer import PutAnswer
from wal import Draft, OrderedSession, Preamble

if TYPE_CHECKING:
    from ingester.buffer import TableBuffer

Outcome = PutAnswer | BaseException


class Offer(Protocol):
    """Takes what becomes operations when its turn comes; see :meth:`WalSink.offer`."""

    def __call__(self, draft: Draft, *, here: bool = ...) -> None:
        """Take it."""


@dataclass(frozen=True, slots=True)
class WritePlan:
    """How batches of one schema become operations of one table."""

    table: TableBuffer
    normalise: Normaliser
    shape: int
    preamble: Preamble
    template: MessageTemplate = field(default_factory=MessageTemplate)
    """Of the batches that ``normalise`` makes."""


class WriteStream:
    """One DoPut stream. Loop only, but for what says otherwise.

    ``deliver`` hands outcomes to the stream's own thread.
    """

    def __init__(
        self,
        sink: DmlSink,
        origins: Origins,
        gate: AdmissionGate,
        plan: WritePlan,
        *,
        offer: Offer,
        tell: Callable[[], None],
        origin: str | None,
        epoch: int,
        newest_seq: Callable[[], int],
    ) -> None:
        self.plan = plan
        self.gate = gate
        self._order = plan.table.order if plan.table.definition.keyed else None
        self.origin = origin
        self.first_sequence: int | None = None
        """From which on the origin is this daemon's; None until a batch has one."""
        self.refusal: BaseException | None = None
        """Why a batch of this stream failed: nothing later from it is applied."""
        self.ended_by: BaseException | None = None
        """Why batches that the loop has not seen yet are refused; those on their way go on."""
        self.deliver: Callable[[list[Outcome]], None] = lambda outcomes: None
        self.on_disk_full: Callable[[], None] = lambda: None
        self.on_memory_full: Callable[[], None] = lambda: None
        self.on_closed: Callable[[WriteStream], None] = lambda stream: None
        self._sink = sink
        self._offer = offer
        self.answered_here = tell
        """To be called by who offered ``here``, when it has sent the answer."""
        self._origins = origins
        self._epoch = epoch
        # A duplicate has no sequence of its own: all of its rows are visible up to the newest one.
        self._newest_seq = newest_seq
        # One thread adds to it; the loop and the log's thread take from it, under the lock.
        self._slots: deque[list[Outcome]] = deque()
        self._handing_out = threading.Lock()
        self.line = OrderedSession()
        """Of its operations in the log: none stands there behind a refused one."""
        self._on_drained: Callable[[], None] | None = None

    def reserve(self) -> list[Outcome]:
        """A slot for the batch that was read, for when it is known what becomes of it.

        In the thread that reads the stream.
        """
        slot: list[Outcome] = []
        self._slots.append(slot)
        return slot

    def submit(self, operation: Operation, slot: list[Outcome] | None = None) -> None:
        """Send one batch on its way; its answer comes through ``deliver``.

        With an origin on the loop, without one in the thread that reads the stream, or in that to
        which it is passed on: nothing can fail there but the log, which keeps the stream's order by
        its line.

        Args:
            slot: what was reserved for it.
        """
        slot = self.reserve() if slot is None else slot
        if self.origin is None and operation.entry is not None:
            operation.entry.lines = (self.line,)
            operation.on_logged = lambda seq: self._logged(slot, seq)
        # What was let in before a newer stream was opened, and comes to the loop after that, would
        # stand behind it: whoever has asked in between how far the origin is was told less.
        refusal = self.refusal or self.ended_by
        if self.origin is not None and refusal is not None:
            self.leave(operation.admitted_bytes)
            self._fill(slot, refusal)
            return
        self._sink.submit(operation, lambda op, error: self._answered(slot, op, error))

    def offer(self, draft: Draft, slot: list[Outcome], *, here: bool = False) -> None:
        """Send what will be an operation on its way, to be answered in its turn. Any thread.

        Only without an origin.

        Args:
            slot: empty; for :meth:`accept` or :meth:`reject`.
            here: the caller waits for the outcome; see :meth:`WalSink.offer`.

        Raises:
            Stopping
        """
        self._slots.append(slot)
        self._offer(draft, here=here)

    def accept(self, slot: list[Outcome], sequence: int) -> None:
        """What was offered is in the log under this sequence. :meth:`hand_out` has to follow.

        Any thread; whoever asks the daemon for it from now on finds it.
        """
        slot.append(
            PutAnswer(
                accepted=True,
                sequence=sequence,
                epoch=self._epoch,
                duplicate=False,
                memory_sequence=None,
                durable_sequence=None,
                first=False,
            )
        )

    def reject(self, slot: list[Outcome], error: BaseException) -> None:
        """What was offered is refused, or what stood before it. :meth:`hand_out` has to follow."""
        self.refusal = self.refusal or error
        slot.append(error)

    def admit(self, nbytes: int, sequence: int | None) -> int:
        """The bytes that the next batch counts for until it is answered. Any thread.

        What is known to be written already costs nothing and is let in always.

        Raises:
            IngesterError: why it is refused; it ends the stream.
        """
        if self._is_known(sequence):
            nbytes = 0
        elif (refusal := self.gate.enter(nbytes)) is not None:
            raise refusal
        if self._order is not None:
            self._order.enter()
        return nbytes

    def leave(self, nbytes: int, batches: int = 1) -> None:
        """What was admitted is applied, or never will be."""
        self.gate.leave(nbytes)
        if self._order is not None:
            self._order.leave(batches)

    def would_admit(self, nbytes: int, sequence: int | None) -> None:
        """Raise what :meth:`admit` would raise now, before anything is asked of the store.

        Raises:
            IngesterError
        """
        if not self._is_known(sequence) and (reasons := self.gate.reasons(nbytes)):
            raise reasons[0]

    def _is_known(self, sequence: int | None) -> bool:
        """Whether the batch is known to be written already. Raises what has ended the stream."""
        refusal = self.ended_by or self.refusal
        if refusal is not None:
            raise refusal
        return (
            self.origin is not None
            and sequence is not None
            and self._origins.is_applied(self.origin, self.plan.table.key, sequence)
        )

    def refuse(self, error: BaseException, slot: list[Outcome] | None = None) -> None:
        """A batch that never became an operation; it ends the stream in its turn."""
        if isinstance(error, DiskFull):
            self.on_disk_full()
        elif isinstance(error, MemoryFull):
            self.on_memory_full()
        self.refusal = self.refusal or error
        self._fill(self.reserve() if slot is None else slot, error)

    def finish(self, then: Callable[[], None]) -> None:
        """Call ``then`` when everything submitted so far has been answered."""
        with self._handing_out:
            drained = not self._slots
            if not drained:
                self._on_drained = then
        if drained:
            then()

    def close(self) -> None:
        """The client has gone or has finished."""
        self.on_closed(self)

    def _answered(
        self, slot: list[Outcome], operation: Operation, error: BaseException | None
    ) -> None:
        self.leave(operation.admitted_bytes)
        if slot:
            return  # it was answered when it was in the log
        if error is not None:
            self.reject(slot, error)
        else:
            slot.append(self._answer(operation))
        self.hand_out()

    def _logged(self, slot: list[Outcome], sequence: int) -> None:
        """In the log's thread."""
        self.accept(slot, sequence)
        self.hand_out()

    def _answer(self, operation: Operation) -> PutAnswer:
        memory = durable = None
        first = False
        if self.origin is not None:
            origin = self._origins.get(self.origin)
            memory, durable = origin.memory_sequence, origin.durable_sequence
            first, origin.answered = not origin.answered, True
        return PutAnswer(
            accepted=True,
            sequence=operation.seq or self._newest_seq(),
            epoch=self._epoch,
            duplicate=operation.duplicate,
            memory_sequence=memory,
            durable_sequence=durable,
            first=first,
        )

    def _fill(self, slot: list[Outcome], outcome: Outcome) -> None:
        slot.append(outcome)
        self.hand_out()

    def hand_out(self) -> None:
        """Deliver what is known and has nothing before it that is not. Any thread."""
        with self._handing_out:
            outcomes = []
            while self._slots and self._slots[0]:
                outcomes.append(self._slots.popleft()[0])
            if outcomes:
                self.deliver(outcomes)
            drained = None
            if not self._slots:
                drained, self._on_drained = self._on_drained, None
        if drained is not None:
            drained()
