"""Calls the loaded hooks in threads, each call with a time limit.

    call ─▶ wait for the table ─▶ wait for a thread ─▶ a new instance, the method
                                                       ├─ an answer that it may give
                                                       ├─ an error, or any other value
                                                       └─ longer than ``hooks.timeout``

A call always has an answer: a failed one counts as ``hooks.on_error`` says, by default abort in
``pre_`` methods and proceed in ``post_`` methods. Its time starts when it runs, not while it waits
for others. A thread that does not return is abandoned and frees its slot; with ``MOST_ABANDONED``
of them, calls fail at once. Tried by tests/pushes/test_runner.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ingester.pushes.config import HookSettings
from ingester.pushes.hook_calls import (
    CallTimedOut,
    HookCall,
    HookCounts,
    HookTally,
    Outcome,
    QueueTimes,
    judged,
)
from ingester.pushes.hook_loading import LoadedHook, not_enabled
from ingester.pushes.hooks import (
    METHODS,
    PROCEED,
    Answer,
    Decision,
    HookContext,
    HookMethod,
    readable,
)
from ingester.pushes.record import HookName

MOST_ABANDONED = 64


class HookFailure(NamedTuple):
    """A failed call, for logs."""

    hook: str
    method: str
    push_id: str
    region: str | None
    outcome: Outcome
    error: str
    counts_as: Decision

    def text(self) -> str:
        """Return the failure and what it counts as, as one line."""
        where = f" in region {self.region}" if self.region else ""
        return (
            f"hook {self.hook}: {self.method}{where}: {self.error};"
            f" counts as {self.counts_as.value}"
        )


Tell = Callable[[HookFailure], None]


class HookRunner:
    """Calls the configured hooks from any thread: the ``HookPanel`` of a driver.

    Args:
        hooks: from :func:`load_hooks`.
        tell: called with every failed call.
        tally: counts the calls, on top of those that it has counted already.
    """

    def __init__(
        self,
        settings: HookSettings,
        hooks: Sequence[LoadedHook],
        tell: Tell | None = None,
        tally: HookTally | None = None,
    ) -> None:
        self._settings = settings
        self._hooks = {hook.name: hook for hook in hooks}
        self._tell = tell
        self._threads = threading.BoundedSemaphore(settings.threads)
        self._lock = threading.Lock()
        self._tables: dict[tuple[str, str], threading.Lock] = {}
        self._abandoned = 0
        self._tally = tally or HookTally()

    @property
    def names(self) -> Sequence[HookName]:
        """The hooks, in the order of their calls."""
        return [HookName(name, hook.make.asks_anew) for name, hook in self._hooks.items()]

    def not_enabled(self) -> list[LoadedHook]:
        """Return the hooks that are called for no table."""
        return not_enabled(list(self._hooks.values()), self._settings)

    def wants_statistics(self, hook: str) -> bool:
        """Return whether the hook receives the statistics of both generations."""
        return self._hooks[hook].make.wants_statistics

    def statistics(self) -> list[HookCounts]:
        """Return the counts, by class and method."""
        return self._tally.statistics()

    def queue_times(self) -> list[QueueTimes]:
        """Return the distribution of the time that calls waited, by class and method."""
        return self._tally.queue_times()

    def call(self, hook: str, context: HookContext, queued_s: float = 0.0) -> Answer:
        """Return a hook's answer, or what its failure counts as.

        ``queued_s`` is the time that the call has already waited. A hook that is not enabled for
        the table proceeds without a call.
        """
        config = self._settings.config_of(context.push.namespace, context.push.table)
        if not self._hooks[hook].enabled(config):
            return PROCEED
        method = METHODS[context.method]
        began = time.monotonic() - queued_s
        with self._table_lock(context), self._threads:
            running = time.monotonic()
            said = self._run(hook, config, context)
            ended = time.monotonic()
        outcome, error = judged(method, said)
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

    def _counts_as(self, method: HookMethod) -> Decision:
        on_error = self._settings.on_error
        if on_error == "wait" and Decision.WAIT not in method.answers:
            on_error = None
        if on_error is not None:
            return Decision(on_error)
        return Decision.ABORT if method.guards else Decision.PROCEED

    def _table_lock(self, context: HookContext) -> threading.Lock:
        with self._lock:
            key = (context.push.namespace, context.push.table)
            return self._tables.setdefault(key, threading.Lock())

    def _run(self, hook: str, config: Mapping[str, str], context: HookContext) -> object:
        """Return the method's return value, or the error that it raised."""
        with self._lock:
            if self._abandoned >= MOST_ABANDONED:
                return RuntimeError(f"{self._abandoned} calls have not returned yet")
        make = self._hooks[hook].make
        call = HookCall(lambda: getattr(make(config), context.method)(context))
        if call.wait(self._settings.timeout):
            return call.said
        with self._lock:
            self._abandoned += 1
        call.when_it_returns(self._returned)
        return CallTimedOut(f"no answer within {self._settings.timeout:g} s")

    def _returned(self) -> None:
        with self._lock:
            self._abandoned -= 1
