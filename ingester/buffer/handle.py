"""A buffer from its first row to its release, wherever its rows are: memory, then Parquet files.

    ACTIVE ─freeze─▶ FROZEN ─note_files─▶ IN_FILES ─begin_release─▶ RELEASING ─release─▶ RELEASED
                                             ▲                         │
                                             └──────abort_release──────┘

Where a pin finds its rows after the release:

    pins that start later                      in the files, read whole
    pins in the middle of the buffer           in the files, with the arrival order
    pins of a keyed table                      in spilled rows

A pin, one snapshot's claim on one buffer, returns exactly the buffer's first ``rows`` rows,
wherever they are (tests/buffer). Files are sorted, so a position in the buffer means nothing in
them; the arrival order, a few bytes per row, says which buffer row each file row is. In a keyed
table the files have other rows than the buffer, so its pins read spilled rows.

The event loop freezes and releases; reading threads ask for their source. The lock makes "a
reader has started" and "the rows are released" mutually exclusive; no thread waits while holding
it.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from ingester.buffer.rows import BufferedRows
from persist.manifest import Add, PartitionKey

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext

    from ingester.observability.tracing.writes import FlushTrace, WriteTrace
    from ingester.origins.tenure import Tenure

MAX_TRACED = 32
"""Limit on traced batches per buffer whose traces record the flush."""
Arrivals = npt.NDArray[np.uint32]


class IllegalTransition(RuntimeError):
    """A defect in this code: a step that the current state does not allow."""


class BufferState(Enum):
    """The states of a buffer."""

    ACTIVE = "active"
    """The buffer accepts rows."""
    FROZEN = "frozen"
    """The buffer is complete and is being flushed."""
    IN_FILES = "in files"
    """A committed version has its rows; readers still read them here."""
    RELEASING = "releasing"
    """Readers are sent to the files; no reader can still need a spill."""
    RELEASED = "released"
    """The rows are only in files."""


TRANSITIONS: dict[str, dict[BufferState, BufferState]] = {
    "freeze": {BufferState.ACTIVE: BufferState.FROZEN},
    "note_files": {
        BufferState.FROZEN: BufferState.IN_FILES,
        # Installing a version that waited for a spill is repeated.
        BufferState.IN_FILES: BufferState.IN_FILES,
    },
    "begin_release": {BufferState.IN_FILES: BufferState.RELEASING},
    "abort_release": {BufferState.RELEASING: BufferState.IN_FILES},
    "release": {BufferState.RELEASING: BufferState.RELEASED},
}


class Spill(Protocol):
    """Rows or their arrival order on local disk, for readers that outlive the buffer."""

    def close(self) -> None:
        """Free the disk space."""


@dataclass(frozen=True, slots=True, eq=False)
class PersistedFiles:
    """The files that contain a buffer's rows."""

    adds: tuple[Add, ...]
    arrivals: tuple[Arrivals, ...]
    """Per file, the buffer row numbers of its rows; empty if no row moved."""
    table_version: int = 1
    """The table version whose folder contains the files."""

    @property
    def nbytes(self) -> int:
        """Size of the arrival order in memory."""
        return sum(each.nbytes for each in self.arrivals)


@dataclass(frozen=True, slots=True, eq=False)
class FlushedRows:
    """A pin's rows, in files."""

    adds: tuple[Add, ...]
    total_rows: int
    spill: Spill | None
    """The arrival order; ``None`` if no row moved, or if the pin takes all rows."""
    table_version: int = 1
    """The table version of the files, which may differ from the snapshot's."""


class Pin:
    """One snapshot's claim on the first ``rows`` rows of a buffer."""

    __slots__ = ("handle", "rows", "started")

    def __init__(self, handle: BufferHandle, rows: int) -> None:
        self.handle = handle
        self.rows = rows
        self.started = False

    def source(self) -> BufferedRows | Spill | FlushedRows:
        """Return where the rows are read from now."""
        return self.handle.source_for(self)

    def again(self) -> Pin:
        """Claim the same rows for another reader, while this pin is open. Thread-safe."""
        return self.handle.pin_again(self)

    def close(self) -> None:
        """End the claim. Thread-safe and idempotent."""
        self.handle.unpin(self)


class BufferHandle:
    """One buffer of one partition."""

    def __init__(
        self, partition: PartitionKey, *, keyed: bool, epoch: int, first_seq: int, segment: int
    ) -> None:
        self.partition = partition
        self.keyed = keyed
        """Whether the table has a primary key."""
        self.epoch = epoch
        self.first_seq = first_seq
        self.last_seq = first_seq
        self.first_segment = segment
        self.rows = BufferedRows()
        self.opened_at = 0.0
        self.written_at = 0.0
        """When its oldest row was acknowledged; for replayed rows an upper bound."""
        self.frozen_at = 0.0
        self.max_age_s: float | None = None
        """The table's own age of buffers when this one was opened."""
        self.state = BufferState.ACTIVE
        self.origins: dict[Tenure, int] = {}
        """The origins' tenures with operations in the buffer, each with its highest sequence
        here."""
        self.messages = 0
        """Number of replication messages whose rows it contains."""
        self.total_rows = 0
        """Number of rows at the freeze; no release can happen before it."""
        self.taken_back = False
        """Whether rows are in no file of this daemon because another daemon took over their
        origin."""
        self.traced: list[SpanContext] = []
        """Spans of the first traced batches with rows in the buffer."""
        self.flush_trace: FlushTrace | None = None
        """The trace of its flush, if traced."""
        self.files: PersistedFiles | None = None
        """The committed files; after the release without the arrival order."""
        self._moved = True
        """Whether the files order rows differently from the buffer."""
        self._spill: Spill | None = None
        self._pins: set[Pin] = set()
        self._lock = threading.Lock()

    @property
    def frozen(self) -> bool:
        """Whether the buffer accepts no more rows."""
        return self.state is not BufferState.ACTIVE

    @property
    def released(self) -> bool:
        """Whether the rows are only in committed files."""
        return self.state is BufferState.RELEASED

    @property
    def nbytes(self) -> int:
        """Size of the rows in memory; 0 once released."""
        return self.rows.nbytes

    def pin(self) -> Pin:
        """Claim all current rows for a snapshot. Under the table's lock, in any thread."""
        pin = Pin(self, self.rows.rows)
        with self._lock:
            self._pins.add(pin)
        return pin

    def pin_again(self, pin: Pin) -> Pin:
        """Claim the rows of an open pin once more; what that one can read, the new one can."""
        twin = Pin(self, pin.rows)
        with self._lock:
            assert pin in self._pins, "closed pins claim nothing"
            self._pins.add(twin)
        return twin

    def unpin(self, pin: Pin) -> None:
        """Drop a claim; the last one that needs the spill deletes it."""
        with self._lock:
            self._pins.discard(pin)
            spill = self._spill_to_close() if self.released else None
        if spill is not None:
            spill.close()

    def source_for(self, pin: Pin) -> BufferedRows | Spill | FlushedRows:
        """See :meth:`Pin.source`."""
        with self._lock:
            if self.state not in (BufferState.RELEASING, BufferState.RELEASED):
                pin.started = True
                return self.rows
            if self.keyed:
                if not self.released:
                    return self.rows
                assert self._spill is not None, "released under a pin without a spill"
                return self._spill
            assert self.files is not None
            files = self.files
            return FlushedRows(files.adds, self.total_rows, self._spill, files.table_version)

    def needs_spill(self) -> bool:
        """Return whether a release would take rows from a pin that files alone cannot serve."""
        with self._lock:
            return self._spill is None and self._pins_need_spill()

    def keep_spill(self, spill: Spill) -> None:
        """Make pins that need it read this spill after the release."""
        with self._lock:
            self._spill = spill

    def note_traces(self, traces: Sequence[WriteTrace]) -> None:
        """Record spans of batches with rows in the buffer, up to a limit."""
        room = MAX_TRACED - len(self.traced)
        self.traced += [trace.context for trace in traces[:room]]

    def freeze(self, now: float) -> None:
        """Accept no more rows. ``now``: the loop's clock, in seconds."""
        with self._lock:
            self.state = self._after("freeze")
            self.total_rows = self.rows.rows
            self.frozen_at = now

    def note_files(self, files: PersistedFiles) -> None:
        """Record the files in which a committed version has the rows."""
        with self._lock:
            self.state = self._after("note_files")
            self.files = files
            self._moved = bool(files.arrivals)

    def begin_release(self) -> bool:
        """Send pins to the files; return False if a spill is needed first.

        After True, no pin can need a spill until :meth:`release` or :meth:`abort_release`.
        """
        with self._lock:
            releasing = self._after("begin_release")
            if self._spill is None and self._pins_need_spill():
                return False
            self.state = releasing
            return True

    def abort_release(self) -> None:
        """Undo :meth:`begin_release`; a pin may have read some of its rows from the files."""
        with self._lock:
            self.state = self._after("abort_release")

    def release(self) -> None:
        """Drop the rows. Only after :meth:`begin_release` returned True."""
        with self._lock:
            self.state = self._after("release")
            assert self.files is not None
            self.rows.leave()
            self.rows = BufferedRows()
            # Pins that still need the order have it on disk.
            self.files = PersistedFiles(self.files.adds, (), self.files.table_version)
            spill = self._spill_to_close()
        if spill is not None:
            spill.close()

    def _after(self, step: str) -> BufferState:
        """Return the state after a step; IllegalTransition if the step is not allowed."""
        state = TRANSITIONS[step].get(self.state)
        if state is None:
            raise IllegalTransition(f"{step} is not allowed in state {self.state.value}")
        return state

    def _spill_to_close(self) -> Spill | None:
        """Return the spill once no pin needs it; the caller closes it."""
        if self._pins_need_spill():
            return None
        spill, self._spill = self._spill, None
        return spill

    def _pins_need_spill(self) -> bool:
        if self.keyed:
            return bool(self._pins)
        if not self._moved:
            return False
        return any(pin.started or pin.rows < self.total_rows for pin in self._pins)
