"""Memory that rows of several buffers share: each has a slice of one message.

A slice keeps the whole message alive, even after the other buffers have released their rows. Slices
of small chunks are copied when the chunks are merged. The slices of a message of which more than a
quarter is unused are copied after some MiB of later messages have arrived. The process therefore
keeps little more memory than it counts, and rows that are released together are never copied
(tests/buffer/test_shared_memory). Event loop only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

WAITING_BYTES = 16 << 20
"""Bytes of messages that are not looked at yet: by then most of their slices have been merged."""
COPIED_BYTES = 4 << 20
"""About the most bytes copied at a time: a released buffer may leave thousands of messages."""
WAITING_MESSAGE_BYTES = 4 << 10
"""Bytes that a message counts for in addition to its rows."""


class SharedMemory:
    """The memory of one message.

    Args:
        on_waste: called when more than a quarter of it has become unused.
    """

    __slots__ = ("_on_waste", "nbytes", "slices", "used_bytes", "waits")

    def __init__(self, on_waste: Callable[[SharedMemory], None]) -> None:
        self._on_waste = on_waste
        self.nbytes = self.used_bytes = 0
        self.slices: list[Callable[[], None]] = []
        """Functions that copy the slices; those of released rows do nothing."""
        self.waits = True
        """Whether it will be looked at later anyway."""

    def add(self, nbytes: int, copy: Callable[[], None]) -> None:
        """Count a slice. ``copy`` copies it, and counts it by :meth:`leave`."""
        self.nbytes += nbytes
        self.used_bytes += nbytes
        self.slices.append(copy)

    def leave(self, nbytes: int) -> None:
        """Note that a slice of this size is not used any more."""
        self.used_bytes -= nbytes
        if not self.waits and self.is_wasted:
            self._on_waste(self)

    @property
    def is_wasted(self) -> bool:
        """Whether more than a quarter of it is unused, and something is used."""
        return 0 < 4 * self.used_bytes < 3 * self.nbytes


class SharedMemories:
    """Messages that arrived, or became partly unused, recently."""

    def __init__(self) -> None:
        self._waiting: deque[SharedMemory] = deque()
        self._bytes = 0

    def new(self) -> SharedMemory:
        """Return memory whose slices are to be added, and :meth:`look_later` to be called."""
        return SharedMemory(self.look_later)

    def look_later(self, memory: SharedMemory) -> None:
        """Look at this memory again when some MiB of later messages have arrived."""
        memory.waits = True
        self._waiting.append(memory)
        self._bytes += memory.nbytes + WAITING_MESSAGE_BYTES

    def look(self) -> None:
        """Copy the slices of the oldest messages that are partly unused, some MiB at a time."""
        copied = 0
        while self._bytes > WAITING_BYTES and copied < COPIED_BYTES:
            memory = self._waiting.popleft()
            self._bytes -= memory.nbytes + WAITING_MESSAGE_BYTES
            if memory.is_wasted:
                copied += memory.used_bytes
                for copy in memory.slices:
                    copy()
            memory.waits = False
