"""The scheduler of answers: a few are worked on, others wait here and not for the interpreter.

Law of this file: whoever has a turn computes; whoever waits for a disk, a store or another thread
gives it back meanwhile. What takes long and does not need the interpreter, a merge or a row group
that is decoded, has a turn aside. A turn goes to the namespace that has had least of the processors
of late, and in it to the answer that has had least; among equals to whoever has waited longest. So
a namespace with one small query is served between two turns of another with a hundred large ones.
One turn more than the others is there for a namespace that has none: it does not wait for the end
of somebody else's. Two hundred readers that all compute would leave a write one turn of the
interpreter lock in two hundred.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from ingester.query.cpu_account import CpuAccount
from ingester.query.fair_shares import Pool, Shares

TURN_S = 0.003
"""The time that an answer is worked on before others have a turn, where no part comes of it.

A small call beside it takes the interpreter some ten times, and waits a millisecond each time: with
turns of 10 ms it took twice as long as with these, and with 1 ms no less."""
_MOMENT_S = 0.0002
"""The time in which a waiting thread gets the interpreter lock."""


class FairScheduler:
    """Hands out turns, and turns aside, of each only so many at a time. Threads.

    Args:
        turns: by default half of the processors, at least one.
    """

    def __init__(self, turns: int | None = None) -> None:
        processors = os.cpu_count() or 1
        self._lock = threading.Lock()
        shares = Shares()
        self._turns = Pool(turns or max(1, processors // 2), shares)
        self._asides = Pool(max(2, processors), shares)
        self._shares = shares
        self._had: dict[int, tuple[CpuAccount, float]] = {}
        """Who has a turn, by thread, and the processor time of the thread when it began."""

    @property
    def waiting(self) -> int:
        """The number of those who wait for a turn."""
        with self._lock:
            return self._turns.waiting

    def account(self) -> CpuAccount | None:
        """The account of the turn that this thread has."""
        had = self._had.get(threading.get_ident())
        return None if had is None else had[0]

    @contextmanager
    def turn(self, account: CpuAccount) -> Iterator[None]:
        """Have a turn inside the block; a thread that has one keeps it."""
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
        """Let others have the turn inside the block. The processor time of the block counts, too.

        Raises:
            TooSlow: the answer has used what it may.
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
        """Have a turn for what takes long outside the interpreter; inside :meth:`given_back`, or
        in a thread that has no turn."""
        self._wait(self._asides, account)
        try:
            yield
        finally:
            with self._lock:
                self._asides.leave(account.namespace)

    def take(self, account: CpuAccount) -> None:
        """Have a turn until :meth:`give`, in this thread."""
        self._wait(self._turns, account)
        self._had[threading.get_ident()] = (account, time.thread_time())

    def give(self) -> CpuAccount | None:
        """Give this thread's turn to whoever has used least, and return its account.

        None where the thread has no turn.
        """
        had = self._had.pop(threading.get_ident(), None)
        if had is None:
            return None
        account, began = had
        with self._lock:
            self._shares.charge(account, time.thread_time() - began)
            self._turns.leave(account.namespace)
        return account

    def count(self, account: CpuAccount, used_s: float) -> None:
        """Count what was used outside of a turn."""
        with self._lock:
            self._shares.charge(account, used_s)

    def _wait(self, pool: Pool, account: CpuAccount) -> None:
        with self._lock:
            waiter = pool.join(account)
        if waiter is not None:
            waiter.acquire()


class Pace:
    """Lets others have a turn in the middle of much work that no part comes of."""

    def __init__(self, scheduler: FairScheduler) -> None:
        self._scheduler = scheduler
        self.restart()

    def restart(self) -> None:
        """Count from now on: a turn has begun."""
        self._working_since = time.monotonic()

    def let_others(self) -> None:
        """Have others at it for a moment, if this answer was worked on for long.

        Raises:
            TooSlow: it was for longer than it may.
        """
        if time.monotonic() - self._working_since > TURN_S:
            with self._scheduler.given_back():
                time.sleep(_MOMENT_S)
            self.restart()
