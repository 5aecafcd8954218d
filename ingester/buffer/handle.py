"""A buffer's place, whatever holds its rows: memory, then Parquet files, perhaps a spill file.

    active ──freeze──▶ frozen ──release──▶ files (for pins that start later)
                                      └──▶ spill (for pins in the middle of it, or of a part of it)

Law of this file: a pin (one snapshot's claim on one buffer) gets exactly its first ``rows`` rows,
wherever they are. A file stands in for the buffer only where that is exact: the pin has not begun,
wants all rows, and the table has no primary key; files are sorted, so a position in one means
nothing in the other. Everybody else reads the spill, which has the rows in log order.

The loop freezes and releases; reading threads ask for their source. The lock makes "has begun" and
"is let go" exclude each other; nothing waits while holding it.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from ingester.buffer.rows import BufferedRows
from persist.manifest import Add

if TYPE_CHECKING:
    from ingester.buffer.partition import PartitionBuffer
    from ingester.origins import Origin


class RowSource(Protocol):
    """Rows in log order that outlive their buffer: a spill file."""

    def close(self) -> None:
        """Give the disk space back."""


class Pin:
    """One snapshot's claim on the first ``rows`` rows of a buffer."""

    __slots__ = ("done", "from_files", "handle", "rows", "started")

    def __init__(self, handle: BufferHandle, rows: int) -> None:
        self.handle = handle
        self.rows = rows
        self.started = False
        self.from_files = False
        self.done = False

    def source(self) -> BufferedRows | RowSource | tuple[Add, ...]:
        """Where the rows are now; from the first call on, in log order if they were then."""
        return self.handle.source_for(self)

    def close(self) -> None:
        """The snapshot needs this buffer no longer. Safe from any thread, twice too."""
        self.handle.unpin(self)


class BufferHandle:
    """One buffer of one partition from its first row to its release."""

    def __init__(
        self, partition: PartitionBuffer, *, epoch: int, first_seq: int, segment: int
    ) -> None:
        self.partition = partition
        self.epoch = epoch
        self.first_seq = first_seq
        self.last_seq = first_seq
        self.first_segment = segment
        self.rows = BufferedRows()
        self.opened_at = 0.0
        self.frozen_at = 0.0
        self.frozen = False
        self.released = False
        self.origins: set[Origin] = set()
        self.total_rows = 0
        """Rows at the freeze; before it no release can come."""
        self._closing = False
        self._files: tuple[Add, ...] = ()
        self._spill: RowSource | None = None
        self._pins: set[Pin] = set()
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        """What the rows cost in memory; 0 once released."""
        return 0 if self.released else self.rows.nbytes

    def pin(self) -> Pin:
        """Claim all rows of now for a snapshot. Loop only."""
        pin = Pin(self, self.rows.rows)
        with self._lock:
            self._pins.add(pin)
        return pin

    def unpin(self, pin: Pin) -> None:
        """Drop a claim; the last one that needed the spill deletes it."""
        with self._lock:
            pin.done = True
            self._pins.discard(pin)
            spill = None
            if self.released and not any(self._wants_log_order(pin) for pin in self._pins):
                spill, self._spill = self._spill, None
        if spill is not None:
            spill.close()

    def source_for(self, pin: Pin) -> BufferedRows | RowSource | tuple[Add, ...]:
        """See :meth:`Pin.source`."""
        with self._lock:
            letting_go = self._closing or self.released
            if pin.from_files or (letting_go and not self._wants_log_order(pin)):
                pin.from_files = True
                return self._files
            pin.started = True
            if not self.released:
                return self.rows
            assert self._spill is not None, "released under a pin that needs log order"
            return self._spill

    def needs_spill(self) -> bool:
        """Whether a release would take rows from under a pin that no file can serve."""
        with self._lock:
            return self._spill is None and any(self._wants_log_order(pin) for pin in self._pins)

    def keep_spill(self, spill: RowSource) -> None:
        """From the release on, pins that need log order read this."""
        with self._lock:
            self._spill = spill

    def begin_release(self, files: Sequence[Add]) -> bool:
        """Send pins that have not begun to the ``files``; False if a spill is needed first.

        After True, no pin can come to need a spill any more, until :meth:`release` or
        :meth:`abort_release`.
        """
        with self._lock:
            if self._spill is None and any(self._wants_log_order(pin) for pin in self._pins):
                return False
            self._files = tuple(files)
            self._closing = True
            return True

    def abort_release(self) -> None:
        """Undo :meth:`begin_release`; pins that were sent to the files stay there."""
        with self._lock:
            self._closing = False

    def release(self) -> None:
        """Let the rows go. Only after :meth:`begin_release` said True."""
        with self._lock:
            assert self._closing
            self.released = True
            self.rows = BufferedRows()
            spill = None
            if not any(self._wants_log_order(pin) for pin in self._pins):
                spill, self._spill = self._spill, None
        if spill is not None:
            spill.close()

    def _wants_log_order(self, pin: Pin) -> bool:
        if pin.from_files:
            return False
        return pin.started or pin.rows < self.total_rows or self.partition.table.definition.keyed
