"""Covered rows are in files already, under the partition spec that the table had when they came.

An origin that repeats an operation has it laid out by the table's spec of today. Which parts of it
are in files is known by the spec of then.

Law of this file: pure. A row is left out only if the partition that it had then is covered.
"""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa

from ingester.dml.operation import Part
from persist.manifest import PartitionKey
from persist.partitioning import split_batch, with_columns
from persist.table import TableDefinition


def uncovered(
    parts: tuple[Part, ...],
    spec_id: int,
    covered: Collection[PartitionKey],
    definition: TableDefinition,
) -> tuple[Part, ...]:
    """Leave out the covered rows of an operation's parts; a part may become smaller, or go.

    Args:
        spec_id: the partition spec by which the parts were split.
        covered: partitions of this spec or earlier ones, all of whose rows are in files.
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
    """Leave out the rows whose partition by another spec than ``spec_id`` is covered."""
    for other in sorted({one for one, _ in covered} - {spec_id}):
        spec = definition.spec_of(other)
        asked = with_columns(rows, spec.columns, definition.schema)
        split = split_batch(asked, spec, folders=False)
        kept = [part for values, part in split if (other, values) not in covered]
        if len(kept) < len(split):
            kept = [part.select(rows.schema.names) for part in kept]
            rows = pa.concat_batches(kept) if kept else rows.slice(0, 0)
    return rows
