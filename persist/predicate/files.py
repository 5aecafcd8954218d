"""Which of a table's files may have rows that match a predicate, by the manifest alone. Pure.

A filter may name the table's columns and those of its partition spec. A file is left out only if
none of its rows can match (``tests/spark/test_four_ways.py``).
"""

from __future__ import annotations

import pyarrow as pa

from persist.manifest import Add, ColumnStats
from persist.parquet.stats import stat_value
from persist.partitioning import partition_columns, partition_scalar
from persist.partitioning.spec import partition_bounds
from persist.predicate.predicate import Predicate
from persist.table import TableDefinition


def filter_schema(definition: TableDefinition) -> pa.Schema:
    """The columns that a filter may name."""
    return pa.schema([*definition.schema, *_partition_columns(definition)])


def may_have_matches(predicate: Predicate, definition: TableDefinition, add: Add) -> bool:
    """Whether the file may have matching rows."""
    known = [add.stats]
    if add.spec_id <= definition.spec_id:
        spec = definition.spec_of(add.spec_id)
        known.append(partition_bounds(spec, add.values, definition.schema))
    if definition.has_current_layout(add.spec_id):
        known.append(_partition_values(definition, add))
    return all(predicate.may_match(bounds, add.rows) for bounds in known)


def _partition_columns(definition: TableDefinition) -> list[pa.Field]:
    return partition_columns(definition.spec, definition.schema)


def _partition_values(definition: TableDefinition, add: Add) -> dict[str, ColumnStats]:
    found = {}
    for field, value in zip(_partition_columns(definition), add.values, strict=True):
        scalar = partition_scalar(value, field.type)
        bound, nulls = stat_value(scalar), 0 if scalar.is_valid else add.rows
        found[field.name] = ColumnStats(min=bound, max=bound, nulls=nulls)
    return found
