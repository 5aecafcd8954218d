"""Files that a push has written, as any region may list them: without ids, which differ by region.

Law of this file: pure. A file is the same bytes in every region, so its size, bounds and checksum
are the same; a region puts in its own ids of schema and spec, and the time by its store's clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import msgspec

from ingester.pushes.store_region.shapes import ShapeClash
from persist.manifest import Add, ColumnStats
from persist.manifest.actions import Values
from persist.table import TableDefinition


class PushedFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A data file of a push; ``path`` is below the folder of the table version."""

    path: str
    rows: int
    bytes: int
    values: Values
    """The values of the partition fields, in the order of the table's spec."""
    stats: Mapping[str, ColumnStats]
    """Bounds of the columns that are in the file; all others are null in each of its rows."""
    writer: str
    footer_crc32c: int | None

    @classmethod
    def of(cls, add: Add) -> Self:
        """Return the file of a manifest's entry, of whichever region."""
        return cls(
            path=add.path,
            rows=add.rows,
            bytes=add.bytes,
            values=add.values,
            stats=add.stats,
            writer=add.writer,
            footer_crc32c=add.footer_crc32c,
        )

    def listed(self, definition: TableDefinition, at: str) -> Add:
        """Return the entry in the manifest of a region whose version is defined so.

        Args:
            at: The time of the file by the region's store.

        Raises:
            ShapeClash: the file was written for a table of another shape.
        """
        strays = sorted(set(self.stats) - set(definition.schema.names))
        if strays:
            raise ShapeClash(f"file {self.path} has a column {strays[0]!r}, and the table has none")
        if len(self.values) != len(definition.spec.fields):
            raise ShapeClash(f"file {self.path} is not of partitions {definition.spec.texts()}")
        absent = ColumnStats(nulls=self.rows)
        return Add(
            path=self.path,
            kind="push",
            rows=self.rows,
            bytes=self.bytes,
            spec_id=definition.spec_id,
            values=self.values,
            stats={name: self.stats.get(name, absent) for name in definition.schema.names},
            writer=self.writer,
            epoch=0,
            first_seq=0,
            last_seq=0,
            schema_id=definition.schema_id,
            at=at,
            footer_crc32c=self.footer_crc32c,
        )
