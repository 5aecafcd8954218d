"""Admission control admits a batch, or refuses it with a reason and a time to retry.

Limits are bytes. An empty daemon admits any batch of up to ``flight.max_batch_bytes``, so that none
can never pass. A refused batch leaves nothing behind. Queries are not affected. Quotas and the rule
of fair shares say what a namespace may have (:mod:`ingester.quotas`).

It runs before the event loop: the thread that has read a batch asks, and knows the verdict before
it reads the next one. Admitted bytes count until the batch is applied or refused.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Protocol

from ingester.errors import DiskFull, FencedOff, IngesterError, MemoryFull, Stopping
from ingester.memory.ledger import MemoryLedger
from ingester.quotas.fair_shares import reserve
from ingester.quotas.namespaces import Namespaces
from ingester.quotas.use import NO_QUOTA, NamespaceUse

RETRY_S = 0.25
DISK_RETRY_S = 1.0
STOP_RETRY_S = 1.0
FREE_HOLDS_S = 0.02
"""How long a look at the disk's free space is reused; the log itself refuses in between."""
OTHERS_HOLD_S = 0.005
"""How long a look at the memory of other threads is reused: every batch asks for it."""
CLEAR_HOLDS_S = 0.005
"""How long batches are admitted without a full look after the last one, up to ``CLEAR_PART`` of the
space that it found. A full look costs as much as the rest of admission."""
CLEAR_PART = 8
ORDINARY_BYTES = 64 * 1024
"""The assumed size of an ordinary batch before the first one."""
ORDINARY_PART = 16
"""Each batch that is looked at moves the ordinary size by this part of the difference."""
RECORD_OVERHEAD_BYTES = 64 * 1024
"""Bytes that a batch may take in the log beside its rows: headers, padding, a schema."""


class Intake(Enum):
    """Whether batches are let in at all."""

    OPEN = auto()
    DRAINING = auto()
    """Nothing more is let in; a drain can be taken back."""
    STOPPING = auto()
    FENCED = auto()
    """A later process runs under this ingester's id."""


_MAY_BECOME = {
    Intake.OPEN: {Intake.DRAINING, Intake.STOPPING, Intake.FENCED},
    Intake.DRAINING: {Intake.OPEN, Intake.STOPPING, Intake.FENCED},
    Intake.STOPPING: {Intake.FENCED},
    Intake.FENCED: set[Intake](),
}
"""Other transitions are ignored: a fenced daemon may be told to stop and stays fenced."""

_STOPPING = {
    Intake.DRAINING: "the daemon is being drained: it takes no more writes; another daemon does",
    Intake.STOPPING: "the daemon is stopping",
}


class Relief(Protocol):
    """Makes room soon. The batch for which it is called is still refused."""

    def relieve_memory(self, namespace: str | None = None) -> None:
        """Free memory: a batch found no room.

        Args:
            namespace: the namespace at its limit; None where the daemon is at its own.
        """

    def relieve_disk(self) -> None:
        """Free space on the log's disk: it is full."""


def _free_bytes(folder: Path) -> int:
    """Return the bytes available to new files; 0 where none can be created."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return 0  # for example, the volume was removed while the daemon runs
    # A file system without a limit of files reports 0 files.
    no_file_left = found.f_files > 0 and found.f_favail == 0
    return 0 if no_file_left else found.f_bavail * found.f_frsize


class DiskRoom:
    """The space available to the log. Any thread.

    ``certain_bytes`` fit into preallocated segments. Beyond them the disk of ``folder`` needs room,
    and an inode, for another segment of ``segment_bytes``.
    """

    def __init__(self, folder: Path, segment_bytes: int, certain_bytes: Callable[[], int]) -> None:
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._certain_bytes = certain_bytes
        self._free = (-math.inf, 0)

    @property
    def certain_bytes(self) -> int:
        """The bytes that fit without looking at the disk."""
        return self._certain_bytes() - RECORD_OVERHEAD_BYTES

    def lacks(self, nbytes: int) -> bool:
        """Whether a batch of this size would find the disk full."""
        if nbytes <= self.certain_bytes:
            return False
        asked_at, free = self._free
        now = time.monotonic()
        if now - asked_at > FREE_HOLDS_S:
            free = _free_bytes(self._folder)
            self._free = (now, free)
        return free < max(self._segment_bytes, nbytes) + self._segment_bytes


@dataclass(frozen=True, slots=True)
class QueueRoom:
    """The room of the flush queue."""

    queued_bytes: Callable[[], int]
    """Returns the bytes that wait to be flushed. Any thread."""
    most_bytes: int


class AdmissionControl:
    """Admits batches as far as quotas, memory, the flush queue and the disk allow. Any thread.

    Args:
        clock: seconds, by which a look ages.
    """

    def __init__(
        self,
        ledger: MemoryLedger,
        disk: DiskRoom,
        queue: QueueRoom,
        namespaces: Namespaces,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.namespaces = namespaces
        self._ledger = ledger
        self._disk = disk
        self._queue = queue
        self._clock = clock
        self._lock = threading.Lock()
        self._state = Intake.OPEN
        self.era = 0
        """The number of drains that were undone: a stream of an earlier era has ended."""
        self._others_at = (-math.inf, 0)
        self._ordinary_bytes = float(ORDINARY_BYTES)
        # These bytes are admitted without a look until then.
        self._clear_bytes = 0
        self._clear_until = -math.inf

    def enter(self, nbytes: int, use: NamespaceUse) -> IngesterError | None:
        """Admit a namespace's batch until :meth:`leave`, or return why it is refused."""
        with self._lock:
            if use.quota is NO_QUOTA and self._is_clear(nbytes):
                self._count(nbytes, use)
                return None
        disk_lacks = self._disk.lacks(nbytes)
        with self._lock:
            if self._is_clear(nbytes):
                reasons = self._over_quota(nbytes, use)
            else:
                reasons = self._reasons(nbytes, disk_lacks, use)
                self._look_again(0 if reasons else nbytes, bool(reasons))
                self._note_size(nbytes, bool(reasons))
            # A request that is refused for another reason does not count.
            if not reasons and use.quota.requests_per_s:
                over = self.namespaces.over_requests(use)
                reasons = [] if over is None else [over]
            if reasons:
                return reasons[0]
            # Last: whatever is counted is admitted.
            self.namespaces.wrote(use, nbytes)
            self._count(nbytes, use)
            return None

    def _is_clear(self, nbytes: int) -> bool:
        """Whether a batch of this size needs no look at what others have."""
        clear = nbytes <= self._clear_bytes and self._state is Intake.OPEN
        return clear and self._clock() < self._clear_until

    def _look_again(self, nbytes: int, refused: bool) -> None:
        """Note what is clear after a look that admitted ``nbytes``, or refused a batch."""
        ledger = self._ledger
        room = self.shared_bytes - ledger.own - nbytes - self._others()
        clear = min(room, self._disk.certain_bytes) // CLEAR_PART
        self._clear_bytes = 0 if refused else max(0, clear) + nbytes
        self._clear_until = self._clock() + CLEAR_HOLDS_S

    def _note_size(self, nbytes: int, refused: bool) -> None:
        """Note the size of a batch that was looked at. A refused one counts as ordinary."""
        part = 1 if refused else ORDINARY_PART
        self._ordinary_bytes += (nbytes - self._ordinary_bytes) / part

    def _count(self, nbytes: int, use: NamespaceUse) -> None:
        self._clear_bytes -= nbytes
        self._ledger.pending += nbytes
        use.pending_bytes += nbytes

    def check(self, nbytes: int, namespace: str) -> None:
        """Check that a write would be admitted now, and count it for the namespace's rate.

        For writes whose bytes are counted elsewhere until they are in a buffer.

        Raises:
            IngesterError: why it is refused.
        """
        use = self.namespaces.of(namespace)
        if reasons := self.reasons(nbytes, use):
            raise reasons[0]
        with self._lock:
            self.namespaces.wrote(use, nbytes)

    def check_rate(self, use: NamespaceUse) -> None:
        """Raise :class:`OverQuota` if the namespace's rate would refuse a batch of any size now."""
        with self._lock:
            refusal = self.namespaces.over_rate(use)
        if refusal is not None:
            raise refusal

    def stop(self, *, draining: bool = False) -> None:
        """Let nothing more in. Batches that are in are counted as pending.

        Args:
            draining: tell writers so; :meth:`resume` may follow.
        """
        self._turn(Intake.DRAINING if draining else Intake.STOPPING)

    def resume(self) -> None:
        """Let batches in again after a drain, of streams that are opened from now on."""
        if self._turn(Intake.OPEN):
            self.era += 1

    def fence(self) -> None:
        """Let nothing more in: another process runs under this ingester's id."""
        self._turn(Intake.FENCED)

    @property
    def stopping(self) -> bool:
        """Whether nothing more is let in because the daemon stops or is drained."""
        return self._state in (Intake.DRAINING, Intake.STOPPING)

    def refusal(self) -> Stopping:
        """Return the error for a writer while nothing is let in, or one of an earlier era."""
        said = _STOPPING.get(self._state, "the daemon was drained for a while: reopen the stream")
        # A client of several daemons turns to another one at once.
        return Stopping(said, retry_after_s=STOP_RETRY_S, details={"leaving": True})

    def _turn(self, state: Intake) -> bool:
        """Go to a state if the present one allows it; say whether it does."""
        with self._lock:
            allowed = state in _MAY_BECOME[self._state]
            if allowed:
                self._state = state
            return allowed

    def leave(self, nbytes: int, use: NamespaceUse) -> None:
        """Stop counting an admitted batch: it is in a buffer by now, or refused."""
        with self._lock:
            self._ledger.pending -= nbytes
            use.pending_bytes -= nbytes

    def refusals(self) -> list[IngesterError]:
        """List why a batch of ordinary size would be refused now."""
        return self.reasons(self.ordinary_bytes)

    @property
    def ordinary_bytes(self) -> int:
        """The size of an ordinary batch, a moving average; after a refusal, that batch's size.

        The smallest batch would say little: a full disk accepts small ones for long.
        """
        return int(self._ordinary_bytes)

    def disk_full(self) -> bool:
        """Whether an ordinary batch would find the disk full."""
        return self._disk.lacks(self.ordinary_bytes)

    def reasons(self, nbytes: int = 0, use: NamespaceUse | None = None) -> list[IngesterError]:
        """List why a write of ``nbytes`` would be refused now; empty if it would be admitted.

        Args:
            use: the namespace's use; None for the namespace that has the least.
        """
        return self._reasons(nbytes, self._disk.lacks(nbytes), use)

    def _over_quota(self, nbytes: int, use: NamespaceUse | None) -> list[IngesterError]:
        if use is None or use.quota is NO_QUOTA:
            return []
        over = self.namespaces.over_write(use, nbytes)
        return [] if over is None else [over]

    def _reasons(
        self, nbytes: int, disk_lacks: bool, use: NamespaceUse | None
    ) -> list[IngesterError]:
        found = list[IngesterError]()
        if self._state is Intake.FENCED:
            found.append(FencedOff("a later process runs under this ingester's id"))
        if self.stopping:
            found.append(self.refusal())
        found += self._over_quota(nbytes, use)
        if (full := self._memory_full(nbytes, use)) is not None:
            found.append(full)
        queue = self._queue
        over = self.namespaces.over_queue(use, queue.queued_bytes(), queue.most_bytes)
        if over is not None:
            found.append(over)
        if disk_lacks:
            found.append(
                DiskFull(
                    "the log's disk is full; nothing of this batch was kept",
                    retry_after_s=DISK_RETRY_S,
                )
            )
        return found

    @property
    def shared_bytes(self) -> int:
        """The total of bytes beyond which no namespace gets more than a share.

        Behind it is the reserve, and what the jobs of flushes are going to take.
        """
        marks = self._ledger.watermarks
        return marks.high - reserve(marks.high) - max(0, marks.jobs - self._ledger.jobs)

    def _memory_full(self, nbytes: int, use: NamespaceUse | None) -> IngesterError | None:
        ledger, high = self._ledger, self._ledger.watermarks.high
        if not ledger.pending + ledger.buffered + ledger.frozen:
            return None
        used = ledger.own + self._others()
        shared = self.shared_bytes
        if used + nbytes <= shared:
            return None
        unfair = self.namespaces.over_share(use, nbytes, high)
        if used + nbytes <= high and not unfair:
            return None
        said = (
            f"memory: {used} bytes held, this batch has {nbytes}, the high watermark is {high};"
            " rows are being persisted"
        )
        if use is None:
            return MemoryFull(said, retry_after_s=RETRY_S)
        if unfair:
            said += (
                f". Namespace {use.name!r} has {use.bytes}: more than its share, so it may have no"
                f" more beyond {shared} in all"
            )
        return self.namespaces.no_memory(use, said, unfair=unfair)

    def _others(self) -> int:
        asked_at, others = self._others_at
        now = self._clock()
        if now - asked_at > OTHERS_HOLD_S:
            others = self._ledger.others
            self._others_at = (now, others)
        return others
