"""Records the outcome of every request to a store, and decides whether the store is reachable.

    answered ──▶ ok                          each kind of request separately
    failed ──▶ doubted ──┬─ answered ──▶ ok
                         └─ a second failure, or no answer within DOUBT_S ──▶ unreachable
    under way for SLOW_S ──▶ doubted, until it is answered
    not found, although our own claim must exist ──▶ unreachable, until it is found

One failure is no outage, and one kind of request says nothing about another: a store may answer for
an object's size and hang on its bytes. Deletes are not judged, because no row waits for one, and a
store may forbid them. "The object does not exist" and "already exists" are answers
(tests/persist/store/test_standing.py).

A watched store promises, answers and raises the same as the store itself, and adds no request.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar

import pyarrow as pa

from persist.store.contract import (
    AlreadyExists,
    ObjectInfo,
    ObjectNotFound,
    ObjectStore,
    PutInfo,
    StoreDenied,
    StoreError,
    StoreFull,
    StoreUnavailable,
    StoreUnsuitable,
)
from persist.store.folders import folders

if TYPE_CHECKING:
    from typing_extensions import Buffer

DOUBT_S = 1.0
BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""The bounds of the histogram of request seconds."""
READS, WRITES = ("get", "open", "exists", "list"), ("put", "create", "delete")
OPERATIONS = READS + WRITES
SLOW_S = 5.0
"""A request under way for longer is doubted: it may be large, or hang."""

Kind = Literal["get", "exists", "list", "write"]
KINDS: dict[str, Kind] = {
    "get": "get",
    "open": "get",
    "exists": "exists",
    "list": "list",
    "put": "write",
    "create": "write",
}
"""The kinds of requests that are judged, each separately."""

Outcome = Literal["ok", "not_found", "exists", "away", "full", "denied", "failed"]
ANSWERS: tuple[Outcome, ...] = ("ok", "not_found", "exists")
OUTCOMES: tuple[Outcome, ...] = (*ANSWERS, "away", "full", "denied", "failed")


class StoreStatus(NamedTuple):
    """Whether a store is reachable at one moment. Times are seconds since 1970."""

    state: Literal["ok", "away", "unknown"]
    since: float | None
    last_ok_at: float | None
    last_error: str | None
    reads: bool
    writes: bool


class _KindHistory:
    """The failures of a kind of request since its last answer."""

    def __init__(self) -> None:
        self.failures = 0
        self.failing_since = 0.0
        self.last_at: float | None = None

    def note(self, answered: bool, now: float) -> None:
        if answered:
            self.failures = 0
        else:
            self.failing_since = self.failing_since if self.failures else now
            self.failures += 1
        self.last_at = now

    def works(self, now: float) -> bool:
        return self.failures == 0 or (self.failures == 1 and now - self.failing_since < DOUBT_S)


class Tally(NamedTuple):
    """Requests since the start, by operation and outcome, and their seconds."""

    requests: dict[tuple[str, Outcome], int]
    buckets: dict[str, list[int]]
    """By operation: how many took up to each of ``BOUNDS_S``, and longer. Not cumulative."""
    seconds: dict[str, float]


class StoreWatch:
    """Records the outcomes of requests, and reports the store's status. Any thread; makes no
    request.

    Args:
        on_failed: called, in any thread, when a request has failed.
        clock: monotonic seconds.
        wall: seconds since 1970.
    """

    def __init__(
        self,
        on_failed: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._on_failed = on_failed
        self._clock, self._wall = clock, wall
        self._lock = threading.Lock()
        self._sides: dict[Kind, _KindHistory] = {kind: _KindHistory() for kind in KINDS.values()}
        self._under_way: dict[object, tuple[Kind, float]] = {}
        self._lost: str | None = None
        self._last_ok_at: float | None = None
        self._last_error: str | None = None
        self._state: Literal["ok", "away", "unknown"] = "unknown"
        self._since: float | None = None
        self._requests: Counter[tuple[str, Outcome]] = Counter()
        self._buckets = {each: [0] * (len(BOUNDS_S) + 1) for each in OPERATIONS}
        self._seconds = dict.fromkeys(OPERATIONS, 0.0)

    @contextmanager
    def under_way(self, operation: str) -> Iterator[None]:
        """Record that a request is under way; one without an answer for long is doubted."""
        kind, token = KINDS.get(operation), object()
        if kind is not None:
            with self._lock:
                self._under_way[token] = (kind, self._clock())
        try:
            yield
        finally:
            with self._lock:
                self._under_way.pop(token, None)

    def note(
        self, operation: str, outcome: Outcome, seconds: float, error: str | None = None
    ) -> None:
        """Record a request that has ended.

        Args:
            operation: one of ``OPERATIONS``.
            error: the failure, if it is not an answer.
        """
        with self._lock:
            self._requests[operation, outcome] += 1
            self._buckets[operation][bisect_left(BOUNDS_S, seconds)] += 1
            self._seconds[operation] += seconds
            self._judge(operation, outcome in ANSWERS, error)
        if outcome not in ANSWERS and operation in KINDS:
            self._on_failed()

    def unanswered(self, operation: str, seconds: float) -> None:
        """Record a request that has no answer after this many seconds, and continues."""
        with self._lock:
            side = self._sides[KINDS[operation]]
            side.failures = max(side.failures, 1)
            self._judge(operation, False, f"no answer within {seconds:g} s")

    def found(self, lost: str | None) -> None:
        """Record whether a required object exists: None, or what is missing."""
        with self._lock:
            self._lost = lost
            self._last_error = lost or self._last_error
            self._settle(self._clock())

    def status(self) -> StoreStatus:
        """The store's status now."""
        with self._lock:
            now = self._clock()
            self._settle(now)
            writes = self._lost is None and self._sides["write"].works(now)
            reads = self._lost is None and all(
                side.works(now) for kind, side in self._sides.items() if kind != "write"
            )
            return StoreStatus(
                self._state, self._since, self._last_ok_at, self._last_error, reads, writes
            )

    def quiet_s(self, kind: Kind) -> float:
        """How long no request of a kind has ended; infinity if none ever has."""
        with self._lock:
            last_at = self._sides[kind].last_at
            return float("inf") if last_at is None else self._clock() - last_at

    def doubted(self) -> frozenset[Kind]:
        """The kinds whose last request failed, or has no answer for ``SLOW_S``."""
        with self._lock:
            now = self._clock()
            slow = {kind for kind, began in self._under_way.values() if now - began > SLOW_S}
            failed = {kind for kind, side in self._sides.items() if side.failures}
            return frozenset(slow | failed)

    def tally(self) -> Tally:
        """A copy of the counts."""
        with self._lock:
            buckets = {name: list(counts) for name, counts in self._buckets.items()}
            return Tally(dict(self._requests), buckets, dict(self._seconds))

    def _judge(self, operation: str, answered: bool, error: str | None) -> None:
        now, kind = self._clock(), KINDS.get(operation)
        if kind is not None:
            self._sides[kind].note(answered, now)
        if answered:
            self._last_ok_at = self._wall()
        else:
            self._last_error = error
        self._settle(now)

    def _settle(self, now: float) -> None:
        sides = self._sides.values()
        works = self._lost is None and all(side.works(now) for side in sides)
        asked = any(side.last_at is not None for side in sides)
        state: Literal["ok", "away", "unknown"] = "away" if not works else "ok"
        if not asked or (state == "ok" and self._last_ok_at is None):
            state = "unknown"
        if state != self._state:
            self._state, self._since = state, self._wall()


T = TypeVar("T")

_OUTCOMES: tuple[tuple[type[BaseException], Outcome], ...] = (
    (ObjectNotFound, "not_found"),
    (AlreadyExists, "exists"),
    (StoreFull, "full"),
    (StoreUnavailable, "away"),
    (StoreDenied, "denied"),
    (StoreUnsuitable, "failed"),
    (OSError, "failed"),
)


class WatchedStore:
    """Any store with a watch; ``contract`` states what its calls promise."""

    def __init__(self, store: ObjectStore, watch: StoreWatch) -> None:
        self._store = store
        self._watch = watch

    def __repr__(self) -> str:
        return repr(self._store)

    @property
    def url(self) -> str:
        return self._store.url

    @property
    def reads(self) -> bool:
        """Whether reads are answered, by their last outcomes."""
        return self._watch.status().reads

    @property
    def listing_seeks(self) -> bool:
        return self._store.listing_seeks

    def put(self, path: str, data: Buffer) -> PutInfo:
        return self._noted("put", lambda: self._store.put(path, data))

    def create(self, path: str, data: Buffer) -> PutInfo:
        return self._noted("create", lambda: self._store.create(path, data))

    def get(self, path: str) -> bytes:
        return self._noted("get", lambda: self._store.get(path))

    def open(self, path: str) -> pa.NativeFile:
        return self._noted("open", lambda: self._store.open(path))

    def exists(self, path: str) -> ObjectInfo | None:
        return self._noted("exists", lambda: self._store.exists(path))

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        listed = self._failures_noted("list", lambda: self._store.list(prefix, start_after))
        # The caller's time between two objects is not the store's.
        first = self._noted("list", lambda: next(listed, None))
        if first is None:
            return
        yield first
        while (following := self._failures_noted("list", lambda: next(listed, None))) is not None:
            yield following

    def folders(self, prefix: str) -> Iterator[str]:
        """The folders below ``prefix``, as :func:`persist.store.folders` lists them."""
        return iter(self._noted("list", lambda: list(folders(self._store, prefix))))

    def delete(self, path: str) -> None:
        self._noted("delete", lambda: self._store.delete(path))

    def now(self) -> datetime:
        return self._store.now()

    def _noted(self, operation: str, call: Callable[[], T]) -> T:
        began = time.monotonic()
        with self._watch.under_way(operation):
            found = self._failures_noted(operation, call)
        self._watch.note(operation, "ok", time.monotonic() - began)
        return found

    def _failures_noted(self, operation: str, call: Callable[[], T]) -> T:
        began = time.monotonic()
        try:
            return call()
        except (StoreError, OSError) as exc:
            outcome = _outcome_of(exc)
            if outcome is not None:
                self._watch.note(operation, outcome, time.monotonic() - began, str(exc))
            raise


def _outcome_of(error: BaseException) -> Outcome | None:
    """The outcome of a request that raised; None if the name was refused before a request."""
    return next((outcome for kind, outcome in _OUTCOMES if isinstance(error, kind)), None)
