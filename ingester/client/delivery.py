"""The batches of a writer: their order, their sequences, and what becomes of each. Pure.

    append ──► unsent ──take──► sent ──answered──► accepted: counted, or kept until durable
                  ▲               │       └──────► refused: this batch and all later ones fail
                  ├────rewind─────┤
                  │               └──lost──► given up: all unanswered batches fail
                  └──resume, send_again: kept batches that a daemon has lost

Invariant: sequences rise from the oldest sent to the newest unsent batch, so answers, which arrive
in order, always belong to the oldest one sent. ``tests/client/test_window.py`` checks it.

A lost or refused stream is followed by another one, and unanswered batches are sent again. That is
exact because each batch carries its origin's sequence: the daemon answers what it already has as a
duplicate. Without an origin, a batch that may have been applied is never sent again. With
``keeps``, batches that a daemon has answered and lost afterwards are sent again as well.

A daemon that was paused may serve an abandoned stream late and take over from the newer stream of
the same writer, which then opens another one. The owner of these objects locks.
"""

import math
import threading
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from itertools import takewhile

import msgspec
import pyarrow as pa

from .ack import Ack
from .checkpoints import Carried, Checkpoint, shared_id
from .errors import (
    ADMISSION_CODES,
    ClientError,
    OriginClash,
    TimedOut,
    Unavailable,
    UnknownOutcome,
    Unreachable,
    of_older_daemon,
)
from .retry import RetryState, is_retryable
from .wire import AckLevel, OriginState, WriteAnswer, WriteResult

LATE_S = 10.0
"""How long after an answer on a newer stream an abandoned stream may still be served: both have
waited for the same daemon."""
SMALL_BYTES = 64 << 10
"""A window of so many bytes a batch is full of batches before it is full of bytes."""


@dataclass(eq=False, slots=True)
class OriginLease:
    """The origin of one writer and its next sequence.

    Attributes:
        exclusive: The client chooses the sequences. A duplicate of a batch that was sent only once
            then means that someone else uses the origin.
        on_release: Set for an origin that the client made up.
        numbers_rows: A sequence is the number of a batch's last row.
        first_sequence: The first ``next_sequence``.
    """

    origin: str
    next_sequence: int
    _: KW_ONLY
    exclusive: bool
    on_release: Callable[["OriginLease"], None] | None = None
    numbers_rows: bool = False
    first_sequence: int = field(init=False)

    def __post_init__(self) -> None:
        self.first_sequence = self.next_sequence

    @property
    def made_up(self) -> bool:
        """Whether the client made the origin up, for one table."""
        return self.on_release is not None

    def take(self, rows: int = 1) -> int:
        """The sequence of the next batch, which has this number of rows."""
        sequence = self.next_sequence + (rows - 1 if self.numbers_rows else 0)
        self.next_sequence = sequence + 1
        return sequence

    def release(self) -> None:
        """Return the origin to the pool. Only after everything taken was answered."""
        if self.on_release is not None:
            self.on_release(self)


class OriginPool:
    """The made-up origins of one client. Thread-safe.

    A daemon keeps a small entry per origin for ever, so origins are reused: each is lent to one
    writer at a time.
    """

    def __init__(self) -> None:
        self._free: dict[tuple[str, str], list[tuple[str, int]]] = {}
        self._lock = threading.Lock()

    def lease(self, namespace: str, table: str) -> OriginLease:
        """An origin that no open writer uses."""
        key = (namespace, table)
        with self._lock:
            free = self._free.setdefault(key, [])
            origin, next_sequence = free.pop() if free else (f"client-{uuid.uuid4().hex}", 1)

        def give_back(lease: OriginLease) -> None:
            with self._lock:
                self._free[key].append((lease.origin, lease.next_sequence))

        return OriginLease(origin, next_sequence, exclusive=True, on_release=give_back)


class WindowLimits(msgspec.Struct, frozen=True):
    """How much may be unanswered. A single batch always may, however large.

    The daemon stops reading beyond its own limits (1024 batches or 64 MiB by default), so these are
    lower.
    """

    batches: int = 512
    bytes: int = 32 * 1024**2


class Pending(msgspec.Struct, eq=False):
    """An unanswered batch.

    Attributes:
        traceparent: The span that waits for the answer.
        acknowledged: It was answered before and is sent again because a daemon lost it.
    """

    batch: pa.RecordBatch
    checkpoint: Carried | None
    sequence: int | None
    ack: Ack
    nbytes: int
    times_sent: int = 0
    sent_at: float = 0.0
    traceparent: str | None = None
    acknowledged: bool = False


class SendWindow:
    """Batches in order of their sequence: the sent ones, then the unsent ones; and kept ones."""

    def __init__(self, limits: WindowLimits) -> None:
        self._limits = limits
        self._sent: deque[Pending] = deque()
        self._unsent: deque[Pending] = deque()
        self._kept: deque[Pending] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._sent) + len(self._unsent)

    @property
    def has_unsent(self) -> bool:
        """Whether :meth:`take` has a batch."""
        return bool(self._unsent)

    def only_unsent(self) -> Pending | None:
        """The unsent batch if there is exactly one."""
        return self._unsent[0] if len(self._unsent) == 1 else None

    @property
    def sent_count(self) -> int:
        """The number of batches sent on this connection and not answered."""
        return len(self._sent)

    def has_room(self, nbytes: int) -> bool:
        """Whether a batch of ``nbytes`` may be appended now."""
        if not len(self):
            return True
        return len(self) < self._limits.batches and self._bytes + nbytes <= self._limits.bytes

    @property
    def is_half_empty(self) -> bool:
        """Whether a waiting caller is woken: half a window at a time costs fewer wake-ups."""
        limits = self._limits
        return 2 * len(self) <= limits.batches and 2 * self._bytes <= limits.bytes

    def append(self, pending: Pending) -> None:
        """Add the newest batch."""
        self._unsent.append(pending)
        self._bytes += pending.nbytes

    def take(self, now: float) -> Pending:
        """The oldest unsent batch, marked as sent."""
        pending = self._unsent.popleft()
        pending.times_sent += 1
        pending.sent_at = now
        self._sent.append(pending)
        return pending

    def answered(self) -> Pending | None:
        """Remove and return the oldest sent batch; None if there is none."""
        if not self._sent:
            return None
        pending = self._sent.popleft()
        self._bytes -= pending.nbytes
        return pending

    def answered_up_to(self, up_to: int) -> list[Pending]:
        """Remove and return the sent batches up to a sequence, oldest first."""
        gone = []
        while self._sent and (self._sent[0].sequence or 0) <= up_to:
            gone.append(self._sent.popleft())
            self._bytes -= gone[-1].nbytes
        return gone

    def oldest_sent_at(self) -> float | None:
        """When the batch whose answer comes next was sent; None if there is none."""
        return self._sent[0].sent_at if self._sent else None

    def begin_with_one_row(self) -> None:
        """Split the oldest unsent batch after its first row. Its rows are numbered."""
        if not self._unsent or self._unsent[0].batch.num_rows == 1:
            return
        whole = self._unsent[0]
        assert whole.sequence is not None
        first = msgspec.structs.replace(
            whole,
            batch=whole.batch.slice(0, 1),
            checkpoint=None,
            sequence=whole.sequence - whole.batch.num_rows + 1,
            ack=Ack(whole.ack.watch),
            nbytes=0,
        )
        self._unsent[0] = msgspec.structs.replace(whole, batch=whole.batch.slice(1))
        self._unsent.appendleft(first)

    def rewind(self) -> None:
        """Mark all sent batches as unsent, in order."""
        self._unsent.extendleft(reversed(self._sent))
        self._sent.clear()

    def keep(self, pending: Pending, in_files: int | None) -> None:
        """Keep an answered batch, and drop kept ones that are in files.

        A batch that is only in a daemon's log objects is kept: if another daemon takes the origin
        over from an earlier sequence, the first one hides it, and it has to be sent again.
        """
        self._kept.append(pending)
        while self._kept and in_files is not None and (self._kept[0].sequence or 0) <= in_files:
            self._kept.popleft()

    @property
    def first_sequence(self) -> int | None:
        """The sequence of the oldest unanswered batch; None if there is none."""
        oldest = self._sent or self._unsent
        return oldest[0].sequence if oldest else None

    @property
    def sends_again(self) -> bool:
        """Whether the oldest unanswered batch was answered before."""
        oldest = self._sent or self._unsent
        return bool(oldest) and oldest[0].acknowledged

    def take_kept(self) -> list[Pending]:
        """Remove and return the kept batches, oldest first."""
        kept = list(self._kept)
        self._kept.clear()
        return kept

    def send_again(self, batches: list[Pending]) -> None:
        """Insert batches among the unsent ones, by sequence. Nothing may be sent and unanswered."""
        if batches:
            self._unsent = deque(
                sorted([*batches, *self._unsent], key=lambda each: each.sequence or 0)
            )
            self._bytes += sum(each.nbytes for each in batches)

    @property
    def has_kept(self) -> bool:
        """Whether an answered batch may not be in files yet."""
        return bool(self._kept)

    def resume(self, known: OriginState) -> None:
        """Mark kept batches as unsent, beginning with the first that a daemon lacks."""
        for _ in range(len(self._kept) - self._known_count(known)):
            pending = self._kept.pop()
            self._unsent.appendleft(pending)
            self._bytes += pending.nbytes

    def has_all(self, known: OriginState) -> bool:
        """Whether a daemon has all kept batches."""
        return self._known_count(known) == len(self._kept)

    def _known_count(self, known: OriginState) -> int:
        """The number of kept batches before the first that a daemon lacks."""
        return sum(1 for _ in takewhile(lambda each: known.has(each.sequence or 0), self._kept))

    def drain(self) -> list[Pending]:
        """Remove and return all unanswered batches, oldest first."""
        everything = [*self._sent, *self._unsent]
        self._sent.clear()
        self._unsent.clear()
        self._bytes = 0
        return everything


class Delivery:
    """Decides what becomes of one writer's batches.

    Attributes:
        keeps: Batches are kept until they are in files.
        failure: The error that ended the writer.
    """

    def __init__(
        self,
        window: SendWindow,
        lease: OriginLease | None,
        retry: RetryState,
        *,
        keeps: bool = False,
        ack: AckLevel | None = None,
    ) -> None:
        self.window = window
        self.keeps = keeps
        self.failure: ClientError | None = None
        self._rows = self._batches = self._duplicates = 0
        self._asked = ack
        self._at_disk = 0
        """The number of batches acknowledged at a lower level than ``store``."""
        self._numbers: dict[str, int] = {}
        """The daemon's newest numbers, by their names in an answer."""
        self._lease = lease
        self._retry = retry
        self._heard_at = 0.0
        self._shared: tuple[bytes, str] = (b"", "")
        """The newest checkpoint's shared bytes and their id; most checkpoints have the same."""
        self._late_until = -math.inf
        """The time until which an abandoned stream of this writer may still be served."""

    @property
    def total(self) -> WriteResult:
        """The acknowledged rows and batches so far."""
        counts = (self._rows, self._batches, self._duplicates)
        level = "store" if self._batches and not self._at_disk else "disk"
        return WriteResult(*counts, **self._numbers, ack=level)

    @property
    def own_origin(self) -> bool:
        """Whether the origin is used by this writer alone."""
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
    ) -> bool:
        """Add the newest batch, with the origin's next sequence; false if the window is full."""
        nbytes = self.weight(batch, checkpoint)
        if not self.window.has_room(nbytes):
            return False
        if checkpoint is not None and checkpoint.shared is not None and self._is_new(checkpoint):
            self._shared = (checkpoint.shared, shared_id(checkpoint.shared))
        shared = None if checkpoint is None or checkpoint.shared is None else self._shared[1]
        sequence = None if self._lease is None else self._lease.take(batch.num_rows)
        carried = None if checkpoint is None else Carried(checkpoint, shared)
        pending = Pending(batch, carried, sequence, ack, nbytes, traceparent=traceparent)
        self.window.append(pending)
        return True

    def weight(self, batch: pa.RecordBatch, checkpoint: Checkpoint | None) -> int:
        """The bytes held until the answer, without shared bytes equal to the previous ones."""
        nbytes = _size(batch)
        if checkpoint is not None:
            nbytes += len(checkpoint.state)
            if checkpoint.shared is not None and self._is_new(checkpoint):
                nbytes += len(checkpoint.shared)
        return nbytes

    def _is_new(self, checkpoint: Checkpoint) -> bool:
        return checkpoint.shared is not self._shared[0]

    def owed_s(self, now: float) -> float | None:
        """How long the daemon has owed an answer without sending any; None if it owes none."""
        sent_at = self.window.oldest_sent_at()
        return None if sent_at is None else now - max(sent_at, self._heard_at)

    def answered(
        self, answer: WriteAnswer, now: float
    ) -> tuple[Pending | None, ClientError | None]:
        """The batch that ``answer`` belongs to, or None if none was sent; and a refusal's error.

        A refused batch is not counted; the caller then calls :meth:`fail` with its error.
        """
        pending = self.window.answered()
        if pending is None:
            return None, None
        error = self._refusal(answer, pending)
        if error is None:
            self._heard_at = now
            if self._late_until == math.inf:
                self._late_until = now + LATE_S
            self._retry.progressed()
            if not pending.acknowledged:
                self._count(answer, pending)
            if self.keeps:
                self.window.keep(pending, answer.files_sequence)
        return pending, error

    def answered_unread(self, count: int) -> list[Pending]:
        """Remove the ``count`` oldest sent batches, whose answers were lost."""
        gone = [pending for _ in range(count) if (pending := self.window.answered())]
        self._count_all(gone, self.assumed(None))
        return gone

    def answered_up_to(self, position: int) -> list[Pending]:
        """Remove the unanswered batches that the daemon has, up to its ``position``."""
        gone = self.window.answered_up_to(position)
        self._count_all(gone, self.assumed(position))
        return gone

    def assumed(self, position: int | None) -> WriteAnswer:
        """The answer in place of a lost one. A daemon applies no batch below the level asked."""
        return WriteAnswer(accepted=True, memory_sequence=position, ack=self._asked or "disk")

    def _count_all(self, gone: list[Pending], answer: WriteAnswer) -> None:
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
        """Rewind for the next stream; seconds to wait before it, or the final error.

        The caller calls :meth:`fail` with a final error.

        Args:
            unclear: An unknown number of answers may have been lost.
            moves: The next stream goes to another daemon, which may accept what this one refuses.
            owes: Batches that are not in the window yet have to be sent again.
        """
        error = of_older_daemon(error, self._asked)
        if isinstance(error, Unreachable | TimedOut):
            self._late_until = math.inf
        elif error.code == "superseded" and (self.own_origin or now < self._late_until):
            error = Unavailable(f"{error} (possibly by an older stream of this writer)")
        unanswered = self.window.sent_count
        # A fenced daemon's batch may be in the store, and its successor applies it then.
        unclear = unclear or error.code == "fenced"
        # A refusal at admission says that nothing was applied; any other error leaves it open.
        maybe_applied = unclear or error.code not in (*ADMISSION_CODES, "owner")
        unknown = None
        retryable = moves or is_retryable(error)
        if unanswered and retryable and maybe_applied and self._lease is None:
            unknown = UnknownOutcome(f"{error}; {unanswered} batches had no origin and no answer")
        self.window.rewind()
        if not (len(self.window) or owes) and retryable:
            return 0.0  # lost while idle: nothing is at stake before the next batch
        # Another daemon does not ask for the pause that this one asks for.
        tried = Unreachable(str(error)) if moves else error
        delay_s = None if unknown else self._retry.failed(tried, now)
        if delay_s is not None:
            return delay_s
        if unanswered and unclear and retryable and not unknown:
            unknown = UnknownOutcome(f"{error}; {unanswered} batches may have been applied")
        if unknown is None:
            return error
        unknown.__cause__ = error
        return unknown

    def fail(self, error: ClientError) -> list[Pending]:
        """End with ``error``; the batches whose acknowledgements fail, oldest first."""
        self.failure = error
        return [pending for pending in self.window.drain() if not pending.acknowledged]

    def _refusal(self, answer: WriteAnswer, pending: Pending) -> ClientError | None:
        if not answer.accepted:
            return Unavailable("the daemon did not accept the batch")
        sent_once = pending.times_sent == 1
        if answer.duplicate and sent_once and self._lease is not None and self._lease.exclusive:
            return OriginClash(
                f"origin {self._lease.origin!r}: sequence {pending.sequence} was already written "
                "by someone else, so this batch was not; give each writer its own origin"
            )
        return None

    def _count(self, answer: WriteAnswer, pending: Pending) -> None:
        self._rows += pending.batch.num_rows
        self._batches += 1
        self._duplicates += answer.duplicate
        self._at_disk += answer.ack != "store"
        numbers = self._numbers
        if answer.sequence is not None:
            numbers["sequence"] = answer.sequence
        if answer.epoch is not None:
            numbers["epoch"] = answer.epoch
        if answer.memory_sequence is not None:
            numbers["memory_sequence"] = answer.memory_sequence
        if answer.durable_sequence is not None:
            numbers["durable_sequence"] = answer.durable_sequence
        if answer.files_sequence is not None:
            numbers["files_sequence"] = answer.files_sequence


def _size(batch: pa.RecordBatch) -> int:
    """The bytes of a batch. Those of a small one may be counted with those beside a slice.

    ``nbytes`` takes 20 µs, which is as much as everything else that is done with a small batch.
    """
    whole = int(batch.get_total_buffer_size())
    return whole if whole <= SMALL_BYTES else int(batch.nbytes)
