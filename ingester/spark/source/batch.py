"""The data source's batch read: files of one version, pruned by the manifest, spread by size.

Law of this file: planning reads the manifest, executors read files; what travels between them has
the files of one task and nothing of the state.

Filters that Spark pushes down are taken only where that was asked for. Spark 4.3 keeps what a query
has pushed with the relation, and reads by it in whatever query comes next: of
``df.where(a).union(df.where(b))`` both sides would have the files of ``b``. A filter that is said
as an option belongs to the relation, and has no such trap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from ingester.spark.errors import plainly_each
from ingester.spark.read.arrow_scan import FileToRead, ScanPlan, balanced
from ingester.spark.source.rows import SourceRows
from ingester.spark.versions import PUSHES_FILTERS, arrow_schema
from persist.manifest import Add, Manifest, TableState

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter


class FilesPartition(InputPartition):
    """The files of one task."""

    def __init__(self, files: tuple[FileToRead, ...]) -> None:
        super().__init__(None)
        self.files = files


def partitions_of(
    adds: Sequence[Add], manifest: Manifest, parallelism: int
) -> list[FilesPartition]:
    """Tasks of about equal size; a function of the files alone."""
    return [
        FilesPartition(tuple(FileToRead.of(add, manifest.root) for add in group))
        for group in balanced(adds, parallelism)
    ]


class _PushFilters:
    """``pushFilters`` of a reader, also in a session that does not push filters.

    There Spark refuses a reader that has a method of its own, and never calls this one; it looks at
    ``__func__``.
    """

    if PUSHES_FILTERS:
        __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, take: Callable[[Sequence[Filter]], None]) -> None:
        self._take = take

    def __call__(self, filters: list[Filter]) -> list[Filter]:
        self._take(filters)
        return filters  # Spark looks at all of them again


class TableReader(DataSourceReader):
    """One version of a table, read by files."""

    # Spark pickles readers: each argument is one that executors need, or that they must not have.
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
            from ingester.spark.source.pushed_filters import (
                pushed,  # Spark 4.0 has no filters to push
            )

            self._pruning = self._rows.pruning.and_also(pushed(filters, self._rows.columns))
            self._plan = replace(self._plan, rows=self._pruning.rows)

    def partitions(self) -> Sequence[InputPartition]:
        """The files that may have wanted rows, in tasks."""
        manifest, _ = self._planned()
        return partitions_of(self._wanted(), manifest, self._parallelism)

    def _wanted(self) -> list[Add]:
        files = sorted(self._planned()[1].files.items())  # in an order that is always the same
        return [add for _, add in files if self._pruning.may_match(add)]

    def _planned(self) -> tuple[Manifest, TableState]:
        assert self._planning is not None, "planned where the state is"
        return self._planning

    @plainly_each
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task. On an executor."""
        if not isinstance(partition, FilesPartition):
            return  # Spark asks once where there is nothing to read, 4.0 with None
        files = partition.files
        schema = arrow_schema(self._rows.schema())
        yield from self._rows.read(self._plan, files, schema)
