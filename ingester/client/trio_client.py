"""The same client for trio: the same names, awaited. Imports trio.

pyarrow has no asynchronous client, so every call runs the blocking one in a worker thread. A
cancelled call leaves its thread behind: what it was doing may still happen. Acknowledgements need
no thread each: the writer's reading thread wakes the waiting task.
"""

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

import pyarrow as pa
import trio

from .ack import Ack
from .blocking import DEFAULT_ENDPOINT, Client
from .errors import ClientError
from .reading import QueryStream
from .retry import RetryPolicy
from .splitting import Data
from .wire import (
    Answer,
    BatchSource,
    Checkpoint,
    OriginState,
    Persisted,
    SnapshotInfo,
    TableDescription,
    TableSummary,
    WriteResult,
)
from .writer import Writer

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


class TrioClient:
    """:class:`ingester.client.Client` for trio; see there for arguments, results and errors."""

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

    async def write(
        self,
        namespace: str,
        table: str,
        data: Data,
        *,
        origin: str | None = None,
        first_sequence: int | None = None,
        exactly_once: bool = True,
    ) -> WriteResult:
        """What was acknowledged. An iterable is walked in the worker thread."""
        return await _in_thread(
            partial(
                self._client.write,
                namespace,
                table,
                data,
                origin=origin,
                first_sequence=first_sequence,
                exactly_once=exactly_once,
            )
        )

    async def writer(
        self,
        namespace: str,
        table: str,
        schema: pa.Schema,
        *,
        origin: str | None = None,
        first_sequence: int | None = None,
        max_unanswered: int | None = None,
        exactly_once: bool = True,
    ) -> TrioWriter:
        """A pipelined writer: ``async with await client.writer(…) as writer``."""
        opened = await _in_thread(
            partial(
                self._client.writer,
                namespace,
                table,
                schema,
                origin=origin,
                first_sequence=first_sequence,
                max_unanswered=max_unanswered,
                exactly_once=exactly_once,
            )
        )
        return TrioWriter(opened)

    async def query(
        self,
        namespace: str,
        table: str,
        columns: Sequence[str] | None = None,
        filter: Any = None,
        limit: int | None = None,
        *,
        scope: str = "all",
        version: int | None = None,
        timeout_s: float | None = None,
    ) -> pa.Table:
        """The rows of one snapshot as a table."""
        call = partial(self._client.query, namespace, table, columns, filter, limit)
        return await _in_thread(partial(call, scope=scope, version=version, timeout_s=timeout_s))

    async def query_stream(
        self,
        namespace: str,
        table: str,
        columns: Sequence[str] | None = None,
        filter: Any = None,
        limit: int | None = None,
        *,
        scope: str = "all",
        version: int | None = None,
    ) -> TrioQueryStream:
        """The same rows batch by batch: ``async with await client.query_stream(…) as stream``."""
        call = partial(self._client.query_stream, namespace, table, columns, filter, limit)
        return TrioQueryStream(await _in_thread(partial(call, scope=scope, version=version)))

    async def tables(self) -> list[TableSummary]:
        """All tables, by namespace and name."""
        return await _in_thread(self._client.tables)

    async def schema(self, namespace: str, table: str) -> pa.Schema:
        """The table's Arrow schema."""
        return await _in_thread(partial(self._client.schema, namespace, table))

    async def describe(self, namespace: str, table: str) -> TableDescription:
        """The table's columns, keys, partitions and sizes."""
        return await _in_thread(partial(self._client.describe, namespace, table))

    async def create_table(
        self,
        namespace: str,
        table: str,
        schema: pa.Schema,
        *,
        primary_key: Sequence[str] | None = None,
        partition_by: Sequence[str] | None = None,
        sort_by: Sequence[str] | None = None,
        timestamp_unit: str | None = None,
    ) -> TableDescription:
        """The description of the table, made or found with the same definition."""
        return await _in_thread(
            partial(
                self._client.create_table,
                namespace,
                table,
                schema,
                primary_key=primary_key,
                partition_by=partition_by,
                sort_by=sort_by,
                timestamp_unit=timestamp_unit,
            )
        )

    async def persist(
        self, namespace: str | None = None, table: str | None = None, timeout_s: float = 60.0
    ) -> list[Persisted]:
        """Per table, the version in which everything acknowledged before is committed."""
        return await _in_thread(partial(self._client.persist, namespace, table, timeout_s))

    async def origins(self, origin: str | None = None) -> list[OriginState]:
        """How far each origin has come."""
        return await _in_thread(partial(self._client.origins, origin))

    async def status(self) -> dict[str, Any]:
        """What ``/api/status`` has."""
        return await _in_thread(self._client.status)

    async def action(
        self, kind: str, body: Mapping[str, Any], *, timeout_s: float | None = None
    ) -> list[dict[str, Any]]:
        """The JSON results of any action of the daemon."""
        return await _in_thread(partial(self._client.action, kind, body, timeout_s=timeout_s))


__all__ = ["ClientError", "TrioAck", "TrioClient", "TrioQueryStream", "TrioWriter"]
