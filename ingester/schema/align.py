"""Bringing rows of any age to the columns of one schema.

A missing column becomes null, a differing type is cast (a table's types never change; files only
lack types that Parquet lacks), and the order follows the schema.
"""

from collections.abc import Sequence

import pyarrow as pa

from ingester.errors import BadRequest
from ingester.shown_text import shown_name, shown_names
from persist.parquet.sparse_rows import null_bytes, rows_alone

VALIDITY_BYTES = 0.125
NODE_BYTES, BUFFER_BYTES = 16, 24
"""Bytes on the wire for a column's description and for each of its buffers, with padding to 8."""


class Aligner:
    """Brings batches to the columns of one schema. A batch's missing columns share their nulls."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._kinds = [field.type for field in schema]
        self._places = {name: place for place, name in enumerate(schema.names)}
        numbers: dict[pa.DataType, int] = {}
        self._number_of_kind = [numbers.setdefault(kind, len(numbers)) for kind in self._kinds]
        self._null_bytes = [null_bytes(kind) + VALIDITY_BYTES for kind in self._kinds]
        self._beside = [_described_bytes(kind) for kind in self._kinds]
        self.beside_bytes = sum(self._beside)
        """Bytes on the wire of a batch with all columns, besides its rows."""
        self._last: tuple[list[str] | None, tuple[float, int]] = (None, (0.0, 0))

    def absent_bytes(self, schema: pa.Schema) -> tuple[float, int]:
        """Return the bytes on the wire that batches of this schema lack: per row, and besides
        the rows.
        """
        names = schema.names
        if names != self._last[0]:
            absent = self._places.keys() - set(names)
            row = sum(self._null_bytes[self._places[name]] for name in absent)
            beside = sum(self._beside[self._places[name]] for name in absent)
            self._last = (names, (row, beside))
        return self._last[1]

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch with exactly the schema's columns; no copy if it has them already."""
        if batch.schema.equals(self.schema):
            return batch
        if not self._kinds:
            return rows_alone(batch.num_rows)
        columns: list[pa.Array | None] = [None] * len(self._kinds)
        for index, name in enumerate(batch.schema.names):
            place = self._places.get(name)
            if place is not None:
                column, kind = batch.column(index), self._kinds[place]
                columns[place] = column if column.type == kind else column.cast(kind)
        nulls: dict[int, pa.Array] = {}
        for place, number in enumerate(self._number_of_kind):
            if columns[place] is None:
                if number not in nulls:
                    nulls[number] = pa.nulls(batch.num_rows, self._kinds[place])
                columns[place] = nulls[number]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def align_table(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    """Return all batches as one table with the schema's columns."""
    return pa.Table.from_batches([*map(Aligner(schema), batches)], schema)


def _described_bytes(kind: pa.DataType) -> int:
    inner = sum(_described_bytes(kind.field(n).type) for n in range(kind.num_fields))
    buffers = 2 if kind.num_fields or pa.types.is_primitive(kind) else 3
    return inner + NODE_BYTES + BUFFER_BYTES * buffers


def projected(schema: pa.Schema, columns: list[str] | None, marks: bool) -> pa.Schema:
    """Return the answer's columns; with ``marks`` also ``_op``."""
    if columns is None:
        if not marks:
            return schema
        fields = list(schema)
    else:
        unknown = [name for name in columns if schema.get_field_index(name) < 0]
        if unknown:
            raise BadRequest(
                f"unknown column {shown_name(unknown[0])};"
                f" the table has [{shown_names(schema.names)}]"
            )
        fields = [schema.field(name) for name in columns]
    if marks:
        # A deletion has only its key.
        fields = [field.with_nullable(True) for field in fields]
        fields.append(pa.field("_op", pa.string(), nullable=False))
    return pa.schema(fields)
