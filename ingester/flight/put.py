"""DoPut: one stream of batches, pipelined, answered in order.

    reader thread:   read ─ prepare (check, normalise, split, encode) ─ admit ─▶ log ──┐
    handler thread:  write the answer ◀── outcomes, in order ◀── loop (apply) ◀────────┘

A batch with a sequence goes to the log by way of the loop, which judges it first.

Law of this file: everything that costs per byte is done before the loop. The handler's
thread answers, and returns as soon as a batch is refused, which ends the call even while the reader
waits for a client that waits for its answer. At most ``max_unanswered`` batches, or 64 MiB, are
between the two; then the reader stops reading and gRPC's flow control stops the client.
"""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import pyarrow as pa

from ingester.errors import InvalidRequest
from ingester.flight.answers import encode_answer
from ingester.flight.chunks import batch_of, metadata_of, next_chunk, schema_of
from ingester.flight.portal import Portal
from ingester.flight.preparing import NOTHING, Kind, Known, Pace, Preparer
from ingester.flight.requests import WriteCommand, checkpoint_bytes
from ingester.record import as_parts, make_operation
from ingester.schema import Normaliser
from ingester.sinks import Operation
from ingester.writes import Outcome, WritePlan, Writes, WriteStream
from persist.partitioning import PartitionValues, PartitionValueTooLong, split_batch

UNANSWERED_BYTES = 64 << 20
BODY_OVERHEAD_BYTES = 1 << 20
"""What the IPC form may have beside the values: padding, offsets, thousands of columns."""
READER_LEAVES_S = 0.02
"""How long a refused client may take to send on by itself before it is sent an empty answer."""


@dataclass(frozen=True, slots=True)
class PutLimits:
    """``flight.max_batch_bytes`` and ``flight.max_unanswered``."""

    max_batch_bytes: int
    max_unanswered: int


class _End:
    """The reader has read everything that the client sent."""


class PutCall:
    """One DoPut call."""

    def __init__(
        self,
        portal: Portal,
        writes: Writes,
        command: WriteCommand,
        limits: PutLimits,
        preparer: Preparer,
    ) -> None:
        self._preparer = preparer
        self._pace = Pace()
        self._portal = portal
        self._writes = writes
        self._command = command
        self._limits = limits
        self._outcomes: SimpleQueue[Outcome | _End] = SimpleQueue()
        self._room = threading.Condition()
        self._sizes: SimpleQueue[int] = SimpleQueue()
        self._unanswered = 0
        self._unanswered_bytes = 0
        self._over = False
        self._reader_left = threading.Event()

    def serve(self, reader: Any, writer: Any) -> None:
        """Answer batches until the client has finished; raises what ends the call."""
        opened = self._open(reader)
        if opened is None:
            return
        stream, first = opened
        stream.deliver = self._outcomes.put
        threading.Thread(
            target=self._read, args=(reader, stream, first), name="put-reader", daemon=True
        ).start()
        try:
            while not isinstance(outcome := self._outcomes.get(), _End):
                if isinstance(outcome, BaseException):
                    raise outcome
                self._answered()
                writer.write(pa.py_buffer(encode_answer(outcome)))
        finally:
            try:
                self._portal.post(stream.close)
            finally:
                self._end_reading(writer)

    def _open(self, reader: Any) -> tuple[WriteStream, Any] | None:
        """The stream, and its first chunk if that had to be looked at; None for an empty stream.

        A table or column that is new is made for a batch that it can keep, and for no other: a
        refused batch leaves nothing behind.
        """
        command, schema = self._command, schema_of(reader)
        names = (command.namespace, command.table, command.origin)
        opened = self._portal.call(self._writes.open, *names, schema, False)
        if isinstance(opened, WriteStream):
            return opened, None
        first = next_chunk(reader)
        if first is None:
            return None
        checkpoint_bytes(metadata_of(first, command.origin).checkpoint)
        self._split(Normaliser(opened, schema), first)
        opened = self._portal.call(self._writes.open, *names, schema, True)
        assert isinstance(opened, WriteStream)
        return opened, first

    def _end_reading(self, writer: Any) -> None:
        """Return when the reader has left pyarrow and will not enter it again.

        pyarrow frees the call with this frame, under a reader that is still inside. What the reader
        itself refuses (bad batches, admission, a newer stream) finds it outside. Only what fails
        behind it (the disk, a stop) can find it waiting for a client that waits for its answer: an
        empty answer makes that client move.
        """
        with self._room:
            self._over = True
            self._room.notify_all()
        if not self._reader_left.wait(READER_LEAVES_S):
            with contextlib.suppress(pa.ArrowException, OSError):  # the client has gone
                writer.write(pa.py_buffer(b""))
            self._reader_left.wait()

    # The reader's thread

    def _read(self, reader: Any, stream: WriteStream, first: Any) -> None:
        try:
            self._read_all(reader, stream, first)
        finally:
            self._reader_left.set()

    def _read_all(self, reader: Any, stream: WriteStream, chunk: Any) -> None:
        try:
            while not self._over:
                chunk = next_chunk(reader) if chunk is None else chunk
                if chunk is None:
                    break
                if not self._wait_for_room():
                    return
                try:
                    operation = self._prepared(stream, chunk)
                    self._begin(stream, operation)
                    operation.admitted_bytes = stream.admit(
                        operation.nbytes, operation.origin_sequence
                    )
                except BaseException as exc:
                    self._portal.post(stream.refuse, exc)
                    return
                with self._room:
                    self._unanswered += 1
                    self._unanswered_bytes += operation.nbytes
                self._sizes.put(operation.nbytes)
                if stream.origin is None:
                    stream.submit(operation)
                else:
                    self._portal.post(_submit, stream, operation)
                chunk = None
        except BaseException as exc:
            self._outcomes.put(exc)
            return
        # Through the loop, behind the answers of everything that was posted before.
        self._portal.post(stream.finish, lambda: self._outcomes.put(_End()))

    def _split(
        self, normalise: Normaliser, chunk: Any, known: Known = NOTHING
    ) -> list[tuple[PartitionValues, pa.RecordBatch]]:
        """The batch as its table keeps it, by partition; whatever a value can be refused for."""
        batch = batch_of(chunk)
        nbytes = batch.get_total_buffer_size()
        if nbytes > self._limits.max_batch_bytes:
            raise InvalidRequest(
                f"batch has {nbytes} B; flight.max_batch_bytes is {self._limits.max_batch_bytes}:"
                " send smaller batches"
            )
        try:
            if not known.valid:
                batch.validate(full=True)
            self._check_plain_bytes(normalise, batch)
            rows = normalise(batch)
            if known.partition is not None and rows.num_rows:
                return [(known.partition, rows)]
            return split_batch(rows, normalise.definition.spec)
        except PartitionValueTooLong as exc:
            raise InvalidRequest(str(exc)) from exc
        except pa.ArrowInvalid as exc:
            raise InvalidRequest(f"batch is not valid: {exc}") from exc

    def _check_plain_bytes(self, normalise: Normaliser, batch: pa.RecordBatch) -> None:
        """Few bytes can stand for many: see :mod:`ingester.schema.expansion`."""
        limit = self._limits.max_batch_bytes
        nbytes = normalise.plain_bytes(batch)
        if nbytes > limit + BODY_OVERHEAD_BYTES:
            raise InvalidRequest(
                f"batch of {batch.num_rows} rows has {nbytes:.0f} B once its dictionaries, views"
                f" and nulls are written out; flight.max_batch_bytes is {limit}: send smaller"
                " batches"
            )

    def _prepared(self, stream: WriteStream, chunk: Any) -> Operation:
        plan = stream.plan
        definition = plan.normalise.definition
        spec = definition.spec if plan.normalise.keeps_types else None
        return self._preparer.prepare(
            batch_of(chunk),
            Kind(plan.table.key, plan.shape, spec),
            self._pace,
            lambda known: self._operation(stream.origin, plan, chunk, known),
        )

    def _begin(self, stream: WriteStream, operation: Operation) -> None:
        sequence = operation.origin_sequence
        if sequence is not None and stream.first_sequence is None:
            stream.would_admit(operation.nbytes, sequence)
            self._portal.call(self._writes.begin, stream, sequence)

    def _operation(self, name: str | None, plan: WritePlan, chunk: Any, known: Known) -> Operation:
        metadata = metadata_of(chunk, name)
        parts, messages = as_parts(self._split(plan.normalise, chunk, known), plan.template)
        stored = sum(part.nbytes for part in parts)
        if stored > self._limits.max_batch_bytes + BODY_OVERHEAD_BYTES * len(parts):
            raise InvalidRequest(
                f"batch has {stored} B once its dictionaries are decoded; flight.max_batch_bytes is"
                f" {self._limits.max_batch_bytes}: send smaller batches"
            )
        checkpoint = checkpoint_bytes(metadata.checkpoint)
        sequence = metadata.sequence
        origin = None if sequence is None or name is None else (name, sequence)
        return make_operation(
            plan.table,
            parts,
            messages,
            shape=plan.shape,
            preambles=(plan.preamble,),
            origin=origin,
            checkpoint=checkpoint,
        )

    def _wait_for_room(self) -> bool:
        with self._room:
            self._room.wait_for(
                lambda: (
                    self._over
                    or (
                        self._unanswered < self._limits.max_unanswered
                        and self._unanswered_bytes < UNANSWERED_BYTES
                    )
                )
            )
            return not self._over

    def _answered(self) -> None:
        nbytes = self._sizes.get()
        with self._room:
            self._unanswered -= 1
            self._unanswered_bytes -= nbytes
            self._room.notify()


def _submit(stream: WriteStream, operation: Operation) -> None:
    """On the loop. Nothing may escape: trio has nobody to give it to."""
    try:
        stream.submit(operation)
    except Exception as exc:
        stream.refuse(exc)
