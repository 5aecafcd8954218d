"""The one place where gRPC's threads enter the event loop.

Law of this file: a thread either waits for a coroutine's outcome or leaves a callback behind; both
fail as ``stopping`` once the loop is gone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from ingester.errors import Stopping

T = TypeVar("T")


class Portal:
    """Calls into one trio run from foreign threads."""

    def __init__(self) -> None:
        """Must be made on the loop that it leads to."""
        self._token = trio.lowlevel.current_trio_token()

    def call(self, coroutine: Callable[..., Awaitable[T]], *args: object) -> T:
        """Run a coroutine function on the loop and wait for what it returns or raises."""
        try:
            return trio.from_thread.run(coroutine, *args, trio_token=self._token)
        except (trio.RunFinishedError, trio.Cancelled) as exc:
            raise Stopping("the daemon is stopping", retry_after_s=1.0) from exc

    def post(self, callback: Callable[..., object], *args: object) -> None:
        """Run a callback on the loop, soon and in order, without waiting. It must not raise."""
        try:
            self._token.run_sync_soon(callback, *args)
        except trio.RunFinishedError as exc:
            raise Stopping("the daemon is stopping", retry_after_s=1.0) from exc
