"""The data source's streaming read: a table's files in the order in which versions add them.

The files between two offsets are a function of the offsets alone, so a batch that runs again has
the same rows. Spark stores the end of a batch before it runs it and asks for the first start again
after a crash, so the first start only says where to begin. Files that a rewrite adds have no new
rows and are skipped (``tests/spark/test_source_stream.py``).

Spark fixes a stream's columns when it is loaded, so a column that is added later has no place in
the stream's rows. Unless the stream was given its columns, it stops before the first file that may
have another one (``tests/spark/test_new_columns.py``). Column types never change.

Before 4.2 Spark does not say where a batch begins: it begins where the previously planned batch
ended, and the first plan ends at the newest version.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NoReturn, cast

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from ingester.spark.errors import StreamUnsuitable, plainly, plainly_each
from ingester.spark.options import SourceOptions
from ingester.spark.read.arrow_scan import ScanPlan
from ingester.spark.source.batch import FilesPartition, SourceRows, partitions_of
from ingester.spark.source.stream_offsets import (
    BEGINNING,
    FROM_NOW,
    BatchRoom,
    Offset,
    batch_limit,
    beginning,
)
from ingester.spark.versions import (
    ReadAllAvailable,
    ReadLimit,
    SupportsTriggerAvailableNow,
    arrow_schema,
)
from persist.manifest import Add, CommittedVersion, Manifest, TableState, VersionNotKept
from persist.table import TableDefinition, read_schema


class NewColumns:
    """Finds files with columns that a stream would drop.

    Args:
        known: The columns of the stream; None if the user selected columns.
    """

    def __init__(
        self, manifest: Manifest, state: TableState, known: Collection[str] | None
    ) -> None:
        self._manifest = manifest
        self._state = state
        self._known = None if known is None else frozenset(known)
        self._found: dict[int, tuple[str, ...]] = {}

    def of(self, add: Add) -> tuple[str, ...]:
        """Columns of the file that the stream lacks, in the table's order."""
        if self._known is None:
            return ()
        found = self._found.get(add.schema_id)
        if found is None:
            found = self._found[add.schema_id] = self._look(add.schema_id, self._known)
        return found

    def refuse(self, add: Add) -> None:
        """Check that the stream has all columns of the file.

        Raises:
            StreamUnsuitable: It lacks some; the message names them and says how to continue.
        """
        found = self.of(add)
        if found:
            names = ", ".join(repr(name) for name in found)
            added = f"column {names} was" if len(found) == 1 else f"columns {names} were"
            raise StreamUnsuitable(
                f"{added} added to table {self._manifest.namespace}/{self._manifest.table} after"
                " this stream was loaded, and it stops before the first rows that may have values"
                " there. Load it again (spark.readStream, with the same options) and start it with"
                " the same checkpoint to continue with the new columns. (A stream with the option"
                " columns, or with a schema, continues without them.)"
            )

    def _look(self, schema_id: int, known: frozenset[str]) -> tuple[str, ...]:
        if schema_id not in self._state.schemas:
            self._state = self._manifest.refresh(self._state)
        schema = read_schema(self._state.schemas[schema_id])
        return tuple(name for name in schema.names if name not in known)


IDLE_VERSIONS = 5
"""Versions without new rows after which the offset advances. Clean-up always keeps more."""
_AT_ONCE = 64
_TIMED = ("hour", "day", "month", "year")


class TableStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream of the rows that are added to a table without a primary key."""

    def __init__(
        self,
        manifest: Manifest,
        rows: SourceRows,
        options: SourceOptions,
        parallelism: int,
        new_columns: NewColumns,
    ) -> None:
        self._manifest: Manifest | None = manifest
        self._new_columns: NewColumns | None = new_columns
        self._rows = rows
        self._options = options
        self._parallelism = parallelism
        self._plan = ScanPlan(
            manifest.store.url, options.store_options, rows.columns, rows.pruning.rows
        )
        self._until: int | None = None
        self._state: TableState | None = None
        self._newest: TableState | None = None
        self._planned: Offset | None = None
        self._time = _event_time(rows.columns.definition)
        self._start = beginning(options)
        self._limit = batch_limit(options)

    def __getstate__(self) -> dict[str, Any]:
        return {
            **self.__dict__,
            "_manifest": None,
            "_new_columns": None,
            "_state": None,
            "_newest": None,
        }

    @property
    def _table(self) -> Manifest:
        assert self._manifest is not None, "only the driver plans"
        return self._manifest

    @property
    def _new(self) -> NewColumns:
        assert self._new_columns is not None, "only the driver plans"
        return self._new_columns

    def initialOffset(self) -> dict[str, Any]:
        """The offset at which a new stream begins. Constant."""
        return self._start.plain(self._table.table_version, None)

    def getDefaultReadLimit(self) -> ReadLimit:
        """The limit of one batch according to the options."""
        return self._limit

    @plainly
    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the stream's end at the newest version."""
        self._until = self._table.head()

    def reportLatestOffset(self) -> dict[str, Any]:
        """The newest version, for progress reports."""
        return self._plain(Offset(self._table.head(), 0))

    @plainly
    def latestOffset(
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        """The end of the next batch; its start if nothing is new.

        Args:
            start: Start of the batch; passed by Spark from 4.2, like ``limit``.

        Raises:
            StreamUnsuitable: The next files were cleaned up or have columns that the stream lacks,
                the offset is of another table, or the table was switched to another generation.
        """
        given = None if start is None else self._offset(start)
        begin = given or self._planned
        head = self._table.head() if self._until is None else self._until
        if begin is None or begin == FROM_NOW:
            end = Offset(head, 0)
        else:
            if begin == BEGINNING:
                begin = Offset(head, 0, snapshot=True)
            end = self._end(begin, head, limit or ReadAllAvailable())
            if end == begin:
                self._check_switch(head)
        self._planned = end
        return start if start is not None and end == given else self._plain(end)

    @plainly
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The files between two offsets, as tasks.

        Raises:
            StreamUnsuitable: As :meth:`latestOffset`.
        """
        begin, self._planned = self._offset(start), self._offset(end)
        files = [add for add, _ in self._between(begin, self._planned)]
        for add in files:
            self._new.refuse(add)
        adds = [add for add in files if self._rows.pruning.may_match(add)]
        if not adds:
            return []
        return partitions_of(adds, self._table, self._parallelism)

    @plainly_each
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task. On an executor."""
        files = cast(FilesPartition, partition).files
        schema = arrow_schema(self._rows.schema())
        yield from self._rows.read(self._plan, files, schema)

    def _plain(self, offset: Offset) -> dict[str, Any]:
        """The offset as Spark stores it, with the uid of its version."""
        uid = self._table.uid_of(offset.version) if offset.version > 0 else None
        return offset.plain(self._table.table_version, uid)

    def _offset(self, given: dict[str, Any]) -> Offset:
        """The offset that Spark has stored.

        Raises:
            StreamUnsuitable: It is of another table of this name, or of another generation.
        """
        offset = Offset.of(given, self._table.table_version)
        uid = given.get("uid")
        if uid is not None and self._table.uid_of(offset.version) not in (uid, None):
            raise StreamUnsuitable(
                f"the stream is at version {offset.version} of an earlier table"
                f" {self._table.namespace}/{self._table.table}, which was dropped and created"
                " again: start with a new checkpoint"
            )
        return offset

    def _check_switch(self, head: int) -> None:
        """Refuse to wait after a switch: new rows go into another generation."""
        if self._newest is None or self._newest.version != head:
            self._newest = self._table.load(head, known=self._newest)
        if (sealed := self._newest.sealed) is not None:
            raise StreamUnsuitable(
                f"table {self._table.namespace}/{self._table.table} was switched from generation"
                f" {self._table.table_version} to {sealed.next}, and the stream has read all rows"
                f" of {self._table.table_version}: start a new stream with a new checkpoint"
            )

    def _end(self, begin: Offset, head: int, limit: ReadLimit) -> Offset:
        end, room = begin, BatchRoom(limit)
        if head < begin.version:
            raise StreamUnsuitable(
                f"the stream is at version {begin.version}, but the newest version of table"
                f" {self._table.namespace}/{self._table.table} is {head}: the checkpoint is of"
                " another table or store; start with a new one"
            )
        for add, behind in self._between(begin, Offset(head, 0)):
            # Files before the first one with a new column still become a batch.
            if end == begin or behind.snapshot:
                self._new.refuse(add)
            if self._new.of(add) or not room.takes(add):
                return end
            end = behind
        moved = end != begin or begin.snapshot or head - begin.version >= IDLE_VERSIONS
        return Offset(head, 0) if moved else begin

    def _between(self, start: Offset, end: Offset) -> Iterator[tuple[Add, Offset]]:
        """The files from one offset to another, each with the offset after it."""
        if start == FROM_NOW:
            return
        first = start.version
        if start.snapshot:
            # The first start has no version; the end has it.
            first = start.version or end.version
            stop = end.files if end.snapshot else None
            files = self._snapshot(first)
            for number in range(start.files, len(files) if stop is None else stop):
                yield files[number], Offset(first, number + 1, snapshot=True)
            if end.snapshot:
                return
        skipped = 0 if start.snapshot else start.files
        last = end.version + (1 if end.files else 0)
        for committed in self._changes(first, last):
            files = sorted(new_files(committed), key=self._order)
            stop = end.files if committed.version > end.version else len(files)
            for number in range(skipped, stop):
                complete = number + 1 == len(files)
                done = committed.version if complete else committed.version - 1
                yield files[number], Offset(done, 0 if complete else number + 1)
            skipped = 0

    def _order(self, add: Add) -> tuple[float, str, str]:
        """Sort key by event time, so that a watermark drops few rows as late."""
        stats = None if self._time is None else add.stats.get(self._time)
        low = None if stats is None else stats.min
        return (float(low) if isinstance(low, int) else -math.inf, add.at, add.path)

    def _snapshot(self, version: int) -> list[Add]:
        if self._state is None or self._state.version != version:
            try:
                self._state = self._table.load(version)
            except VersionNotKept as exc:
                raise _fell_behind(f"in the middle of version {version}", exc) from exc
        return sorted(self._state.files.values(), key=self._order)

    def _changes(self, after: int, upto: int) -> Iterator[CommittedVersion]:
        try:
            for first in range(after, upto, _AT_ONCE):
                yield from self._table.changes(first, min(first + _AT_ONCE, upto))
        except VersionNotKept as exc:
            raise _fell_behind(f"at version {after}", exc) from exc


def _fell_behind(place: str, exc: VersionNotKept) -> StreamUnsuitable:
    if exc.newest < exc.version:
        return StreamUnsuitable(
            f"the stream is {place}, but the newest version of the table is {exc.newest}: the"
            " checkpoint is of another table or store; start with a new one"
        )
    return StreamUnsuitable(
        f"the stream is {place}, and the next version is no longer retained ({exc}): start with a"
        " new checkpoint, or retain versions longer (manifest.retain)"
    )


def new_files(committed: CommittedVersion) -> list[Add]:
    """The files of a version that add rows, not those of a rewrite."""
    return [
        action
        for action in committed.actions
        if isinstance(action, Add) and action.kind != "rewrite"
    ]


def _event_time(definition: TableDefinition) -> str | None:
    """The column with the event time, if the table has one."""
    timed = [field.column for field in definition.spec.fields if field.transform in _TIMED]
    if timed:
        return timed[0]
    return "time" if "time" in definition.schema.names else None


class RefusedStream(DataSourceStreamReader):
    """A stream that fails with a reason when Spark asks for the first batch."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise StreamUnsuitable(self._reason)

    initialOffset = latestOffset = partitions = read = _refuse
