"""Calls of user code in threads, each with a time limit, and their counts.

    ``HookCall``    runs in a thread of its own; one that does not return is abandoned
    ``judged``      an answer that the method may give, an error, or no answer in time
    ``HookTally``   counts calls by class, method and outcome

Nothing that a user's class does ends the caller: not ``sys.exit``, and not a method that does not
return. Tried by tests/pushes/test_runner and test_hook_config.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable
from itertools import accumulate
from typing import Literal, NamedTuple

import msgspec

from ingester.pushes.hooks import Answer, Decision, HookMethod, readable

Outcome = Literal["proceed", "abort", "wait", "rollback", "failed", "timed_out"]


class HookCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of one method of one class."""

    hook: str
    method: str
    calls: int
    outcomes: dict[str, int]
    """Calls by outcome: the four decisions, ``failed`` and ``timed_out``."""
    queued_s: float
    running_s: float

    def text(self) -> str:
        """Return the counts as one line."""
        ends = ", ".join(f"{count} {ended}" for ended, count in sorted(self.outcomes.items()))
        return (
            f"hook {self.hook}: {self.method}: {self.calls} calls ({ends}),"
            f" {self.queued_s:.3f} s in the queue, {self.running_s:.3f} s running"
        )


QUEUED_UP_TO_S = (0.01, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper limits of the distribution of the time that calls wait."""


class QueueTimes(NamedTuple):
    """The distribution of the time that the calls of one method of one class waited."""

    hook: str
    method: str
    up_to: tuple[int, ...]
    """The number of calls that waited no longer than each of ``QUEUED_UP_TO_S``."""
    calls: int
    queued_s: float


class HookTally:
    """Counts calls by class and method; from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._outcomes: dict[tuple[str, str], Counter[str]] = {}
        self._seconds: dict[tuple[str, str], tuple[float, float]] = {}
        self._queued: dict[tuple[str, str], Counter[float]] = {}

    def add(
        self, hook: str, method: str, outcome: Outcome, queued_s: float, running_s: float
    ) -> None:
        """Count a call that has ended or timed out."""
        key = (hook, method)
        with self._lock:
            self._outcomes.setdefault(key, Counter())[outcome] += 1
            queued, running = self._seconds.get(key, (0.0, 0.0))
            self._seconds[key] = (queued + queued_s, running + running_s)
            limit = next((each for each in QUEUED_UP_TO_S if queued_s <= each), math.inf)
            self._queued.setdefault(key, Counter())[limit] += 1

    def statistics(self) -> list[HookCounts]:
        """Return the counts, sorted by class and method."""
        with self._lock:
            return [
                HookCounts(
                    hook=hook,
                    method=method,
                    calls=outcomes.total(),
                    outcomes=dict(outcomes),
                    queued_s=self._seconds[hook, method][0],
                    running_s=self._seconds[hook, method][1],
                )
                for (hook, method), outcomes in sorted(self._outcomes.items())
            ]

    def queue_times(self) -> list[QueueTimes]:
        """Return the distribution of waiting times, sorted by class and method."""
        with self._lock:
            return [
                QueueTimes(
                    *key,
                    tuple(accumulate(counts[each] for each in QUEUED_UP_TO_S)),
                    counts.total(),
                    self._seconds[key][0],
                )
                for key, counts in sorted(self._queued.items())
            ]


class CallTimedOut(Exception):
    """A call that was abandoned."""


class HookCall:
    """A call in a thread of its own, which may be abandoned."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._then: Callable[[], None] | None = None
        self.said: object = None
        threading.Thread(target=self._run, daemon=True, name="hook").start()

    def wait(self, timeout_s: float) -> bool:
        return self._done.wait(timeout_s)

    def when_it_returns(self, then: Callable[[], None]) -> None:
        with self._lock:
            if not self._done.is_set():
                self._then = then
                return
        then()

    def _run(self) -> None:
        try:
            self.said = self._work()
        except BaseException as exc:  # a hook that ends its thread has failed as well
            self.said = exc
        with self._lock:
            self._done.set()
        if self._then is not None:
            self._then()


def judged(method: HookMethod, said: object) -> tuple[Outcome, str | None]:
    """Return the outcome of a call, and its error."""
    if isinstance(said, CallTimedOut):
        return "timed_out", str(said)
    if isinstance(said, BaseException):
        return "failed", error_text(said)
    if not method.answers and said is None:
        return "proceed", None
    if not isinstance(said, Answer):
        return "failed", f"{method.name} returned {shown(said)}, which is not an Answer"
    decision: object = said.decision  # an Answer does not check its type
    if not isinstance(decision, Decision):
        return "failed", f"{method.name} answered {shown(decision)}, which is not a Decision"
    if decision in method.answers or decision is Decision.PROCEED:
        return decision.value, None
    allowed = ", ".join(sorted(each.value for each in method.answers)) or "nothing"
    return "failed", f"{method.name} may answer {allowed}, not {decision.value}"


def shown(said: object) -> str:
    try:
        return readable(repr(said))
    except Exception:
        return f"a {type(said).__name__}"


def said_within(work: Callable[[], object], timeout_s: float) -> object:
    """Return what user code returns, or its error; it runs in a thread that may be abandoned."""
    call = HookCall(work)
    return call.said if call.wait(timeout_s) else CallTimedOut(f"no answer within {timeout_s:g} s")


def error_text(exc: BaseException) -> str:
    if isinstance(exc, CallTimedOut):
        return str(exc)
    return f"{type(exc).__name__}: {readable(exc)}"
