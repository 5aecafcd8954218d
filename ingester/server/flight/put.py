"""DoPut: one stream of batches, answered in order.

A client that waits for each answer is served by the call's own thread, one step after another:

    read ─ hand over, or write the log itself ─ wait ─ answer

A client that sends ahead has two threads:

    without an origin
    reader      read ─ hand over ─▶ log ─▶ the thread that writes it ─┐
    handler     answer ◀── outcomes, in order ◀───────────────────────┘

    with an origin
    reader      read ─ hand over ─▶ loop (is it new?) ─▶ log ─▶ loop (apply) ─┐
    handler     answer ◀── outcomes, in order ◀───────────────────────────────┘

Where the table has transformers (:mod:`ingester.write.transform`), whoever reads takes each batch
through them between "read" and "hand over", and the stream is opened with what they make.

By which way a batch goes to the log is chosen in :mod:`ingester.write.sender`.

Law of this file: the handler's thread answers, and returns as soon as a batch is refused. At most
``max_unanswered`` batches, or 64 MiB, are on their way; then nothing more is read and gRPC's flow
control stops the client.
"""

from __future__ import annotations

import contextlib
import random
import threading
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pyarrow as pa

from ingester.errors import ClientGone, InvalidRequest
from ingester.schema import Normaliser
from ingester.schema.limits import check_sent
from ingester.server.flight.put_reader import (
    PutLimits,
    batch_of,
    bytes_of,
    frames_cleared,
    metadata_of,
    next_chunk,
    schema_of,
)
from ingester.server.flight.refusals import says_answered
from ingester.server.flight.requests import WriteCommand
from ingester.server.flight.unanswered import Unanswered
from ingester.server.portal import Portal
from ingester.write.answer import encode_answer, send_answer
from ingester.write.combiner import Combiner
from ingester.write.metadata import NO_METADATA, BatchMetadata, SharedStates, untraced
from ingester.write.operation_maker import OperationMaker
from ingester.write.sender import Awaits, Preparation, Sender
from ingester.write.stream import Outcome, WriteStream
from ingester.write.streams import Target, TransformedBy, Writes
from ingester.write.transform.chain import Chain
from persist.table import TableDefinition

if TYPE_CHECKING:
    from ingester.observability.tracing.writes import StreamTraces, WriteTrace

PATIENCE = 16
"""The number of batches in a row that find none unanswered before them: the client waits."""
MAX_TURNS = 256
"""The most batches between two looks whether the client sends ahead."""
READER_LEAVES_S = 0.02
"""The time that a refused client may take to send on by itself before it gets an answer."""


class _Back:
    """Says that the reader leaves: the client waits for answers now, or has sent all."""

    def __init__(self, chunk: Any) -> None:
        self.chunk = chunk


class _Transformed(NamedTuple):
    """A message that has been through the stream's transformers."""

    data: pa.RecordBatch
    app_metadata: Any


class PutCall:
    """One DoPut call that brings a stream of batches."""

    def __init__(
        self,
        portal: Portal,
        writes: Writes,
        command: WriteCommand,
        limits: PutLimits,
        combiner: Combiner,
        traces: StreamTraces | None = None,
    ) -> None:
        self._portal = portal
        self._traces = traces
        self._writes = writes
        self._command = command
        self._shapes = limits.shapes
        self._operations = OperationMaker(limits.max_batch_bytes)
        self._combiner = combiner
        self._outcomes: SimpleQueue[list[Outcome] | _Back] = SimpleQueue()
        self._unanswered = Unanswered(limits.max_unanswered)
        self._reader_left = threading.Event()
        self._answers = 0
        self._first: Any = None
        self._shared_states = SharedStates()
        self._chain: Chain | None = None
        self._stream: WriteStream
        self._sender: Sender
        self.refused_bytes = 0  # of messages that were received for nothing

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
        portal, operations = self._portal, self._operations
        self._stream = stream
        self._shared_states.known = lambda: stream.plan.table.state.shared_states
        self._sender = Sender(
            stream,
            Preparation(stream, self._combiner, operations, portal.post),
            portal.post,
            partial(portal.call, self._writes.begin),
            self._unanswered.sent,
        )
        try:
            self._take_turns(reader, writer)
        finally:
            portal.post(stream.close)

    def _open(self, reader: Any) -> WriteStream | None:
        """Open the stream; None for an empty one. A first chunk that had to be read is kept.

        A table or column that is new is made for a batch that it can keep, and for no other: a
        refused batch leaves nothing behind.
        """
        command = self._command
        deletes = command.type == "delete"
        target = Target(command.namespace, command.table, command.origin, deletes)
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
            first = first or next_chunk(reader)
            if first is None:
                return None
            self._first = self._checked(first, Normaliser(opened, schema))
            checked = bytes_of(self._first)

    def _check_wide(self, target: Target, sent: pa.Schema) -> None:
        """Refuse more columns than the table may have, where it keeps what is sent."""
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
        except InvalidRequest as exc:
            if chain is None:
                raise
            raise InvalidRequest(f"{exc.message} (as {', '.join(chain.names)} made it)") from exc

    def _make_chain(self, names: tuple[str, ...], sent: pa.Schema) -> None:
        if self._chain is not None:
            self._chain.close()
        self._chain = self._writes.transforms.chain(names, sent) if names else None

    def _checked(self, first: Any, normaliser: Normaliser) -> Any:
        """Check that a table can keep its first batch; return it, transformed where that is due."""
        batch = batch_of(first)
        metadata_of(first, self._command.origin, self._shared_states, self._shapes)
        if self._chain is not None:
            batch = self._chain(self._valid(batch))
            first = _Transformed(batch, first.app_metadata)
        table = self._command.namespace, self._command.table
        check = partial(self._writes.check_partitions, table)
        self._operations.split(normaliser, batch, check=check)
        return first

    def _valid(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Check a batch before transformers see it."""
        self._operations.check_size(batch)
        self._operations.check_valid(batch)
        return batch

    # The handler's thread

    def _take_turns(self, reader: Any, writer: Any) -> None:
        """Read and answer in turns; now and then see whether the client sends ahead."""
        turns, look_at = 0, 1
        chunk, self._first = self._first, None
        while True:
            chunk = next_chunk(reader) if chunk is None else chunk
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
            # Clients that wait for each other's answers too would all be looked at in one turn.
            turns = random.randrange(-(look_at // 2), look_at // 2)
            chunk = self._read_ahead(reader, writer).chunk
            if chunk is None:
                return

    def _read_ahead(self, reader: Any, writer: Any) -> _Back:
        """Answer while another thread reads, until that comes back."""
        self._reader_left.clear()
        threading.Thread(target=self._read, args=(reader,), name="put-reader", daemon=True).start()
        try:
            while (back := self._answer(writer)) is None:
                pass
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
        """Return when the reader has left pyarrow and will not enter it again.

        pyarrow frees the call with this frame, under a reader that is still inside. It may be
        waiting there for a client that waits for an answer: an empty answer, which stands for the
        end of them, makes that client move. (One that says "refused" would be taken for an
        acknowledgement by clients that count answers.)
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
            chunk = next_chunk(reader)
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
            del chunk  # nothing of it is held while the next one is waited for
        # Through the loop, behind the answers of everything that was handed over before.
        self._portal.post(self._stream.finish, lambda: self._outcomes.put(_Back(None)))

    # Whoever reads

    def _hand_over(self, chunk: Any, awaits: Awaits) -> bool:
        """Send a batch on its way; False if it is known to be refused, which its outcome says."""
        try:
            return self._send(chunk, awaits)
        except BaseException as exc:
            self._portal.post(self._stream.refuse, exc)
            self.refused_bytes += bytes_of(chunk)
            return False

    def _send(self, chunk: Any, awaits: Awaits) -> bool:
        metadata = NO_METADATA
        if chunk.app_metadata is not None:
            batch_of(chunk)  # metadata without a batch is about nothing
            metadata = metadata_of(chunk, self._stream.origin, self._shared_states, self._shapes)
            if metadata.traceparent is not None:
                return self._send_traced(chunk, *untraced(metadata), awaits)
        if self._traces is not None:
            return self._send_traced(chunk, metadata, None, awaits)
        return self._send_batch(chunk, metadata, awaits)

    def _send_traced(
        self, chunk: Any, metadata: BatchMetadata, traceparent: str | None, awaits: Awaits
    ) -> bool:
        """Send a batch, and end its trace where it is refused here."""
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
        self, chunk: Any, metadata: BatchMetadata, awaits: Awaits, trace: WriteTrace | None = None
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
