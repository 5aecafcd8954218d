"""The last state of a keyed partition: buffered rows by key, and files without those keys.

Law of this file: of rows with equal keys the one that was written last counts, also if it deletes;
buffers are newer than files, and files of a partition have each key once.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ingester.query.align import align_batch, align_table
from ingester.query.parts import copied
from persist.predicate import Predicate
from persist.table import DELETED, TableDefinition, schema_with_deletes

JOINED_BYTES = 16 << 20
"""Rows that came in small batches are joined until they are as much."""


class KeyedMerge:
    """Collects one partition's buffered rows, then hides their keys in older rows."""

    def __init__(self, definition: TableDefinition, needed: tuple[str, ...]) -> None:
        """``needed``: columns of the answer and its filter; the key's are added."""
        self._key = definition.primary_key
        self.columns = tuple(dict.fromkeys((*self._key, *needed)))
        self._rows = pa.schema(
            [
                definition.schema.field(name)
                for name in self.columns
                if name in definition.schema.names
            ]
        )
        self._schema = schema_with_deletes(self._rows)
        self._batches: list[pa.RecordBatch] = []
        self._newest: pa.Table | None = None

    @property
    def nbytes(self) -> int:
        """Of the keys that hide older rows."""
        return 0 if self._newest is None else int(self._newest.nbytes)

    def add(self, batch: pa.RecordBatch) -> None:
        """Rows in log order."""
        self._batches.append(align_batch(batch, self._schema))

    def newest(self) -> tuple[list[pa.RecordBatch], list[pa.RecordBatch]]:
        """Of each key among those added the last row: what is there now, and what was deleted."""
        table = align_table(_joined(self._batches), self._schema)
        self._batches = []
        rows = pa.array(np.arange(table.num_rows))
        keys = table.select(list(self._key)).append_column("_row", rows)
        last = keys.group_by(list(self._key)).aggregate([("_row", "max")])["_row_max"]
        is_last = np.zeros(table.num_rows, np.bool_)
        is_last[last.to_numpy()] = True
        # Not taken by number: that would join columns, whose texts may be too long for one array.
        newest = table.filter(pa.array(is_last))
        of_keys = newest.select(list(self._key))
        self._newest = pa.Table.from_batches(
            map(copied, of_keys.combine_chunks().to_batches()), of_keys.schema
        )
        deleted = pc.fill_null(newest[DELETED], False)
        return _batches(newest, pc.invert(deleted)), _batches(newest, deleted)

    def without_newer(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Rows of a file whose keys are not among the buffered ones."""
        if self._newest is None or self._newest.num_rows == 0:
            return batch
        return self.without(batch, self._newest)

    def without(self, batch: pa.RecordBatch, keys: pa.Table) -> pa.RecordBatch:
        """Rows whose keys are not among these."""
        rows = pa.array(np.arange(batch.num_rows))
        own = pa.table(
            [align_batch(batch, self._rows).column(name) for name in self._key] + [rows],
            names=[*self._key, "_row"],
        )
        kept = own.join(keys, keys=list(self._key), join_type="left anti")["_row"]
        return batch.take(kept.combine_chunks().sort())


class Takings:
    """What a reader of the buffered tail has to take away from older rows, as ``_op`` says it.

    Who asks with a filter has older rows that match: one that matches no more is taken away, too.
    """

    def __init__(
        self, definition: TableDefinition, answer: pa.Schema, predicate: Predicate
    ) -> None:
        self._key = definition.primary_key
        self._answer = answer
        self._predicate = predicate
        self._looked_at = pa.schema([definition.schema.field(c) for c in predicate.columns])
        self._by_key_alone = set(predicate.columns) <= set(self._key)

    def deletes(self, keys: pa.RecordBatch) -> pa.RecordBatch:
        """Rows of the answer that delete these keys; other columns are of no account."""
        if self._by_key_alone:
            keys = self._predicate.select(keys)
        columns = [
            keys[field.name] if field.name in self._key else pa.nulls(keys.num_rows, field.type)
            for field in list(self._answer)[:-1]
        ]
        columns.append(pa.repeat(pa.scalar("delete"), keys.num_rows))
        return pa.RecordBatch.from_arrays(columns, schema=self._answer)

    def misses(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Rows of the answer that delete the keys of those rows that do not match."""
        mask = None
        if not self._by_key_alone:
            mask = self._predicate.mask(align_batch(rows, self._looked_at))
        return self.deletes(rows.slice(0, 0) if mask is None else rows.filter(pc.invert(mask)))


def _batches(rows: pa.Table, mask: pa.ChunkedArray) -> list[pa.RecordBatch]:
    """Those of the rows; none where there are none."""
    return _joined(rows.filter(mask).drop_columns([DELETED]).to_batches())


def _joined(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """The same rows in few batches, none much larger than it has to be."""
    found: list[pa.RecordBatch] = []
    small: list[pa.RecordBatch] = []
    nbytes = 0
    for batch in batches:
        small.append(batch)
        nbytes += batch.nbytes
        if nbytes >= JOINED_BYTES:
            found += pa.Table.from_batches(small).combine_chunks().to_batches()
            small, nbytes = [], 0
    if small:
        found += pa.Table.from_batches(small).combine_chunks().to_batches()
    return found
