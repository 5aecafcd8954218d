"""The common part of the clients for trio and asyncio.

pyarrow has no complete asynchronous client, so each call runs the blocking client in a worker
thread. A cancelled call leaves its thread behind and may still take effect. Acknowledgements need
no threads: the writer's reading thread wakes the waiting task.

The methods of :class:`AwaitedClient` are made from those of :class:`Client`, with their parameters,
types and docstrings.
"""

import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Sequence
from functools import partial, wraps
from typing import Any, ClassVar, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar

import pyarrow as pa

from .ack import Ack
from .checkpoints import Checkpoint
from .client import DEFAULT_ENDPOINT, Client
from .copying import TableCopy
from .credentials import ConnectionOptions
from .inputs import Data
from .retry import RetryPolicy
from .sql import Parameters
from .sql_stream import SqlStream
from .streams import AnswerStream, QueryStream
from .sync_stream import SyncStream
from .wire import BatchSource, Missing, SnapshotInfo, WriteAnswer, WriteResult
from .writer import Writer

A = TypeVar("A", bound=AnswerStream)
C = TypeVar("C")
P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")


class Loop(Protocol):
    """The operations of an event loop that a client needs."""

    async def in_thread(self, call: Callable[[], T]) -> T:
        """Run ``call`` in a thread, which is left behind when cancelled; its result."""

    async def result(self, ack: Ack) -> WriteAnswer:
        """Await the answer without blocking a thread. Raises as :meth:`Ack.result`."""

    async def pause(self) -> None:
        """Let other tasks run."""


class Awaited(Generic[C]):
    """Wraps an object of the blocking client and calls it in worker threads."""

    def __init__(self, blocking: C, loop: Loop) -> None:
        self._blocking = blocking
        self._loop = loop


# A method of the blocking client, and its awaited form.
_Call = Callable[Concatenate[C, P], T]
_AwaitedCall = Callable[Concatenate[Awaited[C], P], Coroutine[Any, Any, T]]


def _awaited(call: _Call[C, P, T], note: str = "") -> _AwaitedCall[C, P, T]:
    """A method that runs ``call`` in a thread; ``note`` is added to its docstring."""

    @wraps(call)
    async def awaited(self: Awaited[C], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._loop.in_thread(lambda: call(self._blocking, *args, **kwargs))

    first, _, rest = (inspect.getdoc(call) or "").partition("\n\n")
    awaited.__doc__ = "\n\n".join(filter(None, (first, note, rest)))
    return awaited


def _awaited_as(
    kind: Callable[[S, Loop], T], call: _Call[C, P, S], note: str
) -> _AwaitedCall[C, P, T]:
    """:func:`_awaited` of ``call``, whose result is handed out as ``kind``."""
    plain = _awaited(call, note)

    @wraps(plain)
    async def awaited(self: Awaited[C], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return kind(await plain(self, *args, **kwargs), self._loop)

    # What help() shows would otherwise be the blocking result.
    vars(awaited)["__signature__"] = inspect.signature(call).replace(return_annotation=kind)
    return awaited


class AsyncAck(Awaited[Ack]):
    """The acknowledgement of one batch: ``await ack`` returns the answer."""

    def done(self) -> bool:
        """Whether the answer or the error has arrived."""
        return self._blocking.done()

    async def wait(self) -> WriteAnswer:
        """Wait for the answer: the batch is durable and visible. Raises as :meth:`Ack.result`."""
        answer = await self._loop.result(self._blocking)
        await self._loop.pause()
        return answer

    def __await__(self) -> Generator[Any, None, WriteAnswer]:
        return self.wait().__await__()


class AsyncWriter(Awaited[Writer]):
    """A :class:`Writer` for a loop. As an async context manager it closes at the end."""

    flush = _awaited(Writer.flush)
    close = _awaited(Writer.close)

    @property
    def origin(self) -> str | None:
        """The origin of the batches."""
        return self._blocking.origin

    @property
    def acknowledged(self) -> WriteResult:
        """The acknowledged rows and batches so far."""
        return self._blocking.acknowledged

    async def write(
        self, data: Data, checkpoint: Checkpoint | tuple[str, bytes] | None = None
    ) -> AsyncAck:
        """Append a batch; see :meth:`Writer.write`. Waits while the window is full.

        After a cancellation the batch may or may not have been written.
        """
        await self._loop.pause()
        ack = None
        if isinstance(data, pa.RecordBatch):
            ack = self._blocking.try_write(data, checkpoint)
        if ack is None:
            ack = await self._loop.in_thread(partial(self._blocking.write, data, checkpoint))
        return AsyncAck(ack, self._loop)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, exc: BaseException | None, tb: object) -> None:
        if exc is not None:
            self._blocking.abort()
            return
        try:
            await self.close()
        except BaseException:
            self._blocking.abort()
            raise


class AsyncSyncStream(Awaited[SyncStream]):
    """A :class:`SyncStream` for a loop. One task at a time."""

    standing = _awaited(SyncStream.standing)
    send = _awaited(SyncStream.send, "After a cancellation, ask for the origin's position.")


class AsyncTableCopy(Awaited[TableCopy]):
    """A :class:`TableCopy` for a loop. As an async context manager it aborts unless finished."""

    write = _awaited(TableCopy.write)
    finish = _awaited(TableCopy.finish)
    abort = _awaited(TableCopy.abort)

    @property
    def rows(self) -> int:
        """The number of rows written so far."""
        return self._blocking.rows

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._loop.in_thread(partial(self._blocking.__exit__, None, None, None))


class AsyncAnswerStream(Awaited[A]):
    """An answer for a loop; leaving it early cancels the query."""

    @property
    def schema(self) -> pa.Schema:
        """The answer's schema."""
        return self._blocking.schema

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._blocking.close()  # does not wait
        await self._loop.pause()


class AsyncQueryStream(AsyncAnswerStream[QueryStream]):
    """A :class:`QueryStream` for a loop: ``async for batch, source in stream``."""

    @property
    def snapshot(self) -> SnapshotInfo:
        """The moment of the answer."""
        return self._blocking.snapshot

    async def __aiter__(self) -> AsyncIterator[tuple[pa.RecordBatch, BatchSource]]:
        while (item := await self._loop.in_thread(self._blocking.read)) is not None:
            yield item


class AsyncSqlStream(AsyncAnswerStream[SqlStream]):
    """A :class:`SqlStream` for a loop: ``async for batch in stream``."""

    read_all = _awaited(SqlStream.read_all)

    @property
    def query_id(self) -> str | None:
        """The daemon's name for the query."""
        return self._blocking.query_id

    @property
    def missing(self) -> tuple[str, ...]:
        """The endpoints of daemons whose buffered rows were not read."""
        return self._blocking.missing

    async def __aiter__(self) -> AsyncIterator[pa.RecordBatch]:
        while (batch := await self._loop.in_thread(self._blocking.read)) is not None:
            yield batch


class AwaitedClient(Awaited[Client]):
    """The common part of the clients of both loops; see :class:`ingester.client.Client`."""

    loop: ClassVar[Loop]

    def __init__(
        self,
        endpoint: str | Sequence[str] = DEFAULT_ENDPOINT,
        *,
        timeout_s: float = 30.0,
        retry: RetryPolicy = RetryPolicy(),  # noqa: B008 (frozen)
        options: ConnectionOptions | None = None,
    ) -> None:
        blocking = Client(endpoint, timeout_s=timeout_s, retry=retry, options=options)
        super().__init__(blocking, self.loop)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._blocking.endpoint!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._blocking.close()

    close = _awaited(Client.close)

    async def daemons(self) -> list[Self]:
        """A client for each daemon, for calls that concern one, such as status. Close them all."""
        return [self._with(each) for each in await self._loop.in_thread(self._blocking.daemons)]

    @classmethod
    def _with(cls, blocking: Client) -> Self:
        client = cls.__new__(cls)
        Awaited.__init__(client, blocking, cls.loop)
        return client

    write = _awaited(Client.write, "An iterable is consumed in a worker thread.")
    delete = _awaited(Client.delete, "An iterable is consumed in a worker thread.")
    writer = _awaited_as(
        AsyncWriter, Client.writer, "Here: ``async with await client.writer(…) as writer``."
    )

    copy = _awaited_as(
        AsyncTableCopy, Client.copy, "Here: ``async with await client.copy(…) as copy``."
    )
    sync = _awaited_as(AsyncSyncStream, Client.sync, "Here: ``await client.sync(…)``.")

    query = _awaited(Client.query)
    query_stream = _awaited_as(
        AsyncQueryStream,
        Client.query_stream,
        "Here: ``async with await client.query_stream(…) as stream``.",
    )

    async def sql(
        self,
        statement: str,
        parameters: Parameters | None = None,
        *,
        namespace: str | None = None,
        timeout_s: float | None = None,
        missing: Missing = "error",
    ) -> pa.Table:
        async with await self.sql_stream(
            statement, parameters, namespace=namespace, timeout_s=timeout_s, missing=missing
        ) as stream:  # a cancelled call ends its query
            return await stream.read_all()

    sql.__doc__ = Client.sql.__doc__

    sql_stream = _awaited_as(
        AsyncSqlStream,
        Client.sql_stream,
        "Here: ``async with await client.sql_stream(…) as stream``.",
    )
    tables = _awaited(Client.tables)
    schema = _awaited(Client.schema)

    describe = _awaited(Client.describe)
    create_table = _awaited(Client.create_table)
    persist = _awaited(Client.persist)
    origins = _awaited(Client.origins)
    checkpoint = _awaited(Client.checkpoint)
    put_checkpoint = _awaited(Client.put_checkpoint)
    delete_checkpoint = _awaited(Client.delete_checkpoint)
    checkpoints = _awaited(Client.checkpoints)
    status = _awaited(Client.status)
    status_list = _awaited(Client.status_list)
    action = _awaited(Client.action)
