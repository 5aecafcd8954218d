"""The same client for asyncio: the same names, awaited.

What both loops share is in :mod:`.awaiting`. An :class:`Ack` of the blocking client's writers is
awaited in asyncio, too.
"""

from .asyncio_loop import ASYNCIO
from .awaiting import AsyncAck, AsyncQueryStream, AsyncSyncStream, AsyncWriter, AwaitedClient


class AsyncClient(AwaitedClient):
    """:class:`ingester.client.Client` for asyncio; see there for arguments, results and errors.

        async with AsyncClient("grpc://127.0.0.1:8082") as client:
            async with await client.writer("sensors", "readings", schema) as writer:
                acks = [await writer.write(batch) for batch in batches]
                answers = await asyncio.gather(*acks)
            async with await client.query_stream("sensors", "readings") as stream:
                async for batch, source in stream: ...

    Leaving it drops the connection. A cancelled call leaves its thread behind.
    """

    loop = ASYNCIO


__all__ = ["AsyncAck", "AsyncClient", "AsyncQueryStream", "AsyncSyncStream", "AsyncWriter"]
