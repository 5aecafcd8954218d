"""Free memory goes back to the system: what gRPC received lies in the C library's heap.

Law of this file: only after much was let go, and then not again while more of it is let go all the
time: to give pages back and to fault them in anew costs time, whereas what an operator sees as
resident should be what is held.
"""

from __future__ import annotations

import ctypes
from collections.abc import Awaitable, Callable

import trio

TRIM_BYTES = 32 << 20
PAUSE_S = 0.1
QUIET_S = 2.0
"""The time without anything let go after which the rest is given back."""
BETWEEN_S = 10.0
"""The time between two trims: under a steady load what was let go is taken again at once."""

# Only in glibc. Others give memory back by themselves.
_TRIM: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)


def give_back() -> None:
    """Give all that is free in the heap back to the system, now. Blocks; any thread."""
    if _TRIM is not None:
        _TRIM(0)


async def _trim_in_thread() -> None:
    await trio.to_thread.run_sync(give_back)


class HeapTrim:
    """Trims the heap when buffers were let go. Loop only."""

    def __init__(self, trim: Callable[[], Awaitable[None]] = _trim_in_thread) -> None:
        self._trim = trim
        self._freed = 0
        self._wake = trio.Event()

    def freed(self, nbytes: int) -> None:
        """Take note that buffers of this size were let go."""
        self._freed += nbytes
        if self._freed >= TRIM_BYTES:
            self._wake.set()

    async def run(self) -> None:
        """Trim when it is worth it, until cancelled."""
        while True:
            await self._wake.wait()
            # What was let go is freed when the last reader is through with it.
            await trio.sleep(PAUSE_S)
            self._wake = trio.Event()
            self._freed = 0
            await self._trim()
            with trio.move_on_after(BETWEEN_S):
                await self._quiet()

    async def _quiet(self) -> None:
        """Return when nothing has been let go for a while."""
        seen = -1
        while self._freed != seen:
            seen = self._freed
            await trio.sleep(QUIET_S)
