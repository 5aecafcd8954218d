"""One answer, pulled by the client's flow control, and the limits on concurrent answers.

The gRPC server drops the stream when it ends, finished or not; that frees it and closes its
snapshot. The event loop only expires it: if the client does not return in time, the snapshot is
released and the next pull raises `timeout` (tests/query/test_open_streams.py).

Queries, followers' calls and the bytes of filters are limited. Followers' calls do not use the
queries' places, so any number of them can wake at once. The last places are reserved for namespaces
below their share (:mod:`ingester.quotas.fair_shares`). A stop waits until every place is free.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol

import trio

from ingester.errors import Stopping, TooManyStreams, TooSlow
from ingester.query.fair_scheduler import CpuAccount, FairScheduler
from ingester.query.read_context import AnswerPart, Selection
from ingester.query.snapshot import Snapshot
from ingester.quotas.fair_shares import bound
from ingester.quotas.namespaces import Namespaces

FEW_BYTES = 64 << 10
"""Filters up to this size are always admitted: an answer needs more than that anyway."""


class FilterRoom:
    """Counts the bytes of filters. Thread-safe.

    Args:
        most: bytes allowed for each namespace.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken: dict[str, int] = {}
        # Reentrant: garbage collection inside it may free a stream, which calls `leave`.
        self._lock = threading.RLock()

    @property
    def nbytes(self) -> int:
        with self._lock:
            return sum(self._taken.values())

    def take(self, namespace: str, nbytes: int) -> None:
        """Count a filter, until :meth:`leave`.

        Raises:
            TooManyStreams: the namespace's filters under way leave no room for this one.
        """
        with self._lock:
            taken = self._taken.get(namespace, 0)
            if taken and nbytes > FEW_BYTES and taken + nbytes > self._most:
                raise TooManyStreams(
                    f"filters of namespace {namespace} under way have {taken} B, this one"
                    f" {nbytes} B; at most {self._most} B are taken, eight times"
                    " query.max_filter_bytes: ask with fewer values, or fewer queries at a time",
                    retry_after_s=1.0,
                )
            if nbytes:
                self._taken[namespace] = taken + nbytes

    def leave(self, namespace: str, nbytes: int) -> None:
        """Stop counting the filter of an answer that has ended."""
        if not nbytes:
            return
        with self._lock:
            self._taken[namespace] -= nbytes
            if not self._taken[namespace]:
                del self._taken[namespace]


Kind = Literal["query", "live"]


@dataclass(frozen=True, slots=True)
class _Limit:
    most: int
    what: str
    setting: str


class AnswerPlaces:
    """Counts open answers. Thread-safe, except `wait_idle`."""

    def __init__(
        self, max_streams: int, max_followers: int, namespaces: Namespaces | None = None
    ) -> None:
        self.stopping = False
        """Whether no more places are given, and the taken ones are awaited."""
        self.waiting = 0
        """Followers' calls that wait and have no answer yet."""
        self._namespaces = Namespaces() if namespaces is None else namespaces
        self._limits: dict[Kind, _Limit] = {
            "query": _Limit(max_streams, "answers", "query.max_streams"),
            "live": _Limit(max_followers, "calls of followers", "query.max_followers"),
        }
        # Counted here instead of on request, because admission reads it for every batch.
        self._taken: dict[Kind, int] = {"query": 0, "live": 0}
        # Only namespaces that hold any.
        self._own: dict[Kind, Counter[str]] = {"query": Counter(), "live": Counter()}
        self._own_waiting: Counter[str] = Counter()
        self._on_idle: Callable[[], None] | None = None
        # Reentrant: garbage collection inside it may free a stream, which calls `leave`.
        self._lock = threading.RLock()

    @property
    def taken(self) -> int:
        """Number of open answers."""
        return self._taken["query"] + self._taken["live"]

    @property
    def followers(self) -> int:
        """Number of followers' calls, waiting and answered."""
        return self._taken["live"] + self.waiting

    def of(self, namespace: str) -> int:
        """Return the number of a namespace's answers and waiting calls."""
        own = self._own
        return own["query"][namespace] + own["live"][namespace] + self._own_waiting[namespace]

    def check(self, kind: Kind, namespace: str) -> None:
        """Check that a place is free for a namespace, besides the waiting calls.

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
        """Count a waiting call of a follower, until :meth:`wait_no_more`."""
        with self._lock:
            self.waiting += 1
            self._own_waiting[namespace] += 1

    def wait_no_more(self, namespace: str) -> None:
        """Stop counting a waiting call."""
        with self._lock:
            self.waiting -= 1
            _drop_one(self._own_waiting, namespace)

    def leave(self, kind: Kind, namespace: str) -> None:
        """Free a place."""
        with self._lock:
            self._taken[kind] -= 1
            _drop_one(self._own[kind], namespace)
            tell = None if self.taken else self._on_idle
        if tell is not None:
            # The waiting task may have been cancelled and the loop may have ended.
            with contextlib.suppress(trio.RunFinishedError):
                tell()

    async def wait_idle(self) -> None:
        """Give no more places; return when none is taken."""
        idle, token = trio.Event(), trio.lowlevel.current_trio_token()
        with self._lock:
            self.stopping = True
            if not self.taken:
                return
            # The last answer may end in any thread, even inside garbage collection.
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


class Reader(Protocol):
    """Reads a selection of a snapshot. Must not refer to its stream, which is freed by reference
    count.
    """

    @property
    def selection(self) -> Selection: ...
    @property
    def snapshot(self) -> Snapshot: ...
    @property
    def scheduler(self) -> FairScheduler: ...
    @property
    def account(self) -> CpuAccount: ...
    def parts(self) -> Generator[AnswerPart, None, None]:
        """Yield all parts with at least one row."""

    def let_go(self) -> None:
        """Release the last part."""


class AnswerStream:
    """An iterator of parts that closes its snapshot at the end, on error and when dropped."""

    def __init__(
        self,
        table: tuple[str, str],
        reader: Reader,
        kind: Kind = "query",
        *,
        on_close: Callable[[AnswerStream], None],
    ) -> None:
        self.table = table
        self.kind = kind
        self.selection: Selection = reader.selection
        self.snapshot = reader.snapshot
        self.rows = 0
        self.nbytes = 0
        self.sending_since: float | None = time.monotonic()
        """When the last part was handed over; None while the next one is prepared."""
        self.expired = False
        self._on_close = on_close
        self._scheduler = reader.scheduler
        self._account = reader.account
        self._lock = threading.Lock()
        self._closed = False
        self._reader = reader
        self._parts = reader.parts()

    def __iter__(self) -> AnswerStream:
        return self

    def __next__(self) -> AnswerPart:
        with self._lock:
            if self.expired:
                raise TooSlow(
                    "the client made no progress for query.client_timeout, so the snapshot was"
                    " released",
                    details={"rows_sent": self.rows},
                )
            self.sending_since = None
        try:
            self._account.check()
            self._scheduler.take(self._account)
            try:
                part = next(self._parts)
            finally:
                self._scheduler.give()
        except BaseException:
            self.close()
            raise
        self.rows += part.batch.num_rows
        self.nbytes += part.nbytes
        with self._lock:
            self.sending_since = time.monotonic()
        return part

    def __del__(self) -> None:
        self.close()

    def expire(self, before: float) -> bool:
        """Release the snapshot if the client has not moved since ``before``. Thread-safe."""
        with self._lock:
            if self._closed or self.expired or self.sending_since is None:
                return False
            if self.sending_since > before:
                return False
            self.expired = True
        # No thread is inside: a part is with the client, and the next pull stops at the check
        # above.
        self._parts.close()
        self.snapshot.close()
        return True

    def close(self) -> None:
        """Release everything. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._reader.let_go()
        self.snapshot.close()
        self._on_close(self)
