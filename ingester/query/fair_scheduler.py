"""Scheduling the processors among answers.

Few answers compute at a time: each holds a *turn*. A thread that waits for a disk, the store or
another thread gives its turn back. Long work outside the GIL (a merge, decoding a row group) takes
an *aside* turn instead. The next turn goes to the namespace that has used least lately, and within
it to the answer that has used least; ties go to the one that has waited longest. One extra turn is
reserved for a namespace that has none, so it never waits for another namespace's answer to finish.

    join ─▶ runs at once, or waits ─▶ runs ─▶ leave: the next one runs

Without turns, two hundred computing readers would leave a write one share in two hundred of the
GIL.

Source: start-time fair queueing (Goyal, Vin, Cheng 1996).
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import NamedTuple

from ingester.errors import TooSlow


def always_wanted() -> None:
    """No-op: the client never disconnects here."""


class CpuAccount:
    """Processor time of one answer. Waiting is not counted.

    Args:
        namespace: whose share of the processors the answer uses.
        limit_s: ``query.max_cpu``; infinite for the daemon's own work.
        check_wanted: raises if the client has disconnected; called only in the threads of its call.
    """

    __slots__ = ("check_wanted", "limit_s", "namespace", "place_s", "used_s")

    def __init__(
        self,
        namespace: str,
        limit_s: float = math.inf,
        check_wanted: Callable[[], None] = always_wanted,
    ) -> None:
        self.namespace = namespace
        self.limit_s = limit_s
        self.check_wanted = check_wanted
        self.used_s = 0.0
        """Processor time used, in seconds."""
        self.place_s = 0.0
        """The same, as a position on the scheduler's clock."""

    def check(self, more_s: float = 0.0) -> None:
        """Check that the answer may continue.

        Args:
            more_s: processor time used and not yet counted.

        Raises:
            TooSlow: the answer has reached its limit.
            Exception: its client has disconnected; see ``check_wanted``.
        """
        self.check_wanted()
        if self.used_s + more_s > self.limit_s:
            raise TooSlow(
                f"the query has computed for {self.limit_s:g} s, as long as query.max_cpu allows,"
                " and was ended: what came is a part of the answer; ask for less, by a filter that"
                " leaves files out or has fewer alternatives, or for fewer columns",
                details={"limit": "query.max_cpu", "most": self.limit_s},
            )


CREDIT_S = 0.02
"""Backlog that a returning namespace or answer keeps, in seconds: a few turns. Every answer pauses
between two parts and must not lose its claim by it."""


class _Tenant:
    """A namespace that runs, waits, or has recently used more than others."""

    __slots__ = ("active", "clock_s", "used_s")

    def __init__(self, used_s: float, clock_s: float) -> None:
        self.used_s = used_s
        """Processor time used, as a position on the shared clock."""
        self.clock_s = clock_s
        """Position of its answer that started last."""
        self.active = 0
        """Number of its answers that run or wait, in any pool."""


class Shares:
    """Recent processor time of namespaces and of their answers. Not thread-safe."""

    def __init__(self) -> None:
        self._tenants: dict[str, _Tenant] = {}
        self._clock_s = 0.0
        """Position of the namespace that started last; never decreases."""
        self._farthest_s = 0.0
        """Greatest position of an answer; a new namespace's answers start there."""
        self._active = 0

    def __len__(self) -> int:
        return len(self._tenants)

    def used_s(self, namespace: str) -> float:
        """Return the position of a waiting namespace; the lowest is next."""
        return self._tenants[namespace].used_s

    def come(self, account: CpuAccount) -> None:
        """Count an answer that wants to run, until :meth:`leave`."""
        tenant = self._tenants.get(account.namespace)
        if tenant is None:
            tenant = self._tenants[account.namespace] = self._anew()
        elif not tenant.active:
            tenant.used_s = max(tenant.used_s, self._clock_s - CREDIT_S)
        account.place_s = max(account.place_s, tenant.clock_s - CREDIT_S)
        tenant.active += 1
        self._active += 1

    def begin(self, account: CpuAccount) -> None:
        """Record that an answer runs now."""
        tenant = self._tenants[account.namespace]
        self._clock_s = max(self._clock_s, tenant.used_s)
        tenant.clock_s = max(tenant.clock_s, account.place_s)

    def charge(self, account: CpuAccount, used_s: float) -> None:
        """Count processor time that an answer has used."""
        account.used_s += used_s
        account.place_s += used_s
        self._farthest_s = max(self._farthest_s, account.place_s)
        tenant = self._tenants.get(account.namespace)
        if tenant is None and self._active:
            tenant = self._tenants[account.namespace] = self._anew()
        if tenant is not None:
            tenant.used_s += used_s

    def leave(self, namespace: str) -> None:
        """Count one answer less; forget the namespace once no one has to wait for it."""
        tenant = self._tenants[namespace]
        tenant.active -= 1
        self._active -= 1
        if not self._active:
            self._tenants.clear()
        elif not tenant.active and tenant.used_s <= self._clock_s - CREDIT_S:
            del self._tenants[namespace]

    def _anew(self) -> _Tenant:
        return _Tenant(self._clock_s, self._farthest_s)


class _WaitingAnswer(NamedTuple):
    """A waiting thread, blocked on a locked lock that a turn unlocks.

    A bare lock, because semaphores and conditions of the standard library are written in Python
    and this runs for every part.
    """

    account: CpuAccount
    number: int
    lock: threading.Lock


class Pool:
    """A fixed number of turns of one kind, plus one for a namespace that has none."""

    def __init__(self, turns: int, shares: Shares) -> None:
        self._turns = turns
        self._shares = shares
        self._running: dict[str, int] = {}
        self._all_running = 0
        self._waiting: dict[str, list[_WaitingAnswer]] = {}
        self._numbers = count()

    @property
    def waiting(self) -> int:
        """Number of waiting answers."""
        return sum(map(len, self._waiting.values()))

    def join(self, account: CpuAccount) -> threading.Lock | None:
        """Run now and return None, or return a lock to wait for."""
        self._shares.come(account)
        if self._may_run(account.namespace):
            self._begin(account)
            return None
        waiter = _WaitingAnswer(account, next(self._numbers), threading.Lock())
        waiter.lock.acquire()
        self._waiting.setdefault(account.namespace, []).append(waiter)
        return waiter.lock

    def leave(self, namespace: str) -> None:
        """Stop running and start the next one."""
        self._all_running -= 1
        self._running[namespace] -= 1
        if not self._running[namespace]:
            del self._running[namespace]
        self._shares.leave(namespace)
        able = [each for each in self._waiting if self._may_run(each)]
        if able:
            self._begin_next(min(able, key=self._shares.used_s))

    def _may_run(self, namespace: str) -> bool:
        return self._all_running < self._turns + (namespace not in self._running)

    def _begin(self, account: CpuAccount) -> None:
        self._all_running += 1
        self._running[account.namespace] = self._running.get(account.namespace, 0) + 1
        self._shares.begin(account)

    def _begin_next(self, namespace: str) -> None:
        waiting = self._waiting[namespace]
        found = min(waiting, key=lambda each: (each.account.place_s, each.number))
        waiting.remove(found)
        if not waiting:
            del self._waiting[namespace]
        self._begin(found.account)
        found.lock.release()


TURN_S = 0.003
"""Time after which an answer without a finished part lets others run, in seconds.

A small call takes the GIL about ten times and waits a millisecond each time, so longer turns
delay it.
"""
_MOMENT_S = 0.0002
"""Time in which a waiting thread obtains the GIL, in seconds."""


class FairScheduler:
    """Hands out turns and aside turns, a limited number of each at a time. Thread-safe.

    Args:
        turns: half of the processors by default, at least one.
    """

    def __init__(self, turns: int | None = None) -> None:
        processors = os.cpu_count() or 1
        self._lock = threading.Lock()
        shares = Shares()
        self._turns = Pool(turns or max(1, processors // 2), shares)
        self._asides = Pool(max(2, processors), shares)
        self._shares = shares
        self._had: dict[int, tuple[CpuAccount, float]] = {}
        """Threads that hold a turn, with the thread's processor time when the turn began."""

    @property
    def waiting(self) -> int:
        """Number of answers that wait for a turn."""
        with self._lock:
            return self._turns.waiting

    def account(self) -> CpuAccount | None:
        """Return the account of this thread's turn, if it has one."""
        had = self._had.get(threading.get_ident())
        return None if had is None else had[0]

    @contextmanager
    def turn(self, account: CpuAccount) -> Iterator[None]:
        """Hold a turn inside the block; a thread that already has one keeps it."""
        if self.account() is not None:
            yield
            return
        self.take(account)
        try:
            yield
        finally:
            self.give()

    @contextmanager
    def given_back(self) -> Iterator[None]:
        """Give the turn back inside the block. Its processor time is still counted.

        Raises:
            TooSlow: the answer has reached its limit.
        """
        account = self.give()
        if account is None:
            yield
            return
        began = time.thread_time()
        try:
            yield
        finally:
            self.count(account, time.thread_time() - began)
            self.take(account)
        account.check()

    @contextmanager
    def aside(self, account: CpuAccount) -> Iterator[None]:
        """Hold an aside turn for long work outside the GIL.

        Use it inside :meth:`given_back` or in a thread without a turn.
        """
        self._wait(self._asides, account)
        try:
            yield
        finally:
            with self._lock:
                self._asides.leave(account.namespace)

    def take(self, account: CpuAccount) -> None:
        """Take a turn for this thread, until :meth:`give`."""
        self._wait(self._turns, account)
        self._had[threading.get_ident()] = (account, time.thread_time())

    def give(self) -> CpuAccount | None:
        """Give this thread's turn back; return its account, or None without a turn."""
        had = self._had.pop(threading.get_ident(), None)
        if had is None:
            return None
        account, began = had
        with self._lock:
            self._shares.charge(account, time.thread_time() - began)
            self._turns.leave(account.namespace)
        return account

    def count(self, account: CpuAccount, used_s: float) -> None:
        """Count processor time that was used outside of a turn."""
        with self._lock:
            self._shares.charge(account, used_s)

    def _wait(self, pool: Pool, account: CpuAccount) -> None:
        with self._lock:
            waiter = pool.join(account)
        if waiter is not None:
            waiter.acquire()


class TurnPace:
    """Lets others run in the middle of long work that yields no part."""

    def __init__(self, scheduler: FairScheduler) -> None:
        self._scheduler = scheduler
        self.restart()

    def restart(self) -> None:
        """Restart the clock: a turn has begun."""
        self._working_since = time.monotonic()

    def let_others(self) -> None:
        """Let others run for a moment if this answer has run for :data:`TURN_S`.

        Raises:
            TooSlow: the answer has reached its limit.
        """
        if time.monotonic() - self._working_since > TURN_S:
            with self._scheduler.given_back():
                time.sleep(_MOMENT_S)
            self.restart()
