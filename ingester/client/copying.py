"""A copy of a whole table, which replaces the table atomically when it is finished.

    with client.copy("shop", "orders", ["id"]) as copy:
        for batch in batches:
            copy.write(batch)
        version = copy.finish("source", b"the position of the source")

The daemon writes the rows directly to files. ``finish`` makes all of them visible in place of the
former table, which may have had other columns and another key. A copy that ends without ``finish``
is aborted. If the daemon's process ends, the copy is lost and has to be repeated.
"""

import base64
import contextlib
import time
import uuid
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Self

import pyarrow as pa

from .connection import Connection
from .errors import (
    ClientError,
    InvalidRequest,
    TimedOut,
    Unavailable,
    UnknownOutcome,
    from_arrow,
)
from .inputs import TABLE_BATCH_BYTES, Data, batches_of
from .retry import is_retryable
from .streams import PutStream
from .wire import WriteAnswer, encode

UNANSWERED_BYTES, UNANSWERED = 64 << 20, 64
"""The most unanswered bytes and batches."""
FINISH_S = 3600.0
"""Timeout of ``finish``: the remaining rows are written to files, and keys are compared."""
ABORT_S = 5.0
CALL_S = 120.0
"""Timeout of one call of it; the daemon answers after a minute that it is still working."""


class TableCopy:
    """One copy, made by :meth:`Client.copy`. One thread at a time."""

    def __init__(
        self,
        connection: Connection,
        table: tuple[str, str],
        primary_key: Sequence[str],
        copy_id: str | None,
        schema: pa.Schema | None,
    ) -> None:
        self.copy_id = uuid.uuid4().hex if copy_id is None else copy_id
        self.rows = 0
        """The number of rows written so far."""
        self._connection = connection
        self._about = {"namespace": table[0], "table": table[1], "copy": self.copy_id}
        self._primary_key = list(primary_key)
        self._schema = schema
        self._stream: PutStream | None = None
        self._answers: Iterator[WriteAnswer] = iter(())
        self._unanswered: deque[int] = deque()
        self._over = False

    def write(self, data: Data) -> None:
        """Write rows in a form of :meth:`Client.write`, always with the same columns.

        A batch without rows defines the columns of a copy that may get none.

        Raises:
            InvalidRequest: The table cannot store the rows, or the columns differ.
            ClientError: The copy is lost: start again.
        """
        if self._over:
            raise InvalidRequest(f"copy {self.copy_id} has ended: begin another one")
        given = batches_of(data, TABLE_BATCH_BYTES)
        if given.schema is None:
            return
        stream = self._open(given.schema)
        for batch in given.batches:
            self._send(stream, batch)

    def finish(self, partition: str, state: bytes) -> int:
        """Replace the table by the rows, with a state of their source; the table's new version.

        Args:
            partition, state: As for :meth:`Client.put_checkpoint`; committed with the rows.

        Raises:
            InvalidRequest: A key occurs twice, or the table was replaced by others; the copy is
                lost and the table unchanged. Or the columns are unknown.
            NotFound: The daemon was restarted and does not know the copy.
            Unavailable: Another daemon takes the table's writes. Transient errors, such as an
                unreachable store, are retried for up to an hour.
            TimedOut, Unreachable: The copy may be finished: check the table's state.
        """
        if self._stream is None:
            if self._schema is None:
                raise InvalidRequest(
                    "a copy without rows needs its columns: write a batch without rows, or pass"
                    " schema"
                )
            self._open(self._schema)
        self._end_sending()
        told = base64.b64encode(state).decode()
        checkpoint = {"partition": partition, "state": told}
        body = {**self._about, "rows": self.rows, "checkpoint": checkpoint}
        give_up_at = time.monotonic() + FINISH_S
        while not self._over:
            try:
                (done,) = self._connection.act("copy_finish", body, CALL_S)
            except (TimedOut, Unavailable) as exc:
                # All rows are at the daemon: transient errors must not cause another copy.
                if not is_retryable(exc) or time.monotonic() > give_up_at:
                    raise self._explained(exc) from exc
            else:
                self._over = True
                return int(done["table_version"])
        raise InvalidRequest(f"copy {self.copy_id} has ended already")

    def abort(self) -> None:
        """Abort the copy; the table is unchanged. No-op after :meth:`finish`.

        Raises:
            ClientError: The daemon did not answer; it drops the copy by itself.
        """
        if self._over:
            return
        self._over = True
        if self._stream is not None:
            self._stream.finish_sending()
            self._stream.end()
        # A daemon that does not answer drops the copy by itself.
        self._connection.act("copy_abort", self._about, ABORT_S, once=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ClientError):
            self.abort()

    def _open(self, schema: pa.Schema) -> PutStream:
        schema = schema.remove_metadata()
        if self._stream is None:
            command = {"type": "copy", **self._about, "primary_key": self._primary_key}
            try:
                self._stream = self._connection.put_stream(encode(command), schema)
            except (pa.ArrowException, OSError) as exc:
                raise self._explained(from_arrow(exc)) from exc
            except ClientError as exc:
                raise self._explained(exc) from exc
            self._answers, self._schema = self._stream.answers(), schema
        elif self._schema is not None and not self._schema.equals(schema):
            raise InvalidRequest(
                f"copy {self.copy_id} has the columns {_columns(self._schema)}, these rows"
                f" {_columns(schema)}"
            )
        return self._stream

    def _send(self, stream: PutStream, batch: pa.RecordBatch) -> None:
        try:
            stream.send_batch(batch)
        except (pa.ArrowException, OSError) as exc:
            raise self._lost(stream) or self._explained(from_arrow(exc)) from exc
        self.rows += batch.num_rows
        self._unanswered.append(int(batch.nbytes))
        while len(self._unanswered) > UNANSWERED or sum(self._unanswered) > UNANSWERED_BYTES:
            self._wait_for_answer(stream)

    def _wait_for_answer(self, stream: PutStream) -> None:
        if next(self._answers, None) is None:
            raise self._lost(stream) or UnknownOutcome("the daemon ended a copy's stream")
        self._unanswered.popleft()

    def _end_sending(self) -> None:
        stream = self._stream
        assert stream is not None
        stream.finish_sending()
        while self._unanswered:
            self._wait_for_answer(stream)
        if (error := stream.end()) is not None:
            raise self._explained(error)

    def _lost(self, stream: PutStream) -> ClientError | None:
        """The reason why the stream has ended."""
        self._unanswered.clear()
        error = stream.end()
        return None if error is None else self._explained(error)

    def _explained(self, error: ClientError) -> ClientError:
        return self._connection.with_hint(error, "copy")


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
