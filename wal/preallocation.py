"""Prepares the next segment's file before it is needed, so that no caller waits for its zeros.

::

    asked for ─▶ reserved ─▶ zeroed ─▶ synced ─▶ ready ─▶ taken by a rotation
                    ▲          │  ▲
         or reused from an     │  not if segments fill so fast that it would only compete
         old segment     a rotation waits

Under load a few files of deleted segments are kept for reuse. Freeing and allocating blocks costs
the disk more than all other bookkeeping, and where the file system passes freed blocks to the
device (`discard`) it can block a write for a tenth of a second.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import structlog
import trio

from wal.disk import Disk
from wal.format import segment_name
from wal.segment import PreallocatedFile, discard, prepare, unlink_quietly

_KEPT = 2
"""The most files that are kept; PostgreSQL recycles segments in the same way."""

InThread = Callable[[Callable[[], Any]], Awaitable[Any]]
log = structlog.get_logger("wal")


class Preallocation:
    """The next segment's file, of `size` bytes, and kept files for later segments. Loop."""

    def __init__(self, disk: Disk, directory: Path, size: int, in_thread: InThread) -> None:
        self._disk = disk
        self._directory = directory
        self._size = size
        self._in_thread = in_thread
        self._ready: PreallocatedFile | None = None
        self._kept: list[tuple[Path, int]] = []
        """Files of removed segments, by their temporary names and sizes."""
        self._closed = False
        self._in_vain = False
        """Whether a kept file could not be reused: it could not be zeroed, or backups are hard
        links.
        """
        # Set while the next file must not be zeroed further.
        self._hurry = threading.Event()
        self._asked = trio.Event()
        self._asked_for = 0
        self._zeroed = True
        self.lock = trio.Lock()
        """Held by a rotation to its end: until the number advances, a second file would have the
        same name.
        """

    @property
    def reserved_bytes(self) -> int:
        """Room that the disk has already given. Any thread."""
        ready = self._ready
        return sum(size for _, size in self._kept) + (0 if ready is None else ready.size)

    def keep(self, nbytes: int, path: Path) -> bool:
        """Take over the file of a removed segment; return whether it is kept. Any thread.

        Small files are not kept.
        """
        if self._closed or self._in_vain or len(self._kept) >= _KEPT:
            return False
        if not self._size // 2 <= nbytes <= self._size:
            return False
        self._kept.append((path, nbytes))
        return True

    def want(self, open_number: int, *, zeroed: bool) -> None:
        """Ask for a file, once per open segment; on a full disk the rotation itself retries.

        Args:
            zeroed: write zeros while no rotation waits.
        """
        if self._asked_for != open_number:
            self._asked_for = open_number
            self._zeroed = zeroed
            self._asked.set()

    async def keep_ready(self, next_number: Callable[[], int | None]) -> None:
        """Make the next segment's file when it is asked for; never returns."""
        while True:
            await self._asked.wait()
            self._asked = trio.Event()
            async with self.lock:
                number = next_number()
                if self._ready is None and number is not None and not self._closed:
                    if self._zeroed:
                        self._hurry.clear()
                    else:
                        self._hurry.set()
                    try:
                        self._ready = await self._prepare(number)
                    except OSError as exc:
                        log.warning("segment not preallocated", error=str(exc), runbook="disk-full")

    def hurry(self) -> None:
        """Finish the file without its zeros: a rotation waits for the lock."""
        self._hurry.set()

    async def require(self, number: int) -> None:
        """Make the file if there is none; OSError. Under the lock."""
        if self._ready is None:
            self._ready = await self._prepare(number)

    def take(self) -> PreallocatedFile:
        """Hand over the file that `require` made. Under the lock."""
        file, self._ready = self._ready, None
        assert file is not None
        return file

    async def close(self) -> None:
        """Discard the files."""
        self.hurry()
        self._closed = True
        async with self.lock:
            if self._ready is not None:
                await self._in_thread(partial(discard, self._disk, self.take()))
            while self._kept:
                await self._in_thread(partial(unlink_quietly, self._disk, self._kept.pop()[0]))

    async def _prepare(self, number: int) -> PreallocatedFile:
        def make() -> PreallocatedFile:
            # Taken inside the thread: a call that is cancelled before it begins takes none.
            old = self._kept.pop()[0] if self._kept else None
            path = self._directory / f"{segment_name(number)}.tmp"
            file = prepare(self._disk, path, self._size, self._hurry, old)
            self._in_vain = self._in_vain or (old is not None and not file.reused)
            return file

        file = await self._in_thread(make)
        assert isinstance(file, PreallocatedFile)
        return file
