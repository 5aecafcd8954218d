"""``df.write.format("ingester")`` and ``df.writeStream.format("ingester")`` to a table without key.

    tasks    rows ─▶ files (sink_files) ─▶ message ─┐
    driver   commit of the winners' files, with txn ◀┘  one version of the table, or none

Law of this file: rows become visible together, once. A streaming batch is known by the query's id,
which its checkpoint keeps, and the batch's number; what is in the manifest already is not committed
again, and files of losers and of twins are garbage for clean-up. Nothing is deleted here: who
cannot tell whether a commit was made must not take its files away.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from ingester.spark.errors import WriteRefused, plainly
from ingester.spark.options import SourceOptions
from ingester.spark.sink.columns import check_columns
from ingester.spark.sink.commits import commit_patiently, identity
from ingester.spark.sink.data_files import TARGET_FILE_BYTES, FileSink
from ingester.spark.versions import StreamArrowWriter
from persist.manifest import Action, Add, Txn, UploadExpired
from persist.store import open_store
from persist.table import TableDefinition

QUERY_ID = "sql.streaming.queryId"
_encode = msgspec.msgpack.Encoder().encode
_adds = msgspec.msgpack.Decoder(list[Add]).decode


class Written(WriterCommitMessage):
    """What one task has put into the store."""

    def __init__(self, adds: Sequence[Add], query_id: str | None) -> None:
        self.adds = _encode(list(adds))
        self.query_id = query_id


class _Appending:
    """What both kinds of write have in common."""

    def __init__(
        self, options: SourceOptions, schema: StructType, definition: TableDefinition, root: str
    ) -> None:
        check_columns(schema, definition)
        self._options = options
        self._definition = definition
        self._root = root
        self._target = options.number("target_file_bytes", 1) or TARGET_FILE_BYTES

    def _write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        context = TaskContext.get()
        query_id = None if context is None else context.getLocalProperty(QUERY_ID)
        store = open_store(self._options.url, **self._options.storage)
        sink = FileSink(store, self._root, self._definition, "push", "spark", self._target)
        return Written(sink.write(iterator), query_id)

    def _commit(self, adds: Sequence[Add], txn: Txn | None) -> None:
        manifest = self._options.manifest()
        actions: list[Action] = [*adds] if txn is None else [*adds, txn]
        if not actions:
            return
        try:
            state = commit_patiently(manifest, None, actions, identity("spark"))
        except UploadExpired as exc:
            raise WriteRefused(
                f"nothing was committed: the write took longer than manifest.orphan_grace, after"
                f" which clean-up may take files that no version lists; make that longer ({exc})"
            ) from exc
        told = {
            "event": "committed",
            "table": f"{self._options.namespace}/{self._options.table}",
            "version": state.version,
            "again": bool(adds) and adds[0].path not in state.files,
            "rows": sum(add.rows for add in adds),
            "files": len(adds),
            "bytes": sum(add.bytes for add in adds),
        }
        # A data source has no metrics, and the worker that commits no log but this.
        print(json.dumps(told), file=sys.stderr, flush=True)


class TableWriter(_Appending, DataSourceArrowWriter):
    """A batch write: once, or once for each ``txn_version`` where that is given."""

    def __init__(
        self, options: SourceOptions, schema: StructType, definition: TableDefinition, root: str
    ) -> None:
        super().__init__(options, schema, definition, root)
        app_id, version = options.txn()
        self._txn = None if app_id is None or version is None else Txn(app_id, version)

    @plainly
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """One task's rows. On an executor."""
        return self._write(iterator)

    @plainly
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Make all of the tasks' files visible, in one version."""
        self._commit(_all(messages), self._txn)


class TableStreamWriter(_Appending, StreamArrowWriter):
    """A streaming write: each batch once."""

    @plainly
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """One task's rows. On an executor."""
        return self._write(iterator)

    @plainly
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Make all of the batch's files visible, unless they are."""
        adds = _all(messages)
        if not adds:
            return
        query_ids = {one.query_id for one in messages if isinstance(one, Written)}
        query_id = query_ids.pop()
        assert query_id is not None, "Spark tells tasks of a stream whose they are"
        self._commit(adds, Txn(query_id, batchId))


def _all(messages: Sequence[Any]) -> list[Add]:
    return [add for one in messages if isinstance(one, Written) for add in _adds(one.adds)]
