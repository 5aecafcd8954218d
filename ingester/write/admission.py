"""Admission control lets a batch in or refuses it, with the reason and when to come back.

Law of this file: limits are bytes, and an empty daemon takes any batch that is not larger than
``flight.max_batch_bytes``: nothing is so large that it can never pass. A refused batch leaves
nothing behind. Queries go on whatever it says.

It stands before the event loop: the thread that has read a batch asks, and so knows the verdict
before it reads the next one. What is let in counts until it is applied, or refused.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from ingester.errors import DiskFull, FencedOff, IngesterError, MemoryFull, Saturated, Stopping
from ingester.memory.ledger import MemoryLedger

RETRY_S = 0.25
DISK_RETRY_S = 1.0
FREE_HOLDS_S = 0.02
"""The time that a look at the disk's free space holds; the log itself refuses in between."""
OTHERS_HOLD_S = 0.005
"""The time that a look at the memory of other threads holds: every batch asks for it."""
CLEAR_HOLDS_S = 0.005
"""The time after a full look in which batches are let in without one, as long as they have no more
than a part of the space that was found: a look costs as much as all else that admission does."""
CLEAR_PART = 8
RECORD_OVERHEAD_BYTES = 64 * 1024
"""The bytes that a batch may cost in the log beside its rows: headers, padding, a schema."""


class Relief(Protocol):
    """Makes room soon. The batch for which it is called is refused all the same."""

    def relieve_memory(self) -> None:
        """Have memory freed: a batch found no room."""

    def relieve_disk(self) -> None:
        """Have space of the log's disk freed: it is full."""


class DiskRoom:
    """The space that the log has. Any thread.

    ``certain_bytes`` fit into what is reserved already; beyond them a segment of ``segment_bytes``
    has to be found on the disk of ``folder``.
    """

    def __init__(self, folder: Path, segment_bytes: int, certain_bytes: Callable[[], int]) -> None:
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._certain_bytes = certain_bytes
        self._free = (-math.inf, 0)

    @property
    def certain_bytes(self) -> int:
        """The bytes that fit without asking the disk."""
        return self._certain_bytes() - RECORD_OVERHEAD_BYTES

    def lacks(self, nbytes: int) -> bool:
        """Whether a batch of this size would find the disk full."""
        if nbytes <= self.certain_bytes:
            return False
        asked_at, free = self._free
        now = time.monotonic()
        if now - asked_at > FREE_HOLDS_S:
            found = os.statvfs(self._folder)
            free = found.f_bavail * found.f_frsize
            self._free = (now, free)
        return free < max(self._segment_bytes, nbytes) + self._segment_bytes


class AdmissionControl:
    """Lets batches in as far as memory, the flush queue and the disk allow. Any thread.

    Args:
        queued_bytes: gives the bytes that wait to be flushed; no more than ``queue_bytes`` may.
        clock: gives the seconds by which a look grows old.
    """

    def __init__(
        self,
        ledger: MemoryLedger,
        disk: DiskRoom,
        *,
        queued_bytes: Callable[[], int],
        queue_bytes: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ledger = ledger
        self._disk = disk
        self._queued_bytes = queued_bytes
        self._queue_bytes = queue_bytes
        self._clock = clock
        self._lock = threading.Lock()
        self.stopping = False
        """Whether nothing more is let in, as the daemon stops."""
        self._fenced = False
        self._others_at = (-math.inf, 0)
        # So many bytes are let in without a look until then.
        self._clear_bytes = 0
        self._clear_until = -math.inf

    def enter(self, nbytes: int) -> IngesterError | None:
        """Let a batch of this size in until :meth:`leave`; return why it is refused, if it is."""
        ledger = self._ledger
        with self._lock:
            clear = nbytes <= self._clear_bytes and not (self.stopping or self._fenced)
            if clear and self._clock() < self._clear_until:
                self._clear_bytes -= nbytes
                ledger.pending += nbytes
                return None
        disk_lacks = self._disk.lacks(nbytes)
        with self._lock:
            reasons = self._reasons(nbytes, disk_lacks)
            if reasons:
                self._clear_bytes = 0
                return reasons[0]
            room = ledger.watermarks.high - ledger.own - nbytes - self._others()
            self._clear_bytes = min(room, self._disk.certain_bytes) // CLEAR_PART
            self._clear_until = self._clock() + CLEAR_HOLDS_S
            # Last: what is counted is let in, whatever comes between.
            ledger.pending += nbytes
            return None

    def stop(self) -> None:
        """Let nothing more in. What is in by now is counted as pending."""
        with self._lock:
            self.stopping = True

    def fence(self) -> None:
        """Let nothing more in: another process runs under this ingester's id."""
        self._fenced = True

    def leave(self, nbytes: int) -> None:
        """Stop counting what was let in: it is answered, and in a buffer by now or nowhere."""
        with self._lock:
            self._ledger.pending -= nbytes

    def reasons(self, nbytes: int = 0) -> list[IngesterError]:
        """List why a write of ``nbytes`` would be refused now; nothing when it would be let in."""
        return self._reasons(nbytes, self._disk.lacks(nbytes))

    def _reasons(self, nbytes: int, disk_lacks: bool) -> list[IngesterError]:
        ledger, found = self._ledger, list[IngesterError]()
        if self._fenced:
            found.append(FencedOff("a later process runs under this ingester's id"))
        if self.stopping:
            found.append(Stopping("the daemon is stopping", retry_after_s=1.0))
        used, high = ledger.own + self._others(), ledger.watermarks.high
        if used + nbytes > high and ledger.pending + ledger.buffered + ledger.frozen:
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
                    f"persist queue: {queued} bytes wait, at most {self._queue_bytes} may; is the"
                    " object store away or slow?",
                    retry_after_s=RETRY_S * 4,
                )
            )
        if disk_lacks:
            found.append(
                DiskFull(
                    "the log's disk is full; nothing of this batch was kept",
                    retry_after_s=DISK_RETRY_S,
                )
            )
        return found

    def _others(self) -> int:
        asked_at, others = self._others_at
        now = self._clock()
        if now - asked_at > OTHERS_HOLD_S:
            others = self._ledger.others
            self._others_at = (now, others)
        return others
