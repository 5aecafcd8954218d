"""One DoPut stream to the daemon: a thin cover over pyarrow's two halves of it.

One thread sends, another reads. The reader sees only that the stream ended; the reason comes from
``end``, which must not run beside ``send``. pyarrow offers no way to cancel a DoPut: a stream that
is given up lives on in its threads until the daemon moves or its connection breaks.
"""

import contextlib
from collections.abc import Iterator

import msgspec
import pyarrow as pa
from pyarrow import flight

from . import lifetime
from .checkpoints.checkpoint import SentShared
from .credentials import Credentials
from .errors import ClientError, Unauthenticated, Unreachable, from_arrow
from .window import Pending
from .wire import Answer, BatchMetadata, encode


class PutStream:
    """A stream of batches out and answers back, in the same order."""

    def __init__(
        self,
        client: flight.FlightClient,
        command: bytes,
        schema: pa.Schema,
        credentials: Credentials,
        traceparent: str | None = None,
    ) -> None:
        """Open the stream, as part of a trace where it has one.

        Raises:
            ClientError: no connection.
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
        self.ended = False  # set by the reading thread, under the writer's lock
        self._traces = False
        """Whether the daemon takes what a batch says of its span: one of before would refuse it."""
        self.answered = 0
        """The number of answers that were read."""
        self._sent_shared = SentShared()

    def send(self, pending: Pending) -> None:
        """Hand a batch to gRPC. Blocks while the daemon does not read."""
        sequence, carried = pending.sequence, pending.checkpoint
        traceparent = pending.traceparent if self._traces else None
        if sequence is None and carried is None and traceparent is None:
            self._writer.write_batch(pending.batch)
            return
        checkpoint = None if carried is None else self._sent_shared.message(carried)
        metadata = encode(BatchMetadata(sequence, checkpoint, traceparent))
        self._writer.write_with_metadata(pending.batch, metadata)

    def send_batch(self, batch: pa.RecordBatch) -> None:
        """Hand a batch without metadata to gRPC. Blocks while the daemon does not read."""
        self._writer.write_batch(batch)

    def answers(self) -> Iterator[Answer]:
        """Answers as they come, until the stream ends for whatever reason."""
        while True:
            try:
                raw = self._reader.read()
            except (pa.ArrowException, OSError):
                return  # the reason is in end()
            if not raw:  # the end, or the empty answer that tells a waiting client of it
                return
            self.answered += 1
            answer = msgspec.json.decode(raw.to_pybytes(), type=Answer)
            self._traces = self._traces or answer.traces
            yield answer

    def finish_sending(self) -> None:
        """Tell the daemon that no batch follows; it answers the rest and ends the stream."""
        with contextlib.suppress(pa.ArrowException, OSError):  # the reason is in end()
            self._writer.done_writing()

    def end(self) -> ClientError | None:
        """The reason why the stream ended; None when the daemon ended it in good order."""
        try:
            self._writer.close()
        except (pa.ArrowException, OSError) as exc:
            return self._credentials.explained(self._reason(from_arrow(exc)))
        return None

    def _reason(self, error: ClientError) -> ClientError:
        """The error; that of a lost connection where it helps to come again with another token."""
        if not isinstance(error, Unauthenticated):
            return error
        try:
            replaced = self._token != self._credentials.token_number()
        except ClientError:
            return error
        return Unreachable(f"{error}; the token was replaced since") if replaced else error
