"""How the daemon stands with what it needs: its store, its disks, and what somebody has to see to.

Law: as that of :mod:`ingester.observability.status`, of which these are parts. Pure.
"""

from typing import Literal

import msgspec

Severity = Literal["warning", "critical"]
Reached = Literal["ok", "away", "unknown"]


class Alarm(msgspec.Struct, frozen=True, kw_only=True):
    """Something that an operator has to act on, for as long as it is so."""

    name: str
    """One of :data:`ingester.observability.alarms.ALARMS`; at a time one alarm has a name."""
    severity: Severity
    """``critical``: something is refused or fails now. ``warning``: it will, if nobody acts."""
    since: str
    """When it was raised, ISO 8601 in UTC."""
    message: str
    """A sentence with the figures of now. It names no namespace and no table."""
    runbook: str
    """The entry of ``deploy/RUNBOOK.md`` that says what to do."""


class StoreState(msgspec.Struct, frozen=True, kw_only=True):
    """The object store, by the last requests of this daemon, and by a probe each ten seconds."""

    state: Reached = "unknown"
    """``away`` where reads or writes fail, or it is not the store that the daemon began with;
    ``unknown`` before the first answer."""
    since: str | None = None
    """When this state began, ISO 8601 in UTC."""
    last_ok_at: str | None = None
    """When the store has last answered."""
    last_error: str | None = None
    """The last failure, also of one that has passed. It may name an object."""
    reads: bool = True
    """False while requests that read fail: queries of files fail, too."""
    writes: bool = True
    """False while requests that write fail: persists fail, too, and are repeated."""


class DiskStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The disks of the data directory; null where nobody has looked, or there is no such disk."""

    log_free_bytes: int | None = None
    log_total_bytes: int | None = None
    log_free_files: int | None = None
    """The files that can still be made there; null where the file system has no bound."""
    log_problem: str | None = None
    """Why the log's file system takes no writes, as one that was made read-only."""
    reserved_bytes: int = 0
    """The bytes that the log can write without asking the disk for room."""
    full: bool = False
    """Whether an ordinary batch would be refused with ``disk_full`` now."""
    spill_free_bytes: int | None = None
    """The room of the folder for what queries put aside."""
    store_free_bytes: int | None = None
    """The room of a store on local files."""
    store_total_bytes: int | None = None


class History(msgspec.Struct, frozen=True, kw_only=True):
    """The last minutes, as figures of one moment each: the answer of ``/api/history``."""

    step_s: float
    """The seconds from one moment to the next."""
    at: list[str]
    """The moments, oldest first, ISO 8601 in UTC. A daemon that stood still has a gap there."""
    series: dict[str, list[float | None]]
    """Figures by name, as many each as ``at`` has; null where there was nothing to measure."""
