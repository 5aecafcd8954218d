"""A feed that can be left while it waits: each question is asked in a thread of its own.

Law of this file: whoever asks waits for the answer or for the follower's end, whichever comes
first. A question that nobody waits for any more ends by itself, within its own ``wait_s``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from ingester.followers.feed import Feed, LiveAnswer
from ingester.followers.guard import Closed
from ingester.followers.state import Position


class Closing:
    """Says that a follower is to end, and wakes those who wait. Any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._closed = False

    def __call__(self) -> bool:
        """Whether the follower is to end."""
        return self._closed

    def close(self) -> None:
        """Have it end."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def wait(self, seconds: float) -> None:
        """Wait so long. Raises :class:`Closed` at once where the follower is to end."""
        with self._changed:
            if self._changed.wait_for(lambda: self._closed, seconds):
                raise Closed

    def wake(self) -> None:
        """Have those look again who wait in :meth:`wait_for`."""
        with self._changed:
            self._changed.notify_all()

    def wait_for(self, holds: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Wait until something holds, which is looked at after each :meth:`wake`."""
        with self._changed:
            return self._changed.wait_for(holds, timeout_s)


class _Question:
    """One question, asked in a thread."""

    def __init__(self) -> None:
        self.done = False
        self.answer: LiveAnswer | None = None
        self.error: BaseException | None = None


class LeavableFeed:
    """Asks another feed. One question at a time."""

    def __init__(self, feed: Feed, closing: Closing) -> None:
        self._feed = feed
        self._closing = closing

    def ask(self, after: Position | None, version: int | None, wait_s: float) -> LiveAnswer:
        """See :class:`ingester.followers.feed.Feed`. Raises :class:`Closed`, too."""
        question = _Question()

        def ask() -> None:
            try:
                question.answer = self._feed.ask(after, version, wait_s)
            except BaseException as exc:
                question.error = exc
            question.done = True
            self._closing.wake()

        threading.Thread(target=ask, name="follower-feed", daemon=True).start()
        self._closing.wait_for(lambda: self._closing() or question.done)
        if not question.done:
            raise Closed
        if question.error is not None:
            raise question.error
        assert question.answer is not None
        return question.answer
