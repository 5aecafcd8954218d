"""DoPut: one stream of batches, answered in order.

A client that waits for each answer is served by the call's own thread, in turns:

    read ─ hand over, or log ─ wait ─ answer

A client that sends ahead has two threads:

    reader      read ─ hand over ─▶ log ─┐
    handler     answer ◀── outcomes, in order ◀── loop (apply)

Small batches are handed over as they are, and coalesced in the log's thread
(:mod:`ingester.write.coalescer`). Larger ones, and those of an origin, are made into operations
first (:mod:`ingester.write.preparation`); one with a sequence goes to the log by way of the loop,
where the dedup sink knows whether it is new.

Law of this file: everything that costs per byte is done before the loop. The handler's thread
answers, and returns as soon as a batch is refused. At most ``max_unanswered`` batches, or 64 MiB,
are on their way; then nothing more is read and gRPC's flow control stops the client.
"""

from __future__ import annotations

import contextlib
import random
import threading
from queue import SimpleQueue
from typing import Any

import pyarrow as pa

from ingester.dml.operation import Operation
from ingester.schema import Normaliser
from ingester.server.flight.decoding import PutLimits, moved
from ingester.server.flight.in_flight import Unanswered
from ingester.server.flight.put_reader import batch_of, bytes_of, metadata_of, next_chunk, schema_of
from ingester.server.flight.refusals import says_answered
from ingester.server.flight.requests import WriteCommand
from ingester.server.portal import Portal
from ingester.write.answer import ClientGone, encode_answer, send_answer
from ingester.write.coalescer import Arrival
from ingester.write.combiner import Combiner
from ingester.write.metadata import RisingSequences
from ingester.write.operation_maker import OperationMaker
from ingester.write.preparation import Preparation
from ingester.write.stream import Outcome, WriteStream
from ingester.write.streams import Target, Writes

SMALL_BYTES = 96 << 10
"""Batches that cannot become larger than this are coalesced: who does that serves all."""
ARRIVAL_BYTES = 1 << 10
"""The bytes that a small batch costs on its way beside its rows."""
PATIENCE = 16
"""The number of batches in a row that find none unanswered before them: the client waits."""
MAX_TURNS = 256
"""The most batches between two looks whether the client sends ahead."""
READER_LEAVES_S = 0.02
"""How long a refused client may take to send on by itself before it gets an answer."""


class _Back:
    """Says that the reader leaves: the client waits for answers now, or has sent all."""

    def __init__(self, chunk: Any) -> None:
        self.chunk = chunk


class PutCall:
    """One DoPut call that brings a stream of batches."""

    def __init__(
        self,
        portal: Portal,
        writes: Writes,
        command: WriteCommand,
        limits: PutLimits,
        combiner: Combiner,
    ) -> None:
        self._portal = portal
        self._writes = writes
        self._command = command
        self._decoding = limits.decoding
        self._operations = OperationMaker(limits.max_batch_bytes)
        self._preparation = Preparation(combiner, portal.post, self._operations)
        self._small_bytes = min(SMALL_BYTES, limits.max_batch_bytes)
        self._outcomes: SimpleQueue[list[Outcome] | _Back] = SimpleQueue()
        self._unanswered = Unanswered(limits.max_unanswered)
        self._reader_left = threading.Event()
        self._answers = 0
        self._sequences = RisingSequences()
        self._first: Any = None
        self.refused_bytes = 0  # of messages that were received for nothing

    def serve(self, reader: Any, writer: Any) -> None:
        """Answer batches until the client has finished; raise what ends the call."""
        with says_answered(lambda: self._answers), self._decoding.reading() as self._reading:
            self._serve(reader, writer)

    def _serve(self, reader: Any, writer: Any) -> None:
        stream = self._open(reader)
        if stream is None:
            return
        try:
            self._take_turns(reader, writer, stream)
        finally:
            self._portal.post(stream.close)

    def _open(self, reader: Any) -> WriteStream | None:
        """Open the stream; None for an empty one. A first chunk that had to be read is kept.

        A table or column that is new is made for a batch that it can keep, and for no other: a
        refused batch leaves nothing behind.
        """
        command, schema = self._command, schema_of(reader)
        deletes = command.type == "delete"
        opening = (
            Target(command.namespace, command.table, command.origin, deletes),
            schema,
            self._outcomes.put,
        )
        opened = self._portal.call(self._writes.open, *opening)
        if isinstance(opened, WriteStream):
            return opened
        first = next_chunk(reader, self._reading)
        if first is None:
            return None
        metadata_of(first, command.origin).checkpoint_bytes()
        self._operations.split(Normaliser(opened, schema), batch_of(first))
        opened = self._portal.call(self._writes.open, *opening, bytes_of(first))
        assert isinstance(opened, WriteStream)
        self._first = first
        return opened

    # The handler's thread

    def _take_turns(self, reader: Any, writer: Any, stream: WriteStream) -> None:
        """Read and answer in turns; now and then see whether the client sends ahead."""
        turns, look_at = 0, 1
        chunk, self._first = self._first, None
        while True:
            chunk = next_chunk(reader, self._reading) if chunk is None else chunk
            if chunk is None:
                return
            turns += 1
            looks = turns >= look_at
            handed_over = self._hand_over(stream, chunk, looks=looks)
            chunk = None
            if not (looks and handed_over):
                try:
                    self._answer(writer)
                finally:
                    stream.answered_here()
                continue
            look_at = min(look_at * 2, MAX_TURNS)
            # Clients that wait for each other's answers too would all be looked at in one turn.
            turns = random.randrange(-(look_at // 2), look_at // 2)
            chunk = self._read_ahead(reader, writer, stream).chunk
            if chunk is None:
                return

    def _read_ahead(self, reader: Any, writer: Any, stream: WriteStream) -> _Back:
        """Answer while another thread reads, until that comes back."""
        self._reader_left.clear()
        threading.Thread(
            target=self._read, args=(reader, stream), name="put-reader", daemon=True
        ).start()
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

    def _read(self, reader: Any, stream: WriteStream) -> None:
        try:
            self._read_all(reader, stream)
        except BaseException as exc:
            self._outcomes.put([exc])
        finally:
            self._reader_left.set()

    def _read_all(self, reader: Any, stream: WriteStream) -> None:
        answered, patience = 0, 1
        while self._unanswered.wait_for_room():
            chunk = next_chunk(reader, self._reading)
            if chunk is None:
                break
            if self._unanswered:
                answered, patience = 0, PATIENCE
            else:
                answered += 1
                if answered >= patience:
                    self._outcomes.put(_Back(chunk))
                    return
            if not self._hand_over(stream, chunk):
                return
            del chunk  # nothing of it is held while the next one is waited for
        # Through the loop, behind the answers of everything that was handed over before.
        self._portal.post(stream.finish, lambda: self._outcomes.put(_Back(None)))

    # Whoever reads

    def _hand_over(self, stream: WriteStream, chunk: Any, *, looks: bool | None = None) -> bool:
        """Send a batch on its way; False if it is known to be refused, which its outcome says.

        Args:
            looks: None in the reader's thread. In the handler's: true, wait until that is known;
                false, nothing else is to be done before the answer.
        """
        try:
            return self._sent_off(stream, chunk, looks)
        except BaseException as exc:
            self._portal.post(stream.refuse, exc)
            self.refused_bytes += bytes_of(chunk)
            return False

    def _sent_off(self, stream: WriteStream, chunk: Any, looks: bool | None) -> bool:
        batch, preparation = batch_of(chunk), self._preparation
        if self._reading.holds_batch():
            self._operations.check_size(batch)
            sequence = metadata_of(chunk, stream.origin).sequence
            stream.would_admit(batch.get_total_buffer_size(), sequence)
            self._operations.check_valid(batch)
            batch = moved(batch)  # what is refused anyway is not copied
        if stream.origin is None and chunk.app_metadata is None:
            most = stream.plan.normalise.most_bytes(batch)
            if most is not None and most <= self._small_bytes:
                nbytes = int(most) + ARRIVAL_BYTES
                return preparation.settle() and self._offer(stream, batch, nbytes, looks)
        metadata = metadata_of(chunk, stream.origin)
        self._sequences.check(metadata.sequence)
        if looks is not True and preparation.passes_on(stream, batch, ahead=looks is None):
            nbytes = stream.admit(batch.get_total_buffer_size(), None)
            self._unanswered.sent(nbytes)
            preparation.pass_on(stream, batch, metadata, nbytes)
            return True
        if not preparation.settle():
            return False
        operation = preparation.operation(stream, batch, metadata)
        self._begin(stream, operation)
        operation.admitted_bytes = stream.admit(operation.nbytes, operation.origin_sequence)
        self._unanswered.sent(operation.nbytes)
        if stream.origin is None:
            stream.submit(operation)
        else:
            self._portal.post(_submit, stream, operation)
        return True

    def _offer(
        self, stream: WriteStream, batch: pa.RecordBatch, nbytes: int, looks: bool | None
    ) -> bool:
        arrival = Arrival(stream, batch, stream.admit(nbytes, None))
        arrival.waits = looks is not None
        if looks:
            arrival.checked = threading.Event()
        self._unanswered.sent(nbytes)
        # Who waits for the answer writes the log itself if nobody does: no thread has to be woken.
        stream.offer(arrival, arrival.slot, here=looks is False)
        if arrival.checked is None:
            return True
        arrival.checked.wait()
        return stream.session.refusal is None

    def _begin(self, stream: WriteStream, operation: Operation) -> None:
        sequence = operation.origin_sequence
        if sequence is not None and stream.origin_table is None:
            stream.would_admit(operation.nbytes, sequence)
            self._portal.call(self._writes.begin, stream, sequence)


def _submit(stream: WriteStream, operation: Operation) -> None:
    """Submit on the loop. Nothing may escape: trio has nobody to give it to."""
    try:
        stream.submit(operation)
    except Exception as exc:
        stream.refuse(exc)
