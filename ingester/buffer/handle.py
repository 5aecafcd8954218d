"""A buffer's place, whatever holds its rows: memory, then Parquet files.

    ACTIVE ─freeze─▶ FROZEN ─note_files─▶ IN_FILES ─begin_release─▶ RELEASING ─release─▶ RELEASED
                                             ▲                         │
                                             └──────abort_release──────┘

Where the rows are after the release:

    for pins that start later                      in the files, read whole
    for pins in the middle of the buffer           in the files, with the order of arrival
    for the pins of a keyed table                  in spilled rows

Law of this file: a pin (one snapshot's claim on one buffer) gets exactly its first ``rows`` rows,
wherever they are. Files are sorted, so a position in a buffer means nothing in them; but a few
bytes a row say which row of the buffer each of theirs is, and so which of them a pin still needs.
In a keyed table files have other rows than the buffer, so its pins read the spilled rows.

The loop freezes and releases; reading threads ask for their source. The lock makes "has begun" and
"is let go" exclude each other; nothing waits while holding it.
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
"""The traced batches of one buffer whose traces say when it went into files."""
Arrivals = npt.NDArray[np.uint32]


class IllegalTransition(RuntimeError):
    """A state machine was told to do what its state does not allow: a defect in this code."""


class BufferState(Enum):
    """The state of a buffer on its way into files."""

    ACTIVE = "active"
    """The buffer takes rows."""
    FROZEN = "frozen"
    """The buffer has all of its rows; a flush makes files of them."""
    IN_FILES = "in files"
    """A committed version has its rows, and readers still read them here."""
    RELEASING = "releasing"
    """Readers are sent to the files; no reader can come to need a spill any more."""
    RELEASED = "released"
    """The rows are in files only."""


TRANSITIONS: dict[str, dict[BufferState, BufferState]] = {
    "freeze": {BufferState.ACTIVE: BufferState.FROZEN},
    "note_files": {
        BufferState.FROZEN: BufferState.IN_FILES,
        # A version whose installation had to wait for a spill is installed anew.
        BufferState.IN_FILES: BufferState.IN_FILES,
    },
    "begin_release": {BufferState.IN_FILES: BufferState.RELEASING},
    "abort_release": {BufferState.RELEASING: BufferState.IN_FILES},
    "release": {BufferState.RELEASING: BufferState.RELEASED},
}


class Spill(Protocol):
    """The rows or their order on local disk, for readers that outlive the buffer."""

    def close(self) -> None:
        """Give the disk space back."""


@dataclass(frozen=True, slots=True, eq=False)
class PersistedFiles:
    """The files that have a buffer's rows."""

    adds: tuple[Add, ...]
    arrivals: tuple[Arrivals, ...]
    """The order of arrival of each file: its rows' numbers in the buffer; empty if none moved."""
    table_version: int = 1
    """The version of the table as a whole in whose folder the files are."""

    @property
    def nbytes(self) -> int:
        """The size in memory of the order of arrival."""
        return sum(each.nbytes for each in self.arrivals)


@dataclass(frozen=True, slots=True, eq=False)
class FileRows:
    """The rows of a pin, where they are in files."""

    adds: tuple[Add, ...]
    total_rows: int
    spill: Spill | None
    """The order of arrival; ``None`` where no row has moved, or where the pin takes all rows."""
    table_version: int = 1
    """The version of the table that the files are in, which may be another than the snapshot's."""


class Pin:
    """One snapshot's claim on the first ``rows`` rows of a buffer."""

    __slots__ = ("handle", "rows", "started")

    def __init__(self, handle: BufferHandle, rows: int) -> None:
        self.handle = handle
        self.rows = rows
        self.started = False

    def source(self) -> BufferedRows | Spill | FileRows:
        """The place that the rows are read from now."""
        return self.handle.source_for(self)

    def close(self) -> None:
        """End the claim. Safe from any thread, twice too."""
        self.handle.unpin(self)


class BufferHandle:
    """One buffer of one partition from its first row to its release."""

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
        """When its oldest row was acknowledged; of a replayed one, no earlier than it was."""
        self.frozen_at = 0.0
        self.state = BufferState.ACTIVE
        self.origins: dict[Tenure, int] = {}
        """The tenures whose operations the buffer has, each with its highest sequence here."""
        self.messages = 0
        """The number of replication messages that have brought rows."""
        self.total_rows = 0
        """The number of rows at the freeze, before which no release can come."""
        self.taken_back = False
        """Whether rows of it are in no file of ours: another daemon has their origin by now."""
        self.traced: list[SpanContext] = []
        """The spans of the first traced batches with rows in it."""
        self.flush_trace: FlushTrace | None = None
        """The trace of its way into files, where that is traced."""
        self.files: PersistedFiles | None = None
        """The committed files; after the release without the order of arrival."""
        self._moved = True
        """Whether rows of the files have other places than in the buffer."""
        self._spill: Spill | None = None
        self._pins: set[Pin] = set()
        self._lock = threading.Lock()

    @property
    def frozen(self) -> bool:
        """Whether the buffer takes no more rows."""
        return self.state is not BufferState.ACTIVE

    @property
    def released(self) -> bool:
        """Whether the rows are in committed files only."""
        return self.state is BufferState.RELEASED

    @property
    def nbytes(self) -> int:
        """The size of the rows in memory; 0 once released."""
        return self.rows.nbytes

    def pin(self) -> Pin:
        """Claim all rows of now for a snapshot. Under the table's lock, in any thread."""
        pin = Pin(self, self.rows.rows)
        with self._lock:
            self._pins.add(pin)
        return pin

    def unpin(self, pin: Pin) -> None:
        """Drop a claim; the last one that needed the spill deletes it."""
        with self._lock:
            self._pins.discard(pin)
            spill = self._spill_to_close() if self.released else None
        if spill is not None:
            spill.close()

    def source_for(self, pin: Pin) -> BufferedRows | Spill | FileRows:
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
            return FileRows(files.adds, self.total_rows, self._spill, files.table_version)

    def needs_spill(self) -> bool:
        """Whether a release would take rows from under a pin that no file alone can serve."""
        with self._lock:
            return self._spill is None and self._pins_need_spill()

    def keep_spill(self, spill: Spill) -> None:
        """Have pins read this spill from the release on, where they need it."""
        with self._lock:
            self._spill = spill

    def note_traces(self, traces: Sequence[WriteTrace]) -> None:
        """Note the spans of batches with rows in it, up to a bound."""
        room = MAX_TRACED - len(self.traced)
        self.traced += [trace.context for trace in traces[:room]]

    def freeze(self, now: float) -> None:
        """Take no more rows. ``now``: the loop's clock, seconds."""
        with self._lock:
            self.state = self._after("freeze")
            self.total_rows = self.rows.rows
            self.frozen_at = now

    def note_files(self, files: PersistedFiles) -> None:
        """Note the files in which a committed version has the rows."""
        with self._lock:
            self.state = self._after("note_files")
            self.files = files
            self._moved = bool(files.arrivals)

    def begin_release(self) -> bool:
        """Send pins to the files; False if a spill is needed first.

        After True, no pin can come to need a spill any more, until :meth:`release` or
        :meth:`abort_release`.
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
        """Let the rows go. Only after :meth:`begin_release` returned True."""
        with self._lock:
            self.state = self._after("release")
            assert self.files is not None
            self.rows = BufferedRows()
            # Whoever still needs the order has it on disk.
            self.files = PersistedFiles(self.files.adds, (), self.files.table_version)
            spill = self._spill_to_close()
        if spill is not None:
            spill.close()

    def _after(self, step: str) -> BufferState:
        """The state that this step leads to; IllegalTransition where it is not allowed."""
        state = TRANSITIONS[step].get(self.state)
        if state is None:
            raise IllegalTransition(f"{step} of a buffer that is {self.state.value}")
        return state

    def _spill_to_close(self) -> Spill | None:
        """The spill, where nobody needs it any more; it is the caller's to close."""
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
