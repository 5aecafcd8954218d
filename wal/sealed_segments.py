"""Law: a sealed segment is cut to its length once others are open, and goes when nobody needs it.

Trimming takes longer than all else of a rotation, and nobody waits for it. Segments are deleted in
ascending order, each durably: a later name that vanished first would leave a gap after a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import trio

from wal.disk import Disk
from wal.errors import from_os_error
from wal.preallocation import InThread, Preallocation
from wal.segment import OpenSegment, remove
from wal.settings import SegmentFacts

_GENTLY_MOST = 4
"""The most segments to delete gently: with more of them the disk's room comes first."""


class SealedSegments:
    """The log's sealed segments, from their seal to their deletion. Called on the loop.

    Args:
        busy: whether groups are expected: what is deleted meanwhile gives way to them.
    """

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        preallocation: Preallocation,
        in_thread: InThread,
        busy: Callable[[], bool],
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._preallocation = preallocation
        self._in_thread = in_thread
        self._busy = busy
        self.facts: dict[int, SegmentFacts] = {}
        """The facts of each segment, by its number."""
        self._untrimmed: list[OpenSegment] = []
        self._uncut = set[int]()
        """The untrimmed ones and the one that is being trimmed: no file of these can be reused."""
        self._trim_wanted = trio.Event()
        self._prune_lock = trio.Lock()

    @property
    def nbytes(self) -> int:
        """The bytes of all segments, each up to the end of its last record."""
        return sum(one.bytes for one in self.facts.values())

    def adopt(self, found: Iterable[SegmentFacts]) -> None:
        """Take over what recovery found, all of it trimmed."""
        self.facts = {facts.number: facts for facts in found}

    def add(self, segment: OpenSegment, facts: SegmentFacts) -> None:
        """Take over a segment that has just been sealed; it is trimmed after `trim_soon`."""
        self.facts[facts.number] = facts
        self._uncut.add(facts.number)
        self._untrimmed.append(segment)

    async def prune(self, keep_from_segment: int) -> list[int]:
        """Delete the segments below that number, ascending, and return their numbers.

        Raises:
            LogFull, LogWriteFailed: the disk refused; those before it are gone.
            LogFailed: the folder could not be synced.
        """
        async with self._prune_lock:  # of two at the same time, the later segments would go first
            unneeded = [number for number in sorted(self.facts) if number < keep_from_segment]
            gently = len(unneeded) <= _GENTLY_MOST
            for number in unneeded:
                await self._in_thread(partial(self._remove, number, gently))
        return unneeded

    def _remove(self, number: int, gently: bool) -> None:
        facts = self.facts.pop(number)
        try:
            useful = number not in self._uncut and self._busy()
            keep = partial(self._preallocation.keep, facts.bytes) if useful else None
            remove(self._disk, self._directory / facts.file, lambda: gently and self._busy(), keep)
        except OSError as exc:
            self.facts[number] = facts
            raise from_os_error(exc, f"deleting {facts.file}") from exc

    def trim_soon(self) -> None:
        """Have `run` trim what is sealed by now."""
        self._trim_wanted.set()

    async def run(self) -> None:
        """Trim segments once others are open. Runs for ever."""
        while True:
            await self._trim_wanted.wait()
            self._trim_wanted = trio.Event()
            await self.trim()

    async def trim(self) -> None:
        """Cut every sealed segment to its length, and let go of it."""
        # Shielded, so that none is taken from the list and left; bounded by the disk.
        with trio.CancelScope(shield=True):
            while self._untrimmed:
                segment = self._untrimmed.pop(0)
                await self._in_thread(segment.trim)
                self._uncut.discard(segment.fill.number)

    def abandon(self) -> None:
        """Let go of what is untrimmed as it is, for the next start."""
        for segment in self._untrimmed:
            segment.abandon()
        self._untrimmed.clear()
