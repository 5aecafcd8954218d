"""The last state of a keyed partition: buffered rows by key, and files without those keys.

Law of this file: of rows with equal keys the one that was written last counts; buffers are newer
than files, and files of a partition have each key once.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from ingester.query.align import align_batch, align_table
from persist.table import TableDefinition


class KeyedMerge:
    """Collects one partition's buffered rows, then hides their keys in older rows."""

    def __init__(self, definition: TableDefinition, needed: tuple[str, ...]) -> None:
        """``needed``: columns of the answer and its filter; the key's are added."""
        self._key = definition.primary_key
        self.columns = tuple(dict.fromkeys((*self._key, *needed)))
        self._schema = pa.schema(
            [
                definition.schema.field(name)
                for name in self.columns
                if name in definition.schema.names
            ]
        )
        self._batches: list[pa.RecordBatch] = []
        self._newest: pa.Table | None = None

    def add(self, batch: pa.RecordBatch) -> None:
        """Rows in log order."""
        self._batches.append(align_batch(batch, self._schema))

    def newest(self) -> pa.RecordBatch:
        """The last row of each key among those added."""
        table = align_table(self._batches, self._schema)
        self._batches = []
        rows = pa.array(np.arange(table.num_rows))
        keys = table.select(list(self._key)).append_column("_row", rows)
        last = keys.group_by(list(self._key)).aggregate([("_row", "max")])["_row_max"]
        newest = table.take(last.combine_chunks().sort())
        self._newest = newest.select(list(self._key))
        batches = newest.combine_chunks().to_batches()
        return batches[0] if batches else _no_rows(self._schema)

    def without_newer(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Rows of a file whose keys are not among the buffered ones."""
        if self._newest is None or self._newest.num_rows == 0:
            return batch
        rows = pa.array(np.arange(batch.num_rows))
        keys = pa.table(
            [align_batch(batch, self._schema).column(name) for name in self._key] + [rows],
            names=[*self._key, "_row"],
        )
        kept = keys.join(self._newest, keys=list(self._key), join_type="left anti")["_row"]
        return batch.take(kept.combine_chunks().sort())


def _no_rows(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], f.type) for f in schema], schema=schema)
