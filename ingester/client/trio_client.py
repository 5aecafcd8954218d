"""The same client for trio: the same names, awaited. Imports trio.

pyarrow has no asynchronous client, so every call runs the blocking one in a worker thread. A
cancelled call leaves its thread behind: what it was doing may still happen. Acknowledgements need
no thread each: the writer's reading thread wakes the waiting task.

The calls of :class:`TrioClient` are made from those of :class:`Client`, so that their parameters,
types and docstrings are written once.
"""

import contextlib
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from functools import partial, wraps
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeAlias, TypeVar

import pyarrow as pa
import trio

from .ack import Ack
from .blocking import DEFAULT_ENDPOINT, Client
from .errors import ClientError
from .reading import QueryStream
from .retry import RetryPolicy
from .sync import SyncAnswer, SyncColumn, SyncStream
from .wire import Answer, BatchSource, Checkpoint, SnapshotInfo, WriteResult
from .writer import Writer

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")


async def _in_thread(call: Callable[[], T]) -> T:
    return await trio.to_thread.run_sync(call, abandon_on_cancel=True)


class TrioAck:
    """A promise of one batch's answer."""

    def __init__(self, ack: Ack, check_silence: Callable[[], None]) -> None:
        self._ack = ack
        self._check_silence = check_silence

    def done(self) -> bool:
        """Whether the answer or the error is there."""
        return self._ack.done()

    async def wait(self) -> Answer:
        """The answer: the batch is on disk and visible. Raises as :meth:`Ack.result`."""
        done = trio.Event()
        token = trio.lowlevel.current_trio_token()

        def wake(_ack: Ack) -> None:
            with contextlib.suppress(trio.RunFinishedError):
                token.run_sync_soon(done.set)

        self._ack.add_done_callback(wake)
        while not self._ack.done():
            with trio.move_on_after(Ack.WATCH_EVERY_S):
                await done.wait()
            self._check_silence()
        await trio.lowlevel.checkpoint()
        return self._ack.result(0)


class TrioWriter:
    """A :class:`Writer` for trio. An async context manager: it closes on the way out."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    @property
    def origin(self) -> str | None:
        """The origin that the batches carry."""
        return self._writer.origin

    @property
    def acknowledged(self) -> WriteResult:
        """What was acknowledged so far."""
        return self._writer.acknowledged

    async def write(
        self, batch: pa.RecordBatch, checkpoint: Checkpoint | tuple[str, bytes] | None = None
    ) -> TrioAck:
        """A promise of the answer. Waits while the window is full, not for the answer.

        Not cancelled halfway: whoever is cancelled here may or may not have written the batch.
        """
        await trio.lowlevel.checkpoint()
        ack = self._writer.try_write(batch, checkpoint)
        if ack is None:
            ack = await _in_thread(partial(self._writer.write, batch, checkpoint))
        return TrioAck(ack, self._writer.check_silence)

    async def flush(self) -> WriteResult:
        """What was acknowledged so far, once everything written is answered."""
        return await _in_thread(self._writer.flush)

    async def close(self) -> WriteResult:
        """Flush, end the stream and return what was acknowledged."""
        return await _in_thread(self._writer.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        if exc is not None:
            self._writer.abort()
            return
        try:
            await self.close()
        except trio.Cancelled:
            self._writer.abort()
            raise


class TrioSyncStream:
    """A :class:`SyncStream` for trio; see there. One task at a time."""

    def __init__(self, stream: SyncStream) -> None:
        self._stream = stream

    async def standing(self) -> SyncAnswer:
        """Where the origin stands; nothing is changed."""
        return await _in_thread(self._stream.standing)

    async def send(
        self,
        table: str,
        columns: Sequence[SyncColumn],
        batch: pa.RecordBatch,
        *,
        begin: bool = False,
        sequence: int | None = None,
    ) -> SyncAnswer:
        """One message, once it is taken. Whoever is cancelled here asks where it stands."""
        send = partial(self._stream.send, begin=begin, sequence=sequence)
        return await _in_thread(partial(send, table, columns, batch))


class TrioQueryStream:
    """A :class:`QueryStream` for trio: ``async for batch, source in stream``."""

    def __init__(self, stream: QueryStream) -> None:
        self._stream = stream

    @property
    def schema(self) -> pa.Schema:
        """The answer's schema."""
        return self._stream.schema

    @property
    def snapshot(self) -> SnapshotInfo:
        """Which moment the answer shows."""
        return self._stream.snapshot

    async def __aiter__(self) -> AsyncIterator[tuple[pa.RecordBatch, BatchSource]]:
        while (item := await _in_thread(self._stream.read)) is not None:
            yield item

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._stream.close()  # only tells gRPC: does not wait
        await trio.lowlevel.checkpoint_if_cancelled()


# A call of Client, and what it is in TrioClient.
_Call: TypeAlias = Callable[Concatenate[Client, P], T]
_TrioCall: TypeAlias = Callable[Concatenate["TrioClient", P], Coroutine[Any, Any, T]]


def _awaited(call: _Call[P, T], note: str = "") -> _TrioCall[P, T]:
    """``call`` in a worker thread. Its docstring has ``note`` after the first paragraph."""

    @wraps(call)
    async def awaited(self: "TrioClient", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await _in_thread(lambda: call(self._client, *args, **kwargs))

    first, _, rest = (inspect.getdoc(call) or "").partition("\n\n")
    awaited.__doc__ = "\n\n".join(filter(None, (first, note, rest)))
    return awaited


def _awaited_as(kind: Callable[[S], T], call: _Call[P, S], note: str) -> _TrioCall[P, T]:
    """As :func:`_awaited`; what ``call`` returns is handed out as ``kind``."""
    plain = _awaited(call, note)

    @wraps(plain)
    async def awaited(self: "TrioClient", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return kind(await plain(self, *args, **kwargs))

    # What help() shows would otherwise be the blocking result.
    vars(awaited)["__signature__"] = inspect.signature(call).replace(return_annotation=kind)
    return awaited


class TrioClient:
    """:class:`ingester.client.Client` for trio; see there for arguments, results and errors.

        async with TrioClient("grpc://127.0.0.1:8082") as client:
            async with await client.writer("sensors", "readings", schema) as writer:
                ack = await writer.write(batch)
            async with await client.query_stream("sensors", "readings") as stream:
                async for batch, source in stream: ...

    Leaving it drops the connection.
    """

    def __init__(
        self,
        endpoint: str = DEFAULT_ENDPOINT,
        *,
        timeout_s: float = 30.0,
        retry: RetryPolicy = RetryPolicy(),  # noqa: B008 (frozen)
    ) -> None:
        self._client = Client(endpoint, timeout_s=timeout_s, retry=retry)

    async def close(self) -> None:
        """Drop the connection."""
        await _in_thread(self._client.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._client.close()

    write = _awaited(Client.write, "An iterable is walked in the worker thread.")
    delete = _awaited(Client.delete, "An iterable is walked in the worker thread.")
    writer = _awaited_as(
        TrioWriter, Client.writer, "In trio: ``async with await client.writer(…) as writer``."
    )

    sync = _awaited_as(TrioSyncStream, Client.sync, "In trio: ``await client.sync(…)``.")

    query = _awaited(Client.query)
    query_stream = _awaited_as(
        TrioQueryStream,
        Client.query_stream,
        "In trio: ``async with await client.query_stream(…) as stream``.",
    )
    tables = _awaited(Client.tables)
    schema = _awaited(Client.schema)

    describe = _awaited(Client.describe)
    create_table = _awaited(Client.create_table)
    persist = _awaited(Client.persist)
    origins = _awaited(Client.origins)
    status = _awaited(Client.status)
    action = _awaited(Client.action)


__all__ = [
    "ClientError",
    "TrioAck",
    "TrioClient",
    "TrioQueryStream",
    "TrioSyncStream",
    "TrioWriter",
]
