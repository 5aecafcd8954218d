"""Lets handler threads call functions on the event loop.

A thread either waits for the outcome of a coroutine or posts a callback. Both raise ``stopping``
after the loop has ended (``tests/server/test_portal.py``). Callbacks that are posted before the
loop runs the first one share its wake-up. The log has its own way onto the loop
(:mod:`wal.group_commit`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from ingester.errors import Stopping

T = TypeVar("T")


class Portal:
    """Calls functions on the event loop for foreign threads."""

    def __init__(self, before: Callable[[], object] = lambda: None) -> None:
        """Make a portal to the running loop.

        Args:
            before: called on the loop before each coroutine of :meth:`call`.
        """
        self._before = before
        self._token = trio.lowlevel.current_trio_token()
        self._posted: deque[tuple[Callable[..., object], tuple[object, ...]]] = deque()
        self._is_scheduled = False

    def call(self, coroutine: Callable[..., Awaitable[T]], *args: object) -> T:
        """Run a coroutine function on the loop and return its result."""
        try:
            return trio.from_thread.run(self._enter, coroutine, *args, trio_token=self._token)
        except (trio.RunFinishedError, trio.Cancelled) as exc:
            raise Stopping("the daemon is stopping", retry_after_s=1.0) from exc

    async def _enter(self, coroutine: Callable[..., Awaitable[T]], *args: object) -> T:
        self._before()
        return await coroutine(*args)

    def post(self, callback: Callable[..., object], *args: object) -> None:
        """Run a callback on the loop, in order, without waiting. It must not raise."""
        self._posted.append((callback, args))
        # The flag is set after the append and cleared before the queue is read: while it is set, a
        # round that has not begun will run this callback.
        if not self._is_scheduled:
            self._is_scheduled = True
            try:
                self._token.run_sync_soon(self._round)
            except trio.RunFinishedError as exc:
                self._is_scheduled = False
                raise Stopping("the daemon is stopping", retry_after_s=1.0) from exc

    def _round(self) -> None:
        """Run the callbacks posted so far, in order. On the loop."""
        self._is_scheduled = False
        # Not those posted meanwhile, so that other tasks run in between.
        self._run(len(self._posted))
        if self._posted and not self._is_scheduled:
            self._is_scheduled = True
            try:
                self._token.run_sync_soon(self._round)
            except trio.RunFinishedError:  # the loop has ended; no other task is left
                self._is_scheduled = False
                self._run(len(self._posted))

    def _run(self, count: int) -> None:
        for _ in range(count):
            callback, args = self._posted.popleft()
            callback(*args)
