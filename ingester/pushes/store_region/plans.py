"""What a push brings, by its rows' columns and by the tables that regions have before it begins.

    columns, tables of regions ─▶ ``plan_for`` ─▶ the plan that the push is begun with

Law of this file: it reads only. Whatever can be refused by looking is refused here, with region and
column: rows that a table does not take, tables that differ from region to region, a shape that a
new table cannot have. A column that a table has keeps the table's type, and one that some region
has and another lacks is brought to all; so files that fit one region fit each of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations

import pyarrow as pa

from ingester.pushes.record import PushPlan
from ingester.pushes.regions import RegionUnreachable
from ingester.pushes.store_region.pushed_table import table_state
from ingester.pushes.store_region.shapes import (
    ShapeClash,
    check_brings,
    clash,
    new_definition,
    plan_like,
    plan_schema,
    widened_by,
    with_schema,
)
from ingester.pushes.store_region.store import RegionStore
from persist.partitioning import InvalidPartitionSpec, PartitionSpec
from persist.table import TableDefinition

Tables = Mapping[str, TableDefinition | None]
"""The table as it counts in each region, by the region's name; None where it is not there."""


def tables_of(stores: Iterable[RegionStore], namespace: str, table: str) -> Tables:
    """Return the table in each region that answers.

    A region that is away is asked again by the push, for as long as its rules say.
    """

    def look(region: RegionStore) -> tuple[str, TableDefinition | None] | None:
        try:
            with region.reached() as store:
                state = table_state(store, namespace, table)
        except RegionUnreachable:
            return None
        return region.name, None if state is None else TableDefinition.of_state(state)

    asked = list(stores)
    with ThreadPoolExecutor(max(1, len(asked)), thread_name_prefix="push-look") as pool:
        return dict(found for found in pool.map(look, asked) if found is not None)


def plan_for(tables: Tables, asked: PushPlan) -> PushPlan:
    """Return the plan to begin a push with; nothing is changed.

    Args:
        asked: The columns of the rows, and what was said of a table that is not there yet.

    Raises:
        ShapeClash: naming what clashes, and where.
    """
    columns = plan_schema(asked)
    there = {region: table for region, table in tables.items() if table is not None}
    if not there:
        plan = with_schema(asked, without_folders(columns, asked))
        return plan_like(new_definition(plan), plan)
    for (one, mine), (other, its) in combinations(there.items(), 2):
        if (why := clash(mine, its)) is not None:
            raise ShapeClash(f"the table of region {one} is not that of region {other}: {why}")
    wider = {region: _widened(region, table, asked) for region, table in there.items()}
    first = next(iter(wider.values()))
    everywhere = {field.name: field for table in wider.values() for field in table.schema}
    lacking = len(there) < len(tables) or any(
        set(table.schema.names) < set(everywhere) for table in wider.values()
    )
    fields = [f for f in everywhere.values() if lacking or f.name in columns.names]
    return with_schema(plan_like(first, asked), pa.schema(fields))


def without_folders(columns: pa.Schema, plan: PushPlan) -> pa.Schema:
    """Return the columns without those in which readers of a table see its partitions: no file has
    them.

    Raises:
        ShapeClash: the plan's partitions cannot be.
    """
    try:
        made = PartitionSpec.parse(plan.partition_by or ()).names
    except InvalidPartitionSpec as exc:
        raise ShapeClash(str(exc)) from exc
    return pa.schema([field for field in columns if field.name not in made])


def _widened(region: str, table: TableDefinition, plan: PushPlan) -> TableDefinition:
    try:
        check_brings(table, plan)
        return widened_by(table, plan)
    except ShapeClash as exc:
        raise ShapeClash(f"region {region}: {exc}") from exc
