"""A pipelined writer: batches out, answers back, each batch applied exactly once.

The caller's threads never touch the network: they append to a window and wait for room in it.

    Writer      what callers have
      Driver    the threads that send and read
        Delivery    what becomes of a batch: sent again, counted, failed
          SendWindow    what was written and not yet answered, in order
        Link    one stream to the daemon
"""

import random
from collections.abc import Callable
from types import TracebackType
from typing import Self

import msgspec
import pyarrow as pa

from .ack import Ack
from .delivery import Delivery
from .driver import Driver
from .errors import InvalidRequest, UnknownOutcome
from .link import Link
from .origins import OriginLease
from .retry import RetryPolicy, RetryState
from .window import SendWindow, WindowLimits
from .wire import Checkpoint, WriteResult


class WriterOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a writer behaves. A daemon silent for ``answer_timeout_s`` counts as lost.

    ``position`` asks a daemon for the last sequence that it has of the writer's origin, which must
    be of this table alone. ``keep`` needs it: batches are kept until they are in object storage.
    """

    window: WindowLimits = WindowLimits()
    answer_timeout_s: float = 60.0
    retry: RetryPolicy = RetryPolicy()
    position: Callable[[], int | None] | None = None
    keep: bool = False


class Writer:
    """Writes batches of one schema to one table. Any number of threads may call it.

    Made by ``Client.writer``. As a context manager it closes on the way out; when the body raises,
    it stops instead of waiting, and what was not answered has an unknown outcome.
    """

    def __init__(
        self,
        open_link: Callable[[], Link],
        schema: pa.Schema,
        lease: OriginLease | None,
        options: WriterOptions,
    ) -> None:
        self._schema = schema
        self._lease = lease
        retry = RetryState(options.retry, random.random)
        delivery = Delivery(SendWindow(options.window), lease, retry, keeps=options.keep)
        position = options.position or (lambda: None)
        self._driver = Driver(open_link, delivery, options.answer_timeout_s, position)

    @property
    def origin(self) -> str | None:
        """The origin that the batches carry."""
        return None if self._lease is None else self._lease.origin

    @property
    def acknowledged(self) -> WriteResult:
        """What was acknowledged so far."""
        return self._driver.total()

    def write(
        self, batch: pa.RecordBatch, checkpoint: Checkpoint | tuple[str, bytes] | None = None
    ) -> Ack:
        """A promise of the answer. Waits while the window is full, not for the answer.

        Args:
            batch: one operation: visible whole or not at all. At most the daemon's
                ``flight.max_batch_bytes``; it is held until answered.
            checkpoint: a source partition and its state, stored with the batch.

        Raises:
            InvalidRequest: the batch has another schema than the writer.
            ClientError: the writer has failed; what it raised then.
        """
        while (ack := self.try_write(batch, checkpoint)) is None:
            self._driver.wait_for_room(batch.nbytes)
        return ack

    def try_write(
        self, batch: pa.RecordBatch, checkpoint: Checkpoint | tuple[str, bytes] | None = None
    ) -> Ack | None:
        """Like :meth:`write`, but None at once where that would wait."""
        if not batch.schema.equals(self._schema):
            raise InvalidRequest(f"batch has another schema:\n{batch.schema}\nnot\n{self._schema}")
        if isinstance(checkpoint, tuple):
            checkpoint = Checkpoint(*checkpoint)
        return self._driver.append(batch, checkpoint)

    def flush(self) -> WriteResult:
        """What was acknowledged so far, once everything written is answered.

        Raises:
            ClientError: a batch was refused, or its outcome is unknown.
        """
        return self._driver.wait_until_idle()

    def close(self) -> WriteResult:
        """Flush, end the stream and return what was acknowledged. Again: the same.

        Raises:
            ClientError: as :meth:`flush`.
        """
        result = self.flush()
        if self._driver.finish() and self._lease is not None:
            self._lease.release()
        return result

    def abort(self) -> None:
        """Stop without waiting. What was not answered has an unknown outcome."""
        self._driver.abort(UnknownOutcome("the writer was stopped before the answer came"))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        if exc is None:
            self.close()
        else:
            self.abort()

    def check_silence(self) -> None:
        """Give up on the stream when the daemon owes an answer for too long. Waiters call this."""
        self._driver.check_silence()
