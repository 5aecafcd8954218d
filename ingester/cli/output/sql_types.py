"""Columns of SQL answers in types that the text formats know.

enum, extension, view and large types    the type that they stand for
time of day, decimal of 256 bits         text with all digits
INTERVAL                                 ISO 8601: P1M2DT3.5S
anything else                            the text of its Python value
"""

from typing import Any

import msgspec
import pyarrow as pa

from .values import json_values


def as_table_types(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with every column in a type that a table can have."""
    columns = list(map(_plain, batch.schema.names, batch.columns))
    return pa.RecordBatch.from_arrays(columns, batch.schema.names)


def _plain(name: str, column: pa.Array) -> pa.Array:
    kind = _plain_type(column.type)
    try:
        plain = column if kind == column.type else column.cast(kind)
        json_values(name, plain.slice(0, 0))
    except (pa.ArrowException, TypeError):
        return pa.array([_text(value) for value in column.to_pylist()], pa.string())
    return plain


def _plain_type(kind: pa.DataType) -> pa.DataType:
    t = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return (
            pa.string() if kind.extension_name == "arrow.uuid" else _plain_type(kind.storage_type)
        )
    if t.is_dictionary(kind):
        return _plain_type(kind.value_type)
    if t.is_large_string(kind) or t.is_string_view(kind) or t.is_time(kind):
        return pa.string()
    if t.is_large_binary(kind) or t.is_binary_view(kind) or t.is_fixed_size_binary(kind):
        return pa.binary()
    if t.is_decimal256(kind):
        return pa.string()
    if t.is_date64(kind):
        return pa.date32()
    if t.is_struct(kind):
        return pa.struct(
            [(kind.field(i).name, _plain_type(kind.field(i).type)) for i in range(kind.num_fields)]
        )
    if t.is_map(kind):
        return pa.map_(_plain_type(kind.key_type), _plain_type(kind.item_type))
    if (
        t.is_list(kind)
        or t.is_large_list(kind)
        or t.is_fixed_size_list(kind)
        or t.is_list_view(kind)
    ):
        return pa.list_(_plain_type(kind.value_type))
    return kind


def _text(value: Any) -> str | None:
    ready = _ready(value)
    return ready if ready is None or isinstance(ready, str) else msgspec.json.encode(ready).decode()


def _ready(value: Any) -> Any:
    """A value that JSON can have, with texts for all others."""
    if isinstance(value, pa.MonthDayNano):
        seconds, nanos = divmod(abs(value.nanoseconds), 10**9)
        sign = "-" if value.nanoseconds < 0 else ""
        fraction = f".{nanos:09}".rstrip("0") if nanos else ""
        return f"P{value.months}M{value.days}DT{sign}{seconds}{fraction}S"
    if isinstance(value, dict):
        return {str(name): _ready(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_ready(each) for each in value]
    return value if value is None or isinstance(value, bool | int) else str(value)
