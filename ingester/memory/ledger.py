"""A ledger of the bytes that the daemon holds, by kind, and its watermarks.

The loop counts what it owns by plain additions; memory that other threads own (the row group cache,
answers that are being sent) is read through a callback. Everything that grows with load has a kind
here, except messages in gRPC and pyarrow (docs/limits.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

JOB_BYTES = 160 << 20
"""Memory of the flush jobs at work at the same time: two buffers frozen by their size, so that one
is sorted while the other is encoded. A larger job runs alone. A job's memory comes on top of the
buffers, which stay readable until the commit."""
JOB_SHARE = 8
"""Jobs have at most the memory limit divided by this."""


@dataclass(frozen=True, slots=True)
class Watermarks:
    """Watermarks in bytes: over ``low`` the daemon flushes, over ``high`` it refuses writes."""

    limit: int
    low: int
    high: int

    @property
    def jobs(self) -> int:
        """The bytes of all flush jobs together."""
        return min(JOB_BYTES, self.limit // JOB_SHARE)


class MemoryStatistics(NamedTuple):
    """The bytes held at one moment, beside the watermarks."""

    used_bytes: int
    limit_bytes: int
    low_bytes: int
    high_bytes: int
    by_kind: dict[str, int]


class MemoryLedger:
    """Counts bytes by kind. Only the loop may write; anyone may read."""

    def __init__(self, watermarks: Watermarks) -> None:
        self.watermarks = watermarks
        self.pending = 0
        """Bytes of operations that are admitted and not yet in a buffer."""
        self.buffered = 0
        """Bytes of live buffers that are not frozen."""
        self.frozen = 0
        """Bytes of frozen buffers, in the flush queue or waiting for their release."""
        self.jobs = 0
        """Bytes of sorted copies and encoded files of flushes under way."""
        self._gauges: dict[str, Callable[[], int]] = {}

    def gauge(self, kind: str, read: Callable[[], int]) -> None:
        """Count memory of another thread under this kind."""
        self._gauges[kind] = read

    @property
    def used(self) -> int:
        """All bytes held now."""
        return self.own + self.others

    @property
    def own(self) -> int:
        """All bytes that the event loop counts."""
        return self.pending + self.buffered + self.frozen + self.jobs

    @property
    def others(self) -> int:
        """All bytes that other threads own."""
        return sum(read() for read in self._gauges.values())

    def statistics(self) -> MemoryStatistics:
        """Return the bytes held now, by kind."""
        by_kind = {
            "pending": self.pending,
            "buffered": self.buffered,
            "frozen": self.frozen,
            "jobs": self.jobs,
        } | {kind: read() for kind, read in self._gauges.items()}
        marks = self.watermarks
        return MemoryStatistics(sum(by_kind.values()), marks.limit, marks.low, marks.high, by_kind)
