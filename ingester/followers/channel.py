"""A bounded way between two threads, which either of them can end at any moment."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Channel(Generic[T]):
    """At most ``room`` items wait. One thread puts, one takes; any may close it."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._items: deque[T] = deque()
        self._changed = threading.Condition()
        self._ended = self._closed = False
        self._error: BaseException | None = None

    def put(self, item: T) -> bool:
        """Put an item, once there is room; False where nobody takes it any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._items) < self._room)
            if not self._closed:
                self._items.append(item)
                self._changed.notify_all()
            return not self._closed

    def end(self, error: BaseException | None = None) -> None:
        """Nothing more is put; what the taker finds behind the last item is ``error``."""
        with self._changed:
            self._ended, self._error = True, error
            self._changed.notify_all()

    def close(self) -> None:
        """Nothing more is taken: whoever puts is told."""
        with self._changed:
            self._closed = True
            self._items.clear()
            self._changed.notify_all()

    def __iter__(self) -> Iterator[T]:
        """The items, until the end or until it is closed; then the error is raised, if any."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._items or self._ended or self._closed)
                if not self._items:
                    break
                item = self._items.popleft()
                self._changed.notify_all()
            yield item
        if self._error is not None and not self._closed:
            raise self._error
