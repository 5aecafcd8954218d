"""The answer to a query, batch by batch: one snapshot, however long it takes to read.

It is an Arrow stream to whoever speaks the C data interface: ``polars.DataFrame(stream)``,
``duckdb.sql("from stream")``, ``pyarrow.table(stream)`` read it without a copy of the whole.

The daemon holds one small part per stream and waits for the reader; a reader that makes no progress
for ``query.client_timeout`` finds :class:`TimedOut`.
"""

import contextlib
from collections.abc import Iterator
from typing import Self

import msgspec
import pyarrow as pa
from pyarrow import flight

from . import lifetime
from .errors import InvalidRequest, from_arrow
from .tracing import NO_SPAN, CallSpan
from .wire import BatchSource, SnapshotInfo, snapshot_info


class QueryStream:
    """Iterates ``(batch, source)``. A context manager: leaving it early cancels the query.

    ``schema`` is the answer's, ``snapshot`` says which moment it shows.
    """

    def __init__(self, reader: flight.FlightStreamReader, span: CallSpan = NO_SPAN) -> None:
        """Raises a :class:`ClientError` where the query is refused."""
        self._reader = lifetime.held(reader)
        self._span = span
        try:
            self.schema: pa.Schema = reader.schema
        except (pa.ArrowException, OSError) as exc:
            raise from_arrow(exc) from exc
        self.snapshot: SnapshotInfo = snapshot_info(self.schema)
        self._ended = self._begun = self._cancelled = False
        lifetime.end_at_exit(self)

    def __iter__(self) -> Iterator[tuple[pa.RecordBatch, BatchSource]]:
        """Iterate over batches, each with its partition and its source, a buffer or a file.

        Raises:
            ClientError: the answer broke off; what came before is a part of the snapshot.
        """
        while (item := self.read()) is not None:
            yield item

    def read(self) -> tuple[pa.RecordBatch, BatchSource] | None:
        """The next batch with its source, or None at the end.

        Raises:
            InvalidRequest: the stream was closed before its end: what was read is a part.
        """
        item = self.read_raw()
        if item is None:
            return None
        rows, raw = item
        return rows, BatchSource() if raw is None else msgspec.json.decode(raw, type=BatchSource)

    def read_raw(self) -> tuple[pa.RecordBatch, bytes | None] | None:
        """As :meth:`read`, with the source as the daemon wrote it."""
        lifetime.check()
        if self._cancelled:
            raise InvalidRequest(
                "the answer was closed before its end: read it before it is closed"
            )
        self._begun = True
        if self._ended:
            return None
        try:
            with lifetime.calls:
                chunk = self._reader.read_chunk()
        except StopIteration:
            self._ended = True
            self._span.end()
            return None
        except (pa.ArrowException, OSError) as exc:
            self._ended = True
            error = from_arrow(exc)
            self._span.end(error)
            raise error from exc
        raw = chunk.app_metadata
        return chunk.data, raw.to_pybytes() if raw is not None and raw.size else None

    def reader(self) -> pa.RecordBatchReader:
        """The batches without their sources, for what reads Arrow; they come as they are asked for.

        Raises:
            InvalidRequest: some have been read already, or the stream is closed. A stream is read
                once: ask again for another one.
        """
        lifetime.check()
        if self._begun or self._ended:
            raise InvalidRequest(
                "the answer has been read already, or closed, and is there once: ask again with"
                " query_stream, or keep it with query"
            )
        self._begun = True
        batches = (batch for batch, _ in self)
        return pa.RecordBatchReader.from_batches(self.schema, batches)

    def __arrow_c_schema__(self) -> object:
        """The schema, for Arrow's C data interface."""
        return self.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """The batches, for Arrow's C data interface; as :meth:`reader`."""
        return self.reader().__arrow_c_stream__(requested_schema)

    def close(self) -> None:
        """Cancel what has not been read.

        In a forked process nothing happens: the stream is the parent's.
        """
        if not self._ended and lifetime.alive():
            self._ended = self._cancelled = True
            self._span.end()
            with contextlib.suppress(pa.ArrowException, OSError):
                self._reader.cancel()

    def leave(self) -> None:
        """Cancel at the end of the process; see :mod:`.lifetime`."""
        self.close()

    def left(self, within_s: float) -> None:
        """Do nothing: what was cancelled ends by itself."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
