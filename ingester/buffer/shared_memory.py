"""Memory that rows of several buffers share: each has a slice of one message.

A slice keeps all of the message alive, also when the rows of others have left. Merging small chunks
copies their slices. Of messages that are used for less than three quarters, all slices are copied
once some MiB of others have come after them: so little more memory is kept than is counted, and
rows that leave together are never copied for it (tests/buffer/test_shared_memory). Event loop only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

WAITING_BYTES = 16 << 20
"""Memory that may be used for less than three quarters for a while: most is merged by then."""
WAITING_MESSAGE_BYTES = 4 << 10
"""What a message counts for beside its rows."""


class SharedMemory:
    """The memory of one message.

    Args:
        on_waste: called when less than three quarters of it are used.
    """

    __slots__ = ("_on_waste", "nbytes", "slices", "used_bytes", "waits")

    def __init__(self, on_waste: Callable[[SharedMemory], None]) -> None:
        self._on_waste = on_waste
        self.nbytes = self.used_bytes = 0
        self.slices: list[Callable[[], None]] = []
        """Functions that copy the slices which are still used."""
        self.waits = True
        """Whether it is among those whose use is looked at later."""

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
        """Whether it keeps much more alive than is used."""
        return 0 < 4 * self.used_bytes < 3 * self.nbytes


class SharedMemories:
    """All of them that were made, or wasted, lately."""

    def __init__(self) -> None:
        self._waiting: deque[SharedMemory] = deque()
        self._bytes = 0

    def new(self) -> SharedMemory:
        """Return memory whose slices are to be added, and :meth:`look_later` to be called."""
        return SharedMemory(self.look_later)

    def look_later(self, memory: SharedMemory) -> None:
        """Copy the slices of this memory if it is wasted when some MiB of others have come."""
        memory.waits = True
        self._waiting.append(memory)
        self._bytes += memory.nbytes + WAITING_MESSAGE_BYTES

    def look(self) -> None:
        """Look at the oldest ones."""
        while self._bytes > WAITING_BYTES:
            memory = self._waiting.popleft()
            self._bytes -= memory.nbytes + WAITING_MESSAGE_BYTES
            if memory.is_wasted:
                for copy in memory.slices:
                    copy()
            memory.waits = False
