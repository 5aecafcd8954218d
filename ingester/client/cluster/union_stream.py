"""The streams of several daemons as one answer.

Batches come from each in turn, so that none waits longer than ``query.client_timeout`` while
another is read. A column that one answer lacks, as it came to the table since, is null there.
"""

import itertools
from collections.abc import Sequence

import pyarrow as pa

from .. import lifetime
from ..errors import ClientError, InvalidRequest
from ..query_stream import QueryStream
from ..wire import QueryRequest, SnapshotInfo, encode

_TOLD = (
    "ingester_id",
    "incarnation",
    "epoch",
    "store",
    "snapshot_sequence",
    "manifest_version",
    "table_version",
)


class UnionStream(QueryStream):
    """Iterates the batches of all ``streams``. Its snapshot has those of its parts."""

    def __init__(
        self, streams: Sequence[QueryStream], request: QueryRequest, missing: Sequence[str]
    ) -> None:
        """``missing`` are the endpoints of daemons that were left out."""
        self._streams = list(streams)
        self._left: int | None = request.limit
        parts = tuple(stream.snapshot for stream in streams)
        self.snapshot = SnapshotInfo(
            manifest_version=parts[-1].manifest_version,
            table_version=parts[-1].table_version,
            store=parts[-1].store,
            missing=tuple(missing),
            parts=parts,
        )
        if len(parts) == 1:
            self.snapshot = _with(parts[0], missing)
        self.schema = _schema([stream.schema for stream in streams], self.snapshot)
        self._turn = itertools.count()
        self._ended = self._begun = self._cancelled = False

    def read_raw(self) -> tuple[pa.RecordBatch, bytes | None] | None:
        """The next batch of one of the daemons, with its source as that wrote it."""
        lifetime.check()
        if self._cancelled:
            raise InvalidRequest(
                "the answer was closed before its end: read it before it is closed"
            )
        self._begun = True
        try:
            return self._next()
        except ClientError:
            self._end()
            raise

    def _next(self) -> tuple[pa.RecordBatch, bytes | None] | None:
        while self._streams and self._left != 0:
            stream = self._streams[next(self._turn) % len(self._streams)]
            item = stream.read_raw()
            if item is None:
                self._streams.remove(stream)
                continue
            rows, source = item
            if self._left is not None:
                rows = rows.slice(0, self._left)
                self._left -= rows.num_rows
            return _aligned(rows, self.schema), source
        self._end()
        return None

    def _end(self) -> None:
        self._ended = True
        for stream in self._streams:
            stream.close()
        self._streams = []

    def close(self) -> None:
        """Cancel what has not been read."""
        if not self._ended and lifetime.alive():
            self._cancelled = True
            self._end()


def _with(snapshot: SnapshotInfo, missing: Sequence[str]) -> SnapshotInfo:
    fields = {name: getattr(snapshot, name) for name in snapshot.__struct_fields__}
    return SnapshotInfo(**fields | {"missing": tuple(missing)})


def _schema(schemas: Sequence[pa.Schema], snapshot: SnapshotInfo) -> pa.Schema:
    """All columns of all answers, with what the answer says of its moment."""
    whole = pa.unify_schemas(
        [schema.remove_metadata() for schema in schemas], promote_options="permissive"
    )
    told = {name: str(value) for name in _TOLD if (value := getattr(snapshot, name)) is not None}
    if snapshot.missing:
        told["missing"] = encode(list(snapshot.missing)).decode()
    return whole.with_metadata(told)


def _aligned(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    if rows.schema.equals(schema):
        return rows.replace_schema_metadata(schema.metadata)
    columns = [
        rows.column(field.name).cast(field.type)
        if field.name in rows.schema.names
        else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
