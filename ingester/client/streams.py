"""The Flight streams of a client: :class:`PutStream` writes, :class:`AnswerStream` reads answers.

A ``PutStream`` has one thread at a time that sends and one that reads. The reader learns only that
the stream ended; the reason comes from ``end``, which must not run beside ``send``. pyarrow can
neither cancel a DoPut nor limit the time of a read or a write: an abandoned stream lives in its
threads until the daemon answers or the connection breaks. So a caller, which has to return, never
reads, and sends only what cannot block.

An ``AnswerStream`` is an Arrow stream for libraries that use the C data interface:
``polars.DataFrame(stream)``, ``duckdb.sql("from stream")`` and ``pyarrow.table(stream)`` read it
without a copy of the whole. The daemon holds one small part per stream; a reader that makes no
progress for ``query.client_timeout`` gets :class:`TimedOut`.
"""

import contextlib
import enum
import threading
from collections.abc import Iterator
from typing import Self

import msgspec
import pyarrow as pa
from pyarrow import flight

from . import lifetime
from .checkpoints import SentShared
from .credentials import Credentials
from .delivery import Pending
from .errors import ClientError, InvalidRequest, Unauthenticated, Unreachable, from_arrow
from .tracing import NO_SPAN, CallSpan
from .wire import BatchSource, SentMetadata, SnapshotInfo, WriteAnswer, encode, snapshot_info

AT_ONCE_BYTES = 32 << 10
"""gRPC and the kernel take this much per connection even if the daemon does not read: the smallest
window of HTTP/2 has 64 KiB, and is renewed when half of it is used."""


class ReadState(enum.Enum):
    """The state of an :class:`AnswerStream`."""

    NEW = "nothing was read"
    READING = "batches remain"
    ENDED = "read to the end, or broken off"
    CLOSED = "closed before the end"


READ_STATES = {
    ReadState.NEW: {ReadState.READING, ReadState.CLOSED},
    ReadState.READING: {ReadState.ENDED, ReadState.CLOSED},
    ReadState.ENDED: set[ReadState](),
    ReadState.CLOSED: set[ReadState](),
}
"""The legal changes; any other is ignored, as another thread may close a stream."""


_answer = msgspec.json.Decoder(WriteAnswer).decode


class Load:
    """The bytes that the streams of one connection have sent and that are unanswered."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bytes = 0

    def add(self, nbytes: int) -> None:
        """Count bytes that are on the way, or no longer."""
        with self._lock:
            self._bytes += nbytes

    def add_if_room(self, nbytes: int) -> bool:
        """Count bytes if they are sent without waiting for the daemon; whether they are."""
        with self._lock:  # other writers of the connection ask at the same time
            has_room = self._bytes + nbytes <= AT_ONCE_BYTES
            self._bytes += nbytes * has_room
            return has_room


class PutStream:
    """A stream of batches and, in the same order, their answers."""

    def __init__(
        self,
        client: flight.FlightClient,
        command: bytes,
        schema: pa.Schema,
        credentials: Credentials,
        traceparent: str | None = None,
        load: Load | None = None,
    ) -> None:
        """Open the stream, as part of a trace if there is one; ``load`` is its connection's.

        Raises:
            ClientError: No connection.
        """
        descriptor = flight.FlightDescriptor.for_command(command)
        self._credentials, self._token = credentials, credentials.token_number()
        try:
            headers = [] if traceparent is None else [(b"traceparent", traceparent.encode())]
            options = credentials.call_options(headers=headers)
            writer, reader = client.do_put(descriptor, schema, options)
        except (pa.ArrowException, OSError) as exc:
            raise credentials.explained(from_arrow(exc)) from exc
        self._writer, self._reader = lifetime.held(writer), lifetime.held(reader)
        self.ended = False
        """Set by the reading thread, under the writer's lock."""
        self.sending = False
        """A thread is sending a batch; set under the writer's lock."""
        self.send_error: ClientError | None = None
        """The error of a batch that could not be sent."""
        self._load = Load() if load is None else load
        self._on_the_way = 0
        # A batch's message says less of each field than the schema's message does.
        self._overhead = 512 + int(schema.serialize().size)
        self._traces = False
        """Whether the daemon accepts spans in a batch's metadata; older ones would refuse them."""
        self.answered = 0
        """The number of answers read."""
        self._sent_shared = SentShared()

    @property
    def ends(self) -> bool:
        """Whether no further batch may be sent."""
        return self.ended or self.send_error is not None

    def takes_at_once(self, pending: Pending) -> bool:
        """Weigh a batch if it is sent without waiting for the daemon; whether it is."""
        # The daemon has read the schema, which counts nowhere, when it has answered once. Shared
        # bytes of a checkpoint count only for the first stream.
        shared = pending.checkpoint is not None and pending.checkpoint.shared_id is not None
        nbytes = pending.nbytes + self._overhead
        if shared or not self.answered or not self._load.add_if_room(nbytes):
            return False
        self._on_the_way += nbytes
        return True

    def weigh(self, pending: Pending, answered: bool = False) -> None:
        """Count a batch as being on the way, or as answered."""
        self._add((pending.nbytes + self._overhead) * (-1 if answered else 1))

    def close_load(self) -> None:
        """Count nothing as being on the way: the stream has ended."""
        self._add(-self._on_the_way)

    def _add(self, nbytes: int) -> None:
        self._on_the_way += nbytes
        self._load.add(nbytes)

    def send(self, pending: Pending) -> None:
        """Send a batch. Blocks while the daemon does not read."""
        sequence, carried = pending.sequence, pending.checkpoint
        traceparent = pending.traceparent if self._traces else None
        if sequence is None and carried is None and traceparent is None:
            self._writer.write_batch(pending.batch)
            return
        checkpoint = None if carried is None else self._sent_shared.message(carried)
        metadata = encode(SentMetadata(sequence, checkpoint, traceparent))
        self._writer.write_with_metadata(pending.batch, metadata)

    def send_batch(self, batch: pa.RecordBatch) -> None:
        """Send a batch without metadata. Blocks while the daemon does not read."""
        self._writer.write_batch(batch)

    def answers(self) -> Iterator[WriteAnswer]:
        """The answers as they arrive, until the stream ends for any reason."""
        while True:
            try:
                raw = self._reader.read()
            except (pa.ArrowException, OSError):
                return  # the reason is in end()
            if not raw:  # the end, or the empty answer that announces it to a waiting client
                return
            self.answered += 1
            answer = _answer(raw)
            self._traces = self._traces or answer.traces
            yield answer

    def finish_sending(self) -> None:
        """Tell the daemon that no batch follows; it answers the rest and ends the stream."""
        with contextlib.suppress(pa.ArrowException, OSError):  # the reason is in end()
            self._writer.done_writing()

    def end(self) -> ClientError | None:
        """The reason why the stream ended; None if the daemon ended it normally."""
        try:
            self._writer.close()
        except (pa.ArrowException, OSError) as exc:
            return self._credentials.explained(self._reason(from_arrow(exc)))
        return None

    def _reason(self, error: ClientError) -> ClientError:
        """The error; a retryable one if the token was replaced since the stream was opened."""
        if not isinstance(error, Unauthenticated):
            return error
        try:
            replaced = self._token != self._credentials.token_number()
        except ClientError:
            return error
        return Unreachable(f"{error}; the token was replaced since") if replaced else error


class AnswerStream:
    """The batches of an answer, which are also an Arrow stream; ``schema`` is their schema.

    A context manager: leaving it early cancels the query.
    """

    def __init__(self, reader: flight.FlightStreamReader, span: CallSpan = NO_SPAN) -> None:
        """Raises a :class:`ClientError` if the query is refused."""
        self._reader = lifetime.held(reader)
        self._span = span
        try:
            self.schema: pa.Schema = reader.schema
        except (pa.ArrowException, OSError) as exc:
            raise from_arrow(exc) from exc
        self._state = ReadState.NEW
        lifetime.end_at_exit(self)

    def read_raw(self) -> tuple[pa.RecordBatch, bytes | None] | None:
        """The next batch with its undecoded source, or None at the end."""
        if not self._begin_read():
            return None
        try:
            with lifetime.calls:
                chunk = self._reader.read_chunk()
        except StopIteration:
            self._enter(ReadState.ENDED)
            self._span.end()
            return None
        except (pa.ArrowException, OSError) as exc:
            self._enter(ReadState.ENDED)
            error = from_arrow(exc)
            self._span.end(error)
            raise error from exc
        raw = chunk.app_metadata
        return chunk.data, raw.to_pybytes() if raw is not None and raw.size else None

    def _enter(self, state: ReadState) -> bool:
        """Change the state if the change is legal."""
        if state not in READ_STATES[self._state]:
            return False
        self._state = state
        return True

    def _begin_read(self) -> bool:
        """Whether batches may remain. Raises :class:`InvalidRequest` after :meth:`close`."""
        lifetime.check()
        if self._state is ReadState.CLOSED:
            raise InvalidRequest(
                "the answer was closed before its end: read it before it is closed"
            )
        self._enter(ReadState.READING)
        return self._state is ReadState.READING

    def reader(self) -> pa.RecordBatchReader:
        """The batches without their sources, as an Arrow reader.

        Raises:
            InvalidRequest: Batches have been read already, or the stream is closed.
        """
        lifetime.check()
        if not self._enter(ReadState.READING):
            raise InvalidRequest(
                "the answer has been read or closed already, and can be read once: ask for another"
                " stream, or keep the rows in a table"
            )
        batches = (item[0] for item in iter(self.read_raw, None))
        return pa.RecordBatchReader.from_batches(self.schema, batches)

    def __arrow_c_schema__(self) -> object:
        """The schema, for Arrow's C data interface."""
        return self.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """The batches, for Arrow's C data interface; as :meth:`reader`."""
        return self.reader().__arrow_c_stream__(requested_schema)

    def close(self) -> None:
        """Cancel the rest of the answer. No-op in a forked process: the parent owns the stream."""
        if lifetime.alive() and self._enter(ReadState.CLOSED):
            self._span.end()
            with contextlib.suppress(pa.ArrowException, OSError):
                self._reader.cancel()

    def leave(self) -> None:
        """Cancel at the end of the process; see :mod:`.lifetime`."""
        self.close()

    def left(self, within_s: float) -> None:
        """No-op: a cancelled stream ends by itself."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class QueryStream(AnswerStream):
    """The answer to a query: iterates ``(batch, source)``, all of one snapshot.

    A context manager: leaving it early cancels the query. ``schema`` is the answer's schema and
    ``snapshot`` its moment.
    """

    def __init__(self, reader: flight.FlightStreamReader, span: CallSpan = NO_SPAN) -> None:
        """Raises a :class:`ClientError` if the query is refused."""
        super().__init__(reader, span)
        self.snapshot: SnapshotInfo = snapshot_info(self.schema)

    def __iter__(self) -> Iterator[tuple[pa.RecordBatch, BatchSource]]:
        """Iterate over batches, each with its partition and its source, a buffer or a file.

        Raises:
            ClientError: The answer broke off; the batches so far are a part of the snapshot.
        """
        while (item := self.read()) is not None:
            yield item

    def read(self) -> tuple[pa.RecordBatch, BatchSource] | None:
        """The next batch with its source, or None at the end.

        Raises:
            InvalidRequest: The stream was closed before its end.
        """
        item = self.read_raw()
        if item is None:
            return None
        rows, raw = item
        return rows, BatchSource() if raw is None else msgspec.json.decode(raw, type=BatchSource)
