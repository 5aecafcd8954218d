"""Returns free memory of the C library's heap to the system: gRPC receives messages there.

The heap is trimmed after much was freed, and not again while more is freed all the time: returning
pages and faulting them in again costs time.
"""

from __future__ import annotations

import ctypes
from collections.abc import Awaitable, Callable

import trio

TRIM_BYTES = 32 << 20
PAUSE_S = 0.1
QUIET_S = 2.0
"""After this time without a release the rest is returned."""
BETWEEN_S = 10.0
"""The time between two trims: under a steady load freed memory is reused at once."""

# Only in glibc. Others return memory by themselves.
_TRIM: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)


def give_back() -> None:
    """Return all free memory of the heap to the system. Blocks; any thread."""
    if _TRIM is not None:
        _TRIM(0)


async def _trim_in_thread() -> None:
    await trio.to_thread.run_sync(give_back)


class HeapTrim:
    """Trims the heap after buffers were released. Loop only."""

    def __init__(self, trim: Callable[[], Awaitable[None]] = _trim_in_thread) -> None:
        self._trim = trim
        self._freed = 0
        self._wake = trio.Event()

    def freed(self, nbytes: int) -> None:
        """Note that buffers of this size were released."""
        self._freed += nbytes
        if self._freed >= TRIM_BYTES:
            self._wake.set()

    async def run(self) -> None:
        """Trim after enough was released, until cancelled."""
        while True:
            await self._wake.wait()
            # Released buffers are freed when their last reader ends.
            await trio.sleep(PAUSE_S)
            self._wake = trio.Event()
            self._freed = 0
            await self._trim()
            with trio.move_on_after(BETWEEN_S):
                await self._quiet()

    async def _quiet(self) -> None:
        """Return when nothing was released for a while."""
        seen = -1
        while self._freed != seen:
            seen = self._freed
            await trio.sleep(QUIET_S)
