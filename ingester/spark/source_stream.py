"""The data source's streaming read: a table's files as versions add them, each once.

    {"snapshot": 41, "files": 3}     the first 3 files of version 41, nothing else yet
    {"version": 41, "files": 2}      all up to and with version 41, and the first 2 that 42 adds

Law of this file: what lies between two offsets is a function of the offsets alone, so that a batch
that runs again has the same rows. Spark keeps the end of a batch before it runs it, and asks for
the first start anew after a crash: so that start says nothing but where to begin. Files that a
rewrite puts in the place of others have no new rows, and are none.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, cast

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from ingester.spark.arrow_scan import ScanPlan
from ingester.spark.errors import StreamUnsuitable
from ingester.spark.options import SourceOptions
from ingester.spark.source_reader import FilesPartition, partitions_of
from ingester.spark.source_rows import SourceRows
from persist.manifest import Add, CommittedVersion, Manifest, TableState, VersionNotKept
from persist.table import TableDefinition

_LIMITS: dict[str, type[Any]] = {
    "max_files_per_trigger": ReadMaxFiles,
    "max_bytes_per_trigger": ReadMaxBytes,
    "max_rows_per_trigger": ReadMaxRows,
}
IDLE_VERSIONS = 5
"""Versions without a new row that are left to be looked at again; clean-up always keeps more."""
_AT_ONCE = 64
_TIMED = ("hour", "day", "month", "year")


class Offset(NamedTuple):
    """How far a stream is."""

    version: int
    files: int
    snapshot: bool = False

    @classmethod
    def of(cls, offset: dict[str, Any]) -> Offset:
        """From what Spark keeps."""
        if "snapshot" in offset:
            return cls(int(offset["snapshot"]), int(offset["files"]), True)
        return cls(int(offset["version"]), int(offset["files"]))

    def plain(self) -> dict[str, Any]:
        """For Spark to keep."""
        return {"snapshot" if self.snapshot else "version": self.version, "files": self.files}


BEGINNING = Offset(0, 0, snapshot=True)
"""Nothing yet; the version that is current then comes whole, and what follows it."""
FROM_NOW = Offset(-1, 0)
"""Nothing that is there when the stream begins."""


class TableStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream of the rows that are added to a table without a primary key."""

    def __init__(
        self, manifest: Manifest, rows: SourceRows, options: SourceOptions, parallelism: int
    ) -> None:
        self._manifest: Manifest | None = manifest
        self._rows = rows
        self._options = options
        self._parallelism = parallelism
        self._plan = ScanPlan(manifest.store.url, options.storage, rows.columns, rows.pruning.rows)
        self._until: int | None = None
        self._state: TableState | None = None
        self._time = _event_time(rows.columns.definition)
        self._start = _beginning(options)
        self._limit = _limit(options)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_manifest": None, "_state": None}

    @property
    def _table(self) -> Manifest:
        assert self._manifest is not None, "planned where the manifest is"
        return self._manifest

    def initialOffset(self) -> dict[str, Any]:
        """Where a new stream begins; the same whenever it is asked."""
        return self._start.plain()

    def getDefaultReadLimit(self) -> ReadLimit:
        """What the options say of one batch."""
        return self._limit

    def prepareForTriggerAvailableNow(self) -> None:
        """Go no further than what is there now."""
        self._until = self._table.head()

    def reportLatestOffset(self) -> dict[str, Any]:
        """The newest version, for progress reports."""
        return Offset(self._table.head(), 0).plain()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next batch; ``start`` itself where there is nothing new.

        Raises:
            VersionNotKept: What comes after ``start`` was cleaned up.
        """
        begin = Offset.of(start)
        head = self._table.head() if self._until is None else self._until
        if begin == FROM_NOW:
            return Offset(head, 0).plain()
        if begin == BEGINNING:
            begin = Offset(head, 0, snapshot=True)
        return self._end(begin, head, limit).plain()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The files between two offsets, in tasks."""
        between = self._between(Offset.of(start), Offset.of(end))
        adds = [add for add, _ in between if self._rows.pruning.may_match(add)]
        if not adds:
            return []
        return partitions_of(adds, self._table, self._parallelism)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task. On an executor."""
        files = cast(FilesPartition, partition).files
        schema = to_arrow_schema(self._rows.schema(), timezone="UTC")
        yield from self._rows.read(self._plan, files, schema)

    def _end(self, begin: Offset, head: int, limit: ReadLimit) -> Offset:
        end, room = begin, _Room(limit)
        for add, behind in self._between(begin, Offset(head, 0)):
            if not room.takes(add):
                return end
            end = behind
        moved = end != begin or begin.snapshot or head - begin.version >= IDLE_VERSIONS
        return Offset(head, 0) if moved else begin

    def _between(self, start: Offset, end: Offset) -> Iterator[tuple[Add, Offset]]:
        """The files behind one offset up to another, each with the offset behind it."""
        if start == FROM_NOW:
            return
        first = start.version
        if start.snapshot:
            # Where no version was chosen before, the end has it.
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
        """Event times rise from file to file, so that a watermark takes few rows for late ones."""
        stats = None if self._time is None else add.stats.get(self._time)
        low = None if stats is None else stats.min
        return (float(low) if isinstance(low, int) else -math.inf, add.at, add.path)

    def _snapshot(self, version: int) -> list[Add]:
        if self._state is None or self._state.version != version:
            try:
                self._state = self._table.load(version)
            except VersionNotKept as exc:
                raise _fell_behind(f"in the midst of version {version}", exc) from exc
        return sorted(self._state.files.values(), key=self._order)

    def _changes(self, after: int, upto: int) -> Iterator[CommittedVersion]:
        try:
            for first in range(after, upto, _AT_ONCE):
                yield from self._table.changes(first, min(first + _AT_ONCE, upto))
        except VersionNotKept as exc:
            raise _fell_behind(f"at version {after}", exc) from exc


class _Room:
    """How much one batch may still take; its first file always."""

    def __init__(self, limit: ReadLimit) -> None:
        self._left: int | None = None
        self._cost = {ReadMaxFiles: _one, ReadMaxBytes: _bytes, ReadMaxRows: _rows}.get(type(limit))
        self._empty = True
        if isinstance(limit, ReadMaxFiles):
            self._left = limit.max_files
        elif isinstance(limit, ReadMaxBytes):
            self._left = limit.max_bytes
        elif isinstance(limit, ReadMaxRows):
            self._left = limit.max_rows

    def takes(self, add: Add) -> bool:
        if self._left is None or self._cost is None:
            return True
        self._left -= self._cost(add)
        takes = self._empty or self._left >= 0
        self._empty = False
        return takes


def _fell_behind(place: str, exc: VersionNotKept) -> StreamUnsuitable:
    return StreamUnsuitable(
        f"the stream is {place}, and what comes next is not kept any more ({exc}): begin anew, with"
        " a new checkpoint, or keep versions longer (manifest.retain)"
    )


def _one(_add: Add) -> int:
    return 1


def _bytes(add: Add) -> int:
    return add.bytes


def _rows(add: Add) -> int:
    return add.rows


def new_files(committed: CommittedVersion) -> list[Add]:
    """The files of a version that have rows which no version before it had."""
    return [
        action
        for action in committed.actions
        if isinstance(action, Add) and action.kind != "rewrite"
    ]


def _event_time(definition: TableDefinition) -> str | None:
    """The column by which the table's rows lie in time, if there is one."""
    timed = [field.column for field in definition.spec.fields if field.transform in _TIMED]
    if timed:
        return timed[0]
    return "time" if "time" in definition.schema.names else None


def _beginning(options: SourceOptions) -> Offset:
    if options.given.get("starting_version") == "latest":
        return FROM_NOW
    number = options.number("starting_version", 1)
    return BEGINNING if number is None else Offset(number - 1, 0)


def _limit(options: SourceOptions) -> ReadLimit:
    limits = [
        kind(number)
        for name, kind in _LIMITS.items()
        if (number := options.number(name, 1)) is not None
    ]
    if len(limits) > 1:
        raise ValueError(f"{', '.join(_LIMITS)}: one of them limits a batch")
    return cast(ReadLimit, limits[0]) if limits else ReadAllAvailable()
