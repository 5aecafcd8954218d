"""An answer to a query, batch by batch: one snapshot, however long the reading takes.

The daemon holds one small part per stream and waits for the reader; a reader that makes no progress
for ``query.client_timeout`` finds :class:`TimedOut`.
"""

import contextlib
from collections.abc import Iterator
from types import TracebackType
from typing import Self

import msgspec
import pyarrow as pa
from pyarrow import flight

from .errors import from_arrow
from .wire import BatchSource, SnapshotInfo, snapshot_info


class QueryStream:
    """Iterates ``(batch, source)``. A context manager: leaving it early cancels the query.

    ``schema`` is the answer's, ``snapshot`` says which moment it shows.
    """

    def __init__(self, reader: flight.FlightStreamReader) -> None:
        """Raises a :class:`ClientError` where the query is refused."""
        self._reader = reader
        try:
            self.schema: pa.Schema = reader.schema
        except (pa.ArrowException, OSError) as exc:
            raise from_arrow(exc) from exc
        self.snapshot: SnapshotInfo = snapshot_info(self.schema)
        self._ended = False

    def __iter__(self) -> Iterator[tuple[pa.RecordBatch, BatchSource]]:
        """Each batch with its partition and whether it came from a buffer or a file.

        Raises:
            ClientError: the answer broke off; what came before is a part of the snapshot.
        """
        while (item := self.read()) is not None:
            yield item

    def read(self) -> tuple[pa.RecordBatch, BatchSource] | None:
        """The next batch with its source, or None at the end."""
        if self._ended:
            return None
        try:
            chunk = self._reader.read_chunk()
        except StopIteration:
            self._ended = True
            return None
        except (pa.ArrowException, OSError) as exc:
            self._ended = True
            raise from_arrow(exc) from exc
        raw = chunk.app_metadata
        source = BatchSource()
        if raw is not None and raw.size:
            source = msgspec.json.decode(raw.to_pybytes(), type=BatchSource)
        return chunk.data, source

    def close(self) -> None:
        """Cancel what has not been read."""
        if not self._ended:
            self._ended = True
            with contextlib.suppress(pa.ArrowException, OSError):
                self._reader.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()
