"""The state shared by all readers of an answer: the selection, and access to files and spills.

It holds no rows. Row groups are leased from the cache under the context's identity.
"""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa

from ingester.query.fair_scheduler import CpuAccount, TurnPace
from ingester.query.live_groups import LiveGroup
from ingester.query.parts import Slicer
from ingester.query.row_group_cache import Decoded, RowGroupCache
from ingester.query.spill import RowsFile
from persist.parquet.reading import DataFile
from persist.predicate.predicate import Predicate
from persist.table import TableDefinition

OPERATION = "_op"


class AnswerPart(NamedTuple):
    """One part of an answer: rows of one partition, sent as one message."""

    batch: pa.RecordBatch
    partition: str
    source: str
    """``buffer`` or ``file``."""
    nbytes: int
    group: LiveGroup | None = None
    """The operations that the rows belong to, in a live feed."""


class Selection(NamedTuple):
    """The columns and rows that a ticket selects."""

    schema: pa.Schema
    """The answer's columns, without metadata."""
    predicate: Predicate
    limit: int | None
    marks_operations: bool = False
    """Whether the answer has the column ``_op`` (the buffered tail of a keyed table)."""


class ReadContext:
    """Shared by the readers of one answer.

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
        self.pace = TurnPace(groups.scheduler)
        table, predicate = definition.schema, selection.predicate
        self.columns = tuple(dict.fromkeys((*selection.schema.names, *predicate.columns)))
        """Columns read from files: those of the answer and of its filter."""
        self.slicer = Slicer(
            pa.schema([field for field in selection.schema if field.name != OPERATION]),
            pa.schema([table.field(name) for name in predicate.columns]),
            predicate,
            groups.views,
            self.pace.let_others,
        )

    def group(self, file: DataFile, index: int, columns: tuple[str, ...] | None = None) -> Decoded:
        """Return a decoded row group, by default of :attr:`columns`; see
        :meth:`RowGroupCache.group`.

        Ask again for each part: between two parts only the cache may hold the row group.
        """
        return self.groups.group(file, index, columns or self.columns, id(self))

    def group_read(
        self, file: DataFile, index: int, columns: tuple[str, ...] | None = None
    ) -> None:
        """Return the lease on a row group that was read to its end."""
        self.groups.done(file.path, index, columns or self.columns, id(self))

    def prefetch(self, file: DataFile, index: int) -> bool:
        """Start decoding a row group in another thread; see :meth:`RowGroupCache.prefetch`."""
        return self.groups.prefetch(file, index, self.columns, id(self))

    def spilled(self, source: RowsFile, row: int, stop: int) -> pa.RecordBatch:
        """Read the rows ``row..stop-1`` of a spill as far as they are in one stored batch."""
        with self.scheduler.given_back():
            start, batch = source.at(row)
        return batch.slice(row - start, min(batch.num_rows, stop - start) - (row - start))

    def marked(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Add the column ``_op`` if the answer has it."""
        if not self.selection.marks_operations:
            return batch
        marks = pa.array(["upsert"] * batch.num_rows)
        return pa.RecordBatch.from_arrays([*batch.columns, marks], schema=self.selection.schema)
