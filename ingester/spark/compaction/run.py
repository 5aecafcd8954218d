"""Rounds, waves, tasks and commits of a rewrite; see :mod:`ingester.spark.compaction.api`.

    plan from the manifest ─▶ waves of groups ─▶ one task per group ─▶ one commit per wave
              ▲                                                        │ a file is gone:
              └────────────── groups that were dropped ◀───────────────┘ its group is dropped

A commit removes files and adds files with the same rows, for a whole group or not at all. If one of
a group's files has been removed meanwhile, the group is planned again. A task holds all rows of its
group in memory. A driver that dies leaves garbage and all committed waves
(``tests/spark/test_compaction.py``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import pyarrow as pa
from msgspec import structs
from pyspark.sql import SparkSession

from ingester.spark.compaction.plan import (
    ROUNDS,
    WAVE_BYTES,
    CompactionReport,
    FileGroup,
    Progress,
    waves,
)
from ingester.spark.errors import WriteRefused
from ingester.spark.read.arrow_scan import parallelism
from ingester.spark.read.columns import Columns, spark_schema
from ingester.spark.read.filters import pruning, said
from ingester.spark.sink.append import commit_patiently, identity
from ingester.spark.sink.data_files import FileSink
from persist.manifest import (
    Action,
    Add,
    Manifest,
    ProposalConflict,
    Remove,
    RewriteVoid,
    TableState,
    UploadExpired,
)
from persist.parquet.encode import ZSTD, Compression
from persist.parquet.reading import DataFile, damage_errors, open_checked, sparse_rows
from persist.parquet.sparse_rows import SparseRows, concatenated
from persist.partitioning import (
    PartitionValues,
    PartitionValueTooLong,
    split_batch,
    with_columns,
)
from persist.store import ObjectStore, open_store
from persist.table import TableDefinition

RESULT = pa.schema(
    [
        pa.field("number", pa.int64()),
        pa.field("adds", pa.binary()),
        pa.field("refused", pa.string()),
    ]
)
"""Result of a group: its new files, or the reason for none."""
_encode = msgspec.msgpack.Encoder().encode
decode_adds = msgspec.msgpack.Decoder(list[Add]).decode


@dataclass(frozen=True, slots=True)
class CompactionJob:
    """Parameters of a compaction, pickled for executors.

    Attributes:
        root: The folder of the table's generation in the store.
        definition: The table, with the order and partition spec of the new files.
    """

    url: str
    store_options: dict[str, Any]
    root: str
    definition: TableDefinition
    target_bytes: int
    compression: Compression = ZSTD

    def run(self, group: FileGroup) -> list[Add]:
        """The new files of a group.

        Raises:
            PartitionValueTooLong: A partition value is too long for a folder's name.
            persist.parquet.reading.FileDamaged: One of its files is damaged.
            persist.store.StoreError: The store cannot be read or written.
        """
        store = open_store(self.url, **self.store_options)
        schema = self.definition.schema
        tables = [_rows(store, DataFile.of(add, self.root), schema) for add in group.files]
        rows = concatenated(tables)
        sink = FileSink(store, self.root, self.definition, "rewrite", "spark")
        sink.compression = self.compression
        for values, part in self._by_partition(group, rows):
            nbytes = group.bytes * part.num_rows / max(rows.num_rows, 1)
            sink.put(part, values, files=max(1, round(nbytes / self.target_bytes)))
        return sink.adds

    def _by_partition(
        self, group: FileGroup, rows: SparseRows
    ) -> Iterable[tuple[PartitionValues, SparseRows]]:
        if group.partition is not None and self.definition.has_current_layout(group.partition[0]):
            return [(group.partition[1], rows)]
        found: dict[PartitionValues, list[pa.RecordBatch]] = {}
        spec, schema = self.definition.spec, self.definition.schema
        for batch in rows.batches:
            for values, part in split_batch(with_columns(batch, spec.columns, schema), spec):
                found.setdefault(values, []).append(part)
        return [(values, SparseRows.of(parts, schema)) for values, parts in found.items()]

    def task(
        self, groups: Sequence[FileGroup]
    ) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
        """A function for ``mapInArrow`` over the numbers of groups."""
        # Without statistics, which executors do not need and which make up most of the size.
        light = [
            FileGroup(group.partition, tuple(structs.replace(add, stats={}) for add in group.files))
            for group in groups
        ]

        def run(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in numbers:
                for number in batch.column(0).to_pylist():
                    try:
                        yield _result(number, self.run(light[number]))
                    except PartitionValueTooLong as exc:
                        yield _result(number, [], str(exc))

        return run


def _result(number: int, adds: list[Add], refused: str | None = None) -> pa.RecordBatch:
    """Encode a group's result. Not in the closure, which is pickled: an encoder cannot be."""
    columns = [
        pa.array([number], pa.int64()),
        pa.array([_encode(adds)], pa.binary()),
        pa.array([refused], pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=RESULT)


def _rows(store: ObjectStore, file: DataFile, schema: pa.Schema) -> SparseRows:
    with (
        store.open(file.path) as source,
        damage_errors(file.path),
        open_checked(source, file) as parquet,
    ):
        return sparse_rows(parquet, schema)


Planner = Callable[[TableState, int, Callable[[Add], bool]], list[FileGroup]]


@dataclass(slots=True)
class Rewriting:
    """One call of a rewrite."""

    spark: SparkSession
    url: str
    namespace: str
    table: str
    store_options: dict[str, Any]
    target_bytes: int
    sort_by: tuple[str, ...] | None = None
    partition_by: tuple[str, ...] | None = None
    compression: Compression = ZSTD
    rounds: int = ROUNDS
    _done: int = 0
    _planned: int = 0
    _refused: int = 0
    _manifest: Manifest = field(init=False)

    def run(
        self, planners: Sequence[Planner], filter_: str | None, progress: Progress | None
    ) -> CompactionReport:
        """Rewrite the groups of each planner in turn, and report."""
        began = time.monotonic()
        store = open_store(self.url, **self.store_options)
        self._manifest = Manifest(store, self.namespace, self.table)
        state = self._laid_out(self._manifest.load(), filter_)
        report = CompactionReport(self.namespace, self.table, state.version)
        lost = 0
        for planner in planners:
            state = self._by_plan(state, planner, filter_, report, progress, began)
            # Refused groups will be refused by the next plan too, so count them once.
            lost += report.left - self._refused
        report.left = lost + self._refused
        report.seconds = time.monotonic() - began
        return report

    def _by_plan(
        self,
        state: TableState,
        planner: Planner,
        filter_: str | None,
        report: CompactionReport,
        progress: Progress | None,
        began: float,
    ) -> TableState:
        for _ in range(self.rounds):
            groups = planner(
                state, self.target_bytes, _wanted(TableDefinition.of_state(state), filter_)
            )
            self._planned += len(groups)
            left = self._refused = 0
            for wave in waves(groups, WAVE_BYTES):
                state, lost = self._wave(state, wave, report)
                left += lost
                report.version = state.version
                report.seconds = time.monotonic() - began
                if progress is not None:
                    progress(report, self._done, self._planned)
            report.left = left
            if left == self._refused:  # no conflicts
                break
            state = self._manifest.refresh(state)
        return state

    def _laid_out(self, state: TableState, filter_: str | None) -> TableState:
        """The state with the requested partition spec committed. Arguments are checked first."""
        while True:
            definition = TableDefinition.of_state(state)
            _wanted(definition, filter_)
            _sorted_by(definition, self.sort_by)
            if self.partition_by is None:
                break
            if definition.keyed:
                raise WriteRefused(
                    "partition_by: the partitions of a table with a primary key cannot change, as a"
                    " key must stay in its partition"
                )
            wanted = definition.with_spec(self.partition_by)
            if wanted.spec == definition.spec:
                break
            _wanted(wanted, filter_)
            # With the schema, so that the commit conflicts if a column was added meanwhile.
            assert state.current_schema is not None
            actions: list[Action] = [state.current_schema, wanted.spec_action()]
            try:
                return commit_patiently(self._manifest, state, actions, identity("spark"))
            except ProposalConflict:  # another writer changed spec or schema
                state = self._manifest.refresh(state)
        return state

    def _wave(
        self, state: TableState, groups: list[FileGroup], report: CompactionReport
    ) -> tuple[TableState, int]:
        """Run the groups and commit them. Returns the number of dropped groups."""
        definition = _sorted_by(TableDefinition.of_state(state), self.sort_by)
        found = self.run_groups(definition, groups)
        results = [(group, adds) for group, adds, refused in found if refused is None]
        lost = len(found) - len(results)
        self._refused += lost
        report.refused = next((why for *_, why in found if why is not None), report.refused)
        while results:
            try:
                state = self._commit(state, results)
            except RewriteVoid as exc:
                gone = set(exc.paths)
                kept = [one for one in results if not gone & {add.path for add in one[0].files}]
            except UploadExpired as exc:
                late = {add.path for add in exc.adds}
                kept = [one for one in results if not late & {add.path for add in one[1]}]
            else:
                self._count(results, report)
                break
            lost += len(results) - len(kept)
            report.conflicts += len(results) - len(kept)
            results = kept
            state = self._manifest.refresh(state)
        return state, lost

    def run_groups(
        self, definition: TableDefinition, groups: list[FileGroup]
    ) -> list[tuple[FileGroup, list[Add], str | None]]:
        """Rewrite groups in Spark tasks. Each result has the new files, or the reason for none."""
        if not groups:
            return []
        job = CompactionJob(
            self._manifest.store.url,
            self.store_options,
            self._manifest.root,
            definition,
            self.target_bytes,
            self.compression,
        )
        tasks = max(len(groups), 1) if len(groups) < 10_000 else parallelism(self.spark) * 100
        numbers = self.spark.range(0, len(groups), 1, numPartitions=tasks)
        found = numbers.mapInArrow(job.task(groups), spark_schema(list(RESULT))).collect()
        return [(groups[row.number], decode_adds(bytes(row.adds)), row.refused) for row in found]

    def _commit(self, state: TableState, results: list[tuple[FileGroup, list[Add]]]) -> TableState:
        actions: list[Action] = []
        for group, adds in results:
            actions += [Remove(path=add.path, reason="compaction") for add in group.files]
            actions += adds
        return commit_patiently(self._manifest, state, actions, identity("spark"))

    def _count(self, results: list[tuple[FileGroup, list[Add]]], report: CompactionReport) -> None:
        self._done += len(results)
        report.commits += 1
        for group, adds in results:
            report.files_before += len(group.files)
            report.files_after += len(adds)
            report.bytes_before += group.bytes
            report.bytes_after += sum(add.bytes for add in adds)
            report.rows += group.rows


def _wanted(definition: TableDefinition, filter_: str | None) -> Callable[[Add], bool]:
    columns = Columns(definition, tuple(definition.schema.names))
    return pruning(said(filter_, definition), columns).may_match


def _sorted_by(definition: TableDefinition, names: tuple[str, ...] | None) -> TableDefinition:
    if names is None:
        return definition
    if definition.keyed:
        raise WriteRefused("sort_by: files of a table with a primary key are in key order")
    for name in names:
        if name not in definition.schema.names:
            raise WriteRefused(
                f"sort_by: no column {name!r}; the table has {', '.join(definition.schema.names)}"
            )
    return replace(definition, sort_by=names)
