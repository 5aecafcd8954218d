"""The client for asyncio, with the methods of the blocking one.

:mod:`.awaiting` has the common part of both loops. An :class:`Ack` of the blocking client's writers
can be awaited in asyncio as well.
"""

import asyncio
import contextlib
import contextvars
import threading
import weakref
from collections.abc import Callable
from typing import TypeVar

from . import lifetime
from .ack import Ack
from .awaiting import (
    AsyncAck,
    AsyncQueryStream,
    AsyncSqlStream,
    AsyncSyncStream,
    AsyncTableCopy,
    AsyncWriter,
    AwaitedClient,
)
from .wire import WriteAnswer

T = TypeVar("T")

MAX_THREADS = 40
"""The most calls at the same time in one loop, as in trio; further ones wait."""


class AsyncioLoop:
    """The :class:`ingester.client.awaiting.Loop` of asyncio."""

    def __init__(self) -> None:
        self._limits: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = (
            weakref.WeakKeyDictionary()
        )

    async def in_thread(self, call: Callable[[], T]) -> T:
        """Run ``call`` in a new thread, which is left behind when cancelled; its result.

        asyncio waits for its own pool when it ends, and so would wait for a silent daemon.
        """
        lifetime.check()
        loop = asyncio.get_running_loop()
        async with self._limits.setdefault(loop, asyncio.Semaphore(MAX_THREADS)):
            return await _threaded(loop, call)

    async def result(self, ack: Ack) -> WriteAnswer:
        """Await the answer without blocking a thread."""
        return await ack

    async def pause(self) -> None:
        """Let other tasks run."""
        await asyncio.sleep(0)


async def _threaded(loop: asyncio.AbstractEventLoop, call: Callable[[], T]) -> T:
    done: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def settle(set_: Callable[[], None]) -> None:
        def unless_cancelled() -> None:
            if not done.done():
                set_()

        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(unless_cancelled)

    def run() -> None:
        try:
            result = context.run(call)
        except BaseException as exc:
            # A future does not accept StopIteration.
            error = RuntimeError(repr(exc)) if isinstance(exc, StopIteration) else exc
            settle(lambda: done.set_exception(error))
        else:
            settle(lambda: done.set_result(result))

    threading.Thread(target=run, name="ingester-call", daemon=True).start()
    return await done


class AsyncClient(AwaitedClient):
    """:class:`ingester.client.Client` for asyncio, with the same arguments, results and errors.

        async with AsyncClient("grpc://127.0.0.1:8082") as client:
            async with await client.writer("sensors", "readings", schema) as writer:
                acks = [await writer.write(batch) for batch in batches]
                answers = await asyncio.gather(*acks)
            async with await client.query_stream("sensors", "readings") as stream:
                async for batch, source in stream: ...

    Leaving the context closes the connection. A cancelled call leaves its thread behind.
    """

    loop = AsyncioLoop()


__all__ = [
    "AsyncAck",
    "AsyncClient",
    "AsyncQueryStream",
    "AsyncSqlStream",
    "AsyncSyncStream",
    "AsyncTableCopy",
    "AsyncWriter",
]
