"""A number of bytes, or of turns, that jobs share: who finds too little left waits for the others.

Law of this file: nobody waits for ever. A job larger than the whole budget runs when nothing else
does. Tenants that wait are served in turn (``fair_queue``), the jobs of one in the order of their
coming; whoever is next is waited for, also by smaller ones behind it.

Imports trio: not for Spark executors.
"""

from __future__ import annotations

import trio

from persist.jobs.fair_queue import FairQueue


class _Waiter:
    """A job that waits for its bytes."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.granted = trio.Event()
        self.gone = False


class ByteBudget:
    """A number of bytes that jobs share. Loop only."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._spent = 0
        self._waiting: FairQueue[_Waiter] = FairQueue()

    def raise_limit(self, limit_bytes: int) -> None:
        """Have more bytes to share from now on."""
        self._limit_bytes = max(self._limit_bytes, limit_bytes)
        self._grant()

    async def spend(self, nbytes: int, tenant: str = "") -> None:
        """Wait for that many bytes, and hold them until they are given back."""
        waiter = _Waiter(nbytes)
        self._waiting.put(tenant, waiter, max(1, nbytes))
        self._grant()
        try:
            await waiter.granted.wait()
        except BaseException:
            if waiter.granted.is_set():
                self.give_back(nbytes)
            else:
                waiter.gone = True
                self._grant()
            raise

    def give_back(self, nbytes: int) -> None:
        """Free the bytes that were spent."""
        self._spent -= nbytes
        self._grant()

    def _grant(self) -> None:
        """Serve those who wait, as far as there is room."""
        while self._waiting:
            waiter = self._waiting.first()
            if waiter.gone:
                self._waiting.take()
                continue
            if self._spent and self._spent + waiter.nbytes > self._limit_bytes:
                return
            self._waiting.take()
            self._spent += waiter.nbytes
            waiter.granted.set()
