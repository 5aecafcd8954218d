"""The batches of a writer that were written and not yet answered, in order.

Law of this file: pure, with no thread, socket or clock; its owner locks.

    append ──► unsent ──take──► sent ──answered──► gone
                  ▲               │                  └──keep──▶ kept ──durable──▶ gone
                  ├────rewind─────┘     (the connection was lost)  │
                  ├────────────────────────────────resume──────────┤  (and the daemon's disk, too)
                  └──send_again── (put aside) ◄──take_kept─────────┘  (the daemon was left)

Invariant: sequences rise from the oldest sent to the newest unsent, also after a rewind. So
answers, which come in order, always belong to the oldest one sent.
"""

from collections import deque
from itertools import takewhile

import msgspec
import pyarrow as pa

from .ack import Ack
from .checkpoints.checkpoint import Carried
from .wire import OriginState


class WindowLimits(msgspec.Struct, frozen=True):
    """The limits of what may wait for its answer. One batch may always, however large.

    The daemon stops reading beyond its own limits (1024 batches or 64 MiB by default), so ours
    stay below them.
    """

    batches: int = 512
    bytes: int = 32 * 1024**2


class Pending(msgspec.Struct, eq=False):
    """A batch that waits for its answer."""

    batch: pa.RecordBatch
    checkpoint: Carried | None
    sequence: int | None
    ack: Ack
    nbytes: int
    times_sent: int = 0
    sent_at: float = 0.0
    traceparent: str | None = None
    """The span of whoever waits for the answer."""
    acknowledged: bool = False
    """Whether it was answered before, and is sent again because a daemon lost it."""


class SendWindow:
    """Batches in order of their sequence: first those sent, then those not."""

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
        """Whether :meth:`take` gives something."""
        return bool(self._unsent)

    @property
    def sent_count(self) -> int:
        """The number of batches that were sent on this connection and wait for their answer."""
        return len(self._sent)

    def has_room(self, nbytes: int) -> bool:
        """Whether a batch of ``nbytes`` may be appended now."""
        if not len(self):
            return True
        return len(self) < self._limits.batches and self._bytes + nbytes <= self._limits.bytes

    def append(self, pending: Pending) -> None:
        """Add the newest batch."""
        self._unsent.append(pending)
        self._bytes += pending.nbytes

    def take(self, now: float) -> Pending:
        """The oldest unsent batch, which counts as sent at ``now`` from here on."""
        pending = self._unsent.popleft()
        pending.times_sent += 1
        pending.sent_at = now
        self._sent.append(pending)
        return pending

    def answered(self) -> Pending | None:
        """Let the oldest sent batch go and return it; None when nothing was sent."""
        if not self._sent:
            return None
        pending = self._sent.popleft()
        self._bytes -= pending.nbytes
        return pending

    def answered_up_to(self, up_to: int) -> list[Pending]:
        """Let the batches sent up to the sequence ``up_to`` go, oldest first."""
        gone = []
        while self._sent and (self._sent[0].sequence or 0) <= up_to:
            gone.append(self._sent.popleft())
            self._bytes -= gone[-1].nbytes
        return gone

    def oldest_sent_at(self) -> float | None:
        """The time when the batch whose answer comes next was sent; None when none was."""
        return self._sent[0].sent_at if self._sent else None

    def begin_with_one_row(self) -> None:
        """Cut the oldest unsent batch behind its first row. Its rows are numbered."""
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
        """Make everything unsent again, in its order."""
        self._unsent.extendleft(reversed(self._sent))
        self._sent.clear()

    def keep(self, pending: Pending, durable: int | None) -> None:
        """Hold on to an answered batch until it is in object storage, and let go of what is."""
        self._kept.append(pending)
        while self._kept and durable is not None and (self._kept[0].sequence or 0) <= durable:
            self._kept.popleft()

    @property
    def first_sequence(self) -> int | None:
        """The sequence of the oldest batch; None where there is none."""
        oldest = self._sent or self._unsent
        return oldest[0].sequence if oldest else None

    @property
    def sends_again(self) -> bool:
        """Whether something waits that was answered before."""
        oldest = self._sent or self._unsent
        return bool(oldest) and oldest[0].acknowledged

    def take_kept(self) -> list[Pending]:
        """Take out what was answered and may not be in object storage yet, oldest first."""
        kept = list(self._kept)
        self._kept.clear()
        return kept

    def send_again(self, batches: list[Pending]) -> None:
        """Make batches unsent that were taken out; none may be on its way."""
        if batches:
            self._unsent = deque(
                sorted([*batches, *self._unsent], key=lambda each: each.sequence or 0)
            )
            self._bytes += sum(each.nbytes for each in batches)

    @property
    def has_kept(self) -> bool:
        """Whether something answered may not be in object storage yet."""
        return bool(self._kept)

    def resume(self, known: OriginState) -> None:
        """Make unsent again what was kept, from the first on that a daemon does not have."""
        for _ in range(len(self._kept) - self._there(known)):
            pending = self._kept.pop()
            self._unsent.appendleft(pending)
            self._bytes += pending.nbytes

    def has_all(self, known: OriginState) -> bool:
        """Whether a daemon has everything that is kept."""
        return self._there(known) == len(self._kept)

    def _there(self, known: OriginState) -> int:
        """The number of batches kept that come before the first which a daemon does not have."""
        there = takewhile(lambda each: known.has(each.sequence or 0), self._kept)
        return sum(1 for _ in there)

    def drain(self) -> list[Pending]:
        """Take all batches out, oldest first."""
        everything = [*self._sent, *self._unsent]
        self._sent.clear()
        self._unsent.clear()
        self._bytes = 0
        return everything
