"""Rows that are in files already, where the table was partitioned in another way when they came.

An origin that repeats an operation has it laid out by the table's spec of today. Which parts of it
are in files is known by the spec of then.

Law of this file: pure. A row is left out only if the partition that it had then is covered.
"""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa

from ingester.dml.part import Part
from persist.manifest import PartitionKey
from persist.partitioning import split_batch, with_columns
from persist.table import TableDefinition


def uncovered(
    parts: tuple[Part, ...],
    spec_id: int,
    covered: Collection[PartitionKey],
    definition: TableDefinition,
) -> tuple[Part, ...]:
    """What is left of an operation's parts: whole ones, or with fewer rows.

    Args:
        spec_id: Of the spec that the parts were told apart by.
        covered: Partitions of this spec or earlier ones, all of whose rows are in files.
    """
    left = []
    for part in parts:
        if (spec_id, part.values) in covered:
            continue
        rows = without_covered(part.batch, spec_id, covered, definition)
        if rows.num_rows == part.batch.num_rows:
            left.append(part)
        elif rows.num_rows:
            left.append(Part(part.values, rows, rows.nbytes))
    return tuple(left)


def without_covered(
    rows: pa.RecordBatch,
    spec_id: int,
    covered: Collection[PartitionKey],
    definition: TableDefinition,
) -> pa.RecordBatch:
    """The rows whose partitions by other specs than ``spec_id`` are not covered."""
    for other in sorted({one for one, _ in covered} - {spec_id}):
        spec = definition.spec_of(other)
        asked = with_columns(rows, spec.columns, definition.schema)
        split = split_batch(asked, spec, folders=False)
        kept = [part for values, part in split if (other, values) not in covered]
        if len(kept) < len(split):
            kept = [part.select(rows.schema.names) for part in kept]
            rows = pa.concat_batches(kept) if kept else rows.slice(0, 0)
    return rows
