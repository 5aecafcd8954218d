"""Tries a column's type with extreme values before its first row is acknowledged.

Rows that are acknowledged and can never be written to a file would have to stay in the log for ever
(tests/tables/test_encodable.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from decimal import Context, Decimal
from functools import lru_cache
from typing import Any

import pyarrow as pa
import trio

from ingester.errors import BadRequest
from ingester.shown_text import shown_name
from persist.parquet.encode import encode_sorted
from persist.partitioning import PartitionSpec
from persist.table import TableDefinition

_KNOWN_TYPES = 10_000


async def check_encodable(columns: Iterable[pa.Field]) -> None:
    """Encode the extreme values of each column's type in memory, once per type.

    Raises:
        BadRequest: a type cannot be encoded; the message names the column.
    """
    await trio.to_thread.run_sync(_check, list(columns))


def _check(columns: list[pa.Field]) -> None:
    for field in columns:
        try:
            _encode_extremes(field.type)
        except pa.ArrowException as exc:
            raise BadRequest(
                f"column {shown_name(field.name)}: {field.type} cannot be written to files ({exc});"
                " use another type"
            ) from exc


@lru_cache(_KNOWN_TYPES)
def _encode_extremes(kind: pa.DataType) -> None:
    rows = pa.table({"c": extremes(kind)})
    definition = TableDefinition(rows.schema, PartitionSpec())
    for _ in encode_sorted(rows, definition, metadata={}, target_bytes=rows.nbytes):
        pass


def extremes(kind: pa.DataType) -> pa.Array:
    """Return the smallest and largest values of a table's type, special ones, and null.

    Args:
        kind: a type as :func:`ingester.schema.types.table_type` returns it.
    """
    t = pa.types
    if t.is_struct(kind):
        fields = [kind.field(place) for place in range(kind.num_fields)]
        columns = [extremes(field.type) for field in fields]
        rows = max(map(len, columns), default=1)
        padded = [pa.concat_arrays([c, pa.nulls(rows - len(c), c.type)]) for c in columns]
        whole = pa.StructArray.from_arrays(padded, fields=fields)
        return pa.concat_arrays([whole, pa.nulls(1, kind)])
    if t.is_map(kind):
        keys = extremes(kind.key_type).drop_null()
        items = extremes(kind.item_type)
        items = items.take(pa.array([n % len(items) for n in range(len(keys))]))
        offsets = pa.array([0, 0, len(keys)], pa.int32())
        return pa.concat_arrays(
            [pa.MapArray.from_arrays(offsets, keys, items, type=kind), pa.nulls(1, kind)]
        )
    if t.is_list(kind):
        values = extremes(kind.value_type)
        offsets = pa.array([0, 0, len(values)], pa.int32())
        return pa.concat_arrays(
            [pa.ListArray.from_arrays(offsets, values, type=kind), pa.nulls(1, kind)]
        )
    if t.is_timestamp(kind) or t.is_date32(kind):
        whole = pa.int32() if t.is_date32(kind) else pa.int64()
        return pa.array([*_integers(whole), 0, None], whole).view(kind)
    return pa.array([*_values(kind), None], kind)


def _values(kind: pa.DataType) -> list[Any]:
    t = pa.types
    if t.is_integer(kind):
        return _integers(kind)
    if t.is_floating(kind):
        return [math.nan, math.inf, -math.inf, -0.0, 0.0]
    if t.is_decimal(kind):
        largest = Decimal(10**kind.precision - 1).scaleb(-kind.scale, Context(prec=kind.precision))
        return [largest, largest.copy_negate(), Decimal(0)]
    if t.is_boolean(kind):
        return [False, True]
    if t.is_string(kind):
        return ["", "\0", "\U0010ffff", "x" * 300]
    if t.is_binary(kind):
        return [b"", b"\0", b"\xff" * 300]
    return []


def _integers(kind: pa.DataType) -> list[int]:
    if pa.types.is_signed_integer(kind):
        most = 2 ** (kind.bit_width - 1) - 1
        return [-most - 1, most]
    return [0, 2**kind.bit_width - 1]
