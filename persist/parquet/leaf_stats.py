"""The leaves of a Parquet file that have statistics: none where a NaN may be.

Law of this file: pure. Parquet's writers leave NaN out of min and max, while Spark and DuckDB hold
it for greater than every number and equal to itself: they would skip ``3, NaN, 3`` where ``!= 3``
or ``> 3`` is asked for. Without min and max no reader skips anything. They are left out for a leaf
as Parquet knows it: of a column ``s`` of structs ``s.v``, of lists ``l.list.element``.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from persist.parquet.sparse_rows import SparseRows

Leaf = tuple[str, pa.ChunkedArray]


def leaves_without_nan(rows: SparseRows) -> list[str] | bool:
    """The paths of leaves of these rows that hold no NaN, True for all; ``write_statistics``."""
    holding = {
        path
        for name, parts in rows.parts.items()
        if has_floats(rows.schema.field(name).type)
        for path, column in _leaves(name, pa.chunked_array([*parts.values()]))
        if _holds_nan(column)
    }
    if not holding:
        return True
    # A column named ``s.v`` has the path of ``v`` inside ``s``.
    return [path for path, _ in _leaves_of(rows.schema) if path not in holding]


def leaves_without_floats(schema: pa.Schema) -> list[str] | bool:
    """The paths of leaves without NaN in rows that nobody has seen yet, which may hold anything."""
    if not any(has_floats(field.type) for field in schema):
        return True
    found = _leaves_of(schema)
    floats = {path for path, column in found if has_floats(column.type)}
    return [path for path, _ in found if path not in floats]


def has_floats(kind: pa.DataType) -> bool:
    """Whether there are floating-point numbers in a value of this type, at any depth."""
    if pa.types.is_dictionary(kind):
        return has_floats(kind.value_type)
    if pa.types.is_nested(kind):
        return any(has_floats(kind.field(i).type) for i in range(kind.num_fields))
    return bool(pa.types.is_floating(kind))


def _leaves_of(schema: pa.Schema) -> list[Leaf]:
    """The leaves of a schema, by a table without rows."""
    empty = schema.empty_table()
    return [leaf for field in schema for leaf in _leaves(field.name, empty[field.name])]


def _leaves(path: str, column: pa.ChunkedArray) -> Iterator[Leaf]:
    """The leaves of a column, with the names that pyarrow gives to them in Parquet."""
    kind = column.type
    if pa.types.is_map(kind):
        for name, index in (("key", 0), ("value", 1)):
            parts = [(chunk.keys, chunk.items)[index] for chunk in column.chunks]
            inner = (kind.key_type, kind.item_type)[index]
            yield from _leaves(f"{path}.key_value.{name}", pa.chunked_array(parts, inner))
    elif pa.types.is_struct(kind):
        for field, inner in zip(kind, column.flatten(), strict=True):
            yield from _leaves(f"{path}.{field.name}", inner)
    elif pa.types.is_nested(kind):
        yield from _leaves(f"{path}.list.element", pc.list_flatten(column))
    else:
        yield path, column


def _holds_nan(column: pa.ChunkedArray) -> bool:
    if pa.types.is_dictionary(column.type):
        column = pa.chunked_array(
            [chunk.dictionary for chunk in column.chunks], column.type.value_type
        )
    if not pa.types.is_floating(column.type):
        return False
    return any(pc.any(pc.is_nan(chunk)).as_py() for chunk in column.chunks)
