"""Iceberg's form of a table's columns and partitions, as plain JSON values. Pure.

Columns have the numbers of :mod:`persist.parquet.field_ids`, and every field is optional. Schema
and spec ids are the manifest's. A partition field has the same number in all specs
(https://iceberg.apache.org/spec/#schemas-and-data-types).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import pyarrow as pa

from persist.parquet.field_ids import field_id, first_field_id, with_field_ids
from persist.partitioning import PartitionField, PartitionSpec
from persist.table import TableDefinition

FIRST_PARTITION_ID = 1000

_PLAIN = {
    pa.bool_(): "boolean",
    pa.int8(): "int",
    pa.int16(): "int",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.date32(): "date",
}
_SIGNED = {8: "int16", 16: "int32", 32: "int64", 64: "int64 or decimal(20, 0)"}


def type_name(kind: pa.DataType) -> str:
    """Iceberg's name of a type that is not nested.

    Raises:
        ValueError: Iceberg lacks it; the message says what helps.
    """
    if name := _PLAIN.get(kind):
        return name
    if pa.types.is_decimal128(kind):
        return f"decimal({kind.precision}, {kind.scale})"
    if pa.types.is_timestamp(kind) and kind.unit == "us":
        return "timestamptz" if kind.tz else "timestamp"
    if pa.types.is_timestamp(kind):
        raise ValueError("use timestamp_unit 'us'")
    if pa.types.is_unsigned_integer(kind):
        raise ValueError(f"use {_SIGNED[kind.bit_width]}")
    if pa.types.is_null(kind):
        raise ValueError("give it a type")
    raise ValueError("use another type")


def schema_json(definition: TableDefinition) -> dict[str, Any]:
    """The columns of a table that :func:`unsupported` finds nothing in."""
    fields = numbered(definition)
    return {
        "type": "struct",
        "schema-id": definition.schema_id,
        "fields": [_field(field) for field in fields],
    }


def numbered(definition: TableDefinition) -> pa.Schema:
    """The table's Arrow schema with the number of each field."""
    return _numbered(definition.schema, definition.first_schema_id)


# A publication needs it ten times; of 10,000 columns each would take 50 ms.
_numbered = lru_cache(maxsize=16)(with_field_ids)


def _field(field: pa.Field) -> dict[str, Any]:
    return {
        "id": field_id(field),
        "name": field.name,
        "required": False,
        "type": _type(field.type),
    }


def _type(kind: pa.DataType) -> Any:
    if pa.types.is_struct(kind):
        return {
            "type": "struct",
            "fields": [_field(kind.field(i)) for i in range(kind.num_fields)],
        }
    if pa.types.is_list(kind):
        return {
            "type": "list",
            "element-id": field_id(kind.value_field),
            "element": _type(kind.value_type),
            "element-required": False,
        }
    if pa.types.is_map(kind):
        return {
            "type": "map",
            "key-id": field_id(kind.key_field),
            "key": _type(kind.key_type),
            "value-id": field_id(kind.item_field),
            "value": _type(kind.item_type),
            "value-required": False,
        }
    return type_name(kind)


def last_column_id(definition: TableDefinition) -> int:
    """The highest number of a field, at any depth."""
    return max((number for number, _ in _leaves(numbered(definition), "")), default=0)


def name_mapping(definition: TableDefinition) -> list[dict[str, Any]]:
    """The numbers of the names in files that have no numbers."""

    def named(field: pa.Field, name: str) -> dict[str, Any]:
        inside = [named(part, part_name) for part, part_name in _parts(field.type)]
        mapped: dict[str, Any] = {"field-id": field_id(field), "names": [name]}
        return {**mapped, "fields": inside} if inside else mapped

    return [named(field, field.name) for field in numbered(definition)]


def _parts(kind: pa.DataType) -> list[tuple[pa.Field, str]]:
    """The fields inside a type, with Iceberg's and Parquet's names of them."""
    if pa.types.is_struct(kind):
        return [(kind.field(i), kind.field(i).name) for i in range(kind.num_fields)]
    if pa.types.is_list(kind):
        return [(kind.value_field, "element")]
    if pa.types.is_map(kind):
        return [(kind.key_field, "key"), (kind.item_field, "value")]
    return []


def _leaves(fields: Any, prefix: str) -> Iterator[tuple[int, str]]:
    """The number and the full name of each field, at any depth."""
    for field in fields:
        yield field_id(field), prefix + field.name
        for part, name in _parts(field.type):
            yield from _leaves([part.with_name(name)], f"{prefix}{field.name}.")


def unsupported(definition: TableDefinition) -> tuple[str, ...]:
    """Why Iceberg cannot express the table, one sentence per column; empty if it can."""
    found = []
    for field in definition.schema:
        for kind in _kinds(field.type):
            try:
                type_name(kind)
            except ValueError as exc:
                inside = "" if kind == field.type else f" inside {field.type}"
                found.append(
                    f"column {field.name!r} has type {kind}{inside}, which Iceberg lacks: {exc}"
                )
                break
    names = Counter(name for _, name in _leaves(numbered(definition), ""))
    found += [
        f"column {name!r} has the same name as a field inside another column: rename one of them"
        for name, count in names.items()
        if count > 1
    ]
    return tuple(found)


def _kinds(kind: pa.DataType) -> Iterator[pa.DataType]:
    """The types inside a type that are not nested."""
    parts = _parts(kind)
    if not parts:
        yield kind
    for part, _ in parts:
        yield from _kinds(part.type)


def specs_of(definition: TableDefinition) -> dict[int, PartitionSpec]:
    """All partition specs of a table, by id."""
    return dict(sorted([*definition.other_specs, (definition.spec_id, definition.spec)]))


def partition_ids(definition: TableDefinition) -> dict[PartitionField, int]:
    """The number of each transform of a column, in the order in which specs first used them."""
    first = FIRST_PARTITION_ID + first_field_id(definition.first_schema_id) - 1
    fields = [field for spec in specs_of(definition).values() for field in spec.fields]
    return {field: first + place for place, field in enumerate(dict.fromkeys(fields))}


def spec_json(definition: TableDefinition, spec_id: int) -> dict[str, Any]:
    """One partition spec."""
    numbers, schema = partition_ids(definition), numbered(definition)
    return {
        "spec-id": spec_id,
        "fields": [
            {
                "source-id": field_id(schema.field(field.column)),
                "field-id": numbers[field],
                "name": field.name,
                "transform": transform_name(field),
            }
            for field in definition.spec_of(spec_id).fields
        ],
    }


def transform_name(field: PartitionField) -> str:
    """A transform as Iceberg writes it."""
    return f"bucket[{field.buckets}]" if field.transform == "bucket" else field.transform


@lru_cache(maxsize=256)
def _result(transform: str, kind: pa.DataType) -> pa.DataType:
    if transform == "identity":
        return kind
    return pa.date32() if transform == "day" else pa.int32()


def result_type(field: PartitionField, kind: pa.DataType) -> pa.DataType:
    """The type of the values that a transform makes of a column of this type."""
    return _result(field.transform, kind)
