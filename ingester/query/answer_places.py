"""Places of answers: so many queries at a time, and so many calls of followers beside them.

Law of this file: a place that is taken is left once, in whatever thread; a stop waits until all are
left. Followers take none of the queries' places: any number of them may be woken at once.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import trio

from ingester.errors import Stopping, TooManyStreams

Kind = Literal["query", "live"]


@dataclass(frozen=True, slots=True)
class _Limit:
    most: int
    says: str


class AnswerPlaces:
    """Counts answers under way. Any thread, but for `wait_idle`."""

    def __init__(self, max_streams: int, max_followers: int) -> None:
        self.stopping = False
        """Whether no place is given any more, and those that are taken are waited for."""
        self.waiting = 0
        """The calls of followers that wait, and have no answer yet."""
        self._limits: dict[Kind, _Limit] = {
            "query": _Limit(max_streams, "answers are under way, as many as query.max_streams"),
            "live": _Limit(
                max_followers, "calls of followers are under way, as many as query.max_followers"
            ),
        }
        # Counted, not asked of the answers: admission looks at it for every batch.
        self._taken: dict[Kind, int] = {"query": 0, "live": 0}
        self._on_idle: Callable[[], None] | None = None
        # Reentrant: a collection inside it may free a stream, which takes it again.
        self._lock = threading.RLock()

    @property
    def taken(self) -> int:
        """The number of all answers under way."""
        return self._taken["query"] + self._taken["live"]

    @property
    def followers(self) -> int:
        """The number of calls of followers, waiting and answered."""
        return self._taken["live"] + self.waiting

    def check(self, kind: Kind) -> None:
        """See that there is a place, beside those who wait.

        Raises:
            Stopping, TooManyStreams
        """
        with self._lock:
            self._check(kind, self.waiting if kind == "live" else 0)

    def take(self, kind: Kind) -> None:
        """Take a place, until :meth:`leave`.

        Raises:
            Stopping, TooManyStreams
        """
        with self._lock:
            self._check(kind, 0)
            self._taken[kind] += 1

    def leave(self, kind: Kind) -> None:
        """Give a place back."""
        with self._lock:
            self._taken[kind] -= 1
            tell = None if self.taken else self._on_idle
        if tell is not None:
            # Whoever waited may have given up, and the loop be gone.
            with contextlib.suppress(trio.RunFinishedError):
                tell()

    async def wait_idle(self) -> None:
        """Give no more places, and return when none is taken."""
        idle, token = trio.Event(), trio.lowlevel.current_trio_token()
        with self._lock:
            self.stopping = True
            if not self.taken:
                return
            # The last one may end in any thread, even inside a collection.
            self._on_idle = partial(token.run_sync_soon, idle.set)
        try:
            await idle.wait()
        finally:
            self._on_idle = None

    def _check(self, kind: Kind, beside: int) -> None:
        if self.stopping:
            raise Stopping("the daemon is stopping", retry_after_s=1.0)
        limit = self._limits[kind]
        if self._taken[kind] + beside >= limit.most:
            raise TooManyStreams(f"{limit.most} {limit.says}", retry_after_s=1.0)
