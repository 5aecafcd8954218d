"""What a frame has and what the tables of all regions are, before anything is begun.

    frame ─▶ ``frame_columns``: what a table can have ─┐
    regions ─▶ ``tables_of``: what is there ───────────┴▶ ``plan_of``: what the push brings

Law of this file: it reads only. Whatever can be refused by looking is refused here, by name: a
column whose type the table does not take, tables that differ from region to region, a key or a
partition that a new table cannot have. A column that a table has keeps the table's type, and one
that some region has and another lacks is brought to all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import types as T

from ingester.lifecycle.push_config import RegionSettings
from ingester.lifecycle.pushed_table import table_state
from ingester.lifecycle.record import PushPlan
from ingester.lifecycle.region_store import RegionStore
from ingester.lifecycle.regions import RegionUnreachable
from ingester.lifecycle.shapes import (
    ShapeClash,
    check_brings,
    clash,
    new_definition,
    plan_like,
    plan_schema,
    widened_by,
    with_schema,
)
from ingester.schema.carried import takes
from ingester.spark.push.result import PushRefused
from ingester.spark.versions import arrow_schema
from persist.partitioning import InvalidPartitionSpec, PartitionSpec
from persist.table import TableDefinition

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
        PushRefused: A type that no table has, or two columns of one name.
    """
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


def tables_of(
    regions: Iterable[RegionSettings], namespace: str, table: str
) -> dict[str, TableDefinition | None]:
    """Return the table as it counts in each region that answers; None where it is not there.

    A region that is away is asked again by the push, for as long as its rules say.
    """

    def look(settings: RegionSettings) -> tuple[str, TableDefinition | None] | None:
        try:
            with RegionStore.open(settings).reached() as store:
                state = table_state(store, namespace, table)
        except RegionUnreachable:
            return None
        return settings.name, None if state is None else TableDefinition.of_state(state)

    asked = list(regions)
    with ThreadPoolExecutor(max(1, len(asked)), thread_name_prefix="push-look") as pool:
        return dict(found for found in pool.map(look, asked) if found is not None)


def plan_of(
    columns: pa.Schema, tables: Mapping[str, TableDefinition | None], asked: PushPlan
) -> PushPlan:
    """Return what a push of these columns brings.

    Args:
        tables: See :func:`tables_of`.
        asked: What was said of a table that is not there yet, and of replayed rows.

    Raises:
        PushRefused: Naming what clashes, and where.
    """
    there = {region: table for region, table in tables.items() if table is not None}
    try:
        if not there:
            plan = with_schema(asked, _without_folders(columns, asked))
            return plan_like(new_definition(plan), plan)
        _check_alike(there)
        wider = {
            region: _widened(region, table, with_schema(asked, columns))
            for region, table in there.items()
        }
    except (ShapeClash, InvalidPartitionSpec) as exc:
        raise PushRefused(str(exc)) from exc
    first = next(iter(wider.values()))
    everywhere = {field.name: field for table in wider.values() for field in table.schema}
    lacking = len(there) < len(tables) or any(
        set(table.schema.names) < set(everywhere) for table in wider.values()
    )
    fields = [f for f in everywhere.values() if lacking or f.name in columns.names]
    return with_schema(plan_like(first, asked), pa.schema(fields))


def check_fits(columns: pa.Schema, plan: PushPlan) -> None:
    """Check that a frame is what a push that was begun brings.

    Raises:
        PushRefused: It has other columns.
    """
    schema = plan_schema(plan)
    for field in _without_folders(columns, plan):
        place = schema.get_field_index(field.name)
        if place < 0 or not takes(schema.field(place).type, field.type):
            has = "none" if place < 0 else str(schema.field(place).type)
            raise PushRefused(
                f"column {field.name!r} is {field.type} in the frame, and the push was begun with"
                f" {has}; push it under another id"
            )


def _widened(region: str, table: TableDefinition, plan: PushPlan) -> TableDefinition:
    try:
        check_brings(table, plan)
        if plan.partition_by == () and table.spec.fields:
            raise ShapeClash(f"the table has partition_by {list(table.spec.texts())}, not none")
        return widened_by(table, plan)
    except ShapeClash as exc:
        raise ShapeClash(f"region {region}: {exc}") from exc


def _check_alike(tables: Mapping[str, TableDefinition]) -> None:
    for (one, mine), (other, its) in combinations(tables.items(), 2):
        if (why := clash(mine, its)) is not None:
            raise ShapeClash(f"the table of region {one} is not that of region {other}: {why}")


def _without_folders(columns: pa.Schema, plan: PushPlan) -> pa.Schema:
    """The columns without those that readers of a table see its partitions in: no file has them."""
    made = PartitionSpec.parse(plan.partition_by or ()).names
    return pa.schema([field for field in columns if field.name not in made])


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
