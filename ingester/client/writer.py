"""A pipelined writer: batches out, answers back, each batch applied exactly once.

The caller's threads never touch the network: they append to a window and wait for room in it. A
driving thread opens the stream and sends, a reading thread per stream settles the acknowledgements.

    write() ──► SendWindow ──driver──► Link ──► daemon
                    ▲                             │
                    └───────── reader ◄── answers ┘

When a stream is lost or refused for now, the window is rewound and sent again on the next one. That
is exact because every batch carries its origin's sequence: what the daemon already has is answered
as a duplicate. Without an origin a batch that may have been applied is never sent again.

Every driver belongs to a generation. Giving up on a silent daemon raises the generation, and what
threads of an older one still find is ignored.
"""

import random
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

import msgspec
import pyarrow as pa

from .ack import Ack
from .errors import (
    ADMISSION_CODES,
    ClientError,
    InvalidRequest,
    OriginClash,
    TimedOut,
    Unavailable,
    UnknownOutcome,
    Unreachable,
    from_arrow,
)
from .link import Link
from .origins import OriginLease
from .retry import RetryPolicy, RetryState, is_retryable
from .window import Pending, SendWindow, WindowLimits
from .wire import Answer, BatchMetadata, Checkpoint, WriteResult, encode


class WriterOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a writer behaves. A daemon silent for ``answer_timeout_s`` counts as lost."""

    window: WindowLimits = WindowLimits()
    answer_timeout_s: float = 60.0
    retry: RetryPolicy = RetryPolicy()


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
        self._open_link = open_link
        self._schema = schema
        self._lease = lease
        self._options = options
        self._lock = threading.RLock()
        self._work = threading.Condition(self._lock)  # for the driver
        self._room = threading.Condition(self._lock)  # for callers of write
        self._idle = threading.Condition(self._lock)  # for callers of flush
        self._window = SendWindow(options.window)
        self._retry = RetryState(options.retry, random.random)
        self._generation = 0
        self._driver: threading.Thread | None = None
        self._closing = False
        self._failure: ClientError | None = None
        self._heard_at = 0.0
        self._total = WriteResult()

    # ------------------------------------------------------------------------------ for callers

    @property
    def origin(self) -> str | None:
        """The origin that the batches carry."""
        return None if self._lease is None else self._lease.origin

    @property
    def acknowledged(self) -> WriteResult:
        """What was acknowledged so far."""
        with self._lock:
            return self._total

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
        while True:
            ack = self.try_write(batch, checkpoint)
            if ack is not None:
                return ack
            with self._room:
                if not (self._failure or self._window.has_room(batch.nbytes)):
                    self._room.wait(Ack.WATCH_EVERY_S)
            self.check_silence()

    def try_write(
        self, batch: pa.RecordBatch, checkpoint: Checkpoint | tuple[str, bytes] | None = None
    ) -> Ack | None:
        """Like :meth:`write`, but None at once where that would wait."""
        if not batch.schema.equals(self._schema):
            raise InvalidRequest(f"batch has another schema:\n{batch.schema}\nnot\n{self._schema}")
        if isinstance(checkpoint, tuple):
            checkpoint = Checkpoint(*checkpoint)
        with self._lock:
            self._check_usable()
            if not self._window.has_room(batch.nbytes):
                return None
            sequence = None if self._lease is None else self._lease.take()
            metadata = None
            if sequence is not None or checkpoint is not None:
                metadata = encode(BatchMetadata(sequence, checkpoint))
            ack = Ack(self.check_silence)
            self._window.append(Pending(batch, metadata, sequence, ack))
            if self._driver is None:
                self._start_driver(0.0)
            self._work.notify_all()
            return ack

    def flush(self) -> WriteResult:
        """What was acknowledged so far, once everything written is answered.

        Raises:
            ClientError: a batch was refused, or its outcome is unknown.
        """
        while True:
            with self._idle:
                if self._failure is not None:
                    raise self._failure
                if not len(self._window):
                    return self._total
                self._idle.wait(Ack.WATCH_EVERY_S)
            self.check_silence()

    def close(self) -> WriteResult:
        """Flush, end the stream and return what was acknowledged. Again: the same.

        Raises:
            ClientError: as :meth:`flush`.
        """
        result = self.flush()
        with self._lock:
            if self._closing:
                return result
            self._closing = True
            self._work.notify_all()
            driver = self._driver
        if driver is not None:
            # Everything is answered; the stream's end is a courtesy that a stuck daemon may miss.
            driver.join(min(5.0, self._options.answer_timeout_s))
        if self._lease is not None:
            self._lease.release()
        return result

    def abort(self) -> None:
        """Stop without waiting. What was not answered has an unknown outcome."""
        with self._lock:
            self._closing = True
            if self._failure is None:
                self._fail(UnknownOutcome("the writer was stopped before the answer came"))

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
        with self._lock:
            sent_at = self._window.oldest_sent_at()
            limit_s = self._options.answer_timeout_s
            if sent_at is None or time.monotonic() - max(sent_at, self._heard_at) < limit_s:
                return
            self._generation += 1  # the stuck threads are left behind
            self._work.notify_all()
            delay_s = self._lost(TimedOut(f"the daemon answered nothing for {limit_s:g} s"))
            if delay_s is not None:
                self._start_driver(delay_s)

    # ----------------------------------------------------------------- with the lock held

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._closing:
            raise InvalidRequest("the writer is closed")

    def _start_driver(self, delay_s: float) -> None:
        self._driver = threading.Thread(
            target=self._drive, args=(self._generation, delay_s), name="ingester-send", daemon=True
        )
        self._driver.start()

    def _lost(self, error: ClientError) -> float | None:
        """Rewind for the next stream; seconds to wait before it, or None when that was all."""
        on_the_way = self._window.sent_count
        # A refusal at the door says that nothing was applied; anything else leaves it open.
        unclear = is_retryable(error) and error.code not in ADMISSION_CODES
        if on_the_way and unclear and self._lease is None:
            unknown = UnknownOutcome(f"{error}; {on_the_way} batches had no origin and no answer")
            unknown.__cause__ = error
            error = unknown
        self._window.rewind()
        if not len(self._window) and is_retryable(error):
            return 0.0  # lost while idle: nothing is at stake before the next batch
        delay_s = self._retry.failed(error, time.monotonic())
        if delay_s is None:
            self._fail(error)
        return delay_s

    def _fail(self, error: ClientError) -> None:
        self._failure = error
        self._generation += 1
        for pending in self._window.drain():
            pending.ack.settle(None, error)
        for condition in (self._work, self._room, self._idle):
            condition.notify_all()

    # ----------------------------------------------------------------------- driver and reader

    def _drive(self, generation: int, delay_s: float) -> None:
        while self._wait_for_work(generation, delay_s):
            error = self._stream(generation)
            with self._lock:
                if generation != self._generation:
                    return
                if error is None and self._closing and not len(self._window):
                    return
                ended_early = Unreachable("the daemon ended the stream before it answered")
                next_delay_s = self._lost(error or ended_early)
            if next_delay_s is None:
                return
            delay_s = next_delay_s

    def _wait_for_work(self, generation: int, delay_s: float) -> bool:
        def changed() -> bool:
            return generation != self._generation

        with self._work:
            if delay_s and self._work.wait_for(changed, delay_s):
                return False
            self._work.wait_for(lambda: changed() or self._closing or self._window.has_unsent)
            return not changed() and self._window.has_unsent

    def _stream(self, generation: int) -> ClientError | None:
        """Open a stream and send until it ends. None: ended in good order, or given up."""
        sending_error: ClientError | None = None
        try:
            link = self._open_link()
        except Exception as exc:
            return from_arrow(exc)
        reader = threading.Thread(
            target=self._read, args=(link, generation), name="ingester-answers", daemon=True
        )
        reader.start()
        try:
            while (pending := self._next(link, generation)) is not None:
                link.send(pending.batch, pending.metadata)
        except (pa.ArrowException, OSError) as exc:
            sending_error = from_arrow(exc)  # the stream's own end says it better, if it does
        link.finish_sending()
        with self._work:
            self._work.wait_for(lambda: link.ended or generation != self._generation)
            if not link.ended:
                return None
        return link.end() or sending_error

    def _next(self, link: Link, generation: int) -> Pending | None:
        with self._work:
            self._work.wait_for(
                lambda: (
                    generation != self._generation
                    or link.ended
                    or self._closing
                    or self._window.has_unsent
                )
            )
            if generation != self._generation or link.ended or not self._window.has_unsent:
                return None
            return self._window.take(time.monotonic())

    def _read(self, link: Link, generation: int) -> None:
        try:
            for answer in link.answers():
                self._answered(answer, generation)
        finally:
            with self._work:
                link.ended = True
                self._work.notify_all()

    def _answered(self, answer: Answer, generation: int) -> None:
        with self._lock:
            if generation != self._generation:
                return
            pending = self._window.answered()
            if pending is None:
                return
            error = self._refusal(answer, pending)
            if error is not None:
                pending.ack.settle(None, error)
                self._fail(error)
                return
            self._heard_at = time.monotonic()
            self._retry.progressed()
            self._count(answer, pending)
            self._room.notify()
            if not len(self._window):
                self._idle.notify_all()
        pending.ack.settle(answer, None)

    def _refusal(self, answer: Answer, pending: Pending) -> ClientError | None:
        if not answer.accepted:
            return Unavailable("the daemon did not accept the batch")
        sent_once = pending.times_sent == 1
        if answer.duplicate and sent_once and self._lease is not None and self._lease.exclusive:
            return OriginClash(
                f"origin {self._lease.origin!r}: sequence {pending.sequence} was already written "
                "by someone else, so this batch was not; give each writer its own origin"
            )
        return None

    def _count(self, answer: Answer, pending: Pending) -> None:
        total = self._total
        self._total = WriteResult(
            rows=total.rows + pending.batch.num_rows,
            batches=total.batches + 1,
            duplicates=total.duplicates + answer.duplicate,
            sequence=_newest(total.sequence, answer.sequence),
            epoch=_newest(total.epoch, answer.epoch),
            memory_sequence=_newest(total.memory_sequence, answer.memory_sequence),
            durable_sequence=_newest(total.durable_sequence, answer.durable_sequence),
        )


def _newest(known: int | None, told: int | None) -> int | None:
    return known if told is None else told
