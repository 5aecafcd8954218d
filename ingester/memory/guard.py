"""Resident memory is looked at, as the ledger cannot know of everything that takes some.

    resident ≤ high + allowance   nothing is done
    above that                    who has sent much that makes no batch yet is cut; garbage is
                                  collected and the heap trimmed; what is resident then and stands
                                  nowhere else counts as ``unaccounted``: writes are refused,
                                  buffers go

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

SLACK_BYTES = 384 << 20
"""Messages that arrive, free memory that is not given back yet, stacks of threads, connections."""
LOOK_S = 0.05
BETWEEN_TRIMS_S = 1.0
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
    await trio.to_thread.run_sync(_collect_and_trim)


class MemoryGuard:
    """Looks at resident memory. Loop only.

    Args:
        ledger: gets the kind ``unaccounted``.
        relieve: ends those who hold most that is not counted; says whether there was somebody.
        resident: the bytes in RAM now.
        trim: gives free memory back to the system.
    """

    def __init__(
        self,
        ledger: MemoryLedger,
        relieve: Callable[[], bool],
        resident: Callable[[], int] = resident_bytes,
        trim: Callable[[], Awaitable[None]] = _trim_in_thread,
    ) -> None:
        self._ledger = ledger
        self._relieve = relieve
        self._resident = resident
        self._trim = trim
        self._unaccounted = 0
        self._trimmed_at = self._told_at = -BETWEEN_LINES_S
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
        marks, resident = self._ledger.watermarks, self._resident()
        if resident <= marks.high + self.allowance:
            self._unaccounted = 0
            return
        self._relieve()
        if trio.current_time() - self._trimmed_at >= BETWEEN_TRIMS_S:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._relieve_meanwhile)
                await self._trim()
                nursery.cancel_scope.cancel()
            self._trimmed_at, resident = trio.current_time(), self._resident()
        counted = self._ledger.used - self._unaccounted
        self._unaccounted = max(0, resident - self.allowance - counted)
        self._tell(resident)

    async def _relieve_meanwhile(self) -> None:
        """Go on while a trim takes its time: much may arrive in that."""
        while True:
            await trio.sleep(LOOK_S)
            if self._resident() > self._ledger.watermarks.high + self.allowance:
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
