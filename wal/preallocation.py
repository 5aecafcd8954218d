"""Law: the next segment's file is ready before it is needed, and nobody waits for its zeros.

::

    asked for ─▶ reserved ─▶ zeroed ─▶ synced ─▶ ready ─▶ taken by a rotation
                    ▲          │  ▲
         or kept from an old   │  not where segments fill in no time: only competes then
                     segment  a rotation waits

A few files of segments that are needed no longer are kept under load: to give their blocks back,
and to have others, costs the disk more than all other bookkeeping, and where the file system passes
them on to its device (`discard`) holds up a write for a tenth of a second now and then.
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
"""The most files that are kept, as PostgreSQL recycles segments."""

InThread = Callable[[Callable[[], Any]], Awaitable[Any]]
log = structlog.get_logger("wal")


class Preallocation:
    """The next segment's file, of `size` bytes, and files that are kept for later ones. Loop."""

    def __init__(self, disk: Disk, directory: Path, size: int, in_thread: InThread) -> None:
        self._disk = disk
        self._directory = directory
        self._size = size
        self._in_thread = in_thread
        self._ready: PreallocatedFile | None = None
        self._kept: list[tuple[Path, int]] = []
        """Files of removed segments, under their temporary names, and how large they are."""
        self._closed = False
        self._in_vain = False
        """Whether a kept file was of no use: it could not be zeroed, or backups are hard links."""
        # Set while the next file is not to be zeroed any further.
        self._hurry = threading.Event()
        self._asked = trio.Event()
        self._asked_for = 0
        self._zeroed = True
        self.lock = trio.Lock()
        """Held by a rotation to its end: until the number moves on, a second file would be the
        same one."""

    @property
    def reserved_bytes(self) -> int:
        """Room that the disk has given already. Any thread."""
        ready = self._ready
        return sum(size for _, size in self._kept) + (0 if ready is None else ready.size)

    def keep(self, nbytes: int, path: Path) -> bool:
        """Take over the file of a removed segment; return whether it is kept. Any thread.

        Small files are not worth it.
        """
        if self._closed or self._in_vain or len(self._kept) >= _KEPT:
            return False
        if not self._size // 2 <= nbytes <= self._size:
            return False
        self._kept.append((path, nbytes))
        return True

    def want(self, open_number: int, *, zeroed: bool) -> None:
        """Ask for a file, once per open segment: on a full disk the rotation itself tries again.

        Args:
            zeroed: as far as nobody waits for it.
        """
        if self._asked_for != open_number:
            self._asked_for = open_number
            self._zeroed = zeroed
            self._asked.set()

    async def keep_ready(self, next_number: Callable[[], int | None]) -> None:
        """Make the file of the next segment when it is asked for. Runs for ever."""
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
        """Have the file soon, without its zeros: somebody waits for the lock."""
        self._hurry.set()

    async def require(self, number: int) -> None:
        """Make the file where there is none; OSError. Under the lock."""
        if self._ready is None:
            self._ready = await self._prepare(number)

    def take(self) -> PreallocatedFile:
        """Hand over the file that `require` has seen to. Under the lock."""
        file, self._ready = self._ready, None
        assert file is not None
        return file

    async def close(self) -> None:
        """Let go of the files."""
        self.hurry()
        self._closed = True
        async with self.lock:
            if self._ready is not None:
                await self._in_thread(partial(discard, self._disk, self.take()))
            while self._kept:
                await self._in_thread(partial(unlink_quietly, self._disk, self._kept.pop()[0]))

    async def _prepare(self, number: int) -> PreallocatedFile:
        def make() -> PreallocatedFile:
            # In here: a call that is cancelled before it begins has taken none.
            old = self._kept.pop()[0] if self._kept else None
            path = self._directory / f"{segment_name(number)}.tmp"
            file = prepare(self._disk, path, self._size, self._hurry, old)
            self._in_vain = self._in_vain or (old is not None and not file.reused)
            return file

        file = await self._in_thread(make)
        assert isinstance(file, PreallocatedFile)
        return file
