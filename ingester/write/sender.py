"""A sender chooses one of three ways into the log for each batch of a stream.

    small, no origin, no metadata   ─▶ ``coalescer``: one record with others, made in the thread
                                       that writes the log, unless the table's have many partitions
    larger, no origin, little work  ─▶ ``preparation``: passed on to the combiner's thread
    any other                       ─▶ ``preparation``: made into an operation, and submitted

Any other is prepared before it is admitted, and its thread waits for that: it does the work itself
if the combiner is idle or the batch is large or slow, else the combiner's thread does.

Law of this file: batches go to the log in their stream's order, whichever way each takes. What it
does per byte is done before the loop. Every batch of a stream with an origin goes by way of the
loop, with a sequence or without: there the dedup sink learns whether a sequence is new.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import Enum, auto
from typing import TYPE_CHECKING

import pyarrow as pa

from ingester.dml.operation import Operation
from ingester.write.coalescer import Arrival
from ingester.write.metadata import NO_METADATA, BatchMetadata, RisingSequences
from ingester.write.preparation import Preparation
from ingester.write.stream import Post, WriteStream

if TYPE_CHECKING:
    from ingester.observability.tracing.writes import WriteTrace

ARRIVAL_BYTES = 1 << 10
"""The bytes that a small batch costs on its way beside its rows."""


class Awaits(Enum):
    """The event that a sender of a batch waits for, before it reads the next one."""

    NOTHING = auto()
    CHECK = auto()
    """The sender waits until the batch is known to be good, or refused."""
    ANSWER = auto()
    """The sender has nothing else to do before the answer."""


class Sender:
    """Sends the batches of one stream. In the thread that reads them.

    Args:
        begin: takes the stream's origin over, from its first sequence on; waits for the loop.
        on_sent: is told the bytes of each batch that is on its way.
    """

    def __init__(
        self,
        stream: WriteStream,
        preparation: Preparation,
        post: Post,
        begin: Callable[[WriteStream, int], None],
        on_sent: Callable[[int], None],
    ) -> None:
        self._stream = stream
        self._preparation = preparation
        self._post = post
        self._begin = begin
        self._on_sent = on_sent
        self._sequences = RisingSequences()

    def send(
        self,
        batch: pa.RecordBatch,
        metadata: BatchMetadata,
        awaits: Awaits,
        trace: WriteTrace | None = None,
    ) -> bool:
        """Send a batch on its way; False if it is known to be refused, which its outcome says.

        Raises:
            IngesterError: why it is refused.
        """
        stream, preparation = self._stream, self._preparation
        if stream.origin is None and metadata is NO_METADATA:
            most = preparation.coalesces(batch)
            if most is not None:
                return preparation.settle() and self._offer(batch, most, awaits, trace)
        self._sequences.check(metadata.sequence)
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
        # What is refused anyway is not made.
        stream.check_rate(metadata.sequence)
        operation = preparation.operation(batch, metadata)
        if trace is not None:
            operation.traces = (trace,)
        self._submit(operation)
        return True

    def _offer(
        self, batch: pa.RecordBatch, most_bytes: int, awaits: Awaits, trace: WriteTrace | None
    ) -> bool:
        stream, nbytes = self._stream, most_bytes + ARRIVAL_BYTES
        arrival = Arrival(stream, batch, stream.admit(nbytes, None))
        arrival.waits, arrival.trace = awaits is not Awaits.NOTHING, trace
        if awaits is Awaits.CHECK:
            arrival.checked = threading.Event()
        self._on_sent(nbytes)
        # Who waits for the answer writes the log itself if nobody does: no thread has to be woken.
        stream.offer(arrival, here=awaits is Awaits.ANSWER)
        if arrival.checked is None:
            return True
        arrival.checked.wait()
        return stream.session.refusal is None

    def _submit(self, operation: Operation) -> None:
        stream, sequence = self._stream, operation.origin_sequence
        if sequence is not None and stream.origin_table is None:
            stream.would_admit(operation.nbytes, sequence)
            self._begin(stream, sequence)
        operation.admitted_bytes = stream.admit(operation.nbytes, sequence)
        self._on_sent(operation.nbytes)
        if stream.origin is None:
            stream.submit(operation)
        else:
            self._post(self._submit_on_loop, operation)

    def _submit_on_loop(self, operation: Operation) -> None:
        """Submit an origin's operation. Nothing may escape: trio has nobody to give it to."""
        try:
            self._stream.submit(operation)
        except Exception as exc:
            self._stream.refuse(exc)
