"""The batches of one stream are made into operations: waited for, or while the stream reads on.

::

    who reads              read ─ admit ─ take a slot ─ pass on ─┐
    combiner's thread                                            └▶ prepare ─▶ log

Who passes a batch on need not be woken for it, and reads the next one meanwhile or waits for the
answer.

Law of this file: what is passed on goes to the log in its stream's order, and nothing of the stream
behind what is refused. Whoever sends anything of the stream another way settles first. What was
passed on is admitted, so that it counts.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pyarrow as pa

from ingester.dml.operation import Operation
from ingester.write.combiner import NOTHING, Combiner, Known, Pace, Request
from ingester.write.metadata import BatchMetadata
from ingester.write.operation_maker import OperationMaker
from ingester.write.stream import Post, Slot, WriteStream

if TYPE_CHECKING:
    from ingester.observability.tracing.writes import WriteTrace

SMALL_BYTES = 96 << 10
"""The size of a small batch: one that cannot become larger is coalesced with others."""
FEW_ROWS = 16
"""The rows of a batch that is coalesced whatever the partitions of others in its table are."""


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
        """The size that a coalesced batch cannot exceed."""
        self._pace = Pace()
        self._last: Request[Operation] | None = None
        # Written by the combiner's thread, read by the reader's when it has settled.
        self._refused = False

    def coalesces(self, batch: pa.RecordBatch) -> int | None:
        """The bytes that a batch can become, where the log's writer is to make it an operation.

        None where all who write would wait for that: it is large, or of a table whose batches have
        many partitions.
        """
        plan = self._stream.plan
        most = plan.normaliser.most_bytes(batch)
        if most is None or most > self.small_bytes:
            return None
        if batch.num_rows > FEW_ROWS and time.monotonic() < plan.table.scattered_until:
            return None
        return int(most)

    def operation(self, batch: pa.RecordBatch, metadata: BatchMetadata) -> Operation:
        """Make an operation and wait for it: the combiner's thread makes it if that is busy.

        A batch that is large, or of a slow stream, is made into one here in any case.

        Raises:
            InvalidRequest: what is wrong with the batch.
            IngesterError: there is no room for its partitions.
        """
        stream = self._stream
        plan, origin = stream.plan, stream.origin

        def check(partitions: int) -> None:
            stream.check_partitions(partitions, metadata.sequence)

        def make(known: Known) -> Operation:
            return self._operations.make(plan, batch, metadata, origin, known, check)

        if plan.normaliser.shows_text:
            # Valid or not is found out after a look at how much there is to look at.
            return make(NOTHING)
        return self._combiner.prepare(batch, plan.kind, self._pace, make)

    def passes_on(self, batch: pa.RecordBatch, *, ahead: bool) -> bool:
        """Whether a batch is to be passed on: it is little work, and about as large as it came.

        Args:
            ahead: the stream may have more to read meanwhile. Otherwise a batch is passed on only
                if it would have to wait here as well.
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
        metadata: BatchMetadata,
        admitted_bytes: int,
        trace: WriteTrace | None = None,
    ) -> None:
        """Have the combiner's thread prepare a batch and submit it, or refuse it."""
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
        """Wait until all that was passed on is in the log's queue; False if some is refused."""
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
        """Submit what was prepared, in the combiner's thread."""
        if operation is None or self._refused:
            # The stream ends with its first refusal: nobody waits for what comes behind it.
            self._stream.leave(admitted_bytes)
            self._refuse(slot, error)
            return
        operation.admitted_bytes = admitted_bytes
        try:
            self._stream.submit(operation, slot)
        except BaseException as exc:  # nobody else's batches suffer from it
            self._refuse(slot, exc)

    def _refuse(self, slot: Slot, error: BaseException | None) -> None:
        if not self._refused:
            self._refused = True
            self._post(self._stream.refuse, error, slot)
