"""Processes that take turns at one store: each waits for its turn before every call.

    successor = Process(lambda store: fence_epochs(store, writer), store)
    successor.step()            # its next call, and up to the one after

A schedule is a list of numbers, so hypothesis can draw and shrink it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from persist.store import ObjectStore
from tests.fencing.pausing import PausingStore

T = TypeVar("T")
PATIENCE_S = 30.0


class Abandoned(BaseException):
    """The process is gone: no handler catches this."""


class Process(Generic[T]):
    """A process in a thread; it stands still before each call of its store."""

    def __init__(self, work: Callable[[ObjectStore], T], store: ObjectStore) -> None:
        self._turn = threading.Semaphore(0)
        self._still = threading.Semaphore(0)
        self._gone = False
        self.ended = False
        self.result: T | None = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(work, _TurnStore(store, self)))
        self._thread.start()
        self._wait()

    def _run(self, work: Callable[[ObjectStore], T], store: ObjectStore) -> None:
        try:
            self.result = work(store)
        except Abandoned:
            pass
        except BaseException as exc:
            self.error = exc
        self.ended = True
        self._still.release()

    def _wait(self) -> None:
        assert self._still.acquire(timeout=PATIENCE_S)

    def stand_still(self) -> None:
        """Called by the process: wait for the next turn."""
        self._still.release()
        assert self._turn.acquire(timeout=PATIENCE_S)
        if self._gone:
            raise Abandoned

    def step(self) -> None:
        """Let it make its next call and continue to the one after; no-op once it has ended."""
        if not self.ended:
            self._turn.release()
            self._wait()

    def finish(self) -> T:
        """Let it make all its calls; return its result."""
        while not self.ended:
            self.step()
        self._thread.join()
        if self.error is not None:
            raise self.error
        assert self.result is not None
        return self.result

    def kill(self) -> None:
        """End it before its next call."""
        self._gone = True
        self.step()
        self._thread.join()


class _TurnStore(PausingStore):
    def __init__(self, inner: ObjectStore, process: Process[Any]) -> None:
        super().__init__(inner)
        self._process = process

    def _do(self, call: str, path: str, work: Callable[[], T]) -> T:
        self._process.stand_still()
        return super()._do(call, path, work)
