"""The last state of a keyed partition: buffered rows by key, and files without those keys.

Law of this file: of rows with equal keys the one that was written last counts, also if it deletes;
buffers are newer than files, and files of a partition have each key once. All is computed in the
thread that asks, whose turn it is: Arrow's own threads would take from those of others.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ingester.query.parts import copied
from ingester.schema.align import Aligner, align_table
from persist.predicate.predicate import Predicate
from persist.table import DELETED, TableDefinition, schema_with_deletes

JOINED_BYTES = 16 << 20
"""The size up to which small batches are joined."""


class MergeOnRead:
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
        self._places = frozenset(self._schema.names)
        self._key_schema = definition.key_schema
        self._align_keys = Aligner(definition.key_schema)
        self._batches: list[pa.RecordBatch] = []
        self._newest: pa.Table | None = None

    @property
    def nbytes(self) -> int:
        """The bytes of the keys that hide older rows."""
        return 0 if self._newest is None else int(self._newest.nbytes)

    def add(self, batch: pa.RecordBatch) -> None:
        """Take buffered rows; to be called in log order."""
        self._batches.append(batch.select([n for n in batch.schema.names if n in self._places]))

    def newest(self) -> tuple[list[pa.RecordBatch], list[pa.RecordBatch]]:
        """Return the last row of each key that was added, and the keys whose last row deletes.

        Rows have the columns that they were added with.
        """
        batches, self._batches = _joined(self._batches), []
        keys = align_table([batch.select(list(self._key)) for batch in batches], self._key_schema)
        rows = pa.array(np.arange(keys.num_rows))
        numbered = keys.append_column("_row", rows)
        grouped = numbered.group_by(list(self._key), use_threads=False)
        last = grouped.aggregate([("_row", "max")])["_row_max"]
        is_last = np.zeros(keys.num_rows, np.bool_)
        is_last[last.to_numpy()] = True
        # Not taken by number: that would join columns, whose texts may be too long for one array.
        of_keys = keys.filter(pa.array(is_last))
        self._newest = pa.Table.from_batches(
            map(copied, of_keys.combine_chunks().to_batches()), of_keys.schema
        )
        there: list[pa.RecordBatch] = []
        deleted: list[pa.RecordBatch] = []
        start = 0
        for batch in batches:
            own = is_last[start : start + batch.num_rows]
            start += batch.num_rows
            gone = np.zeros(batch.num_rows, np.bool_)
            if DELETED in batch.schema.names:
                marks = pc.fill_null(batch[DELETED], False)
                gone = marks.to_numpy(zero_copy_only=False)
                deleted.append(batch.select(list(self._key)).filter(pa.array(own & gone)))
                batch = batch.drop_columns([DELETED])
            there.append(batch.filter(pa.array(own & ~gone)))
        return _joined(there), _joined(deleted)

    def without_newer(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a file's rows whose keys are not among the buffered ones."""
        if self._newest is None or self._newest.num_rows == 0:
            return batch
        return self.without(batch, self._newest)

    def without(self, batch: pa.RecordBatch, keys: pa.Table) -> pa.RecordBatch:
        """Return the rows whose keys are not among these."""
        rows = pa.array(np.arange(batch.num_rows))
        own = pa.table(
            [*self._align_keys(batch.select(list(self._key))).columns, rows],
            names=[*self._key, "_row"],
        )
        joined = own.join(keys, keys=list(self._key), join_type="left anti", use_threads=False)
        kept = joined["_row"]
        return batch.take(kept.combine_chunks().sort())


class TailDeletes:
    """Makes the deletes of a buffered tail: a reader takes these keys away from older rows.

    A reader that asks with a filter has older rows that match: where a row matches no more, its key
    is deleted, too.
    """

    def __init__(
        self, definition: TableDefinition, answer: pa.Schema, predicate: Predicate
    ) -> None:
        self._key = definition.primary_key
        self._align = Aligner(answer)
        self._mark = answer.names[-1]
        self._predicate = predicate
        self._looked_at = Aligner(
            pa.schema([definition.schema.field(c) for c in predicate.columns])
        )
        self._by_key_alone = set(predicate.columns) <= set(self._key)

    def of_keys(self, keys: pa.RecordBatch) -> pa.RecordBatch:
        """Return those of these keys that are to be deleted; other columns do not count."""
        keys = keys.select(list(self._key))
        return self._predicate.select(keys) if self._by_key_alone else keys

    def of_misses(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the keys of those rows that do not match."""
        if self._by_key_alone:
            return rows.select(list(self._key)).slice(0, 0)
        mask = self._predicate.mask(self._looked_at(rows))
        keys = rows.select(list(self._key))
        return keys.slice(0, 0) if mask is None else keys.filter(pc.invert(mask))

    def deletes(self, keys: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows of the answer that delete these keys."""
        marks = pa.repeat(pa.scalar("delete"), keys.num_rows)
        return self._align(keys.append_column(self._mark, marks))


def _joined(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Join small batches of one schema; none becomes much larger than it has to be."""
    found: list[pa.RecordBatch] = []
    small: list[pa.RecordBatch] = []
    nbytes = 0
    for batch in batches:
        if small and (nbytes >= JOINED_BYTES or not batch.schema.equals(small[0].schema)):
            found += pa.Table.from_batches(small).combine_chunks().to_batches()
            small, nbytes = [], 0
        small.append(batch)
        nbytes += batch.nbytes
    if small:
        found += pa.Table.from_batches(small).combine_chunks().to_batches()
    return found
