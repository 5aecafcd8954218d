"""What a shipper is made with: its limits, and the functions of other rooms that it calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from ingester.store_log.cleaner import KeptObject
from persist.manifest import Fenced
from wal import Entry, LogError
from wal.objects import Control, DiskOnly


@dataclass(frozen=True, slots=True)
class ShipLimits:
    """When objects are begun, and how much may wait."""

    interval_s: float = 0.1
    max_bytes: int = 8 << 20
    waiting_bytes: int = 128 << 20
    patience_s: float = 10.0
    """After this time without an acknowledgement, further operations have no room."""
    everything: bool = False
    """Whether all operations ship: the log has no disk."""
    on_disk: bool = False
    """Whether the log is synced before operations are submitted."""
    opens: bool = False
    """Whether the first object is made at once: the next start must find that this epoch has a log
    in the store, too, because earlier objects are needed or it is the level of all tables."""


@dataclass(frozen=True, slots=True)
class ShipHooks:
    """Functions of other rooms. All but ``shipped`` are called on the loop."""

    shipped: Callable[[Sequence[Entry], LogError | None], None]
    """Applies and answers entries; see :meth:`wal.Log.shipped`. Called in a thread."""
    flush: Callable[[str], Awaitable[None]]
    """Returns when all rows that a table has now are in files. The table is a route's name."""
    catch_up: Callable[[], None]
    """Applies what the log has handed over."""
    open_segment: Callable[[], int]
    """Returns the number of the log's open segment."""
    acknowledged: Callable[[KeptObject], None]
    """Receives each acknowledged object."""
    kept_from: Callable[[], int] = lambda: 0
    """Returns the number of the oldest object that must be kept."""
    controls: Callable[[], Sequence[Control]] = lambda: ()
    """Returns the records that the first object begins with."""
    disk_only: Callable[[], tuple[DiskOnly, ...]] = lambda: ()
    """Returns what is acknowledged and neither shipped nor in files."""
    fenced: Callable[[Fenced], None] = lambda fence: None
    """Called when another process has taken over."""
