"""Who is next: the namespace that has had least of the processors, and in it the answer.

    join ─▶ runs at once, or waits ─▶ runs ─▶ leave: the next one runs

Law of this file: no threads and no clock but what is charged; whoever calls has a lock on all of
it. Who comes back after a while begins a little before those who were there all the time, and has
saved nothing more up.

Source: start-time fair queueing (Goyal, Vin, Cheng 1996).
"""

from __future__ import annotations

import threading
from itertools import count
from typing import NamedTuple

from ingester.query.cpu_account import CpuAccount

CREDIT_S = 0.02
"""What somebody may have had less than others who comes back: some turns. Between two parts of its
answer everybody is away for a moment, and not to lose by it what is due to him."""


class _Tenant:
    """One namespace that runs, waits, or has used more than others of late."""

    __slots__ = ("active", "clock_s", "used_s")

    def __init__(self, used_s: float, clock_s: float) -> None:
        self.used_s = used_s
        """What it has used, as a place on the clock of all."""
        self.clock_s = clock_s
        """The place of its answer that began last."""
        self.active = 0
        """The number of its answers that run or wait, in any pool."""


class Shares:
    """What namespaces, and answers in them, have used of late."""

    def __init__(self) -> None:
        self._tenants: dict[str, _Tenant] = {}
        self._clock_s = 0.0
        """The place of the namespace that began last; it never goes back."""
        self._farthest_s = 0.0
        """The greatest place of an answer: those of a namespace that comes anew begin there."""
        self._active = 0

    def __len__(self) -> int:
        return len(self._tenants)

    def used_s(self, namespace: str) -> float:
        """The place of a namespace that waits: who has the least is next."""
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
        """Take note of one that runs now."""
        tenant = self._tenants[account.namespace]
        self._clock_s = max(self._clock_s, tenant.used_s)
        tenant.clock_s = max(tenant.clock_s, account.place_s)

    def charge(self, account: CpuAccount, used_s: float) -> None:
        """Count what an answer has used."""
        account.used_s += used_s
        account.place_s += used_s
        self._farthest_s = max(self._farthest_s, account.place_s)
        tenant = self._tenants.get(account.namespace)
        if tenant is None and self._active:
            tenant = self._tenants[account.namespace] = self._anew()
        if tenant is not None:
            tenant.used_s += used_s

    def leave(self, namespace: str) -> None:
        """Count one less, and forget whom nobody has to wait for."""
        tenant = self._tenants[namespace]
        tenant.active -= 1
        self._active -= 1
        if not self._active:
            self._tenants.clear()
        elif not tenant.active and tenant.used_s <= self._clock_s - CREDIT_S:
            del self._tenants[namespace]

    def _anew(self) -> _Tenant:
        return _Tenant(self._clock_s, self._farthest_s)


class _Waiter(NamedTuple):
    """Who waits, behind a locked lock, which a turn unlocks. Semaphores and conditions of the
    standard library are written in Python, and this is asked for every part."""

    account: CpuAccount
    number: int
    lock: threading.Lock


class Pool:
    """Turns of one kind, so many at a time, and one more for a namespace that has none."""

    def __init__(self, turns: int, shares: Shares) -> None:
        self._turns = turns
        self._shares = shares
        self._running: dict[str, int] = {}
        self._all_running = 0
        self._waiting: dict[str, list[_Waiter]] = {}
        self._numbers = count()

    @property
    def waiting(self) -> int:
        """The number of those who wait."""
        return sum(map(len, self._waiting.values()))

    def join(self, account: CpuAccount) -> threading.Lock | None:
        """Run, and return None; or else a lock to wait for."""
        self._shares.come(account)
        if self._may_run(account.namespace):
            self._begin(account)
            return None
        waiter = _Waiter(account, next(self._numbers), threading.Lock())
        waiter.lock.acquire()
        self._waiting.setdefault(account.namespace, []).append(waiter)
        return waiter.lock

    def leave(self, namespace: str) -> None:
        """Run no more; who is next does."""
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
