"""The fate of each batch of a writer: accepted, refused, sent again or given up.

Law of this file: pure, with no thread, socket or clock; its owner locks.

    append ──► window ──► answered ──► accepted: counted
                 │  ▲         └──────► refused: the error of this batch and of all that follow
                 │  └─ rewound ─┐
                 └──► lost ─────┴────► given up: the same for all that was not answered

When a stream is lost or refused for now, the window is rewound and sent again on the next one. That
is exact because every batch carries its origin's sequence: what the daemon already has is answered
as a duplicate. Without an origin a batch that may have been applied is never sent again.

A daemon that stood still may serve a call late that this writer has given up: it then takes over
from the newer stream of the same writer, which opens another one.

Who keeps batches until they are durable sends those again, too, that a daemon has answered and does
not have any more: its disk was lost, or another daemon has taken its place.
"""

import math
from typing import NamedTuple

import pyarrow as pa

from .ack import Ack
from .checkpoints.checkpoint import Carried, Checkpoint, shared_id
from .errors import (
    ADMISSION_CODES,
    ClientError,
    OriginClash,
    TimedOut,
    Unavailable,
    UnknownOutcome,
    Unreachable,
)
from .origins import OriginLease
from .retry import RetryState, is_retryable
from .window import Pending, SendWindow
from .wire import Answer, WriteResult

LATE_S = 10.0
"""The time after an answer on a newer stream in which a call that was given up may still be served:
both have waited for the same daemon."""
UNREAD = Answer(accepted=True)
"""The answer that is assumed where one was lost."""


class Settled(NamedTuple):
    """A batch whose answer came: accepted, or ``error`` says why not."""

    pending: Pending
    error: ClientError | None


class Delivery:
    """The batches of one writer, from their first sending to their end.

    ``failure`` is what ended the writer, ``total`` what was acknowledged so far.
    """

    def __init__(
        self,
        window: SendWindow,
        lease: OriginLease | None,
        retry: RetryState,
        *,
        keeps: bool = False,
    ) -> None:
        self.window = window
        self.keeps = keeps
        """Whether batches are kept until they are in object storage."""
        self.failure: ClientError | None = None
        self.total = WriteResult()
        self._lease = lease
        self._retry = retry
        self._heard_at = 0.0
        self._shared: tuple[bytes, str] = (b"", "")
        """The newest checkpoint's shared bytes and their id: most checkpoints have the same."""
        self._late_until = -math.inf
        """The time until which a call that this writer has given up may be served."""

    @property
    def own_origin(self) -> bool:
        """Whether what the daemon says of the origin is of these batches alone."""
        return self._lease is not None and self._lease.made_up

    @property
    def numbers_rows(self) -> bool:
        """Whether a sequence is the number of a batch's last row."""
        return self._lease is not None and self._lease.numbers_rows

    def append(
        self,
        batch: pa.RecordBatch,
        checkpoint: Checkpoint | None,
        ack: Ack,
        traceparent: str | None = None,
    ) -> None:
        """Add the newest batch, under the origin's next sequence. The window must have room."""
        nbytes = self.weight(batch, checkpoint)
        if checkpoint is not None and checkpoint.shared is not None and self._is_new(checkpoint):
            self._shared = (checkpoint.shared, shared_id(checkpoint.shared))
        shared = None if checkpoint is None or checkpoint.shared is None else self._shared[1]
        sequence = None if self._lease is None else self._lease.take(batch.num_rows)
        carried = None if checkpoint is None else Carried(checkpoint, shared)
        pending = Pending(batch, carried, sequence, ack, nbytes, traceparent=traceparent)
        self.window.append(pending)

    def weight(self, batch: pa.RecordBatch, checkpoint: Checkpoint | None) -> int:
        """The bytes that are held while these wait; bytes shared with the one before are not."""
        nbytes = int(batch.nbytes)
        if checkpoint is not None:
            nbytes += len(checkpoint.state)
            if checkpoint.shared is not None and self._is_new(checkpoint):
                nbytes += len(checkpoint.shared)
        return nbytes

    def _is_new(self, checkpoint: Checkpoint) -> bool:
        return checkpoint.shared is not self._shared[0]

    def owed_s(self, now: float) -> float | None:
        """Seconds for which the daemon has owed an answer and said nothing; None: it owes none."""
        sent_at = self.window.oldest_sent_at()
        return None if sent_at is None else now - max(sent_at, self._heard_at)

    def answered(self, answer: Answer, now: float) -> Settled | None:
        """The batch that ``answer`` belongs to; None when none was sent.

        A refused batch is not counted: :meth:`fail` must follow with its error.
        """
        pending = self.window.answered()
        if pending is None:
            return None
        error = self._refusal(answer, pending)
        if error is None:
            self._heard_at = now
            if self._late_until == math.inf:
                self._late_until = now + LATE_S
            self._retry.progressed()
            if not pending.acknowledged:
                self._count(answer, pending)
            if self.keeps:
                self.window.keep(pending, answer.durable_sequence)
        return Settled(pending, error)

    def answered_unread(self, count: int) -> list[Pending]:
        """The ``count`` oldest batches sent, which were answered, though nobody has read it."""
        gone = [pending for _ in range(count) if (pending := self.window.answered())]
        self._count_all(gone, UNREAD)
        return gone

    def answered_up_to(self, position: int) -> list[Pending]:
        """Settle the batches that the daemon has, up to its ``position``, though unanswered."""
        gone = self.window.answered_up_to(position)
        self._count_all(gone, Answer(accepted=True, memory_sequence=position))
        return gone

    def _count_all(self, gone: list[Pending], answer: Answer) -> None:
        if gone:
            self._retry.progressed()
        for pending in gone:
            if not pending.acknowledged:
                self._count(answer, pending)
            if self.keeps:
                self.window.keep(pending, None)

    def lost(
        self,
        error: ClientError,
        now: float,
        *,
        unclear: bool = False,
        moves: bool = False,
        owes: bool = False,
    ) -> float | ClientError:
        """Rewind for the next stream: seconds to wait before it, or the error that stands.

        Args:
            unclear: whether answers may have come that nobody has read, nobody knows how many.
            moves: whether another daemon is next, which may take what this one refuses.
            owes: whether something is to be sent again that is not in the window yet.

        :meth:`fail` must follow with the error.
        """
        if isinstance(error, Unreachable | TimedOut):
            self._late_until = math.inf
        elif error.code == "superseded" and (self.own_origin or now < self._late_until):
            error = Unavailable(f"{error} (it may be an older one of this writer, served late)")
        on_the_way = self.window.sent_count
        # A refusal at the door says that nothing was applied; anything else leaves it open.
        maybe_applied = unclear or error.code not in (*ADMISSION_CODES, "owner")
        unknown = None
        retryable = moves or is_retryable(error)
        if on_the_way and retryable and maybe_applied and self._lease is None:
            unknown = UnknownOutcome(f"{error}; {on_the_way} batches had no origin and no answer")
        self.window.rewind()
        if not (len(self.window) or owes) and retryable:
            return 0.0  # lost while idle: nothing is at stake before the next batch
        # Another daemon does not ask for the pause that this one asks for.
        tried = Unreachable(str(error)) if moves else error
        delay_s = None if unknown else self._retry.failed(tried, now)
        if delay_s is not None:
            return delay_s
        if on_the_way and unclear and retryable and not unknown:
            unknown = UnknownOutcome(f"{error}; {on_the_way} batches may have been taken before it")
        if unknown is None:
            return error
        unknown.__cause__ = error
        return unknown

    def fail(self, error: ClientError) -> list[Pending]:
        """End with ``error``: the batches, oldest first, that have to be told."""
        self.failure = error
        return [pending for pending in self.window.drain() if not pending.acknowledged]

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
        total = self.total
        self.total = WriteResult(
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
