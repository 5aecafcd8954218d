"""The table that a push goes to, in one store: made where there is none, widened where it lacks
columns.

Law of this file: what others do to the table meanwhile, daemons that widen it among them, is looked
at anew until the table has what the push needs. Twice is fine.
"""

from __future__ import annotations

from datetime import datetime

from ingester.pushes.record import PushRecord
from ingester.pushes.regions import RegionFailed, RegionUnreachable
from ingester.pushes.store_region.pushed_version import pusher
from ingester.pushes.store_region.shapes import ShapeClash, new_definition, widened_by
from ingester.pushes.store_region.store import PATIENCE
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
from persist.store import ObjectStore
from persist.switching import counts_since, load_current, version_at
from persist.table import TableDefinition

_TRIES = 20


def ready_table(store: ObjectStore, push: PushRecord) -> TableState:
    """Return the state of the version that counts, with all columns that the push brings.

    Raises:
        RegionFailed: the push's columns do not go into the table.
        RegionUnreachable: others change the table all the time.
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
    raise RegionUnreachable("others change the table's columns all the time")


def table_state(store: ObjectStore, namespace: str, table: str) -> TableState | None:
    """Return the state of the version that counts, None where there is no table."""
    try:
        return load_current(store, namespace, table)
    except TableNotFound:
        return None


def _missing(state: TableState | None, push: PushRecord) -> tuple[Action, ...]:
    """The actions that give the table what the push needs."""
    if state is None:
        return new_definition(push.plan).actions()
    have = TableDefinition.of_state(state)
    wanted = widened_by(have, push.plan)
    return () if wanted is have else (wanted.schema_action(),)


def replay_start(since: str) -> int | datetime | None:
    """Return the version of the manifest, or the time, that a text names; None for ``"start"``.

    Raises:
        ValueError: it names none.
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
        raise ValueError(
            f'replay_since {since!r}: expected "start", a time with its zone as'
            " 2026-11-26T08:00:00Z, or a version of the manifest"
        )
    return moment


def replay_version(
    store: ObjectStore, push: PushRecord, state: TableState, newest: int
) -> int | None:
    """Return the version of the manifest after which rows are replayed; None where they are not.

    Args:
        state: Of the version that counts, whose manifest is meant.
        newest: The version of its manifest that ``"start"`` means.

    Raises:
        RegionFailed: the plan names no time or version that is kept, or one at which another
            version counted.
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
            f"replay_since {push.plan.replay_since}: version {state.table_version} of the table"
            f" counts only since version {began} of its manifest; rows can be replayed from then on"
        )
    return since


def _version_of(manifest: Manifest, start: int | datetime | None, newest: int) -> int:
    if start is None:
        return newest
    if isinstance(start, datetime):
        return version_at(manifest, start)
    oldest, head = kept_versions(manifest)
    if not oldest <= max(start, 1) <= head:
        raise ValueError(f"replay_since: of {oldest} to {head}, version {start} is none")
    return start
