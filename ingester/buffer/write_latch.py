"""A latch on a keyed table: writes share it; a transaction that reads first holds it exclusively.

    a plain write       shared       enter ─ log ─ apply ─ leave, any number at a time
    a transaction       exclusive    after all that have entered, before all that follow

What the exclusive holder reads precedes in the log whatever it writes (tests/buffer). Writers'
threads block; the event loop only awaits.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio

from ingester.errors import IngesterError


class WriteLatch:
    """The latch of one keyed table."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._under_way = 0
        self._exclusive = False
        self._refusal: IngesterError | None = None
        self._tell_idle: Callable[[], None] | None = None
        self._turn = trio.Lock()
        self._open = trio.Event()

    def enter(self) -> None:
        """Start an operation once no transaction holds the latch. Writers' threads only.

        Raises:
            IngesterError: the error given to :meth:`refuse`.
        """
        with self._changed:
            while self._exclusive:
                self._check()
                self._changed.wait()
            self._under_way += 1

    def leave(self, operations: int = 1) -> None:
        """End operations that are applied or never will be. Thread-safe."""
        with self._changed:
            self._under_way -= operations
            if self._under_way == 0 and self._tell_idle is not None:
                self._tell_idle()

    def refuse(self, why: IngesterError | None) -> None:
        """Refuse everything that waits for the exclusive holder, now and later; None ends that.

        For an exclusive holder that does not know when it will finish.
        """
        with self._changed:
            self._refusal = why
            self._changed.notify_all()
        self._open.set()

    def _check(self) -> None:
        if self._refusal is not None:
            raise self._refusal

    @asynccontextmanager
    async def shared(self) -> AsyncIterator[None]:
        """Share the latch on the event loop, as between :meth:`enter` and :meth:`leave`."""
        while True:
            with self._changed:
                if not self._exclusive:
                    self._under_way += 1
                    break
                self._check()
                again = self._open
            await again.wait()
        try:
            yield
        finally:
            self.leave()

    @asynccontextmanager
    async def exclusive(self) -> AsyncIterator[None]:
        """Hold the latch exclusively, on the event loop."""
        self._check()
        async with self._turn:
            idle = trio.Event()
            loop = trio.lowlevel.current_trio_token()
            with self._changed:
                self._exclusive = True
                self._open = trio.Event()
                self._tell_idle = lambda: loop.run_sync_soon(idle.set)
                if self._under_way == 0:
                    idle.set()
            try:
                await idle.wait()
                yield
            finally:
                with self._changed:
                    self._exclusive = False
                    self._refusal = None
                    self._tell_idle = None
                    self._changed.notify_all()
                self._open.set()
