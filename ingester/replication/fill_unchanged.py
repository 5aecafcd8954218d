"""Folded changes become whole rows: what a row keeps is looked up in the table.

    Folded ──▶ ``kept_keys`` ──▶ (the table's rows with them) ──▶ ``whole_rows`` to upsert, delete

Law of this file: pure. A row that is to keep what the table does not have gets null for it.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from ingester.errors import InvalidRequest
from ingester.replication.fold import Changes, Folded, Rows
from persist.table import DELETED, TableDefinition, schema_with_deletes

_ROW = "_row"
"""A name that no column of a table has."""


def kept_keys(changes: Changes, folded: Folded, definition: TableDefinition) -> pa.Table | None:
    """Find the keys, as the table has them now, of rows that keep values; None where none does.

    Each key stands there once, under the names and types of the table's key.
    """
    keeps = np.zeros(len(folded.base), bool)
    for name in definition.schema.names:
        if name not in definition.primary_key:
            source = folded.sources.get(name)
            keeps |= True if source is None else source < 0
    keeps &= folded.base >= 0
    if not keeps.any():
        return None
    return pa.Table.from_batches([changes.old.take(pa.array(folded.base[keeps]))])


def whole_rows(
    changes: Changes, folded: Folded, definition: TableDefinition, kept: pa.Table | None
) -> pa.RecordBatch:
    """Make the rows that are there afterwards, then those that delete.

    They have those columns of `schema_with_deletes` that any of them has a value in, and those that
    say which partition they belong to.

    Args:
        kept: rows of the table with the kept keys, whole, in any order.

    Raises:
        InvalidRequest: a column that must not be null would be.
    """
    places = np.full(len(folded.base), -1, np.int64)
    if kept is not None:
        places = _places(changes, folded, definition, kept)
    upserts, deletes = folded.keys.num_rows, folded.deleted.num_rows
    columns, fields = [], []
    for field in schema_with_deletes(definition.schema):
        if field.name == DELETED:
            columns.append(pa.array(np.arange(upserts + deletes) >= upserts))
            fields.append(field)
            continue
        if not _may_have_values(definition.schema.field(field.name), definition, folded, kept):
            continue
        fields.append(field)
        field = definition.schema.field(field.name)
        if field.name in definition.primary_key:
            both = [folded.keys.column(field.name), folded.deleted.column(field.name)]
            columns.append(pa.concat_arrays(both))
            continue
        column = _values(field, changes, folded, kept, places)
        if not field.nullable and column.null_count:
            raise InvalidRequest(
                f"column {field.name!r}: {column.null_count} nulls in a column that the table"
                " declares as not nullable"
            )
        columns.append(pa.concat_arrays([column, pa.nulls(deletes, field.type)]))
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def _may_have_values(
    field: pa.Field, definition: TableDefinition, folded: Folded, kept: pa.Table | None
) -> bool:
    """Tell whether any row has a value in a column, or the column has to be there."""
    if not field.nullable or field.name in (*definition.primary_key, *definition.spec.columns):
        return True
    if field.name in folded.sources:
        return True
    return kept is not None and kept.column(field.name).null_count < kept.num_rows


def _places(changes: Changes, folded: Folded, definition: TableDefinition, kept: pa.Table) -> Rows:
    """Find for each row the one of ``kept`` that it goes on from, -1 for none."""
    key = list(definition.primary_key)
    at = np.flatnonzero(folded.base >= 0)
    asked = pa.Table.from_batches([changes.old.take(pa.array(folded.base[at]))])
    asked = asked.append_column("_at", pa.array(at))
    found = kept.select(key).append_column(_ROW, pa.array(np.arange(kept.num_rows)))
    pairs = asked.join(found.cast(_like(found.schema, asked.schema)), keys=key, join_type="inner")
    places = np.full(len(folded.base), -1, np.int64)
    places[pairs["_at"].to_numpy()] = pairs[_ROW].to_numpy()
    return places


def _like(schema: pa.Schema, other: pa.Schema) -> pa.Schema:
    """Make the first's columns nullable as the other's are."""
    names = set(other.names)
    return pa.schema([other.field(f.name) if f.name in names else f for f in schema])


def _values(
    field: pa.Field, changes: Changes, folded: Folded, kept: pa.Table | None, places: Rows
) -> pa.Array:
    """Make a column of the rows that are there afterwards."""
    rows = len(folded.base)
    sources = folded.sources.get(field.name, np.full(rows, -1, np.int64))
    sent = pa.nulls(0, field.type)
    if field.name in folded.sources:
        sent = changes.values.column(field.name)
    have = pa.nulls(0, field.type)
    if kept is not None:
        have = _array(kept.column(field.name))
    index = np.where(sources >= 0, sources, np.where(places >= 0, len(sent) + places, -1))
    both = pa.concat_arrays([sent, have]) if len(have) else sent
    return both.take(pa.array(index, mask=index < 0))


def _array(column: pa.ChunkedArray) -> pa.Array:
    joined = column.combine_chunks()
    return joined if isinstance(joined, pa.Array) else joined.chunk(0)
