"""Loads the configured hook classes and calls them in threads, each call with a time limit.

    call ─▶ wait for the table ─▶ wait for a thread ─▶ a new instance, the method
                                                       ├─ an answer that it may give
                                                       ├─ an error, or any other value
                                                       └─ longer than ``hooks.timeout``

Errors in classes and configurations are found at loading, before a push starts. A call always has
an answer: a failed one counts as ``hooks.on_error`` says, by default abort in ``pre_`` methods and
proceed in ``post_`` methods. Its time starts when it runs, not while it waits for others. A thread
that does not return is abandoned and frees its slot; with ``MOST_ABANDONED`` of them, calls fail
at once. Tried by tests/pushes/test_runner and test_hook_config.
"""

from __future__ import annotations

import importlib
import inspect
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from ingester.pushes.config import HookConfigError, HookSettings
from ingester.pushes.hooks import (
    METHODS,
    PROCEED,
    Answer,
    ConfigContext,
    Decision,
    HookContext,
    HookMethod,
    LifecycleHooks,
    readable,
)
from ingester.pushes.record import HookName

MOST_ABANDONED = 64
_FORMER_NAME = "ingester.lifecycle.shipped."
"""Shipped hooks are in one module now; configurations with their former names stay valid."""
Outcome = Literal["proceed", "abort", "wait", "rollback", "failed", "timed_out"]


class LoadedHook(NamedTuple):
    """A hook class under its configured name."""

    name: str
    make: type[LifecycleHooks]


def load_hooks(settings: HookSettings) -> list[LoadedHook]:
    """Return the configured classes, after each has accepted its configuration and overrides.

    Raises:
        HookConfigError: naming the class, and the table or key.
    """
    hooks = [load_hook(name) for name in settings.classes]
    check_overrides(hooks, settings.config, None, {})
    for key, overrides in settings.tables.items():
        namespace, _, table = key.partition("/")
        check_overrides(hooks, settings.config, (namespace, table), overrides)
    return hooks


def load_hook(name: str) -> LoadedHook:
    """Return the class ``package.module:Class``.

    Raises:
        HookConfigError: it cannot be imported, or is not a hook.
    """
    module_name, _, class_name = name.partition(":")
    if module_name.startswith(_FORMER_NAME):
        module_name = "ingester.pushes.shipped"
    try:
        module = importlib.import_module(module_name)
    except Exception as exc:
        raise HookConfigError(f"hook {name}: {type(exc).__name__}: {exc}") from exc
    found = getattr(module, class_name, None)
    if found is None:
        raise HookConfigError(f"hook {name}: module {module_name} has no {class_name!r}")
    if not (isinstance(found, type) and issubclass(found, LifecycleHooks)):
        raise HookConfigError(
            f"hook {name}: it is not a subclass of ingester.pushes.LifecycleHooks"
        )
    for method in METHODS:
        _check_signature(name, method, getattr(found, method))
    return LoadedHook(name, found)


def check_overrides(
    hooks: Sequence[LoadedHook],
    config: Mapping[str, str],
    table: tuple[str, str] | None,
    overrides: Mapping[str, str],
) -> None:
    """Let each hook check a table's overrides; ``table`` is None for the configuration of all.

    Raises:
        HookConfigError: naming the hook that refuses, and the table.
    """
    where = "hooks.config" if table is None else f'hooks.tables."{table[0]}/{table[1]}"'
    _check_keys(hooks, config if table is None else overrides, where)
    namespace, name = table or (None, None)
    context = ConfigContext(namespace=namespace, table=name, overrides=dict(overrides))
    for hook in hooks:
        try:
            made = hook.make({**config, **overrides})
            answer: object = made.validate_hook_config(context)
        except Exception as exc:
            raise HookConfigError(f"{where}: {hook.name}: {type(exc).__name__}: {exc}") from exc
        if not isinstance(answer, Answer) or answer.decision not in (
            Decision.PROCEED,
            Decision.ABORT,
        ):
            raise HookConfigError(f"{where}: {hook.name}: the answer is {answer!r}")
        if answer.decision is Decision.ABORT:
            raise HookConfigError(f"{where}: {hook.name}: {answer.reason or 'refused'}")


def _check_keys(hooks: Sequence[LoadedHook], keys: Mapping[str, str], where: str) -> None:
    """Refuse keys that no hook knows, if all of them declare their keys."""
    known: set[str] = set()
    for hook in hooks:
        if hook.make.options is None:
            return
        known |= set(hook.make.options)
    strays = sorted(set(keys) - known)
    if strays:
        raise HookConfigError(
            f"{where}: no hook knows {', '.join(strays)}; known are {', '.join(sorted(known))}"
        )


def _check_signature(name: str, method: str, function: object) -> None:
    if not callable(function) or inspect.iscoroutinefunction(function):
        raise HookConfigError(f"hook {name}: {method} is not a plain function")
    try:
        inspect.signature(function).bind(None, None)
    except TypeError as exc:
        raise HookConfigError(
            f"hook {name}: {method}{inspect.signature(function)} does not take a context ({exc})"
        ) from exc


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


class HookTally:
    """Counts calls by class and method; from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._outcomes: dict[tuple[str, str], Counter[str]] = {}
        self._seconds: dict[tuple[str, str], tuple[float, float]] = {}

    def add(
        self, hook: str, method: str, outcome: Outcome, queued_s: float, running_s: float
    ) -> None:
        """Count a call that has ended or timed out."""
        key = (hook, method)
        with self._lock:
            self._outcomes.setdefault(key, Counter())[outcome] += 1
            queued, running = self._seconds.get(key, (0.0, 0.0))
            self._seconds[key] = (queued + queued_s, running + running_s)

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
        self._abandoned = 0
        self._tally = HookTally()

    @property
    def names(self) -> Sequence[HookName]:
        """The hooks, in the order of their calls."""
        return [HookName(name, make.asks_anew) for name, make in self._hooks.items()]

    def wants_statistics(self, hook: str) -> bool:
        """Return whether the hook receives the statistics of both generations."""
        return self._hooks[hook].wants_statistics

    def statistics(self) -> list[HookCounts]:
        """Return the counts, by class and method."""
        return self._tally.statistics()

    def call(self, hook: str, context: HookContext, queued_s: float = 0.0) -> Answer:
        """Return a hook's answer, or what its failure counts as.

        ``queued_s`` is the time that the call has already waited.
        """
        method = METHODS[context.method]
        began = time.monotonic() - queued_s
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

    def _counts_as(self, method: HookMethod) -> Decision:
        if self._settings.on_error is not None:
            return Decision(self._settings.on_error)
        return Decision.ABORT if method.guards else Decision.PROCEED

    def _table_lock(self, context: HookContext) -> threading.Lock:
        with self._lock:
            key = (context.push.namespace, context.push.table)
            return self._tables.setdefault(key, threading.Lock())

    def _run(self, hook: str, method: HookMethod, context: HookContext) -> object:
        """Return the method's return value, or the error that it raised."""
        with self._lock:
            if self._abandoned >= MOST_ABANDONED:
                return RuntimeError(f"{self._abandoned} calls have not returned yet")
        config = self._settings.config_of(context.push.namespace, context.push.table)
        make = self._hooks[hook]
        call = _HookCall(lambda: getattr(make(config), method.name)(context))
        if call.wait(self._settings.timeout):
            return call.said
        with self._lock:
            self._abandoned += 1
        call.when_it_returns(self._returned)
        return _TimedOut(f"no answer within {self._settings.timeout:g} s")

    def _returned(self) -> None:
        with self._lock:
            self._abandoned -= 1


class _TimedOut(Exception):
    """A call that was abandoned."""


class _HookCall:
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


def _judged(method: HookMethod, said: object) -> tuple[Outcome, str | None]:
    """Return the outcome of a call, and its error."""
    if isinstance(said, _TimedOut):
        return "timed_out", str(said)
    if isinstance(said, BaseException):
        return "failed", f"{type(said).__name__}: {readable(said)}"
    if not method.answers and said is None:
        return "proceed", None
    if not isinstance(said, Answer):
        return "failed", f"{method.name} returned {_shown(said)}, which is not an Answer"
    decision: object = said.decision  # an Answer does not check its type
    if not isinstance(decision, Decision):
        return "failed", f"{method.name} answered {_shown(decision)}, which is not a Decision"
    if decision in method.answers or decision is Decision.PROCEED:
        return decision.value, None
    allowed = ", ".join(sorted(each.value for each in method.answers)) or "nothing"
    return "failed", f"{method.name} may answer {allowed}, not {decision.value}"


def _shown(said: object) -> str:
    try:
        return readable(repr(said))
    except Exception:
        return f"a {type(said).__name__}"
