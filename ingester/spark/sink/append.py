"""Rows for a table without a primary key: files in its layout, and one commit of all of them.

The rows of a write become visible together, once: a write that the manifest already has is not
committed again. Files of failed or speculative attempts are garbage. Nothing is deleted here, as a
writer that does not know whether its commit succeeded must not delete its files
(``tests/spark/test_append_writer.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import pyarrow as pa
from pyspark.sql.types import StructType

from ingester.spark.errors import WriteRefused
from ingester.spark.options import SourceOptions
from ingester.spark.sink.columns import check_columns
from ingester.spark.sink.commits import commit_patiently, identity
from ingester.spark.sink.data_files import TARGET_FILE_BYTES, FileSink
from ingester.spark.sink.writers import WriteId, tell_committed
from persist.manifest import Action, Add, Txn, UploadExpired, VersionSealed
from persist.store import open_store
from persist.table import TableDefinition

_encode = msgspec.msgpack.Encoder().encode
_add = msgspec.msgpack.Decoder(Add).decode


class AppendSink:
    """A :class:`Sink` for a table without a key. Parts are encoded ``Add`` actions.

    Raises:
        WriteRefused: The table does not accept the columns of ``schema``.
    """

    def __init__(
        self, options: SourceOptions, schema: StructType, definition: TableDefinition, root: str
    ) -> None:
        check_columns(schema, definition)
        self._options = options
        self._definition = definition
        self._root = root
        self._target = options.number("target_file_bytes", 1) or TARGET_FILE_BYTES

    def write(self, rows: Iterator[pa.RecordBatch]) -> list[bytes]:
        """Write one task's rows to files."""
        store = open_store(self._options.url, **self._options.storage)
        sink = FileSink(store, self._root, self._definition, "push", "spark", self._target)
        return [_encode(add) for add in sink.write(rows)]

    def commit(self, parts: Sequence[bytes], write: WriteId | None) -> None:
        """Commit the files as one version of the table, unless a version has them already.

        Raises:
            WriteRefused: The write took so long that clean-up may have deleted files, or the table
                was switched to another generation.
        """
        adds = [_add(part) for part in parts]
        actions: list[Action] = [*adds, *(() if write is None else (Txn(*write),))]
        if not actions:
            return
        try:
            state = commit_patiently(self._options.manifest(), None, actions, identity("spark"))
        except UploadExpired as exc:
            raise WriteRefused(
                f"nothing was committed: the write took longer than manifest.orphan_grace, after"
                f" which clean-up deletes files that no version lists; increase it ({exc})"
            ) from exc
        except VersionSealed as exc:
            raise WriteRefused(
                f"nothing was committed: the table was switched to generation {exc.sealed.next}"
                " during the write; write the rows again"
            ) from exc
        tell_committed(
            self._options,
            version=state.version,
            again=bool(adds) and adds[0].path not in state.files,
            rows=sum(add.rows for add in adds),
            files=len(adds),
            bytes=sum(add.bytes for add in adds),
        )
