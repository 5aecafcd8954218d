"""Places of answers: so many queries at a time, and so many calls of followers beside them.

Law of this file: a place that is taken is left once, in whatever thread; a stop waits until all are
left. Followers take none of the queries' places: any number of them may be woken at once. The last
places are kept for namespaces with less than their share (:mod:`ingester.quotas.fair_shares`).
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import trio

from ingester.errors import Stopping, TooManyStreams
from ingester.quotas.fair_shares import bound
from ingester.quotas.namespaces import Namespaces

Kind = Literal["query", "live"]


@dataclass(frozen=True, slots=True)
class _Limit:
    most: int
    what: str
    setting: str


class AnswerPlaces:
    """Counts answers under way. Any thread, but for `wait_idle`."""

    def __init__(
        self, max_streams: int, max_followers: int, namespaces: Namespaces | None = None
    ) -> None:
        self.stopping = False
        """Whether no place is given any more, and those that are taken are waited for."""
        self.waiting = 0
        """The calls of followers that wait, and have no answer yet."""
        self._namespaces = Namespaces() if namespaces is None else namespaces
        self._limits: dict[Kind, _Limit] = {
            "query": _Limit(max_streams, "answers", "query.max_streams"),
            "live": _Limit(max_followers, "calls of followers", "query.max_followers"),
        }
        # Counted, not asked of the answers: admission looks at it for every batch.
        self._taken: dict[Kind, int] = {"query": 0, "live": 0}
        # Of namespaces that have any.
        self._own: dict[Kind, Counter[str]] = {"query": Counter(), "live": Counter()}
        self._own_waiting: Counter[str] = Counter()
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

    def of(self, namespace: str) -> int:
        """Return the number of a namespace's answers and waiting calls."""
        own = self._own
        return own["query"][namespace] + own["live"][namespace] + self._own_waiting[namespace]

    def check(self, kind: Kind, namespace: str) -> None:
        """See that there is a place for a namespace, beside those who wait.

        Raises:
            Stopping, TooManyStreams, OverQuota
        """
        with self._lock:
            self._check(kind, namespace, kind == "live")

    def take(self, kind: Kind, namespace: str) -> None:
        """Take a place, until :meth:`leave`.

        Raises:
            Stopping, TooManyStreams, OverQuota
        """
        with self._lock:
            self._check(kind, namespace, False)
            self._taken[kind] += 1
            self._own[kind][namespace] += 1

    def wait(self, namespace: str) -> None:
        """Count a call of a follower that waits, until :meth:`wait_no_more`."""
        with self._lock:
            self.waiting += 1
            self._own_waiting[namespace] += 1

    def wait_no_more(self, namespace: str) -> None:
        """Stop counting a call that waits."""
        with self._lock:
            self.waiting -= 1
            _drop_one(self._own_waiting, namespace)

    def leave(self, kind: Kind, namespace: str) -> None:
        """Give a place back."""
        with self._lock:
            self._taken[kind] -= 1
            _drop_one(self._own[kind], namespace)
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

    def _check(self, kind: Kind, namespace: str, with_waiting: bool) -> None:
        if self.stopping:
            raise Stopping("the daemon is stopping", retry_after_s=1.0)
        waiting = self._own_waiting if with_waiting else Counter[str]()
        own = self._own[kind][namespace] + waiting[namespace]
        use = self._namespaces.of(namespace)
        self._namespaces.check_streams(use, own)
        limit, taken = self._limits[kind], self._taken[kind] + waiting.total()
        if taken < bound(limit.most, limit.most, 1):
            return
        sharers = len({*self._own[kind], *waiting, namespace})
        most = bound(limit.most, own + 1 if own else 0, sharers)
        if taken < most:
            return
        said = f"{taken} {limit.what} are under way, as many as {limit.setting}"
        if most < limit.most:
            said = (
                f"{taken} {limit.what} are under way, {own} of them namespace {namespace!r}'s, and"
                f" the rest of {limit.setting} ({limit.most}) is for those with less than a share"
            )
        raise self._namespaces.refused(
            use, "share_of_streams", TooManyStreams(said, retry_after_s=1.0)
        )


def _drop_one(counts: Counter[str], namespace: str) -> None:
    counts[namespace] -= 1
    if not counts[namespace]:
        del counts[namespace]
