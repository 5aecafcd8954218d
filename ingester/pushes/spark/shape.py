"""What a frame has and what the tables of all regions are, before anything is begun.

    frame ─▶ ``frame_columns``: what a table can have ─┐
    regions ─▶ ``store_region.plans``: what is there ──┴▶ ``plan_of``: what the push brings

Law of this file: it reads only, and refuses by name what no table has a type for; what clashes with
the tables that there are is refused by `ingester.pushes.store_region.plans`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import types as T

from ingester.pushes.record import PushPlan
from ingester.pushes.spark.result import PushRefused
from ingester.pushes.store_region.plans import Tables, plan_for, without_folders
from ingester.pushes.store_region.shapes import ShapeClash, plan_schema, with_schema
from ingester.schema.carried import takes
from ingester.spark.versions import arrow_schema

_KEPT = (
    T.BooleanType,
    T.ByteType,
    T.ShortType,
    T.IntegerType,
    T.LongType,
    T.FloatType,
    T.DoubleType,
    T.DecimalType,
    T.StringType,
    T.BinaryType,
    T.DateType,
    T.TimestampType,
    T.TimestampNTZType,
)


def frame_columns(frame: DataFrame) -> pa.Schema:
    """Return the columns of a frame, without those that have no type, as they are null throughout.

    Raises:
        PushRefused: No column, a type that no table has, or two columns of one name.
    """
    if not frame.schema.fields:
        raise PushRefused("the frame has no columns")
    names = [field.name for field in frame.schema.fields]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise PushRefused(f"the frame has {', '.join(map(repr, twice))} more than once")
    typed = [f for f in frame.schema.fields if not isinstance(f.dataType, T.NullType)]
    for field in typed:
        for kind in _not_kept(field.dataType):
            raise PushRefused(
                f"column {field.name!r}: no table has a type for Spark's {kind.simpleString()};"
                " cast it, or leave it out"
            )
    return pa.schema([field.with_nullable(True) for field in arrow_schema(T.StructType(typed))])


def plan_of(columns: pa.Schema, tables: Tables, asked: PushPlan) -> PushPlan:
    """Return what a push of these columns brings.

    Args:
        asked: What was said of a table that is not there yet, and of replayed rows.

    Raises:
        PushRefused: Naming what clashes, and where.
    """
    try:
        return plan_for(tables, with_schema(asked, columns))
    except ShapeClash as exc:
        raise PushRefused(str(exc)) from exc


def check_fits(columns: pa.Schema, plan: PushPlan) -> None:
    """Check that a frame is what a push that was begun brings.

    Raises:
        PushRefused: It has other columns.
    """
    schema = plan_schema(plan)
    for field in without_folders(columns, plan):
        place = schema.get_field_index(field.name)
        if place < 0 or not takes(schema.field(place).type, field.type):
            has = "none" if place < 0 else str(schema.field(place).type)
            raise PushRefused(
                f"column {field.name!r} is {field.type} in the frame, and the push was begun with"
                f" {has}; push it under another id"
            )


def _not_kept(kind: T.DataType) -> Iterator[T.DataType]:
    """The types, at any depth, that no table has."""
    if isinstance(kind, T.ArrayType):
        yield from _not_kept(kind.elementType)
    elif isinstance(kind, T.MapType):
        yield from _not_kept(kind.keyType)
        yield from _not_kept(kind.valueType)
    elif isinstance(kind, T.StructType):
        for field in kind.fields:
            yield from _not_kept(field.dataType)
        if not kind.fields:
            yield kind
    elif not isinstance(kind, _KEPT):
        yield kind
