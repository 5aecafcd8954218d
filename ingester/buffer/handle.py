"""A buffer's place, whatever holds its rows: memory, then Parquet files.

    active ──freeze──▶ frozen ──release──▶ files, read whole by pins that start later
                                      ├──▶ files and the order of arrival, by pins in the middle of
                                      │    the buffer or of a first part of it
                                      └──▶ spilled rows, by the pins of a keyed table

Law of this file: a pin (one snapshot's claim on one buffer) gets exactly its first ``rows`` rows,
wherever they are. Files are sorted, so a position in a buffer means nothing in them; but a few
bytes a row say which row of the buffer each of theirs is, and so which of them a pin still needs.
In a keyed table files have other rows than the buffer, so its pins read the spilled rows.

The loop freezes and releases; reading threads ask for their source. The lock makes "has begun" and
"is let go" exclude each other; nothing waits while holding it.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from ingester.buffer.rows import BufferedRows
from persist.manifest import Add

if TYPE_CHECKING:
    from ingester.buffer.partition import PartitionBuffer
    from ingester.origins.tenure import Tenure

Arrivals = npt.NDArray[np.uint32]


class Spill(Protocol):
    """What outlives a buffer on local disk for the readers that still need it."""

    def close(self) -> None:
        """Give the disk space back."""


@dataclass(frozen=True, slots=True, eq=False)
class PersistedFiles:
    """The files that have a buffer's rows."""

    adds: tuple[Add, ...]
    arrivals: tuple[Arrivals, ...]
    """For each file which row of the buffer each of its rows is; empty where none has moved."""

    @property
    def nbytes(self) -> int:
        """What the order of arrival costs in memory."""
        return sum(each.nbytes for each in self.arrivals)


@dataclass(frozen=True, slots=True, eq=False)
class FileRows:
    """A pin's rows in files."""

    adds: tuple[Add, ...]
    total_rows: int
    spill: Spill | None
    """The order of arrival; ``None`` where no row has moved, or where all rows are wanted."""


class Pin:
    """One snapshot's claim on the first ``rows`` rows of a buffer."""

    __slots__ = ("done", "handle", "rows", "started")

    def __init__(self, handle: BufferHandle, rows: int) -> None:
        self.handle = handle
        self.rows = rows
        self.started = False
        self.done = False

    def source(self) -> BufferedRows | Spill | FileRows:
        """Where the rows are now."""
        return self.handle.source_for(self)

    def close(self) -> None:
        """The snapshot needs this buffer no longer. Safe from any thread, twice too."""
        self.handle.unpin(self)


class AtomicFlush:
    """Buffers of one table that go into files in one version, unless one of them cannot."""

    __slots__ = ("dissolved", "members")

    def __init__(self, members: tuple[BufferHandle, ...]) -> None:
        self.members = members
        self.dissolved = False


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
        self.origins: dict[Tenure, int] = {}
        """Whose operations it has, each up to the origin's sequence."""
        self.messages = 0
        """Of replication, that have brought its rows."""
        self.together: AtomicFlush | None = None
        """The buffers, itself among them, that go into files in one version."""
        self.total_rows = 0
        """Rows at the freeze; before it no release can come."""
        self.files: PersistedFiles | None = None
        """From the commit on; after the release without the order of arrival."""
        self._moved = True
        """Whether rows of the files have other places than in the buffer."""
        self._closing = False
        self._spill: Spill | None = None
        self._pins: set[Pin] = set()
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        """What the rows cost in memory; 0 once released."""
        return 0 if self.released else self.rows.nbytes

    @property
    def mates(self) -> tuple[BufferHandle, ...]:
        """Itself and those without which it does not go into files; empty: it goes alone."""
        together = self.together
        return () if together is None or together.dissolved else together.members

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
            if self.released and not self._spill_wanted():
                spill, self._spill = self._spill, None
        if spill is not None:
            spill.close()

    def source_for(self, pin: Pin) -> BufferedRows | Spill | FileRows:
        """See :meth:`Pin.source`."""
        with self._lock:
            if not (self._closing or self.released):
                pin.started = True
                return self.rows
            if self.partition.table.definition.keyed:
                if not self.released:
                    return self.rows
                assert self._spill is not None, "released under a pin without a spill"
                return self._spill
            assert self.files is not None
            return FileRows(self.files.adds, self.total_rows, self._spill)

    def needs_spill(self) -> bool:
        """Whether a release would take rows from under a pin that no file alone can serve."""
        with self._lock:
            return self._spill is None and self._spill_wanted()

    def keep_spill(self, spill: Spill) -> None:
        """From the release on, pins that need it read this."""
        with self._lock:
            self._spill = spill

    def committed(self, files: PersistedFiles) -> None:
        """The rows are in these files, too."""
        with self._lock:
            self.files = files
            self._moved = bool(files.arrivals)

    def begin_release(self) -> bool:
        """Send pins to the files; False if a spill is needed first. After :meth:`committed`.

        After True, no pin can come to need a spill any more, until :meth:`release` or
        :meth:`abort_release`.
        """
        with self._lock:
            assert self.files is not None
            if self._spill is None and self._spill_wanted():
                return False
            self._closing = True
            return True

    def abort_release(self) -> None:
        """Undo :meth:`begin_release`; a pin may have read some of its rows from the files."""
        with self._lock:
            self._closing = False

    def release(self) -> None:
        """Let the rows go. Only after :meth:`begin_release` said True."""
        with self._lock:
            assert self._closing
            assert self.files is not None
            self.released = True
            self.rows = BufferedRows()
            # Whoever still needs the order has it on disk.
            self.files = PersistedFiles(self.files.adds, ())
            spill = None
            if not self._spill_wanted():
                spill, self._spill = self._spill, None
        if spill is not None:
            spill.close()

    def _spill_wanted(self) -> bool:
        if self.partition.table.definition.keyed:
            return bool(self._pins)
        if not self._moved:
            return False
        return any(pin.started or pin.rows < self.total_rows for pin in self._pins)
