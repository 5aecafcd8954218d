"""Where handlers enter the event loop; the log has its own way there (`wal.group_commit`).

Law of this file: a thread either waits for a coroutine's outcome or leaves a callback behind; both
fail as ``stopping`` once the loop is gone. What is left behind while the loop is on its way costs
no second waking.
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
        """Make a portal to the loop that this is called on.

        Args:
            before: called there first whenever a thread enters by :meth:`call`.
        """
        self._before = before
        self._token = trio.lowlevel.current_trio_token()
        self._left: deque[tuple[Callable[..., object], tuple[object, ...]]] = deque()
        self._on_its_way = False

    def call(self, coroutine: Callable[..., Awaitable[T]], *args: object) -> T:
        """Run a coroutine function on the loop and wait for what it returns or raises."""
        try:
            return trio.from_thread.run(self._enter, coroutine, *args, trio_token=self._token)
        except (trio.RunFinishedError, trio.Cancelled) as exc:
            raise Stopping("the daemon is stopping", retry_after_s=1.0) from exc

    async def _enter(self, coroutine: Callable[..., Awaitable[T]], *args: object) -> T:
        self._before()
        return await coroutine(*args)

    def post(self, callback: Callable[..., object], *args: object) -> None:
        """Run a callback on the loop, soon and in order, without waiting. It must not raise."""
        self._left.append((callback, args))
        # Set after it was appended and cleared before the queue is looked at: whoever finds it set
        # leaves the callback to a round that has not begun.
        if not self._on_its_way:
            self._on_its_way = True
            try:
                self._token.run_sync_soon(self._round)
            except trio.RunFinishedError as exc:
                self._on_its_way = False
                raise Stopping("the daemon is stopping", retry_after_s=1.0) from exc

    def _round(self) -> None:
        """Run what has been left until now, in order. On the loop."""
        self._on_its_way = False
        # Not what comes meanwhile: other tasks have their turn in between.
        self._run(len(self._left))
        if self._left and not self._on_its_way:
            self._on_its_way = True
            try:
                self._token.run_sync_soon(self._round)
            except trio.RunFinishedError:  # this was the last one, and there are no other tasks
                self._on_its_way = False
                self._run(len(self._left))

    def _run(self, count: int) -> None:
        for _ in range(count):
            callback, args = self._left.popleft()
            callback(*args)
