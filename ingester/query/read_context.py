"""The context that all readers of one answer share: what is asked for, and where it is read.

Law of this file: it holds no rows. Each use of a row group goes through the cache, which knows the
answer by its context and leases the group to it.
"""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa

from ingester.query.buffer_spill import RowsFile
from ingester.query.cpu_account import CpuAccount
from ingester.query.fair_scheduler import Pace
from ingester.query.live_groups import Group
from ingester.query.row_group_cache import Decoded, RowGroupCache
from ingester.query.slicer import Slicer
from persist.parquet.reading import DataFile
from persist.predicate.predicate import Predicate
from persist.table import TableDefinition

OPERATION = "_op"


class AnswerPart(NamedTuple):
    """A part of an answer, sent at once: rows of one partition, and where they came from."""

    batch: pa.RecordBatch
    partition: str
    source: str
    """``buffer`` or ``file``."""
    nbytes: int
    group: Group | None = None
    """The operations that the rows are of, in a live feed."""


class Selection(NamedTuple):
    """The selection of a snapshot's rows and columns that is asked for."""

    schema: pa.Schema
    """The answer's columns, without metadata."""
    predicate: Predicate
    limit: int | None
    marks_operations: bool = False
    """Whether the answer has ``_op``: the buffered tail of a keyed table."""


class ReadContext:
    """Holds what the readers of one answer share.

    Args:
        folder: the table's folder in the store.
    """

    def __init__(
        self,
        definition: TableDefinition,
        selection: Selection,
        groups: RowGroupCache,
        folder: str,
        account: CpuAccount,
    ) -> None:
        self.definition = definition
        self.selection = selection
        self.groups = groups
        self.folder = folder
        self.scheduler = groups.scheduler
        self.account = account
        self.pace = Pace(groups.scheduler)
        table, predicate = definition.schema, selection.predicate
        self.columns = tuple(dict.fromkeys((*selection.schema.names, *predicate.columns)))
        """The answer's and the filter's columns, which are read of files."""
        self.slicer = Slicer(
            pa.schema([field for field in selection.schema if field.name != OPERATION]),
            pa.schema([table.field(name) for name in predicate.columns]),
            predicate,
            groups.views,
            self.pace.let_others,
        )

    def group(self, file: DataFile, index: int, columns: tuple[str, ...] | None = None) -> Decoded:
        """Return a decoded row group, by default :attr:`columns`; see :meth:`RowGroupCache.group`.

        To be asked for again for each part: between two parts only the cache may hold it.
        """
        return self.groups.group(file, index, columns or self.columns, id(self))

    def group_read(
        self, file: DataFile, index: int, columns: tuple[str, ...] | None = None
    ) -> None:
        """Give the lease on a row group back: it is read to its end."""
        self.groups.done(file.path, index, columns or self.columns, id(self))

    def prefetch(self, file: DataFile, index: int) -> bool:
        """Have a row group decoded by another thread; see :meth:`RowGroupCache.prefetch`."""
        return self.groups.prefetch(file, index, self.columns, id(self))

    def spilled(self, source: RowsFile, row: int, stop: int) -> pa.RecordBatch:
        """Read the rows from ``row`` on, before ``stop``, that are in the same part of a spill."""
        with self.scheduler.given_back():
            start, batch = source.at(row)
        return batch.slice(row - start, min(batch.num_rows, stop - start) - (row - start))

    def marked(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows with the column ``_op``, where the answer has it."""
        if not self.selection.marks_operations:
            return batch
        marks = pa.array(["upsert"] * batch.num_rows)
        return pa.RecordBatch.from_arrays([*batch.columns, marks], schema=self.selection.schema)
