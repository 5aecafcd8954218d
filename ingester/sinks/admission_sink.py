"""Lets an operation in or refuses it, with the reason and when to come back.

Law of this file: limits are bytes, and an empty daemon takes any batch that is not larger than
``flight.max_batch_bytes``: nothing is so large that it can never pass. A refused operation leaves
nothing behind. Queries go on whatever this sink says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ingester.errors import DiskFull, FencedOff, IngesterError, MemoryFull, Saturated, Stopping
from ingester.memory import MemoryLedger
from ingester.sinks.interface import Answer, DmlSink
from ingester.sinks.operation import Operation
from ingester.sinks.wal_sink import DISK_RETRY_S

RETRY_S = 0.25


@dataclass(slots=True)
class AdmissionState:
    """What the rest of the daemon tells the gate. Loop only."""

    stopping: bool = False
    fenced: bool = False
    disk_full: bool = False


class AdmissionSink:
    """The gate; a :class:`ingester.sinks.DmlSink`."""

    def __init__(
        self,
        ledger: MemoryLedger,
        state: AdmissionState,
        inner: DmlSink,
        *,
        queued_bytes: Callable[[], int],
        queue_bytes: int,
    ) -> None:
        self._ledger = ledger
        self._state = state
        self._inner = inner
        self._queued_bytes = queued_bytes
        self._queue_bytes = queue_bytes

    def submit(self, operation: Operation, answer: Answer) -> None:
        """Refuse, or hand on."""
        reasons = self.reasons(operation.nbytes)
        if reasons:
            answer(operation, reasons[0])
            return
        self._inner.submit(operation, self._remember_disk(answer))

    def reasons(self, nbytes: int = 0) -> list[IngesterError]:
        """Why a write of ``nbytes`` would be refused now; empty when it would be let in."""
        state, ledger, found = self._state, self._ledger, list[IngesterError]()
        if state.fenced:
            found.append(FencedOff("a later process runs under this ingester's id"))
        if state.stopping:
            found.append(Stopping("the daemon is stopping", retry_after_s=1.0))
        used, high = ledger.used, ledger.watermarks.high
        waiting = ledger.pending + ledger.buffered + ledger.frozen
        if used + nbytes > high and waiting:
            found.append(
                MemoryFull(
                    f"memory: {used} bytes held, this batch has {nbytes}, the high watermark is"
                    f" {high}; rows are being persisted",
                    retry_after_s=RETRY_S,
                )
            )
        queued = self._queued_bytes()
        if queued > self._queue_bytes:
            found.append(
                Saturated(
                    f"persist queue: {queued} bytes wait, at most {self._queue_bytes}"
                    " may; is the object store away or slow?",
                    retry_after_s=RETRY_S * 4,
                )
            )
        if state.disk_full and nbytes == 0:
            found.append(DiskFull("the log's disk is full", retry_after_s=DISK_RETRY_S))
        return found

    def _remember_disk(self, answer: Answer) -> Answer:
        state = self._state

        def remember(operation: Operation, error: BaseException | None) -> None:
            # Each write tries the disk again, so that it recovers with the first one that fits.
            if error is None:
                state.disk_full = False
            elif isinstance(error, DiskFull):
                state.disk_full = True
            answer(operation, error)

        return remember
