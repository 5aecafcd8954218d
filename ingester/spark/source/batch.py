"""The data source's batch read: files of one version, pruned by the manifest, balanced by size.

Planning reads the manifest, executors read files. A task receives its files and nothing else of the
table's state.

Filters that Spark pushes down are used only with the option ``pushdown``. Spark 4.3 keeps a query's
pushed filters with the relation and applies them to the next query: both sides of
``df.where(a).union(df.where(b))`` would read the files of ``b``. The option ``filter`` belongs to
the relation and does not have this problem.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import LongType, StructField, StructType

from ingester.spark.errors import plainly_each
from ingester.spark.read.arrow_scan import ScanPlan, scan
from ingester.spark.source.rows import FilesPartition, SourceRows, partitions_of
from ingester.spark.versions import PUSHES_FILTERS, arrow_schema
from persist.manifest import Add, Manifest, TableState

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter


class _PushFilters:
    """``pushFilters`` of a reader that also works in a session without filter pushdown.

    There Spark refuses a reader that overrides the method, which it detects by ``__func__``.
    """

    if PUSHES_FILTERS:
        __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, take: Callable[[Sequence[Filter]], None]) -> None:
        self._take = take

    def __call__(self, filters: list[Filter]) -> list[Filter]:
        self._take(filters)
        return filters  # Spark evaluates all of them again


class TableReader(DataSourceReader):
    """One version of a table, read by files."""

    def __init__(
        self,
        manifest: Manifest,
        state: TableState,
        rows: SourceRows,
        storage: dict[str, Any],
        parallelism: int,
        *,
        takes_filters: bool,
    ) -> None:
        self._planning: tuple[Manifest, TableState] | None = (manifest, state)
        self._rows = rows
        self._parallelism = parallelism
        self._takes_filters = takes_filters
        self._plan = ScanPlan(manifest.store.url, storage, rows.columns, rows.pruning.rows)
        self._pruning = rows.pruning
        self.pushFilters = _PushFilters(self._push)  # type: ignore[method-assign]

    def __getstate__(self) -> dict[str, Any]:
        kept = {name: value for name, value in self.__dict__.items() if name != "pushFilters"}
        return {**kept, "_planning": None}

    def _push(self, filters: Sequence[Filter]) -> None:
        if self._takes_filters:
            # Spark 4.0 has no filter classes to import.
            from ingester.spark.source.pushed_filters import pushed

            self._pruning = self._rows.pruning.and_also(pushed(filters, self._rows.columns))
            self._plan = replace(self._plan, rows=self._pruning.rows)

    def partitions(self) -> Sequence[InputPartition]:
        """The files that may have wanted rows, as tasks."""
        manifest, _ = self._planned()
        return partitions_of(self._wanted(), manifest, self._parallelism)

    def _wanted(self) -> list[Add]:
        files = sorted(self._planned()[1].files.items())  # deterministic order
        return [add for _, add in files if self._pruning.may_match(add)]

    def _planned(self) -> tuple[Manifest, TableState]:
        assert self._planning is not None, "only the driver plans"
        return self._planning

    @plainly_each
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task. On an executor."""
        if not isinstance(partition, FilesPartition):
            return  # Spark calls this once if there are no partitions; 4.0 with None
        files = partition.files
        schema = arrow_schema(self._rows.schema())
        yield from self._rows.read(self._plan, files, schema)


SCHEMA = StructType([StructField("count", LongType(), nullable=False)])


class Counted(InputPartition):
    """The number of rows of files that need not be opened."""

    def __init__(self, rows: int) -> None:
        super().__init__(None)
        self.rows = rows


class CountReader(TableReader):
    """The option ``count``: rows whose sum is the number of rows of the same read.

    Spark counts a Python data source's rows by reading all of them, even without columns. The
    manifest knows the number; with a filter, tasks count the matching rows of their files.
    """

    def partitions(self) -> Sequence[InputPartition]:
        """One task without a filter; with a filter, tasks that read files."""
        if self._plan.rows:
            return super().partitions()
        return [Counted(sum(add.rows for add in self._wanted()))]

    @plainly_each
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The count of one task, as one row. On an executor."""
        rows = 0  # Spark calls this once even if there are no partitions
        if isinstance(partition, Counted):
            rows = partition.rows
        elif isinstance(partition, FilesPartition):
            rows = sum(batch.num_rows for batch in scan(self._plan, partition.files))
        schema = pa.schema([pa.field("count", pa.int64(), nullable=False)])
        yield pa.record_batch([pa.array([rows], pa.int64())], schema=schema)
