"""Sends the batches of one stream to the log, in the thread that reads them.

    small    admitted ─▶ the log, as a draft: the thread that writes coalesces it with others
    other    prepared ─▶ admitted ─▶ the log
                                └──▶ the loop decides, if it may be a repeat ─▶ the log

Batches go to the log in the order of their stream, and nothing behind a refused one does: all are
of the stream's session there (tests/write/test_sending_ahead).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from ingester.dml.operation import Operation
from ingester.write.metadata import ReceivedMetadata, RisingSequences
from ingester.write.operation_maker import OperationMaker
from ingester.write.stream import Write, WriteStream

if TYPE_CHECKING:
    from ingester.observability.tracing.writes import WriteTrace

SMALL_BYTES = 96 << 10
"""A batch that cannot become larger than this is small."""
FEW_ROWS = 16
"""A batch of at most this many rows is coalesced even if its table has many partitions."""
DRAFT_BYTES = 1 << 10
"""Bytes of a waiting small batch beside its rows."""


class Awaits(Enum):
    """What the sender of a batch waits for before it reads the next one."""

    NOTHING = auto()
    CHECK = auto()
    """The batch is known to be valid, or refused."""
    ANSWER = auto()
    """The answer: the sender has nothing else to do."""


class Sender:
    """Sends the batches of one stream. In the thread that reads them.

    Args:
        begin: takes the stream's origin over from its first sequence on; waits for the loop.
        decide: submits a batch that may be a repeat; waits for the loop.
        on_sent: receives the bytes of each batch that was submitted.
    """

    def __init__(
        self,
        stream: WriteStream,
        operations: OperationMaker,
        begin: Callable[[WriteStream, int], None],
        decide: Callable[[WriteStream, Write, Operation], None],
        on_sent: Callable[[int], None],
    ) -> None:
        self._stream = stream
        self._operations = operations
        self._begin = begin
        self._decide = decide
        self._on_sent = on_sent
        self._sequences = RisingSequences()
        self._small_bytes = min(SMALL_BYTES, operations.max_batch_bytes)

    def send(
        self,
        batch: pa.RecordBatch,
        metadata: ReceivedMetadata,
        awaits: Awaits,
        trace: WriteTrace | None = None,
    ) -> bool:
        """Submit a batch; False if it is known to be refused. Its outcome has the error.

        Raises:
            IngesterError: why it is refused.
        """
        stream, sequence, checkpoint = self._stream, metadata.sequence, metadata.checkpoint
        self._sequences.check(sequence)
        write, small = Write(stream, sequence, trace), None
        if checkpoint is not None:
            checkpoint = stream.fitted(checkpoint)
        else:
            small = self.coalesces(batch)
        if small is not None and self._append_draft(write, batch, small + DRAFT_BYTES, awaits):
            return write.is_good
        # A batch that would be refused is not prepared.
        stream.check_rate(sequence)
        operation = self._operations.make(
            stream.plan,
            batch,
            stream.numbered(sequence),
            checkpoint,
            check=partial(stream.check_partitions, sequence=sequence),
        )
        self._append_operation(write, operation, here=awaits is Awaits.ANSWER)
        return True

    def coalesces(self, batch: pa.RecordBatch) -> int | None:
        """Return the most bytes that a batch can become if it is to be coalesced, else None.

        A large batch, or one of a table with many partitions, would make all writers wait.
        """
        plan = self._stream.plan
        most = plan.normaliser.most_bytes(batch)
        if most is None or most > self._small_bytes:
            return None
        if batch.num_rows > FEW_ROWS and time.monotonic() < plan.table.scattered_until:
            return None
        return int(most)

    def _append_draft(
        self, write: Write, batch: pa.RecordBatch, nbytes: int, awaits: Awaits
    ) -> bool:
        """Queue a small batch for the log; False if it may be a repeat."""
        stream = self._stream
        self._take_over(nbytes, write.sequence)
        write.stored_bytes = stream.admit(nbytes, write.sequence)
        if write.stored_bytes:
            write.batch, write.waits = batch, awaits is not Awaits.NOTHING
            if awaits is Awaits.CHECK:
                write.checked = threading.Event()
            self._on_sent(nbytes)
            # A sender that waits for the answer writes the log itself if no other thread does.
            if stream.append(write, here=awaits is Awaits.ANSWER):
                return True
        stream.leave(write.stored_bytes)
        write.batch = None
        return False

    def _append_operation(self, write: Write, operation: Operation, *, here: bool) -> None:
        """Queue a prepared batch for the log, or have the loop decide if it may be a repeat."""
        stream = self._stream
        self._take_over(operation.nbytes, write.sequence)
        stream.admit_operation(operation)
        if not write.stored_bytes:  # otherwise it is counted, as a draft that may be a repeat
            self._on_sent(operation.nbytes)
        if not (operation.admitted_bytes and stream.append(write, operation, here=here)):
            # Waited for, so that the next batch does not overtake it.
            self._decide(stream, write, operation)

    def _take_over(self, nbytes: int, sequence: int | None) -> None:
        """Take the stream's origin over before its first batch with a sequence is admitted."""
        stream = self._stream
        if sequence is not None and stream.origin_table is None:
            stream.would_admit(nbytes, sequence)
            self._begin(stream, sequence)
