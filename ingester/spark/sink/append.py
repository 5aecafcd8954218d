"""Rows for a table without a primary key: files in its layout, and one commit of all of them.

The rows of a write become visible together, once. One proposal is committed at most once, however
often its answer is lost; after a driver has died, ``txn`` (the writer's own version in the
manifest) tells whether its commit succeeded. A write that the manifest has is not committed again,
and one whose number was committed with other rows is refused. Files of failed or speculative
attempts are garbage. Nothing is deleted here, as a writer that does not know whether its commit
succeeded must not delete its files (``tests/spark/test_append_writer.py``,
``tests/spark/test_other_rows.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import pyarrow as pa
from pyspark.sql.types import StructType

from ingester.spark.errors import WriteRefused
from ingester.spark.options import SourceOptions
from ingester.spark.sink.data_files import TARGET_FILE_BYTES, FileSink, check_columns
from ingester.spark.sink.row_digest import RowDigest
from ingester.spark.sink.writers import (
    NOT_COMPARED,
    WriteId,
    check_unknown,
    other_rows,
    tell_committed,
)
from persist.manifest import (
    Action,
    Add,
    TableState,
    Txn,
    TxnDiffers,
    UploadExpired,
    VersionSealed,
    commit_patiently,
    one_time_writer,
)
from persist.manifest.actions import SequenceContent
from persist.store import open_store
from persist.table import TableDefinition


class _Written(msgspec.Struct, frozen=True):
    """The files of one task, and what they contain."""

    adds: list[Add]
    rows: int = 0
    digest: int = 0


_encode = msgspec.msgpack.Encoder().encode
_written = msgspec.msgpack.Decoder(_Written).decode


class AppendSink:
    """A :class:`Sink` for a table without a key. Parts are the encoded results of tasks.

    Args:
        numbered: Whether writes have a number, so that a repeat is recognised by its rows.

    Raises:
        WriteRefused: The table does not accept the columns of ``schema``.
    """

    def __init__(
        self,
        options: SourceOptions,
        schema: StructType,
        definition: TableDefinition,
        root: str,
        numbered: bool = True,
    ) -> None:
        check_columns(schema, definition)
        self._options = options
        self._definition = definition
        self._root = root
        self._numbered = numbered
        self._target = options.number("target_file_bytes", 1) or TARGET_FILE_BYTES

    def write(self, rows: Iterator[pa.RecordBatch]) -> list[bytes]:
        """Write one task's rows to files."""
        store = open_store(self._options.url, **self._options.store_options)
        sink = FileSink(store, self._root, self._definition, "push", "spark", self._target)
        digest = RowDigest()
        if self._numbered:
            sink.digest = digest
        adds = sink.write(rows)
        return [_encode(_Written(adds, digest.rows, digest.digest))] if adds else []

    def commit(self, parts: Sequence[bytes], write: WriteId | None) -> None:
        """Commit the files as one version of the table, unless a version has them already.

        Raises:
            WriteRefused: The write took so long that clean-up may have deleted files, or the table
                was switched to another generation; or its number was committed with other rows.
        """
        tasks = [_written(part) for part in parts]
        adds = [add for task in tasks for add in task.adds]
        actions: list[Action] = list(adds)
        if write is not None:
            rows = sum(task.rows for task in tasks)
            digest = sum(task.digest for task in tasks) % 2**64
            content = SequenceContent(write.number, rows, digest)
            actions.append(Txn(write.app_id, write.number, (content,)))
        if not actions:
            return
        try:
            state = commit_patiently(
                self._options.manifest(), None, actions, one_time_writer("spark")
            )
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
        except TxnDiffers as exc:
            assert write is not None, "only a numbered write has a content"
            if exc.known is not None:
                told_rows = f"{exc.known.rows} rows then, {exc.sent.rows} now"
                raise other_rows(write, told_rows) from exc
            check_unknown(write, exc.newest)
            tell_committed(self._options, again=True, rows=exc.sent.rows, warning=NOT_COMPARED)
            return
        again = bool(adds) and adds[0].path not in state.files
        told: dict[str, object] = {}
        if again and write is not None and not _is_kept(state, write):
            told["warning"] = NOT_COMPARED
        tell_committed(
            self._options,
            version=state.version,
            again=again,
            rows=sum(add.rows for add in adds),
            files=len(adds),
            bytes=sum(add.bytes for add in adds),
            **told,
        )


def _is_kept(state: TableState, write: WriteId) -> bool:
    """Whether the version knows what a write contained, so that a repeat was compared with it."""
    contents = state.txn_contents.get(write.app_id, ())
    return any(each.sequence == write.number for each in contents)
