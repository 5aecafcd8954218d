"""What asyncio does for a client: calls in threads, and answers without one."""

import asyncio
import contextlib
import threading
import weakref
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from . import lifetime
from .errors import InvalidRequest
from .wire import Answer

T = TypeVar("T")


MAX_THREADS = 40
"""Calls that wait at once in one loop, as in trio; the next wait for their turn."""


class Promise(Protocol):
    """As much of an :class:`ingester.client.ack.Ack` as a loop has to do with."""

    def done(self) -> bool:
        """Whether the answer or the error is there."""

    def watch(self) -> float:
        """Seconds until it is worth asking again whether the daemon has fallen silent."""

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        """Call back when done."""

    def result(self, timeout_s: float | None = None) -> Answer:
        """The answer."""


class AsyncioLoop:
    """The loop that runs here; see :class:`ingester.client.awaiting.Loop`."""

    def __init__(self) -> None:
        self._turns: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = (
            weakref.WeakKeyDictionary()
        )

    async def in_thread(self, call: Callable[[], T]) -> T:
        """The result of ``call``, made in a thread of its own, which is left when cancelled.

        Not in the loop's own pool: asyncio waits for that when it ends, and with it for a daemon
        that is silent.
        """
        lifetime.check()
        loop = asyncio.get_running_loop()
        async with self._turns.setdefault(loop, asyncio.Semaphore(MAX_THREADS)):
            return await _threaded(loop, call)

    async def result(self, ack: Promise) -> Answer:
        """As ``Ack.result``; no thread waits.

        Raises:
            InvalidRequest: no loop of asyncio runs here.
        """
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError as exc:
            raise InvalidRequest(
                "an Ack is awaited in asyncio; a thread calls result(), and trio has the client in"
                " ingester.client.trio_client"
            ) from exc
        answered = asyncio.Event()

        def wake(_ack: object) -> None:
            with contextlib.suppress(RuntimeError):  # as above
                loop.call_soon_threadsafe(answered.set)

        ack.add_done_callback(wake)
        while not ack.done():
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(answered.wait(), ack.watch())
        return ack.result(0)

    async def pause(self) -> None:
        """Let other tasks run."""
        await asyncio.sleep(0)


async def _threaded(loop: asyncio.AbstractEventLoop, call: Callable[[], T]) -> T:
    done: asyncio.Future[T] = loop.create_future()

    def settle(set_: Callable[[], None]) -> None:
        def unless_cancelled() -> None:
            if not done.done():
                set_()

        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(unless_cancelled)

    def run() -> None:
        try:
            result = call()
        except BaseException as exc:
            # A future takes no StopIteration.
            error = RuntimeError(repr(exc)) if isinstance(exc, StopIteration) else exc
            settle(lambda: done.set_exception(error))
        else:
            settle(lambda: done.set_result(result))

    threading.Thread(target=run, name="ingester-call", daemon=True).start()
    return await done


ASYNCIO = AsyncioLoop()
