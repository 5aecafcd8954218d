"""The batches of a stream that are not answered yet are counted, and bounded.

Law of this file: one thread sends, one answers; each counts for itself, so that neither needs a
lock until the one has to wait for the other.
"""

from __future__ import annotations

import threading
from collections import deque

UNANSWERED_BYTES = 64 << 20


class Unanswered:
    """Counts the batches of a stream that are not answered, and their bytes.

    Args:
        most: ``flight.max_unanswered``.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._sizes: deque[int] = deque()
        self._sent = self._sent_bytes = 0
        self._answered = self._answered_bytes = 0
        self._changed = threading.Condition()
        self._awaited = False
        self.over = False
        """Whether nobody answers any more."""

    def __bool__(self) -> bool:
        return self._sent > self._answered

    def sent(self, nbytes: int) -> None:
        """Count a batch that is on its way."""
        self._sizes.append(nbytes)
        self._sent_bytes += nbytes
        self._sent += 1

    def answered(self) -> None:
        """Count the oldest batch no more: it is answered."""
        self._answered_bytes += self._sizes.popleft()
        self._answered += 1
        # Set before the other looks for the last time: either it sees this, or it is woken.
        if self._awaited:
            with self._changed:
                self._changed.notify()

    def end(self) -> None:
        """Let nobody wait any more: nothing will be answered from now on."""
        with self._changed:
            self.over = True
            self._changed.notify_all()

    def wait_for_room(self) -> bool:
        """Return when another batch may be sent; False when none may any more."""
        if not self._has_room():
            with self._changed:
                self._awaited = True
                self._changed.wait_for(self._has_room)
                self._awaited = False
        return not self.over

    def _has_room(self) -> bool:
        return self.over or (
            self._sent - self._answered < self._most
            and self._sent_bytes - self._answered_bytes < UNANSWERED_BYTES
        )
