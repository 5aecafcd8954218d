"""A pipelined writer: batches out, answers back, each batch applied exactly once.

The caller's threads never touch the network: they append to a window and wait for room in it.

    Writer            what callers have
      SendLoop          who waits for room or for answers
        StreamThreads     the threads that send and read
          Route             which daemon a stream goes to
          PutStream         one stream to the daemon
        Delivery          what becomes of a batch: sent again, counted, failed
          SendWindow        what was written and not yet answered, in order
"""

import random
from collections.abc import Iterator
from typing import NoReturn, Self

import msgspec
import pyarrow as pa

from .ack import Ack, all_of
from .checkpoints.checkpoint import Checkpoint, checked
from .delivery import Delivery
from .errors import InvalidRequest, UnknownOutcome
from .fitting import aligned
from .inputs import TABLE_BATCH_BYTES, Data, at_least_one, batches_of, only_one
from .origins import OriginLease
from .retry import RetryPolicy, RetryState
from .route import Route
from .send_loop import SendLoop
from .tracing import TracedTable
from .window import SendWindow, WindowLimits
from .wire import WriteResult


class WriterOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a writer. A daemon silent for ``answer_timeout_s`` counts as lost.

    ``keep``: batches are kept until they are in object storage. Its route has to be one that asks.
    """

    window: WindowLimits = WindowLimits()
    answer_timeout_s: float = 60.0
    retry: RetryPolicy = RetryPolicy()
    keep: bool = False


class Writer:
    """Writes batches of one schema to one table. Any number of threads may call it.

    Made by ``Client.writer``. As a context manager it closes on the way out; when the body raises,
    it stops instead of waiting, and what was not answered has an unknown outcome.
    """

    def __init__(
        self,
        route: Route,
        schema: pa.Schema,
        lease: OriginLease | None,
        options: WriterOptions,
        traced: TracedTable,
    ) -> None:
        self._schema = schema
        self._lease = lease
        retry = RetryState(options.retry, random.random)
        delivery = Delivery(SendWindow(options.window), lease, retry, keeps=options.keep)
        self._route = route
        self._traced = traced
        self._send_loop = SendLoop(route, delivery, options.answer_timeout_s)

    @property
    def origin(self) -> str | None:
        """The origin that the batches carry."""
        return None if self._lease is None else self._lease.origin

    @property
    def acknowledged(self) -> WriteResult:
        """The result so far: what was acknowledged."""
        return self._send_loop.total()

    def write(self, data: Data, checkpoint: Checkpoint | tuple[str, bytes] | None = None) -> Ack:
        """A promise of the answer. Waits while the window is full, not for the answer.

        Args:
            data: a RecordBatch, which is one operation: visible whole or not at all. At most the
                daemon's ``flight.max_batch_bytes``; it is held until answered. Or what
                ``Client.write`` takes, brought to the writer's schema: one operation if it fits
                16 MiB, else several, and the promise is of all of them.
            checkpoint: a source partition and its state, stored with the (last) batch: both are
                there or neither is. See :class:`Checkpoint` for bytes that partitions share.

        Raises:
            InvalidRequest: no rows, or of another schema than the writer; or what makes several
                batches, where ``first_sequence`` says which sequence each has. Of a stream, what
                came before is on its way.
            ClientError: the writer has failed; what it raised then.
        """
        stored = checked(checkpoint)
        if self._fits(data):
            return self._append(data, stored)
        batches = self._batches(data)
        acks = []
        batch = next(batches)
        for following in batches:
            acks.append(self._append(batch, None))
            batch = following
        acks.append(self._append(batch, stored))
        return acks[0] if len(acks) == 1 else all_of(acks, self._send_loop.check_silence)

    def try_write(
        self, data: Data, checkpoint: Checkpoint | tuple[str, bytes] | None = None
    ) -> Ack | None:
        """The promise of :meth:`write` for one batch, or None at once where that would wait."""
        if not self._fits(data):
            data, *more = self._batches(data)
            if more:
                raise InvalidRequest("try_write takes what fits one batch of 16 MiB; use write")
        stored, span = checked(checkpoint), self._traced.begin(data)
        ack = self._send_loop.append(data, stored, span.traceparent)
        return None if ack is None else span.until(ack)

    def _append(self, batch: pa.RecordBatch, checkpoint: Checkpoint | None) -> Ack:
        span = self._traced.begin(batch)
        try:
            while (ack := self._send_loop.append(batch, checkpoint, span.traceparent)) is None:
                self._send_loop.wait_for_room(batch, checkpoint)
        except BaseException as exc:
            span.end(exc)
            raise
        return span.until(ack)

    def _fits(self, data: Data) -> bool:
        return isinstance(data, pa.RecordBatch) and data.schema.equals(self._schema)

    def _batches(self, data: Data) -> Iterator[pa.RecordBatch]:
        """The batches of ``data`` in the writer's schema; at least one."""
        if isinstance(data, pa.RecordBatch):
            return iter([aligned(data, self._schema)])
        given = batches_of(data, TABLE_BATCH_BYTES)
        batches: Iterator[pa.RecordBatch]
        batches = (aligned(batch, self._schema) for batch in given.batches)
        if given.held:
            batches = iter([*batches])  # nothing is appended if not all of it can be
        numbered = self._lease is not None and not self._lease.exclusive
        return at_least_one(only_one(batches) if numbered else batches, self._schema)

    def flush(self) -> WriteResult:
        """The result so far, once everything written is answered.

        Raises:
            ClientError: a batch was refused, or its outcome is unknown.
        """
        return self._send_loop.wait_until_idle()

    def close(self) -> WriteResult:
        """Flush, end the stream and return what was acknowledged. Again: the same.

        Raises:
            ClientError: as :meth:`flush`.
        """
        result = self.flush()
        while self._send_loop.make_certain():
            result = self.flush()
        if self._send_loop.finish() and self._lease is not None and not self._route.hangs:
            self._lease.release()
        return result

    def abort(self) -> None:
        """Stop without waiting. What was not answered has an unknown outcome."""
        self._send_loop.abort(UnknownOutcome("the writer was stopped before the answer came"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, exc: BaseException | None, tb: object) -> None:
        if exc is None:
            self.close()
        else:
            self.abort()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a writer belongs to its process: open one in each")
