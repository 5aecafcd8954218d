"""Simulated time: threads wait in a simulation, and one of them runs at a time.

    run ──▶ the process whose time has come ──▶ sleep ──▶ the next one …

Exactly one thread of the simulation runs: the one that :meth:`Clock.run` or the last
:meth:`Clock.sleep` has handed control to. So a process may run any blocking code, and two runs
of the same seed are equal. Running code takes no simulated time, only sleeping does.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable
from itertools import count

_STACK_BYTES = 512 << 10


class Ended(BaseException):
    """Raised in a sleeping process when the simulation is over."""


class _Process:
    """One thread and the lock that it waits for."""

    def __init__(self, body: Callable[[], None]) -> None:
        self.body = body
        self.turn = threading.Lock()
        self.turn.acquire()
        self.ident = 0


class Clock:
    """The time and the processes of a simulation."""

    def __init__(self) -> None:
        self.now = 0.0
        self._end_s = 0.0
        self._numbers = count()
        self._waiting: list[tuple[float, int, _Process]] = []
        self._running: _Process | None = None
        self._owed_s = 0.0
        self._over = threading.Lock()
        self._alive = 0
        self._error: BaseException | None = None

    def start(self, body: Callable[[], None], at: float = 0.0) -> None:
        """Add a process that begins at this time; before :meth:`run`."""
        heapq.heappush(self._waiting, (at, next(self._numbers), _Process(body)))

    def run(self, end_s: float) -> float:
        """Advance time until no process waits for a time before ``end_s``; return the final time.

        Raises:
            BaseException: The exception of a process.
        """
        self._end_s = end_s
        processes = [process for _, _, process in self._waiting]
        before = threading.stack_size(_STACK_BYTES)
        try:
            threads = [
                threading.Thread(target=self._live, args=(process,), daemon=True)
                for process in processes
            ]
            for thread in threads:
                thread.start()
        finally:
            threading.stack_size(before)
        self._alive = len(processes)
        self._over.acquire()
        self._hand_over()
        with self._over:  # until the last process has ended
            pass
        for thread in threads:
            thread.join()
        if self._error is not None:
            raise self._error
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let others run until this much time has passed.

        A thread outside the simulation, which works for the running process, does not wait. Its
        share is added to that process's next sleep.
        """
        me = self._running
        assert me is not None
        if threading.get_ident() != me.ident:
            self._owed_s += seconds
            return
        seconds, self._owed_s = seconds + self._owed_s, 0.0
        heapq.heappush(self._waiting, (self.now + seconds, next(self._numbers), me))
        self._hand_over()
        me.turn.acquire()
        if self.now >= self._end_s:
            raise Ended

    def _live(self, process: _Process) -> None:
        process.turn.acquire()
        process.ident = threading.get_ident()
        try:
            if self.now < self._end_s and self._error is None:
                process.body()
        except Ended:
            pass
        except BaseException as exc:
            self._error, self._end_s = exc, 0.0
        self._alive -= 1
        if self._alive:
            self._hand_over()
        else:
            self._over.release()

    def _hand_over(self) -> None:
        at, _, process = heapq.heappop(self._waiting)
        self.now = min(max(self.now, at), max(self._end_s, self.now))
        self._running, self._owed_s = process, 0.0
        process.turn.release()
