"""The two kinds of write that Spark knows, batch and streaming, over one kind of sink.

    tasks    rows ─▶ ``Sink.write`` ─▶ message ─┐
    driver   ``Sink.commit`` of all messages ◀──┘  the whole write becomes visible, once

A streaming batch is identified by the query's id, which its checkpoint keeps, and the batch's
number; a batch write by ``txn_app_id`` and ``txn_version``, if given. A repeat must have the same
rows.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from ingester.spark.errors import WriteRefused, plainly
from ingester.spark.options import SourceOptions
from ingester.spark.versions import StreamArrowWriter

_QUERY_ID = "sql.streaming.queryId"


class WriteId(NamedTuple):
    """Identifies a write when it is repeated."""

    app_id: str
    number: int
    of_stream: bool = False
    """Whether numbers are consecutive, as those of a stream's batches."""


class Sink(Protocol):
    """A target of writes."""

    def write(self, rows: Iterator[pa.RecordBatch]) -> Sequence[Any]:
        """Write one task's rows. On an executor."""
        ...

    def commit(self, parts: Sequence[Any], write: WriteId | None) -> None:
        """Make all parts visible, unless this write is already committed. On the driver."""
        ...


class TaskResult(WriterCommitMessage):
    """The result of one task, and its streaming query's id."""

    def __init__(self, parts: Sequence[Any], query_id: str | None) -> None:
        self.parts = tuple(parts)
        self.query_id = query_id


class BatchWriter(DataSourceArrowWriter):
    """A batch write; with ``txn_version`` each version is written once."""

    def __init__(self, sink: Sink, options: SourceOptions) -> None:
        app_id, version = options.txn()
        self._sink = sink
        self._write = None if app_id is None or version is None else WriteId(app_id, version)

    @plainly
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """One task's rows. On an executor."""
        return TaskResult(self._sink.write(iterator), None)

    @plainly
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Make all rows visible."""
        self._sink.commit([part for one in _results(messages) for part in one.parts], self._write)


class StreamWriter(StreamArrowWriter):
    """A streaming write; each batch is written once."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    @plainly
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """One task's rows. On an executor."""
        context = TaskContext.get()
        query_id = None if context is None else context.getLocalProperty(_QUERY_ID)
        return TaskResult(self._sink.write(iterator), query_id)

    @plainly
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Make the batch's rows visible, unless they already are."""
        results = _results(messages)
        parts = [part for one in results for part in one.parts]
        if parts:
            query_id = results[0].query_id
            assert query_id is not None, "Spark sets the query id in tasks of a stream"
            self._sink.commit(parts, WriteId(query_id, batchId, of_stream=True))


NOT_COMPARED = (
    "a write of this number is committed, so these rows were not; whether they are the same is not"
    " known any more"
)
_HELPS = "use a higher txn_version, or another txn_app_id"


def other_rows(write: WriteId, told_rows: str) -> WriteRefused:
    """The error for a write whose number is committed with other rows."""
    if write.of_stream:
        return WriteRefused(
            f"nothing was committed: batch {write.number} of this stream is committed with other"
            f" rows ({told_rows}). The checkpoint was restored to an earlier state, or the source"
            " has changed. Start the stream with a new checkpointLocation, and its source behind"
            " the rows that the table has"
        )
    return WriteRefused(
        f"nothing was committed: txn_version {write.number} is committed with other rows"
        f" ({told_rows}): for new rows {_HELPS}"
    )


def check_unknown(write: WriteId, newest: int) -> None:
    """Check a write that is not above the newest committed one, and whose content is not known.

    Raises:
        WriteRefused: It may never have been committed. (A stream commits its batches one after the
            other.)
    """
    if not write.of_stream and write.number < newest:
        raise WriteRefused(
            f"nothing was committed: txn_version {write.number} is below {newest}, which is"
            " committed, and is not known to be committed itself (the contents of only the newest"
            f" versions are kept): {_HELPS}"
        )


def tell_committed(options: SourceOptions, **facts: object) -> None:
    """Print what was committed as a JSON line on standard error.

    A Python data source has no metrics, and the worker that commits has no other log.
    """
    told = {"event": "committed", "table": f"{options.namespace}/{options.table}", **facts}
    print(json.dumps(told), file=sys.stderr, flush=True)


def _results(messages: Sequence[WriterCommitMessage | None]) -> list[TaskResult]:
    return [one for one in messages if isinstance(one, TaskResult)]
