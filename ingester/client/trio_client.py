"""The client for trio, with the methods of the blocking one. This module imports trio.

:mod:`.awaiting` has the common part of both loops.
"""

import contextlib
from collections.abc import Callable
from typing import TypeVar

import trio

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
from .errors import ClientError
from .wire import WriteAnswer

T = TypeVar("T")

TrioAck = AsyncAck
TrioQueryStream = AsyncQueryStream
TrioSqlStream = AsyncSqlStream
TrioSyncStream = AsyncSyncStream
TrioTableCopy = AsyncTableCopy
TrioWriter = AsyncWriter


class TrioLoop:
    """The :class:`ingester.client.awaiting.Loop` of trio."""

    async def in_thread(self, call: Callable[[], T]) -> T:
        """Run ``call`` in a thread, which is left behind when cancelled; its result."""
        lifetime.check()
        return await trio.to_thread.run_sync(call, abandon_on_cancel=True)

    async def result(self, ack: Ack) -> WriteAnswer:
        """Await the answer without blocking a thread."""
        answered = trio.Event()
        token = trio.lowlevel.current_trio_token()

        def wake(_ack: Ack) -> None:
            with contextlib.suppress(trio.RunFinishedError):
                token.run_sync_soon(answered.set)

        ack.add_done_callback(wake)
        while not ack.done():
            with trio.move_on_after(ack.watch()):
                await answered.wait()
        return ack.result(0)

    async def pause(self) -> None:
        """Let other tasks run."""
        await trio.lowlevel.checkpoint()


class TrioClient(AwaitedClient):
    """:class:`ingester.client.Client` for trio, with the same arguments, results and errors.

        async with TrioClient("grpc://127.0.0.1:8082") as client:
            async with await client.writer("sensors", "readings", schema) as writer:
                ack = await writer.write(batch)
                answer = await ack
            async with await client.query_stream("sensors", "readings") as stream:
                async for batch, source in stream: ...

    Leaving the context closes the connection.
    """

    loop = TrioLoop()


__all__ = [
    "ClientError",
    "TrioAck",
    "TrioClient",
    "TrioQueryStream",
    "TrioSqlStream",
    "TrioSyncStream",
    "TrioTableCopy",
    "TrioWriter",
]
