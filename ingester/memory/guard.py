"""Resident memory is looked at, as the ledger cannot know of everything that takes some.

    resident ≤ high + allowance   nothing is done
    above that                    who has sent much that makes no batch yet is cut, and the heap is
                                  trimmed; garbage is collected where that is not enough for long;
                                  what is resident then and stands nowhere else counts as
                                  ``unaccounted``: writes are refused, buffers go

What the interpreter and the libraries take themselves, and what arrives, is the allowance: what was
resident when the daemon was ready, and ``SLACK_BYTES``.

Law of this file: it acts on what the system says is resident, and only near the bound; below that
it changes nothing, and costs one short read every ``LOOK_S``.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import structlog
import trio

from ingester.memory.heap_trim import give_back
from ingester.memory.ledger import MemoryLedger

log = structlog.get_logger(__name__)

SLACK_BYTES = 256 << 20
"""Messages that arrive, free memory that is not given back yet, stacks of threads, connections."""
LOOK_S = 0.05
BETWEEN_TRIMS_S = 0.25
"""A trim takes a tenth of a second, and clients bring half a gigabyte in a second."""
COLLECT_AFTER_S = 10.0
"""The time without room after which garbage is collected. No other Python runs in that, for up to a
second on a busy machine, while more arrives: it cost lives where it came at once."""
BETWEEN_LINES_S = 60.0
KIND = "unaccounted"

_STATM = Path("/proc/self/statm")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    """Return the bytes of this process that are in RAM; 0 where the system does not tell."""
    try:
        return int(_STATM.read_bytes().split()[1]) * _PAGE_BYTES
    except OSError:
        return 0


def _collect_and_trim() -> None:
    # What is in cycles waits for a collection, which counts objects and knows nothing of bytes.
    gc.collect()
    give_back()


async def _trim_in_thread() -> None:
    await trio.to_thread.run_sync(give_back)


async def _collect_in_thread() -> None:
    await trio.to_thread.run_sync(_collect_and_trim)


class MemoryGuard:
    """Looks at resident memory. Loop only.

    Args:
        ledger: gets the kind ``unaccounted``.
        relieve: ends those who hold most that is not counted; says whether there was somebody.
        resident: the bytes in RAM now.
        trim: gives free memory back to the system.
        collect: likewise, after garbage in cycles is collected.
    """

    def __init__(
        self,
        ledger: MemoryLedger,
        relieve: Callable[[], bool],
        resident: Callable[[], int] = resident_bytes,
        trim: Callable[[], Awaitable[None]] = _trim_in_thread,
        collect: Callable[[], Awaitable[None]] = _collect_in_thread,
    ) -> None:
        self._ledger = ledger
        self._relieve = relieve
        self._resident = resident
        self._trim = trim
        self._collect = collect
        self._unaccounted = 0
        self._trimmed_at = self._told_at = -BETWEEN_LINES_S
        self._over_since: float | None = None
        self.allowance = SLACK_BYTES
        ledger.gauge(KIND, lambda: self._unaccounted)

    async def run(self) -> None:
        """Look from now on, until cancelled; what is resident now is the daemon's own."""
        self.allowance = self._resident() + SLACK_BYTES
        while True:
            await trio.sleep(LOOK_S)
            await self.look()

    async def look(self) -> None:
        """Look once, and do what is due."""
        if not self._is_over():
            self._unaccounted, self._over_since = 0, None
            return
        self._relieve()
        now = trio.current_time()
        if self._over_since is None:
            self._over_since = now
        if now - self._over_since >= COLLECT_AFTER_S:
            await self._relieved_meanwhile(self._collect)
            self._over_since = None
        elif now - self._trimmed_at >= BETWEEN_TRIMS_S:
            await self._relieved_meanwhile(self._trim)
            self._trimmed_at = trio.current_time()
            if not self._is_over():
                self._over_since = None
        resident, counted = self._resident(), self._ledger.used - self._unaccounted
        self._unaccounted = max(0, resident - self.allowance - counted)
        self._tell(resident)

    def _is_over(self) -> bool:
        return self._resident() > self._ledger.watermarks.high + self.allowance

    async def _relieved_meanwhile(self, work: Callable[[], Awaitable[None]]) -> None:
        """Relieve while something takes its time: much may arrive in that."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._relieve_on)
            await work()
            nursery.cancel_scope.cancel()

    async def _relieve_on(self) -> None:
        while True:
            await trio.sleep(LOOK_S)
            if self._is_over():
                self._relieve()

    def _tell(self, resident: int) -> None:
        if self._unaccounted and time.monotonic() - self._told_at >= BETWEEN_LINES_S:
            self._told_at = time.monotonic()
            log.warning(
                "more memory is resident than is known of",
                resident_bytes=resident,
                unaccounted_bytes=self._unaccounted,
                allowance_bytes=self.allowance,
                runbook="unaccounted-memory",
            )
