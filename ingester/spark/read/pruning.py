"""Pruning of what need not be read: files by what the manifest knows, rows by looking at them.

Law of this file: pure. A file is left out only if none of its rows is wanted.
"""

from __future__ import annotations

from dataclasses import dataclass

from ingester.spark.read.columns import Columns
from persist.manifest import Add, ColumnStats
from persist.parquet.stats import stat_value
from persist.partitioning.bounds import partition_bounds
from persist.predicate.predicate import Predicate


@dataclass(frozen=True, slots=True)
class Pruning:
    """Predicates that all of the wanted rows match.

    Attributes:
        files: Looked at with bounds of files, which are in the table's own types.
        rows: Looked at with bounds of row groups, and row by row, in the types that carry them.
    """

    columns: Columns
    files: tuple[Predicate, ...] = ()
    rows: tuple[Predicate, ...] = ()

    def and_also(self, other: Pruning) -> Pruning:
        """The pruning that leaves what both leave."""
        return Pruning(self.columns, self.files + other.files, self.rows + other.rows)

    def may_match(self, add: Add) -> bool:
        """True where the file can have rows that are wanted."""
        if not self.files:
            return True
        definition = self.columns.definition
        known = [add.stats]
        if add.spec_id <= definition.spec_id:
            spec = definition.spec_of(add.spec_id)
            known.append(partition_bounds(spec, add.values, definition.schema))
        if definition.lies_as_now(add.spec_id):
            known.append(self._partition_columns(add))
        return all(
            predicate.may_match(bounds, add.rows) for bounds in known for predicate in self.files
        )

    def _partition_columns(self, add: Add) -> dict[str, ColumnStats]:
        found = {}
        fields = self.columns.partition_fields()
        for field, scalar in zip(fields, self.columns.partition_scalars(add.values), strict=True):
            value, nulls = stat_value(scalar), 0 if scalar.is_valid else add.rows
            found[field.name] = ColumnStats(min=value, max=value, nulls=nulls)
        return found
