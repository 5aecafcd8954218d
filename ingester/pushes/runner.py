"""Calls hooks: in so many threads, one at a time for each table, each for a bounded time.

    call ─▶ wait for the table ─▶ wait for a thread ─▶ a new instance, the method
                                                       ├─ an answer that it may give
                                                       ├─ raised, or anything else
                                                       └─ longer than ``hooks.timeout``

Law of this file: a call always has an answer. One that fails counts as ``hooks.on_error`` says: by
default abort before something, proceed after it. The time of a call begins when it runs, not while
it waits for others. A thread that does not come back is left behind, and holds no place; beyond
``MOST_LEFT_BEHIND`` of them calls fail at once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ingester.pushes.answers import PROCEED, Answer, Decision, readable
from ingester.pushes.asking import HookName
from ingester.pushes.contexts import HookContext
from ingester.pushes.counts import HookCounts, HookTally, Outcome
from ingester.pushes.loading import LoadedHook
from ingester.pushes.methods import METHODS, Method
from ingester.pushes.settings import HookSettings

MOST_LEFT_BEHIND = 64


class HookFailure(NamedTuple):
    """A call that has failed, as it is told to whoever writes the log."""

    hook: str
    method: str
    push_id: str
    region: str | None
    outcome: Outcome
    error: str
    counts_as: Decision

    def text(self) -> str:
        """Return what has failed, and what comes of it, as a sentence."""
        where = f" in region {self.region}" if self.region else ""
        return (
            f"hook {self.hook}: {self.method}{where}: {self.error};"
            f" counts as {self.counts_as.value}"
        )


Tell = Callable[[HookFailure], None]


class HookRunner:
    """The configured hooks, ready to be called from any thread; a ``HookPanel`` of a driver.

    Args:
        hooks: see :func:`ingester.pushes.loading.load_hooks`.
        tell: hears of every call that fails.
    """

    def __init__(
        self, settings: HookSettings, hooks: Sequence[LoadedHook], tell: Tell | None = None
    ) -> None:
        self._settings = settings
        self._hooks = {hook.name: hook.make for hook in hooks}
        self._tell = tell
        self._threads = threading.BoundedSemaphore(settings.threads)
        self._lock = threading.Lock()
        self._tables: dict[tuple[str, str], threading.Lock] = {}
        self._left_behind = 0
        self._tally = HookTally()

    @property
    def names(self) -> Sequence[HookName]:
        """The hooks in their order."""
        return [HookName(name, make.asks_anew) for name, make in self._hooks.items()]

    def wants_statistics(self, hook: str) -> bool:
        """Return whether the hook is to be told the statistics of both versions."""
        return self._hooks[hook].wants_statistics

    def statistics(self) -> list[HookCounts]:
        """Return what was counted, by class and method."""
        return self._tally.statistics()

    def call(self, hook: str, context: HookContext) -> Answer:
        """Return what a hook answers, or what its failure counts as."""
        method = METHODS[context.method]
        began = time.monotonic()
        with self._table_lock(context), self._threads:
            running = time.monotonic()
            said = self._run(hook, method, context)
            ended = time.monotonic()
        outcome, error = _judged(method, said)
        self._tally.add(hook, method.name, outcome, running - began, ended - running)
        if error is None:
            if not isinstance(said, Answer):
                return PROCEED
            return Answer(said.decision, readable(said.reason))
        counts_as = self._counts_as(method)
        if self._tell is not None:
            about = (context.push.push_id, context.region, outcome, error, counts_as)
            self._tell(HookFailure(hook, method.name, *about))
        return Answer(counts_as, f"{outcome.replace('_', ' ')}: {error}")

    def _counts_as(self, method: Method) -> Decision:
        if self._settings.on_error is not None:
            return Decision(self._settings.on_error)
        return Decision.ABORT if method.guards else Decision.PROCEED

    def _table_lock(self, context: HookContext) -> threading.Lock:
        with self._lock:
            key = (context.push.namespace, context.push.table)
            return self._tables.setdefault(key, threading.Lock())

    def _run(self, hook: str, method: Method, context: HookContext) -> object:
        """Return what the method returned, or the error that it raised, or a ``TimeoutError``."""
        with self._lock:
            if self._left_behind >= MOST_LEFT_BEHIND:
                return RuntimeError(f"{self._left_behind} calls have not come back yet")
        config = self._settings.config_of(context.push.namespace, context.push.table)
        make = self._hooks[hook]
        call = _Call(lambda: getattr(make(config), method.name)(context))
        if call.wait(self._settings.timeout):
            return call.said
        with self._lock:
            self._left_behind += 1
        call.when_it_comes_back(self._came_back)
        return _TimedOut(f"it has not answered within {self._settings.timeout:g} s")

    def _came_back(self) -> None:
        with self._lock:
            self._left_behind -= 1


class _TimedOut(Exception):
    """A call that was given up."""


class _Call:
    """A call in a thread of its own, that may be left behind."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._then: Callable[[], None] | None = None
        self.said: object = None
        threading.Thread(target=self._run, daemon=True, name="hook").start()

    def wait(self, timeout_s: float) -> bool:
        return self._done.wait(timeout_s)

    def when_it_comes_back(self, then: Callable[[], None]) -> None:
        with self._lock:
            if not self._done.is_set():
                self._then = then
                return
        then()

    def _run(self) -> None:
        try:
            self.said = self._work()
        except BaseException as exc:  # a hook that ends its thread has failed like any other
            self.said = exc
        with self._lock:
            self._done.set()
        if self._then is not None:
            self._then()


def _judged(method: Method, said: object) -> tuple[Outcome, str | None]:
    """Return how a call has ended, and what was wrong with it."""
    if isinstance(said, _TimedOut):
        return "timed_out", str(said)
    if isinstance(said, BaseException):
        return "failed", f"{type(said).__name__}: {readable(said)}"
    if not method.answers and said is None:
        return "proceed", None
    if not isinstance(said, Answer):
        return "failed", f"{method.name} has returned {_shown(said)}, which is no Answer"
    decision: object = said.decision  # an answer holds whatever it was made with
    if not isinstance(decision, Decision):
        return "failed", f"{method.name} has answered {_shown(decision)}, which is no Decision"
    if decision in method.answers or decision is Decision.PROCEED:
        return decision.value, None
    allowed = ", ".join(sorted(each.value for each in method.answers)) or "nothing"
    return "failed", f"{method.name} may answer {allowed}, and has answered {decision.value}"


def _shown(said: object) -> str:
    try:
        return readable(repr(said))
    except Exception:
        return f"a {type(said).__name__}"
