"""Runs users' code in threads of its own, for a limited time.

    caller    ─ a place free? ─▶ a thread ─ waits for the outcome, up to the limit
    thread    ─ runs the call ─ reports the outcome ─ idle, or ends if it was given up

A thread cannot be ended from outside. A caller whose time is over gives the call up: its place is
free again, and the call counts as hung until it returns.

At most :data:`MOST_HUNG_OF_CLASS` calls of one class hang, and at most :data:`MOST_HUNG` in all,
before no more are started; calls under way at that moment come on top. A class may use all places
but one. Code that holds the interpreter (a backtracking regular expression) cannot be given up: it
stops the process (tests/write/transform/test_pool).
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Generic, NamedTuple, TypeVar, cast

import structlog

from ingester.errors import Saturated, TooSlow

log = structlog.get_logger(__name__)

T = TypeVar("T")

MOST_HUNG_OF_CLASS = 2
MOST_HUNG = 16


class Usage(NamedTuple):
    """The threads of a pool at one moment."""

    busy: int
    hung: dict[str, int]
    """Calls given up and not returned, by class."""


class UserCodeFailed(Exception):
    """Users' code has raised ``error``."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


class GivenUp(Exception):
    """A call took too long. It continues, and its ``late`` receives the result."""

    def __init__(self, name: str, limit_s: float) -> None:
        super().__init__(name)
        self.refusal = TooSlow(
            f"transformer {name}: no answer within {limit_s:g} s; the call was given up"
        )


class _UserCall(Generic[T]):
    def __init__(self, name: str, work: Callable[[], T], late: Callable[[T], object]) -> None:
        self.name = name
        self.work = work
        self.late = late
        self.over = threading.Event()
        self.given_up = False
        self.result: T | None = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.result = self.work()
        except BaseException as exc:  # raised at the caller, SystemExit too
            self.error = exc


class TransformPool:
    """Runs calls of users' code. Any thread but the loop's, as callers wait.

    Args:
        threads: the most calls that run at a time.
        timeout_s: the limit of a call, and of its wait for a place.
    """

    def __init__(self, threads: int, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._threads = threads
        self._most_of_class = max(1, threads - 1)
        self._changed = threading.Condition()
        self._busy: Counter[str] = Counter()
        self._hung: Counter[str] = Counter()
        self._idle: list[SimpleQueue[_UserCall[Any]]] = []

    def statistics(self) -> Usage:
        """Count running and hung calls."""
        with self._changed:
            return Usage(self._busy.total(), {n: count for n, count in self._hung.items() if count})

    def run(
        self,
        name: str,
        work: Callable[[], T],
        *,
        timeout_s: float | None = None,
        late: Callable[[T | None], object] = lambda result: None,
    ) -> T:
        """Run a call of the class ``name`` and return its result.

        Args:
            timeout_s: another limit than the pool's.
            late: receives the result, or None, of a call that ends after it was given up. Runs in
                the call's thread and must not raise.

        Raises:
            UserCodeFailed: the call has raised.
            GivenUp: it takes too long.
            TooSlow: too many calls of its class, or of all, hang.
            Saturated: other calls have all the places.
        """
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        call = _UserCall(name, work, late)
        self._begin(call)
        if not call.over.wait(limit_s) and self._give_up(call):
            raise GivenUp(name, limit_s)
        if call.error is not None:
            raise UserCodeFailed(call.error) from None
        return cast(T, call.result)

    def _begin(self, call: _UserCall[Any]) -> None:
        name = call.name
        with self._changed:
            free = self._changed.wait_for(
                lambda: self._refusal(name) is not None or self._is_free(name), self.timeout_s
            )
            if (refusal := self._refusal(name)) is not None:
                raise refusal
            if not free:
                raise Saturated(
                    f"transformer {name}: {self._busy.total()} of {self._threads} threads"
                    f" (transform.threads) have been busy for {self.timeout_s:g} s",
                    retry_after_s=1.0,
                )
            self._busy[name] += 1
            queue = self._idle.pop() if self._idle else self._start(name)
        queue.put(call)

    def _is_free(self, name: str) -> bool:
        return self._busy.total() < self._threads and self._busy[name] < self._most_of_class

    def _refusal(self, name: str) -> TooSlow | None:
        """Return the refusal of further calls of a class if too many hang."""
        hung, everybody = self._hung[name], self._hung.total()
        if hung < MOST_HUNG_OF_CLASS and everybody < MOST_HUNG:
            return None
        whose = f"{hung} calls of it hang" if hung >= MOST_HUNG_OF_CLASS else f"{everybody} hang"
        return TooSlow(
            f"transformer {name}: {whose}, so that no more are begun until one returns;"
            " a restart of the daemon ends them"
        )

    def _start(self, name: str) -> SimpleQueue[_UserCall[Any]]:
        queue: SimpleQueue[_UserCall[Any]] = SimpleQueue()
        thread = threading.Thread(
            target=self._serve, args=(queue,), name="transformer", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as exc:
            self._busy[name] -= 1
            raise Saturated(f"transformer {name}: {exc}", retry_after_s=1.0) from exc
        return queue

    def _give_up(self, call: _UserCall[Any]) -> bool:
        """Give a call up; False if it has just ended."""
        with self._changed:
            if call.over.is_set():
                return False
            call.given_up = True
            self._busy[call.name] -= 1
            self._hung[call.name] += 1
            self._changed.notify_all()
            hung = self._hung[call.name]
        log.warning(
            "transformer given up", transformer=call.name, hung=hung, runbook="transformer-hangs"
        )
        return True

    def _serve(self, queue: SimpleQueue[_UserCall[Any]]) -> None:
        while True:
            call = queue.get()
            call.run()
            if self._end(call, queue):
                call.late(call.result)
                with self._changed:
                    self._hung[call.name] -= 1
                    self._changed.notify_all()
                return
            del call  # do not keep its batch until the next call

    def _end(self, call: _UserCall[Any], queue: SimpleQueue[_UserCall[Any]]) -> bool:
        """Report the outcome and become idle; True if the call was given up."""
        with self._changed:
            if call.given_up:
                return True
            self._busy[call.name] -= 1
            self._idle.append(queue)
            call.over.set()
            self._changed.notify_all()
            return False
