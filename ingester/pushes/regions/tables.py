"""The table of a push before its generation exists: looked at, planned for, created or widened.

    columns, tables of all regions ─▶ ``plan_for`` ─▶ the plan that the push starts with
    a region without the table, or with fewer columns ─▶ ``ready_table``

``plan_for`` only reads, and refuses everything that can be refused by looking, with region and
column: rows that do not fit, tables that differ between regions, an impossible new table. An
existing column keeps its type, and one that some region lacks is added everywhere, so that files
which fit one region fit all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from itertools import combinations

import pyarrow as pa

from ingester.pushes.record import PushPlan, PushRecord
from ingester.pushes.regions.generation import pusher
from ingester.pushes.regions.shapes import (
    ShapeClash,
    check_brings,
    clash,
    new_definition,
    plan_like,
    plan_schema,
    widened_by,
    with_schema,
)
from ingester.pushes.regions.store import PATIENCE, RegionStore
from ingester.pushes.tasks import RegionFailed, RegionUnreachable
from persist.manifest import (
    Action,
    Manifest,
    MomentNotKept,
    Proposal,
    ProposalConflict,
    TableNotFound,
    TableState,
    VersionSealed,
    commit,
    current_version,
    kept_versions,
)
from persist.partitioning import InvalidPartitionSpec, PartitionSpec
from persist.store import ObjectStore
from persist.switching import counts_since, load_current, version_at
from persist.table import TableDefinition

_TRIES = 20
Tables = Mapping[str, TableDefinition | None]
"""The current table in each region, by the region's name; None if it does not exist there."""


def tables_of(stores: Iterable[RegionStore], namespace: str, table: str) -> Tables:
    """Return the table in each region that answers; the push asks the others later."""

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
    """Return the plan of a new push.

    Args:
        asked: the columns of the rows, and the requested shape of a new table.

    Raises:
        ShapeClash: naming the region and the column.
    """
    columns = plan_schema(asked)
    there = {region: table for region, table in tables.items() if table is not None}
    if not there:
        plan = with_schema(asked, without_folders(columns, asked))
        return plan_like(new_definition(plan), plan)
    for (one, mine), (other, its) in combinations(there.items(), 2):
        if (why := clash(mine, its)) is not None:
            raise ShapeClash(f"the tables of regions {one} and {other} differ: {why}")
    wider = {region: _widened(region, table, asked) for region, table in there.items()}
    first = next(iter(wider.values()))
    everywhere = {field.name: field for table in wider.values() for field in table.schema}
    lacking = len(there) < len(tables) or any(
        set(table.schema.names) < set(everywhere) for table in wider.values()
    )
    fields = [f for f in everywhere.values() if lacking or f.name in columns.names]
    return with_schema(plan_like(first, asked), pa.schema(fields))


def without_folders(columns: pa.Schema, plan: PushPlan) -> pa.Schema:
    """Return the columns without partition values, which readers see but files do not contain.

    Raises:
        ShapeClash: the partitions are invalid.
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


def ready_table(store: ObjectStore, push: PushRecord) -> TableState:
    """Return the state of the current generation, after adding the columns that it lacks.

    A missing table is created. Concurrent changes by others, such as daemons that widen the table,
    are retried.

    Raises:
        RegionFailed: the push's columns do not fit.
        RegionUnreachable: too many concurrent changes.
    """
    for _ in range(_TRIES):
        state = table_state(store, push.namespace, push.table)
        try:
            actions = _missing(state, push)
        except ShapeClash as exc:
            raise RegionFailed(str(exc)) from exc
        if state is not None and not actions:
            return state
        number = current_version(store, push.namespace, push.table)
        if state is not None and state.table_version != number:
            continue
        manifest = Manifest(store, push.namespace, push.table, number)
        try:
            commit(manifest, state, Proposal(actions), pusher(), patience=PATIENCE)
        except (ProposalConflict, VersionSealed):
            continue
    raise RegionUnreachable("too many concurrent changes of the table's columns")


def table_state(store: ObjectStore, namespace: str, table: str) -> TableState | None:
    """Return the state of the current generation; None if there is no table."""
    try:
        return load_current(store, namespace, table)
    except TableNotFound:
        return None


def _missing(state: TableState | None, push: PushRecord) -> tuple[Action, ...]:
    """Return the actions that add what the table lacks."""
    if state is None:
        return new_definition(push.plan).actions()
    have = TableDefinition.of_state(state)
    wanted = widened_by(have, push.plan)
    return () if wanted is have else (wanted.schema_action(),)


def replay_text(since: object) -> str | None:
    """Return ``replay_since`` as the plan of a push has it, from a text, a number or a time.

    Raises:
        ValueError: it is none of them.
    """
    if since is None:
        return None
    if isinstance(since, datetime):
        since = since.isoformat()
    elif isinstance(since, int) and not isinstance(since, bool):
        since = str(since)
    if not isinstance(since, str):
        raise ValueError(
            f"replay_since {since!r}: a value of type {type(since).__name__}; {_REPLAY_SINCE}"
        )
    replay_start(since)
    return since


_REPLAY_SINCE = (
    'expected "start", a time with zone such as 2026-11-26T08:00:00Z, or a manifest version'
)


def replay_start(since: str) -> int | datetime | None:
    """Return the manifest version or time of ``replay_since``; None for ``"start"``.

    Raises:
        ValueError: it is none of them.
    """
    if since == "start":
        return None
    if since.isascii() and since.isdecimal():
        return int(since)
    try:
        moment = datetime.fromisoformat(since)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise ValueError(f"replay_since {since!r}: {_REPLAY_SINCE}")
    return moment


def replay_version(
    store: ObjectStore, push: PushRecord, state: TableState, newest: int
) -> int | None:
    """Return the manifest version after which rows are replayed; None if no rows are.

    Args:
        state: of the current generation, whose manifest is meant.
        newest: the version of its manifest that ``"start"`` means.

    Raises:
        RegionFailed: the time or version is no longer available, or another generation was current
            then.
    """
    if push.plan.replay_since is None:
        return None
    manifest = Manifest(store, push.namespace, push.table, state.table_version)
    try:
        since = _version_of(manifest, replay_start(push.plan.replay_since), newest)
    except (ValueError, MomentNotKept) as exc:
        raise RegionFailed(str(exc)) from exc
    began = counts_since(store, (push.namespace, push.table), state, since)
    if began is not None:
        raise RegionFailed(
            f"replay_since {push.plan.replay_since}: generation {state.table_version} is current"
            f" only since version {began} of its manifest; rows can be replayed since then"
        )
    return since


def _version_of(manifest: Manifest, start: int | datetime | None, newest: int) -> int:
    if start is None:
        return newest
    if isinstance(start, datetime):
        return version_at(manifest, start)
    oldest, head = kept_versions(manifest)
    if not oldest <= max(start, 1) <= head:
        raise ValueError(f"replay_since: version {start} is not available; {oldest} to {head} are")
    return start
