"""The first step of a switch: the old version is sealed, and what the new one takes over.

Everything that can refuse a switch refuses it here, on the very state that is sealed; a sealed
switch can therefore always be completed (tests/persist/switching/test_switch.py). Little is read
for that, because writers commit meanwhile.

The new version may know more (a new column, its own files) but nothing different: ids of schemas
and specs mean the same in both, so rows laid out for the old one fit the new one. If the table is
defined again, all ids of the new version are above the old ones: rows laid out for the old
definition are recognised by their ids.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from persist.manifest import (
    CHANGEABLE,
    Action,
    Add,
    Applied,
    EpochComplete,
    Manifest,
    MomentNotKept,
    OriginAction,
    OriginExpired,
    Properties,
    Proposal,
    Sealed,
    SwitchedMeanwhile,
    SwitchRefused,
    TableState,
    VersionNotKept,
    VersionSealed,
    WriterIdentity,
    check_kept,
    commit,
    kept_versions,
    switches,
    version_as_of,
)
from persist.manifest.actions import is_push_mark
from persist.manifest.lineage import read_floor
from persist.manifest.origins import of_every
from persist.manifest.table_versions import read_gone
from persist.store import ObjectStore


@dataclass(frozen=True, slots=True)
class Move:
    """One switch under way: the old version, and the seal. Everything needed to complete it.

    Attributes:
        owner: The only daemon that may seal, as the owner of the table's writes.
    """

    store: ObjectStore
    namespace: str
    table: str
    old: int
    sealed: Sealed
    owner: WriterIdentity | None = None

    def manifest(self, version: int) -> Manifest:
        """The manifest of a version of the table."""
        return Manifest(self.store, self.namespace, self.table, version)

    def refused(self, reason: str) -> SwitchRefused:
        """The error of a switch that is not possible."""
        return SwitchRefused(self.namespace, self.table, self.sealed.next, reason)

    @property
    def over(self) -> SwitchedMeanwhile:
        """The error of a switch that another one overtook."""
        return SwitchedMeanwhile(self.namespace, self.table, self.sealed.switch)


def switcher() -> WriterIdentity:
    """An identity for switch commits that no daemon has and that fences nobody."""
    return WriterIdentity(ingester_id="_table_versions", incarnation=uuid.uuid4().hex, epoch=0)


def clash(old: TableState, new: TableState, *, reshape: bool = False) -> str | None:
    """Why ``new`` cannot replace ``old``; None if it can.

    Args:
        reshape: Whether the table is defined again, with its own ids.
    """
    if reshape:
        return _redefinition_clash(old, new)
    if not any(number in new.schemas for number in old.schemas):
        return "the table was defined again between it and the current version"
    for what, olds, news in (
        ("schema", old.schemas, new.schemas),
        ("partition spec", old.specs, new.specs),
    ):
        for number, one in olds.items():
            if number in news and news[number] != one:
                return f"its {what} {number} differs from that of the current version"
    mine, other = _lasting(new.properties), _lasting(old.properties)
    for name in sorted(mine.keys() | other.keys()):
        if mine.get(name) != other.get(name):
            return f"its {name} is {mine.get(name)}, that of the current version {other.get(name)}"
    return None


def _redefinition_clash(old: TableState, new: TableState) -> str | None:
    for what, olds, news in (
        ("schema", old.schemas, new.schemas),
        ("partition spec", old.specs, new.specs),
    ):
        if min(news, default=0) <= max(olds, default=0):
            return (
                f"its {what} {min(news, default=0)} is not above {max(olds, default=0)}, the newest"
                " of the current version"
            )
    if new.imports or new.sealed is not None:
        return "it was current before; only a new version can define the table again"
    return None


def imported_actions(
    old: TableState, new: TableState, *, reshape: bool = False
) -> Iterator[Action]:
    """The actions that record in ``new`` what ``old`` knows of its writers.

    ``new`` may have been current before, and then knows less of each, not more.

    Args:
        reshape: The table is defined again: ``new`` keeps its own schemas, specs and properties,
            and the source states that came with its rows.
    """
    if not reshape:
        yield from (one for number, one in sorted(old.schemas.items()) if number not in new.schemas)
        yield from (one for number, one in sorted(old.specs.items()) if number not in new.specs)
        if dict(old.properties) != dict(new.properties):
            yield Properties(values=dict(old.properties))
    for writer in old.writers.values():
        known = new.writers.get(writer.ingester_id)
        if writer != known and (known is None or known.epoch <= writer.epoch):
            yield writer
    if old.owner is not None and old.owner != new.owner:
        yield old.owner
    yield from _applied(old, new)
    for name, origin in new.origins.items():
        if name not in old.origins:
            yield OriginExpired(name=name, at=origin.at)
    for name, origin in old.origins.items():
        one = _without_partitions(origin) if reshape else origin
        if new.origins.get(name) != one:
            yield one
    changed = [
        one
        for name, one in old.checkpoints.items()
        if new.checkpoints.get(name) != one and not (reshape and name in new.checkpoints)
    ]
    needed = {one.shared for one in changed}
    yield from (one for name, one in old.shared_states.items() if name in needed)
    yield from changed
    for app_id, version in old.txns.items():
        # Push marks of the old version stay with it.
        if not is_push_mark(app_id) and new.txns.get(app_id, -1) < version:
            yield old.txn(app_id)


def _without_partitions(origin: OriginAction) -> OriginAction:
    """An origin without progress per partition, because the partitions are others now.

    No buffer has rows of it then, so nothing of it is in only some partitions.
    """
    runs = tuple(msgspec.structs.replace(run, ahead=of_every(run.ahead)) for run in origin.runs)
    return msgspec.structs.replace(origin, ahead=of_every(origin.ahead), runs=runs)


def _applied(old: TableState, new: TableState) -> Iterator[Action]:
    for ingester_id, epoch in sorted(old.epochs_complete - new.epochs_complete):
        yield EpochComplete(ingester_id=ingester_id, epoch=epoch)
    for key, seq in old.applied.items():
        if new.applied_to(*key) < seq:
            ingester_id, epoch, spec_id, values = key
            yield Applied(
                ingester_id=ingester_id, epoch=epoch, spec_id=spec_id, values=values, seq=seq
            )


def carried_after(sealed: Sealed, state: TableState) -> int | None:
    """The manifest version after which a sealed state's rows are carried over; None for none.

    Raises:
        LookupError: It did not take over from the version that it goes back to.
    """
    if sealed.since is not None or not sealed.carry:
        return sealed.since
    imported = state.imports.get(sealed.next)
    if imported is None:
        raise LookupError(f"the current version never took over from version {sealed.next}")
    return imported.into


def check_since(manifest: Manifest, state: TableState, after: int) -> None:
    """Check that it is known what came into a version after that version of its manifest.

    Raises:
        LookupError: The manifest version does not exist, or is not kept.
    """
    if not 0 <= after <= state.version:
        raise LookupError(f"its manifest has no version {after}: the newest is {state.version}")
    # Called at each attempt of a seal, while others commit. From the floor on nothing is deleted;
    # finding what is kept below it would take dozens of requests.
    if read_floor(manifest.store, manifest.folder) <= max(after, 1):
        return
    oldest, _ = kept_versions(manifest)
    if oldest > max(after, 1):
        raise _untold(after, VersionNotKept(after, oldest, state.version))


def carried(manifest: Manifest, state: TableState, after: int) -> list[Add]:
    """The files of rows that came into a version after that version of its manifest.

    Includes files that a compaction has replaced since: the rows are the same.

    Raises:
        LookupError: It was too long ago.
    """
    check_since(manifest, state, after)
    try:
        changes = manifest.changes(after, state.version)
    except VersionNotKept as exc:
        raise _untold(after, exc) from exc
    return [
        action
        for one in changes
        for action in one.actions
        if isinstance(action, Add) and action.kind != "rewrite"
    ]


def version_at(manifest: Manifest, moment: datetime) -> int:
    """The last version of a manifest committed at or before a moment; 0 for none.

    For ``since`` of a switch: what came after that moment came after that version.

    Raises:
        MomentNotKept: It is older than what is kept.
        TableNotFound: The table version does not exist.
        ValueError: The moment has no time zone.
    """
    try:
        return version_as_of(manifest, moment)
    except MomentNotKept:
        if kept_versions(manifest)[0] > 1:
            raise
        return 0


def _untold(after: int, exc: VersionNotKept) -> LookupError:
    return LookupError(f"what was written since manifest version {after} is no longer known: {exc}")


def _lasting(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in properties.items() if name not in CHANGEABLE}


def seal(move: Move) -> TableState:
    """The old version's state at its seal, or a later one that differs only in a horizon."""
    sealed, new = move.sealed, move.manifest(move.sealed.next).load()

    def rule(state: TableState, actions: tuple[Action, ...]) -> tuple[Action, ...]:
        if state.sealed == sealed:
            return ()
        if state.sealed is not None and state.sealed.switch == sealed.switch:
            raise VersionSealed(state.sealed)
        if state.switch >= sealed.switch:
            raise move.over
        # Checked on each state: `forbid_switch` gives the version up, then commits to this one.
        if read_gone(move.store, move.namespace, move.table, sealed.next) is not None:
            check_kept(move.store, move.namespace, move.table, sealed.next)
        reason = hindrance(move, state, new)
        if reason is not None:
            raise move.refused(reason)
        return actions

    who = move.owner or switcher()
    return commit(move.manifest(move.old), None, Proposal([sealed]), who, rule)


def hindrance(move: Move, state: TableState, new: TableState) -> str | None:
    """Why a version in this state cannot be switched to the new one; None if it can."""
    return (
        _not_owned(move, state)
        or clash(state, new, reshape=move.sealed.reshape)
        or _cannot_carry(move, state, new)
    )


def _not_owned(move: Move, state: TableState) -> str | None:
    """Why the sealing daemon may not seal: another owner may have rows under way."""
    if move.owner is None:
        return None
    owner = state.owner
    if owner is not None and (owner.ingester_id, owner.epoch) == (
        move.owner.ingester_id,
        move.owner.epoch,
    ):
        return None
    name = "nobody" if owner is None else f"{owner.ingester_id!r} in epoch {owner.epoch}"
    return f"{name} owns the table's writes, not {move.owner.ingester_id!r}"


def _cannot_carry(move: Move, state: TableState, new: TableState) -> str | None:
    """Why the rows streamed into a version cannot be carried over; None if they can."""
    sealed = move.sealed
    if sealed.since is not None and (new.sealed is not None or new.imports):
        return "it was current before, and may already have some of the rows"
    try:
        after = carried_after(sealed, state)
        if after is not None:
            check_since(move.manifest(move.old), state, after)
    except LookupError as exc:
        return f"{exc}; {'without carry the rows stay behind' if sealed.carry else 'push it again'}"
    if sealed.since is None:
        return None
    began = counts_since(move.store, (move.namespace, move.table), state, sealed.since)
    if began is None:
        return None
    return (
        f"version {move.old} is current only since its manifest version {began}, not since"
        f" {sealed.since}"
    )


def counts_since(
    store: ObjectStore, table: tuple[str, str], state: TableState, since: int
) -> int | None:
    """The manifest version at which a version became current; None if that is not later.

    Rows that came before were pushed, and a switch does not carry them.
    """
    began = min((each.into for each in state.imports.values()), default=0)
    if since >= began:
        return None
    # The table's first version had no import.
    done = switches(store, *table)
    first = not done or done[0].switch.previous == state.table_version
    return None if first else began
