"""What our own reader returns for a published version, and whether an engine returns the same."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from persist.manifest import Manifest, TableState
from persist.parquet.reading import DataFile, open_checked, sparse_rows
from persist.store import ObjectStore
from persist.table import TableDefinition
from tests.drivers.all_types import plain
from tests.drivers.wire import Table


class Version(NamedTuple):
    """A published version: its number in the formats, and the manifest version."""

    number: int
    table_version: int
    version: int
    first_schema_id: int
    """Another one after the table was defined again."""


def own_rows(store: ObjectStore, table: Table, version: Version) -> pa.Table:
    """The rows of a manifest version, read file by file with our own reader."""
    manifest = Manifest(store, *table, version.table_version)
    return rows_of_state(manifest, manifest.load(version.version))


def rows_of_state(manifest: Manifest, state: TableState) -> pa.Table:
    """The rows of a state, with the columns of its schema."""
    schema = TableDefinition.of_state(state).schema
    tables = []
    for add in state.files.values():
        file = DataFile.of(add, manifest.root)
        with manifest.store.open(file.path) as source:
            tables.append(sparse_rows(open_checked(source, file), schema).table())
    return pa.concat_tables([schema.empty_table(), *(t.cast(schema) for t in tables)])


def difference(found: pa.Table, wanted: pa.Table) -> str | None:
    """How rows differ, or None. The order of rows and the width of types do not matter."""
    if sorted(found.schema.names) != sorted(wanted.schema.names):
        return f"columns {found.schema.names}, wanted {wanted.schema.names}"
    if len(found) != len(wanted):
        return f"{len(found)} rows, wanted {len(wanted)}"
    there, here = (_sorted(simple(t.select(wanted.schema.names))) for t in (found, wanted))
    for name in wanted.schema.names:
        values = [plain(t[name].combine_chunks()) for t in (there, here)]
        if values[0] != values[1]:
            first = next((f, w) for f, w in zip(*values, strict=True) if f != w)
            kind = found.schema.field(name).type
            return f"column {name!r} ({kind}): {first[0]!r}, wanted {first[1]!r}"
    return None


def simple(rows: pa.Table) -> pa.Table:
    """The rows in the plain form of each type: engines choose large types and views."""
    columns = [
        pa.concat_arrays([_simple_array(chunk) for chunk in rows[name].chunks])
        if rows[name].num_chunks
        else pa.nulls(0, _simple_type(rows.schema.field(name).type))
        for name in rows.schema.names
    ]
    return pa.table(columns, rows.schema.names)


def _simple_type(kind: pa.DataType) -> pa.DataType:
    t = pa.types
    if t.is_large_string(kind) or t.is_string_view(kind):
        return pa.string()
    if t.is_large_binary(kind) or t.is_binary_view(kind):
        return pa.binary()
    if t.is_dictionary(kind):
        return _simple_type(kind.value_type)
    if t.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    if t.is_large_list(kind) or t.is_list(kind):
        return pa.list_(_simple_type(kind.value_type))
    if t.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        return pa.struct([pa.field(f.name, _simple_type(f.type)) for f in fields])
    if t.is_map(kind):
        return pa.map_(_simple_type(kind.key_type), _simple_type(kind.item_type))
    return kind


def _simple_array(array: pa.Array) -> pa.Array:
    kind = _simple_type(array.type)
    return array if kind == array.type else array.cast(kind)


def _sorted(rows: pa.Table) -> pa.Table:
    keys = [
        name
        for name in ("n", "i", "f")
        if name in rows.schema.names and not pa.types.is_nested(rows.schema.field(name).type)
    ]
    return rows.take(pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in keys]))
