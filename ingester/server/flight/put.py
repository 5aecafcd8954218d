"""DoPut: one stream of batches, answered in order.

A client that waits for each answer is served by the call's own thread, one step after another:

    read ─ submit, or write the log itself ─ wait ─ answer

For a client that sends ahead there are two threads:

    reader      read ─ submit ─▶ log ─▶ the thread that writes it ─┐
    handler     answer ◀── outcomes, in order ◀────────────────────┘

    a batch of an origin that may be a repeat
    reader      read ─ submit ─▶ loop (is it new?) ─▶ log ─▶ loop (apply) ─┐
    handler     answer ◀── outcomes, in order ◀────────────────────────────┘

If the table has transformers (:mod:`ingester.write.transform`), the thread that reads takes each
batch through them before it is submitted, and the stream is opened with their output schema.
:mod:`ingester.write.sender` chooses the way to the log.

The handler's thread answers and returns as soon as a batch is refused. At most ``max_unanswered``
batches, or 64 MiB, are unanswered; then nothing more is read, and gRPC's flow control stops the
client (tests/write/test_pipelines).
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections import deque
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pyarrow as pa

from ingester.config.levels import parse_level
from ingester.errors import BadRequest, ClientGone
from ingester.schema import Normaliser
from ingester.schema.limits import check_sent
from ingester.server.flight.put_messages import (
    PutLimits,
    batch_of,
    bytes_of,
    encode_answer,
    frames_cleared,
    metadata_of,
    next_chunk,
    schema_of,
    send_answer,
)
from ingester.server.flight.refusals import says_answered
from ingester.server.flight.requests import WriteCommand
from ingester.server.portal import Portal
from ingester.write.metadata import NO_METADATA, ReceivedMetadata, SharedStates, untraced
from ingester.write.operation_maker import OperationMaker
from ingester.write.sender import Awaits, Sender
from ingester.write.stream import Outcome, WriteStream
from ingester.write.streams import Target, TransformedBy, Writes
from ingester.write.transform.chain import Chain
from persist.table import TableDefinition

if TYPE_CHECKING:
    from ingester.observability.tracing.writes import StreamTraces, WriteTrace

PATIENCE = 16
"""The client counts as waiting after this many batches in a row with none unanswered before."""
MAX_TURNS = 256
"""The most batches between two checks whether the client sends ahead."""
UNANSWERED_BYTES = 64 << 20
READER_LEAVES_S = 0.02
"""How long a refused client may take to send its next batch before it gets an empty answer."""


class Unanswered:
    """Counts the unanswered batches of a stream, and their bytes.

    One thread sends and one answers. Each writes its own counters, so that neither needs the lock
    until the sender has to wait.

    Args:
        most: ``flight.max_unanswered``.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._sizes: deque[int] = deque()
        self._sent = self._sent_bytes = 0
        self._answered = self._answered_bytes = 0
        self._changed = threading.Condition()
        self._awaited = False
        self.over = False
        """Whether no more answers come."""

    def __bool__(self) -> bool:
        return self._sent > self._answered

    def sent(self, nbytes: int) -> None:
        """Count a batch that was submitted."""
        self._sizes.append(nbytes)
        self._sent_bytes += nbytes
        self._sent += 1

    def answered(self) -> None:
        """Stop counting the oldest batch: it is answered."""
        self._answered_bytes += self._sizes.popleft()
        self._answered += 1
        # The waiting thread sets it before its last look: it sees this answer, or is woken.
        if self._awaited:
            with self._changed:
                self._changed.notify()

    def end(self) -> None:
        """Wake the sender: no more answers come."""
        with self._changed:
            self.over = True
            self._changed.notify_all()

    def wait_for_room(self) -> bool:
        """Wait until another batch may be sent; False if no more answers come."""
        if not self._has_room():
            with self._changed:
                self._awaited = True
                self._changed.wait_for(self._has_room)
                self._awaited = False
        return not self.over

    def _has_room(self) -> bool:
        return self.over or (
            self._sent - self._answered < self._most
            and self._sent_bytes - self._answered_bytes < UNANSWERED_BYTES
        )


class _Back:
    """Tells the handler that the reader ends: the client waits for answers, or has sent all."""

    def __init__(self, chunk: Any) -> None:
        self.chunk = chunk


class _Transformed(NamedTuple):
    """A message after the stream's transformers."""

    data: pa.RecordBatch
    app_metadata: Any


class PutCall:
    """One DoPut call with a stream of batches."""

    def __init__(
        self,
        portal: Portal,
        writes: Writes,
        command: WriteCommand,
        limits: PutLimits,
        traces: StreamTraces | None = None,
    ) -> None:
        self._portal = portal
        self._traces = traces
        self._writes = writes
        self._command = command
        self._shapes = limits.shapes
        self._operations = OperationMaker(limits.max_batch_bytes)
        self._outcomes: SimpleQueue[list[Outcome] | _Back] = SimpleQueue()
        self._unanswered = Unanswered(limits.max_unanswered)
        self._reader_left = threading.Event()
        self._answers = 0
        self._first: Any = None
        self._shared_states = SharedStates()
        self._chain: Chain | None = None
        self._stream: WriteStream
        self._sender: Sender
        self.refused_bytes = 0  # bytes of refused messages

    def serve(self, reader: Any, writer: Any) -> None:
        """Answer batches until the client has finished; raise what ends the call."""
        with says_answered(lambda: self._answers), frames_cleared():
            try:
                self._serve(reader, writer)
            finally:
                if self._chain is not None:
                    self._chain.close()

    def _serve(self, reader: Any, writer: Any) -> None:
        stream = self._open(reader)
        if stream is None:
            return
        portal = self._portal
        self._stream = stream
        self._shared_states.known = lambda: stream.plan.table.state.shared_states
        self._sender = Sender(
            stream,
            self._operations,
            partial(portal.call, self._writes.begin),
            partial(portal.call, self._writes.decide),
            self._unanswered.sent,
        )
        try:
            self._take_turns(reader, writer)
        finally:
            portal.post(stream.close)

    def _open(self, reader: Any) -> WriteStream | None:
        """Open the stream; None for an empty one. A first chunk that had to be read is kept.

        A new table or column is created only for a valid first batch: a refused one leaves nothing
        behind.
        """
        command = self._command
        deletes = command.type == "delete"
        numbers_rows = command.numbers == "rows"
        ack = parse_level("descriptor", command.ack)
        target = Target(
            command.namespace, command.table, command.origin, deletes, numbers_rows, ack
        )
        sent = schema_of(reader, self._shapes, partial(self._check_wide, target))
        first: Any = None
        checked: int | None = None
        while True:
            schema = sent if self._chain is None else self._chain.schema
            opened = self._open_on_loop(target, schema, checked)
            if isinstance(opened, WriteStream):
                return opened
            if isinstance(opened, TransformedBy):
                self._make_chain(opened.names, sent)
                self._first, checked = first, None
                continue
            first = first or next_chunk(reader, self._operations.max_batch_bytes)
            if first is None:
                return None
            self._first = self._checked(first, Normaliser(opened, schema))
            checked = bytes_of(self._first)

    def _check_wide(self, target: Target, sent: pa.Schema) -> None:
        """Refuse more columns than the table may have, unless transformers change them."""
        had = None if target.deletes else self._portal.call(self._writes.columns_of, target)
        if had is not None:
            check_sent((target.namespace, target.table), had, sent, self._shapes)

    def _open_on_loop(
        self, target: Target, schema: pa.Schema, checked: int | None
    ) -> WriteStream | TableDefinition | TransformedBy:
        chain = self._chain
        try:
            return self._portal.call(
                self._writes.open, target, schema, self._outcomes.put, checked, chain
            )
        except BadRequest as exc:
            if chain is None:
                raise
            raise BadRequest(f"{exc.message} (as {', '.join(chain.names)} made it)") from exc

    def _make_chain(self, names: tuple[str, ...], sent: pa.Schema) -> None:
        if self._chain is not None:
            self._chain.close()
        self._chain = self._writes.transforms.chain(names, sent) if names else None

    def _checked(self, first: Any, normaliser: Normaliser) -> Any:
        """Check the first batch of a table; return it, after transformers if it has any."""
        batch = batch_of(first)
        metadata_of(first, self._command.origin, self._shared_states, self._shapes)
        if self._chain is not None:
            batch = self._chain(self._valid(batch))
            first = _Transformed(batch, first.app_metadata)
        table = self._command.namespace, self._command.table
        check = partial(self._writes.check_partitions, table)
        self._operations.ordered(normaliser, batch, check=check)
        return first

    def _valid(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Check a batch before transformers see it."""
        self._operations.check_size(batch)
        self._operations.check_valid(batch)
        return batch

    # The handler's thread

    def _take_turns(self, reader: Any, writer: Any) -> None:
        """Read and answer in turns; check now and then whether the client sends ahead."""
        turns, look_at = 0, 1
        chunk, self._first = self._first, None
        while True:
            chunk = next_chunk(reader, self._operations.max_batch_bytes) if chunk is None else chunk
            if chunk is None:
                return
            turns += 1
            looks = turns >= look_at
            handed_over = self._hand_over(chunk, Awaits.CHECK if looks else Awaits.ANSWER)
            chunk = None
            if not (looks and handed_over):
                try:
                    self._answer(writer)
                finally:
                    self._stream.answered_here()
                continue
            look_at = min(look_at * 2, MAX_TURNS)
            # Random, so that clients in step are not all checked in the same turn.
            turns = random.randrange(-(look_at // 2), look_at // 2)
            chunk = self._read_ahead(reader, writer).chunk
            if chunk is None:
                return

    def _read_ahead(self, reader: Any, writer: Any) -> _Back:
        """Answer while another thread reads, until that ends and all it sent is answered."""
        self._reader_left.clear()
        threading.Thread(target=self._read, args=(reader,), name="put-reader", daemon=True).start()
        back: _Back | None = None
        try:
            while back is None or self._unanswered:
                back = self._answer(writer) or back
        except BaseException:
            self._end_reading(writer)
            raise
        self._reader_left.wait()
        return back

    def _answer(self, writer: Any) -> _Back | None:
        outcomes = self._outcomes.get()
        if isinstance(outcomes, _Back):
            return outcomes
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
            self._unanswered.answered()
            if self._traces is not None and not self._answers:
                outcome = msgspec.structs.replace(outcome, traces=True)
            send_answer(writer, encode_answer(outcome))
            self._answers += 1
        return None

    def _end_reading(self, writer: Any) -> None:
        """Return when the reader thread has left pyarrow for good.

        pyarrow frees the call with the handler's frame, while a reader may still be inside. That
        reader may wait for a client that itself waits for an answer: an empty answer, which marks
        the end of the answers, makes the client act. (Clients that count answers would take one
        that says "refused" for an acknowledgement.)
        """
        self._unanswered.end()
        if not self._reader_left.wait(READER_LEAVES_S):
            with contextlib.suppress(ClientGone):
                send_answer(writer, b"")
            self._reader_left.wait()

    # The reader's thread

    def _read(self, reader: Any) -> None:
        try:
            self._read_all(reader)
        except BaseException as exc:
            self._outcomes.put([exc])
        finally:
            self._reader_left.set()

    def _read_all(self, reader: Any) -> None:
        answered, patience = 0, 1
        while self._unanswered.wait_for_room():
            chunk = next_chunk(reader, self._operations.max_batch_bytes)
            if chunk is None:
                break
            if self._unanswered:
                answered, patience = 0, PATIENCE
            else:
                answered += 1
                if answered >= patience:
                    self._outcomes.put(_Back(chunk))
                    return
            if not self._hand_over(chunk, Awaits.NOTHING):
                return
            del chunk  # not held while the next one is awaited
        self._outcomes.put(_Back(None))

    # The thread that reads

    def _hand_over(self, chunk: Any, awaits: Awaits) -> bool:
        """Submit a batch; False if it is known to be refused. Its outcome has the error."""
        try:
            return self._send(chunk, awaits)
        except BaseException as exc:
            self._portal.post(self._stream.refuse, exc)
            self.refused_bytes += bytes_of(chunk)
            return False

    def _send(self, chunk: Any, awaits: Awaits) -> bool:
        metadata = NO_METADATA
        if chunk.app_metadata is not None:
            batch_of(chunk)  # raises for metadata without a batch
            metadata = metadata_of(chunk, self._stream.origin, self._shared_states, self._shapes)
            if metadata.traceparent is not None:
                return self._send_traced(chunk, *untraced(metadata), awaits)
        if self._traces is not None:
            return self._send_traced(chunk, metadata, None, awaits)
        return self._send_batch(chunk, metadata, awaits)

    def _send_traced(
        self, chunk: Any, metadata: ReceivedMetadata, traceparent: str | None, awaits: Awaits
    ) -> bool:
        """Submit a batch, and end its trace if it is refused here."""
        if self._traces is None or (trace := self._traces.begin(traceparent)) is None:
            return self._send_batch(chunk, metadata, awaits)
        try:
            rows = batch_of(chunk).num_rows
            trace.span.set_attributes({"ingester.rows": rows, "ingester.bytes": bytes_of(chunk)})
            return self._send_batch(chunk, metadata, awaits, trace)
        except BaseException as exc:
            trace.answered(exc, {})
            raise

    def _send_batch(
        self,
        chunk: Any,
        metadata: ReceivedMetadata,
        awaits: Awaits,
        trace: WriteTrace | None = None,
    ) -> bool:
        batch, stream, chain = batch_of(chunk), self._stream, self._chain
        if chain is not None and isinstance(chunk, _Transformed):
            return self._sender.send(batch, metadata, awaits, trace)
        if chain is not None:
            self._operations.check_size(batch)
            # A batch that would be refused is not transformed.
            stream.would_admit(batch.get_total_buffer_size(), metadata.sequence)
            batch = chain(self._valid(batch))
        return self._sender.send(batch, metadata, awaits, trace)
