"""Rows for a table with a primary key: staged files, and one transaction at the table's owner.

    executors    data/_staging/<uuid>.parquet, in no manifest; clean-up removes leftovers
    driver       staged rows ─▶ sync stream ─▶ one operation of the daemon's log

The rows of a write become visible together, once. The origin is the query and the sequence its
batch. A batch that the daemon already has is compared by its row count and a digest, and refused if
it has other rows; an unfinished transaction leaves nothing. If a key occurs twice in one task, the
last row counts; between tasks there is no order (``tests/spark/test_keyed_driver.py``).
"""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.types import StructType

from ingester.client import (
    Client,
    ClientError,
    InvalidRequest,
    TimedOut,
    Unavailable,
    UnknownOutcome,
    Unreachable,
)
from ingester.client.sync_stream import SyncAnswer, SyncColumn, SyncContent, SyncStream
from ingester.spark.errors import WriteRefused
from ingester.spark.options import SourceOptions
from ingester.spark.read.columns import OPERATION
from ingester.spark.sink.data_files import check_columns, check_required, table_rows
from ingester.spark.sink.row_digest import RowDigest
from ingester.spark.sink.writers import (
    NOT_COMPARED,
    WriteId,
    check_unknown,
    other_rows,
    tell_committed,
)
from persist.backoff import Backoff
from persist.parquet.encode import encode
from persist.parquet.reading import sparse_rows
from persist.parquet.sparse_rows import SparseRows
from persist.partitioning import with_columns
from persist.store import ObjectNotFound, ObjectStore, open_store
from persist.table import TableDefinition

FILE_BYTES = 64 << 20
"""Maximum size of one staged file's rows in memory."""
KINDS = ("upsert", "delete")


class StagedFile(NamedTuple):
    """One staged file."""

    path: str
    bytes: int
    """Size in the store."""
    rows: int = 0
    digest: int = 0
    """As of :class:`RowDigest`."""


@dataclass(frozen=True, slots=True)
class _Commit:
    """What the daemon is told about a write."""

    sequence: int
    content: SyncContent
    write: WriteId | None
    facts: dict[str, object] = field(default_factory=dict)
    """What the daemon's answer adds to the event `committed`."""


@dataclass(frozen=True, slots=True)
class Staging:
    """The folder that holds a write's rows until the daemon has them.

    Attributes:
        root: The folder of the table's generation in the store.
        marked: Whether rows have a column ``_op``.
    """

    store: ObjectStore
    root: str
    definition: TableDefinition
    marked: bool

    @property
    def schema(self) -> pa.Schema:
        """The table's columns, and ``_op`` if rows have it. A deletion has only its key."""
        marks = [pa.field(OPERATION, pa.string())] if self.marked else []
        columns = [field.with_nullable(True) for field in self.definition.schema]
        return pa.schema([*columns, *marks])

    def write(self, batches: Iterable[pa.RecordBatch]) -> list[StagedFile]:
        """Write all rows of a task, in their order.

        Raises:
            WriteRefused: The table cannot hold a value, or a required one is null.
            StoreError: A file cannot be written.
        """
        files: list[StagedFile] = []
        held: list[pa.RecordBatch] = []
        for batch in batches:
            rows = table_rows(batch, self.schema)
            if rows.num_rows:
                self._check(rows)
            held.append(rows)
            if sum(one.nbytes for one in held) >= FILE_BYTES:
                files.append(self._put(held))
                held = []
        if any(one.num_rows for one in held):
            files.append(self._put(held))
        return files

    def _put(self, batches: list[pa.RecordBatch]) -> StagedFile:
        path = f"{self.root}/data/_staging/{uuid.uuid4().hex}.parquet"
        content = encode([SparseRows.of(batches, self.schema).table()], {})
        self.store.put(path, content)
        digest = RowDigest()
        for batch in batches:
            digest.add(batch)
        return StagedFile(path, len(content), digest.rows, digest.digest)

    def _check(self, rows: pa.RecordBatch) -> None:
        for name in self.definition.primary_key:
            if name not in rows.schema.names or rows.column(name).null_count:
                raise WriteRefused(f"column {name!r} of the primary key is null in a row")
        if self.marked:
            marks = with_columns(rows, [OPERATION], self.schema).column(OPERATION)
            other = set(marks.unique().to_pylist()) - set(KINDS)
            if other:
                raise WriteRefused(f"column '_op' is {other.pop()!r}; it must be upsert or delete")
            rows = rows.filter(pc.equal(marks, "upsert"))
        check_required(rows, self.definition.schema)


def staged_rows(staging: Staging, path: str, most_bytes: int) -> Iterator[pa.RecordBatch]:
    """The rows of a file in batches of about ``most_bytes``. On the driver.

    Raises:
        StoreError: The file cannot be read.
    """
    with staging.store.open(path) as source, pq.ParquetFile(source) as parquet:
        rows = sparse_rows(parquet, staging.schema)
    for batch in rows.batches:
        step = max(1, batch.num_rows * most_bytes // max(1, batch.nbytes))
        for start in range(0, batch.num_rows, step):
            yield batch.slice(start, step)


def forget(store: ObjectStore, paths: Iterable[str]) -> None:
    """Delete staged files."""
    for path in paths:
        try:
            store.delete(path)
        except ObjectNotFound:
            continue


MESSAGE_BYTES = 8 << 20
"""Size of one message: a quarter of the daemon's limit, as a batch may be larger there."""
_DIFFERS = "with other rows"
"""What the daemon says of a sequence that was committed with another content."""
PATIENCE_S = 120.0
"""How long a daemon may be unreachable or busy before the write fails."""


class UpsertSink:
    """A :class:`Sink` for a table with a primary key. Parts are staged files.

    Raises:
        WriteRefused: No endpoint, or the table does not accept the columns of ``schema``.
    """

    def __init__(
        self, options: SourceOptions, schema: StructType, definition: TableDefinition, root: str
    ) -> None:
        if "endpoint" not in options.given:
            raise WriteRefused(
                f"table {options.namespace}/{options.table} has a primary key: set the option"
                " endpoint to the daemon that owns it, grpc://host:port"
            )
        try:
            # Checks the options only; nothing is sent.
            Client(options.given["endpoint"], options=options.connection()).close()
        except ClientError as exc:
            raise WriteRefused(f"option endpoint: {exc}") from exc
        self._marked = OPERATION in schema.fieldNames()
        columns = [field for field in schema.fields if field.name != OPERATION]
        check_columns(StructType(columns), definition)
        self._options = options
        self._definition = definition
        self._root = root
        self._persist = options.flag("persist")
        self._ack = options.ack
        # Created once, so that a commit that Spark repeats has the same id.
        self._own_id = uuid.uuid4().hex

    def _staging(self) -> Staging:
        store = open_store(self._options.url, **self._options.store_options)
        return Staging(store, self._root, self._definition, self._marked)

    def write(self, rows: Iterator[pa.RecordBatch]) -> list[StagedFile]:
        """Write one task's rows to staged files."""
        return self._staging().write(rows)

    def commit(self, parts: Sequence[StagedFile], write: WriteId | None) -> None:
        """Send the rows of all files to the daemon in one transaction, unless it has them."""
        if not parts:
            return
        app_id, number, _ = write or WriteId(self._own_id, 0)
        content = SyncContent(
            sum(file.rows for file in parts), sum(file.digest for file in parts) % 2**64
        )
        commit = _Commit(number + 1, content, write)
        staging, options = self._staging(), self._options
        paths = [file.path for file in parts]
        # Includes the table, as the daemon counts an origin's sequences over all tables.
        told = f"{options.namespace}/{options.table}/{app_id}"
        origin = f"spark-{hashlib.sha256(told.encode()).hexdigest()[:40]}"
        with Client(options.given["endpoint"], options=options.connection()) as client:
            stream = client.sync(options.namespace, origin, ack=self._ack)
            rows = self._handed_over(stream, staging, paths, commit, compare=write is not None)
            until = time.monotonic() + PATIENCE_S
            while self._persist and not self._in_files(client, stream, commit.sequence):
                if time.monotonic() > until:
                    raise WriteRefused(f"option persist: not in files after {PATIENCE_S:g} s")
                # The daemon has lost its disk: send the staged rows again.
                rows = self._handed_over(stream, staging, paths, commit) or rows
        forget(staging.store, paths)
        tell_committed(
            options,
            sequence=commit.sequence,
            again=rows == 0,
            rows=rows,
            files=len(parts),
            bytes=sum(file.bytes for file in parts),
            **commit.facts,
        )

    def _in_files(self, client: Client, stream: SyncStream, sequence: int) -> bool:
        """Flush the table. Whether the transaction is known to be in files."""
        client.persist(self._options.namespace, self._options.table)
        try:
            return (stream.standing().files_sequence or 0) >= sequence
        except (Unreachable, TimedOut, UnknownOutcome):
            return False  # _handed_over waits for the daemon

    def _handed_over(
        self,
        stream: SyncStream,
        staging: Staging,
        paths: Sequence[str],
        commit: _Commit,
        *,
        compare: bool = False,
    ) -> int:
        """Send the rows, with retries. Returns their number; 0 if the daemon had them.

        Args:
            compare: Send them also if the daemon has the sequence, so that it compares them.
        """
        until, backoff = time.monotonic() + PATIENCE_S, Backoff(0.1, 5.0, Random())
        while True:
            try:
                if self._has(stream.standing(), commit.sequence) and not compare:
                    return 0
                compare = False  # what a later attempt finds may be of this one
                if (rows := self._sent(stream, staging, paths, commit)) is not None:
                    return rows
            except InvalidRequest as exc:
                if commit.write is None or _DIFFERS not in str(exc):
                    raise
                raise other_rows(commit.write, f"{commit.content.rows} now") from exc
            except ObjectNotFound as exc:
                raise WriteRefused(
                    "nothing was written: the write took longer than manifest.orphan_grace, after"
                    f" which clean-up deletes staged rows; increase it ({exc})"
                ) from exc
            except (Unreachable, TimedOut, UnknownOutcome, Unavailable) as exc:
                if time.monotonic() > until:
                    raise type(exc)(f"option endpoint: {exc}; tried for {PATIENCE_S:g} s") from exc
            time.sleep(backoff.next_s())

    def _has(self, state: SyncAnswer, sequence: int) -> bool:
        """Whether the daemon has a transaction at the level asked for.

        After a restart it also has what only its disk has: this is sent again for the store.
        """
        known = state.memory_sequence if self._ack == "disk" else state.durable_sequence
        return (known or 0) >= sequence

    def _sent(
        self, stream: SyncStream, staging: Staging, paths: Sequence[str], commit: _Commit
    ) -> int | None:
        """Send all files as one transaction.

        Returns:
            The number of rows; 0 if another driver has committed them; None to start over.
        """
        rows, begin = 0, True
        last: tuple[list[SyncColumn], pa.RecordBatch] | None = None
        for path in paths:
            for batch in staged_rows(staging, path, MESSAGE_BYTES):
                for message in self._messages(batch):
                    if last is not None:
                        answer = stream.send(self._options.table, *last, begin=begin)
                        if not answer.accepted:
                            return None  # the daemon restarted, or dropped the transaction
                        begin = False
                    last = message
                rows += batch.num_rows
        assert last is not None, "an empty task stages no file"
        answer = stream.send(
            self._options.table,
            *last,
            begin=begin,
            sequence=commit.sequence,
            content=commit.content,
        )
        if not answer.accepted:
            return None
        commit.facts["ack"] = answer.ack
        if answer.duplicate and not answer.compared and commit.write is not None:
            check_unknown(commit.write, (answer.memory_sequence or 0) - 1)
            commit.facts["warning"] = NOT_COMPARED
        return 0 if answer.duplicate else rows

    def _messages(self, batch: pa.RecordBatch) -> Iterator[tuple[list[SyncColumn], pa.RecordBatch]]:
        """The rows as inserts, which replace rows of the same key, or as deletes."""
        key = self._definition.primary_key
        fields = list(self._definition.schema)
        deletes = None
        if self._marked:
            deletes = pc.equal(batch.column(OPERATION), "delete")
        columns = [SyncColumn("old_pk", name) for name in key]
        arrays = [_where(batch.column(name), deletes) for name in key]
        kept = None if deletes is None else pc.invert(deletes)
        columns += [SyncColumn("new_pk", name) for name in key]
        arrays += [batch.column(n) if kept is None else _where(batch.column(n), kept) for n in key]
        for each in fields:
            if each.name not in key and each.name in batch.schema.names:
                columns.append(SyncColumn("value", each.name))
                arrays.append(batch.column(each.name))
        names = [str(place) for place in range(len(arrays))]
        yield columns, pa.RecordBatch.from_arrays(arrays, names=names)


def _where(column: pa.Array, mask: pa.Array | None) -> pa.Array:
    """The values where the mask is true, null elsewhere; all null without a mask."""
    nothing = pa.nulls(len(column), column.type)
    return nothing if mask is None else pc.if_else(mask, column, nothing)
