"""A copy of a whole table: rows that become the table at once, when it is finished.

    with client.copy("shop", "orders", ["id"]) as copy:
        for batch in batches:
            copy.write(batch)
        version = copy.finish("source", b"what the source needs to go on from here")

The daemon puts the rows straight into files. Nobody sees one of them before ``finish``, and then
all, in the place of whatever was in the table before, which may have had other columns and another
key. A copy that is left without ``finish`` is given up, and one that the daemon has lost, with its
process, has to be begun anew.
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
from .put_stream import PutStream
from .retry import is_retryable
from .wire import Answer, encode

UNANSWERED_BYTES, UNANSWERED = 64 << 20, 64
"""So much may be on the way before an answer is waited for: bytes, and batches."""
FINISH_S = 3600.0
"""The time that a finish may take: the rest of the rows goes into files, and keys are compared."""
ABORT_S = 5.0
CALL_S = 120.0
"""The time of one call of it; the daemon says after a minute that it is still at work."""


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
        """The rows that were written so far."""
        self._connection = connection
        self._about = {"namespace": table[0], "table": table[1], "copy": self.copy_id}
        self._primary_key = list(primary_key)
        self._schema = schema
        self._stream: PutStream | None = None
        self._answers: Iterator[Answer] = iter(())
        self._unanswered: deque[int] = deque()
        self._over = False

    def write(self, data: Data) -> None:
        """Write rows; what :meth:`Client.write` takes. All of them have the same columns.

        A batch without rows says the columns of a copy that may get none.

        Raises:
            InvalidRequest: Rows that the table cannot keep, or other columns than before.
            ClientError: The copy is lost: begin anew.
        """
        if self._over:
            raise InvalidRequest(f"copy {self.copy_id} is over: begin another one")
        given = batches_of(data, TABLE_BATCH_BYTES)
        if given.schema is None:
            return
        stream = self._open(given.schema)
        for batch in given.batches:
            self._send(stream, batch)

    def finish(self, partition: str, state: bytes) -> int:
        """Make the rows the table, with a state of their source; the table's version.

        Args:
            partition, state: As of :meth:`Client.put_checkpoint`: both are in the table from the
                same moment on.

        Raises:
            InvalidRequest: A key stands twice, or somebody else has made the table meanwhile; the
                copy is gone, and the table is as it was. Or nothing says which columns it has.
            NotFound: The daemon was started anew, and does not know the copy.
            Unavailable: Another daemon takes the table's writes. What passes by itself (a store
                that is away) is waited for, up to an hour.
            TimedOut, Unreachable: It may have been done: look at the table's state.
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
                # All rows are there: what passes is waited for, and nothing is begun anew for it.
                if not is_retryable(exc) or time.monotonic() > give_up_at:
                    raise self._told(exc) from exc
            else:
                self._over = True
                return int(done["table_version"])
        raise InvalidRequest(f"copy {self.copy_id} is over already")

    def abort(self) -> None:
        """Give the copy up; the table is as it was. After a finish nothing happens.

        Raises:
            ClientError: The daemon did not answer; it forgets the copy by itself.
        """
        if self._over:
            return
        self._over = True
        if self._stream is not None:
            self._stream.finish_sending()
            self._stream.end()
        # Whoever does not answer forgets it by itself.
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
                raise self._told(from_arrow(exc)) from exc
            except ClientError as exc:
                raise self._told(exc) from exc
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
            raise self._lost(stream) or self._told(from_arrow(exc)) from exc
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
            raise self._told(error)

    def _lost(self, stream: PutStream) -> ClientError | None:
        """Why the stream has ended."""
        self._unanswered.clear()
        error = stream.end()
        return None if error is None else self._told(error)

    def _told(self, error: ClientError) -> ClientError:
        return self._connection.told(error, "copy")


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
