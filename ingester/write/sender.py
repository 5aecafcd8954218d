"""Sends the batches of one stream to the log, each by one of three ways.

    small    admitted ─▶ the log, as a draft: the thread that writes coalesces it with others
    larger   admitted ─▶ the combiner's thread: prepared ─▶ the log
    other    prepared ─▶ admitted ─▶ (the loop, if it may be a repeat) ─▶ the log

Small and larger batches have no origin and no metadata that names one. A client that waits for each
answer uses the combiner only when it is busy; otherwise its own thread prepares the batch. Batches
go to the log in the order of their stream, and nothing behind a refused one does: whatever takes
another way first waits until everything that was passed on is in the log's queue
(tests/write/test_preparation).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from enum import Enum, auto
from typing import TYPE_CHECKING

import pyarrow as pa

from ingester.dml.operation import Operation
from ingester.write.coalescer import Arrival
from ingester.write.combiner import NOTHING, Combiner, CombinerRequest, Known, PreparationPace
from ingester.write.metadata import ReceivedMetadata, RisingSequences
from ingester.write.operation_maker import OperationMaker
from ingester.write.stream import Post, Slot, WriteStream

if TYPE_CHECKING:
    from ingester.observability.tracing.writes import WriteTrace

SMALL_BYTES = 96 << 10
"""A batch that cannot become larger than this is small."""
FEW_ROWS = 16
"""A batch of at most this many rows is coalesced even if its table has many partitions."""
ARRIVAL_BYTES = 1 << 10
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
        preparation: Preparation,
        begin: Callable[[WriteStream, int], None],
        decide: Callable[[WriteStream, Operation], None],
        on_sent: Callable[[int], None],
    ) -> None:
        self._stream = stream
        self._preparation = preparation
        self._begin = begin
        self._decide = decide
        self._on_sent = on_sent
        self._sequences = RisingSequences()

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
        stream, preparation = self._stream, self._preparation
        self._sequences.check(metadata.sequence)
        if metadata.checkpoint is None and (most := preparation.coalesces(batch)) is not None:
            if not preparation.settle():
                return False
            arrival = self._offered(batch, most, metadata.sequence, awaits, trace)
            if arrival is not None:
                return self._is_good(arrival)
        if metadata.checkpoint is not None:
            metadata = metadata._replace(checkpoint=stream.fitted(metadata.checkpoint))
        ahead = awaits is Awaits.NOTHING
        if awaits is not Awaits.CHECK and preparation.passes_on(batch, ahead=ahead):
            nbytes = stream.admit(batch.get_total_buffer_size(), None)
            self._on_sent(nbytes)
            preparation.pass_on(batch, metadata, nbytes, trace)
            return True
        if not preparation.settle():
            return False
        # A batch that would be refused is not prepared.
        stream.check_rate(metadata.sequence)
        operation = preparation.operation(batch, metadata)
        if trace is not None:
            operation.traces = (trace,)
        self._submit(operation, here=awaits is Awaits.ANSWER)
        return True

    def _offered(
        self,
        batch: pa.RecordBatch,
        most_bytes: int,
        sequence: int | None,
        awaits: Awaits,
        trace: WriteTrace | None,
    ) -> Arrival | None:
        """Offer a small batch to the log; None if the loop has to decide about it."""
        stream, nbytes = self._stream, most_bytes + ARRIVAL_BYTES
        self._take_over(nbytes, sequence)
        if not (admitted := stream.admit(nbytes, sequence)):
            stream.leave(0)
            return None  # it is a repeat
        arrival = Arrival(stream, batch, admitted, sequence)
        arrival.waits, arrival.trace = awaits is not Awaits.NOTHING, trace
        if awaits is Awaits.CHECK:
            arrival.checked = threading.Event()
        # A sender that waits for the answer writes the log itself if no other thread does.
        here = awaits is Awaits.ANSWER
        if sequence is None:
            self._on_sent(nbytes)
            stream.offer(arrival, here=here)
        elif not stream.offer_new(arrival, lambda: self._on_sent(nbytes), here=here):
            stream.leave(admitted)
            return None
        return arrival

    def _is_good(self, arrival: Arrival) -> bool:
        """Wait until a batch is known to be valid, if that is asked for; False if it is not."""
        if arrival.checked is None:
            return True
        arrival.checked.wait()
        return self._stream.session.refusal is None

    def _take_over(self, nbytes: int, sequence: int | None) -> None:
        """Take the stream's origin over before its first batch with a sequence is admitted."""
        stream = self._stream
        if sequence is not None and stream.origin_table is None:
            stream.would_admit(nbytes, sequence)
            self._begin(stream, sequence)

    def _submit(self, operation: Operation, *, here: bool) -> None:
        stream, sequence = self._stream, operation.origin_sequence
        self._take_over(operation.nbytes, sequence)
        operation.admitted_bytes = stream.admit(operation.nbytes, sequence)
        self._on_sent(operation.nbytes)
        if sequence is None:
            stream.submit(operation)
        elif not stream.submit_new(operation, here=here):
            # Waited for, so that the next batch does not overtake it.
            self._decide(stream, operation)


class Preparation:
    """Prepares the batches of one stream. In the thread that reads them."""

    def __init__(
        self, stream: WriteStream, combiner: Combiner, operations: OperationMaker, post: Post
    ) -> None:
        self._stream = stream
        self._combiner = combiner
        self._operations = operations
        self._post = post
        self.small_bytes = min(SMALL_BYTES, operations.max_batch_bytes)
        """The largest size of a batch that is coalesced."""
        self._pace = PreparationPace()
        self._last: CombinerRequest[Operation] | None = None
        # Written by the combiner's thread, read by the reader's when it has settled.
        self._refused = False

    def coalesces(self, batch: pa.RecordBatch) -> int | None:
        """Return the most bytes that a batch can become if it is to be coalesced, else None.

        A large batch, or one of a table with many partitions, would make all writers wait.
        """
        plan = self._stream.plan
        most = plan.normaliser.most_bytes(batch)
        if most is None or most > self.small_bytes:
            return None
        if batch.num_rows > FEW_ROWS and time.monotonic() < plan.table.scattered_until:
            return None
        return int(most)

    def operation(self, batch: pa.RecordBatch, metadata: ReceivedMetadata) -> Operation:
        """Make an operation and wait for it: by the combiner's thread if the combiner is busy.

        An operation that is large, or of a slow stream, is always made in this thread.

        Raises:
            BadRequest: what is wrong with the batch.
            IngesterError: there is no room for its partitions.
        """
        stream = self._stream
        plan, origin = stream.plan, stream.origin

        def check(partitions: int) -> None:
            stream.check_partitions(partitions, metadata.sequence)

        def make(known: Known) -> Operation:
            return self._operations.make(
                plan, batch, metadata, origin, known, check, stream.notes_contents
            )

        if plan.normaliser.shows_text:
            # The size of shown text is checked before the contents are validated.
            return make(NOTHING)
        return self._combiner.prepare(batch, plan.kind, self._pace, make)

    def passes_on(self, batch: pa.RecordBatch, *, ahead: bool) -> bool:
        """Whether a batch is to be passed on: it is little work and keeps its size.

        Args:
            ahead: the client sends ahead. Otherwise a batch is passed on only if it would have to
                wait here as well.
        """
        normaliser = self._stream.plan.normaliser
        return (
            self._stream.origin is None
            and normaliser.keeps_types
            and normaliser.most_bytes(batch) is not None
            and self._combiner.takes(batch, self._pace)
            and (ahead or self._combiner.busy)
        )

    def pass_on(
        self,
        batch: pa.RecordBatch,
        metadata: ReceivedMetadata,
        admitted_bytes: int,
        trace: WriteTrace | None = None,
    ) -> None:
        """Let the combiner's thread prepare a batch and submit or refuse it."""
        stream = self._stream
        plan, slot = stream.plan, stream.reserve()

        def check(partitions: int) -> None:
            stream.check_partitions(partitions, None)

        def make(known: Known) -> Operation:
            return self._operations.make(plan, batch, metadata, None, known, check)

        def submit(operation: Operation | None, error: BaseException | None) -> None:
            if trace is not None:
                if operation is None:
                    trace.answered(error, {})
                else:
                    operation.traces = (trace,)
            self._submit(slot, admitted_bytes, operation, error)

        self._last = self._combiner.pass_on(batch, plan.kind, self._pace, make, submit)

    def settle(self) -> bool:
        """Wait until all batches passed on are in the log's queue; False if one was refused."""
        if self._last is not None:
            self._last.wait_until_over()
            self._last = None
        return not self._refused

    def _submit(
        self,
        slot: Slot,
        admitted_bytes: int,
        operation: Operation | None,
        error: BaseException | None,
    ) -> None:
        """Submit a prepared operation, in the combiner's thread."""
        if operation is None or self._refused:
            # The stream ends with its first refusal: nothing waits for later batches.
            self._stream.leave(admitted_bytes)
            self._refuse(slot, error)
            return
        operation.admitted_bytes = admitted_bytes
        try:
            self._stream.submit(operation, slot)
        except BaseException as exc:  # other streams' batches are not affected
            self._refuse(slot, exc)

    def _refuse(self, slot: Slot, error: BaseException | None) -> None:
        if not self._refused:
            self._refused = True
            self._post(self._stream.refuse, error, slot)
