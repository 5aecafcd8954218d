"""Users' code runs in threads of its own, for a limited time.

    caller    ─ a place free? ─▶ a thread ─ waits for the outcome, up to the limit
    thread    ─ runs the call ─ tells the outcome ─ idle, or waits no more: it was given up

A thread cannot be ended from outside. Whoever waits for one gives it up when its time is over: its
place is free again, and it counts as hung until it returns by itself.

Law of this file: of one class at most :data:`MOST_HUNG_OF_CLASS` calls hang, and at most
:data:`MOST_HUNG` of all, before no more are begun; those that were under way at that moment may
come on top, no more than there are places. A class has all places but one, so that another finds
one. Code that holds the interpreter (a regular expression that backtracks) cannot be given up: it
stops the process.
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
    """Calls that were given up and have not returned, by class."""


class Failed(Exception):
    """A user's code has raised ``error``. It has no traceback into our code."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


class GivenUp(Exception):
    """A call took too long. It runs on; what it returns is for its ``late``."""

    def __init__(self, name: str, limit_s: float) -> None:
        super().__init__(name)
        self.refusal = TooSlow(
            f"transformer {name}: no answer within {limit_s:g} s; the call was given up"
        )


class _Call(Generic[T]):
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
        except BaseException as exc:  # whatever it is, it is the caller's, SystemExit too
            self.error = exc


class TransformPool:
    """Runs calls of users' code. Any thread but the loop's, as whoever calls waits.

    Args:
        threads: the calls that run at a time.
        timeout_s: the time that a call may take, and that it may wait for its turn.
    """

    def __init__(self, threads: int, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._threads = threads
        self._most_of_class = max(1, threads - 1)
        self._changed = threading.Condition()
        self._busy: Counter[str] = Counter()
        self._hung: Counter[str] = Counter()
        self._idle: list[SimpleQueue[_Call[Any]]] = []

    def statistics(self) -> Usage:
        """Count what runs and what hangs."""
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
        """Run a call of the class ``name``, and return what it returns.

        Args:
            timeout_s: another limit than the pool's.
            late: gets the result, or None, of a call that ends after it was given up; in its
                thread, and it must not raise.

        Raises:
            Failed: the call has raised.
            GivenUp: it takes too long.
            TooSlow: too many calls of its class, or of all, hang.
            Saturated: other calls have all the places.
        """
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        call = _Call(name, work, late)
        self._begin(call)
        if not call.over.wait(limit_s) and self._give_up(call):
            raise GivenUp(name, limit_s)
        if call.error is not None:
            raise Failed(call.error) from None
        return cast(T, call.result)

    def _begin(self, call: _Call[Any]) -> None:
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
                    f" (transform.threads) are busy since {self.timeout_s:g} s",
                    retry_after_s=1.0,
                )
            self._busy[name] += 1
            queue = self._idle.pop() if self._idle else self._start(name)
        queue.put(call)

    def _is_free(self, name: str) -> bool:
        return self._busy.total() < self._threads and self._busy[name] < self._most_of_class

    def _refusal(self, name: str) -> TooSlow | None:
        """The refusal of further calls of a class, where too many hang."""
        hung, everybody = self._hung[name], self._hung.total()
        if hung < MOST_HUNG_OF_CLASS and everybody < MOST_HUNG:
            return None
        whose = f"{hung} calls of it hang" if hung >= MOST_HUNG_OF_CLASS else f"{everybody} hang"
        return TooSlow(
            f"transformer {name}: {whose}, so that no more are begun until one returns;"
            " a restart of the daemon ends them"
        )

    def _start(self, name: str) -> SimpleQueue[_Call[Any]]:
        queue: SimpleQueue[_Call[Any]] = SimpleQueue()
        thread = threading.Thread(
            target=self._serve, args=(queue,), name="transformer", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as exc:
            self._busy[name] -= 1
            raise Saturated(f"transformer {name}: {exc}", retry_after_s=1.0) from exc
        return queue

    def _give_up(self, call: _Call[Any]) -> bool:
        """Leave a call to itself; False if it has just ended."""
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

    def _serve(self, queue: SimpleQueue[_Call[Any]]) -> None:
        while True:
            call = queue.get()
            call.run()
            if self._end(call, queue):
                call.late(call.result)
                with self._changed:
                    self._hung[call.name] -= 1
                    self._changed.notify_all()
                return
            del call  # its batch is not kept until the next one comes

    def _end(self, call: _Call[Any], queue: SimpleQueue[_Call[Any]]) -> bool:
        """Tell the outcome, and be idle; True where nobody waits for it any more."""
        with self._changed:
            if call.given_up:
                return True
            self._busy[call.name] -= 1
            self._idle.append(queue)
            call.over.set()
            self._changed.notify_all()
            return False
