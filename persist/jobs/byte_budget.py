"""A number of bytes that jobs share: who finds too little left waits for the others.

Law of this file: nobody waits for ever. A job larger than the whole budget runs when nothing else
does. Waiters go in the order of their coming.

Imports trio: not for Spark executors.
"""

from __future__ import annotations

import trio


class ByteBudget:
    """A number of bytes that jobs share. Loop only."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._spent = 0
        self._turn = trio.Lock()
        self._returned = trio.Event()

    async def spend(self, nbytes: int) -> None:
        """Wait for that many bytes, and hold them until they are given back."""
        async with self._turn:
            while self._spent and self._spent + nbytes > self._limit_bytes:
                await self._returned.wait()
            self._spent += nbytes

    def give_back(self, nbytes: int) -> None:
        """Free the bytes that were spent."""
        self._spent -= nbytes
        self._returned.set()
        self._returned = trio.Event()
