"""Rows of a keyed table by their keys, as it is now: files and buffers.

Law of this file: runs in a thread, while nobody else writes to the table. Files and row groups
whose bounds hold none of the keys are not read; of the others only the rows asked for are kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ingester.buffer import TableBuffer
from ingester.query.read_context import Selection
from ingester.query.reader import PartReader
from ingester.query.row_group_cache import RowGroupCache
from ingester.query.snapshot import snapshot_all
from ingester.query.stream import AnswerStream
from ingester.query.ticket import predicate_of
from persist.parquet.sparse_rows import SparseRows, concatenated
from persist.table import TableDefinition

JOINED = 16
"""The number of parts whose rows are held with all of their nulls."""
FEW = 256
"""The most keys that are looked for by value; more are between the lowest and the highest."""


@dataclass(frozen=True, slots=True)
class PointLookup:
    """Reads rows by their keys."""

    row_groups: RowGroupCache
    applied_seq: Callable[[], int]
    """Tells the newest sequence of this daemon that is visible."""

    def rows_with_keys(self, table: TableBuffer, keys: pa.Table) -> pa.Table:
        """The rows with these keys, whole, in any order; a key without a row has none.

        Columns without a value share their nulls.

        Raises:
            StoreAway: a file cannot be read now.
        """
        snapshot = snapshot_all(table, self.applied_seq)
        definition = snapshot.definition
        key = list(definition.primary_key)
        selection = Selection(
            schema=definition.schema,
            predicate=predicate_of(_around(keys, definition), definition.schema),
            limit=None,
        )
        reader = PartReader(snapshot, selection, self.row_groups, table.key)
        found: list[pa.RecordBatch] = []
        kept: list[SparseRows] = []
        for part in AnswerStream(table.key, reader, on_close=lambda stream: None):
            numbered = pa.table(
                [*(part.batch.column(name) for name in key), np.arange(part.batch.num_rows)],
                names=[*key, "_row"],
            )
            rows = numbered.join(keys, keys=key, join_type="left semi")["_row"]
            if len(rows):
                found.append(part.batch.take(rows.combine_chunks()))
                if len(found) >= JOINED:
                    kept.append(SparseRows.of(found, definition.schema))
                    found.clear()
        kept.append(SparseRows.of(found, definition.schema))
        return concatenated(kept).table()


def _around(keys: pa.Table, definition: TableDefinition) -> list[list[list[Any]]] | None:
    """A filter that all the keys pass, and perhaps others."""
    terms: list[list[Any]] = []
    for name in definition.primary_key:
        kind = definition.schema.field(name).type
        if not (pa.types.is_integer(kind) or pa.types.is_string(kind)):
            continue
        column = keys.column(name)
        if keys.num_rows <= FEW:
            terms.append([name, "in", pc.unique(column).to_pylist()])
        else:
            bounds = pc.min_max(column).as_py()
            terms += [[name, ">=", bounds["min"]], [name, "<=", bounds["max"]]]
    return [terms] if terms else None
