"""The first step of a switch: the version that counts takes nothing any more.

Law of this file: whatever can refuse a switch refuses it here, on the very state that is sealed; so
what is sealed can be finished. What is read for that is little, as writers commit meanwhile.
"""

from __future__ import annotations

from persist.manifest import (
    Action,
    Proposal,
    TableState,
    VersionSealed,
    check_kept,
    commit,
    switches,
)
from persist.manifest.table_versions import read_gone
from persist.store import ObjectStore
from persist.switching.importing import carried_after, check_since, clash
from persist.switching.move import Move, switcher


def seal(move: Move) -> TableState:
    """The old version's state at its seal, or a later one that has the same but for a horizon."""
    sealed, new = move.sealed, move.manifest(move.sealed.next).load()

    def rule(state: TableState, actions: tuple[Action, ...]) -> tuple[Action, ...]:
        if state.sealed == sealed:
            return ()
        if state.sealed is not None and state.sealed.switch == sealed.switch:
            raise VersionSealed(state.sealed)
        if state.switch >= sealed.switch:
            raise move.over
        # At each state anew: `forbid_switch` gives the version up, and then commits to this one.
        if read_gone(move.store, move.namespace, move.table, sealed.next) is not None:
            check_kept(move.store, move.namespace, move.table, sealed.next)
        reason = hindrance(move, state, new)
        if reason is not None:
            raise move.refused(reason)
        return actions

    who = move.owner or switcher()
    return commit(move.manifest(move.old), None, Proposal([sealed]), who, rule)


def hindrance(move: Move, state: TableState, new: TableState) -> str | None:
    """Why a version in this state cannot be switched from to the new one; None if it can."""
    return (
        _not_owned(move, state)
        or clash(state, new, reshape=move.sealed.reshape)
        or _cannot_carry(move, state, new)
    )


def _not_owned(move: Move, state: TableState) -> str | None:
    """Why the one who seals may not do so: rows that it knows nothing of may be on their way."""
    if move.owner is None:
        return None
    owner = state.owner
    if owner is not None and (owner.ingester_id, owner.epoch) == (
        move.owner.ingester_id,
        move.owner.epoch,
    ):
        return None
    name = "nobody" if owner is None else f"{owner.ingester_id!r} in its epoch {owner.epoch}"
    return f"{name} takes the table's writes, and not {move.owner.ingester_id!r}"


def _cannot_carry(move: Move, state: TableState, new: TableState) -> str | None:
    """Why the rows that were streamed into a version cannot go along; None if they can."""
    sealed = move.sealed
    if sealed.since is not None and (new.sealed is not None or new.imports):
        return "it has counted before, and may have some of the rows already"
    try:
        after = carried_after(sealed, state)
        if after is not None:
            check_since(move.manifest(move.old), state, after)
    except LookupError as exc:
        return f"{exc}; {'without carry it stays behind' if sealed.carry else 'push it anew'}"
    if sealed.since is None:
        return None
    began = counts_since(move.store, (move.namespace, move.table), state, sealed.since)
    if began is None:
        return None
    return (
        f"version {move.old} counts only since its manifest version {began}, and not since"
        f" {sealed.since}"
    )


def counts_since(
    store: ObjectStore, table: tuple[str, str], state: TableState, since: int
) -> int | None:
    """The version of its manifest at which a version began to count; None if that is not later.

    Rows that came before were pushed, and are not for a switch to take along.
    """
    began = min((each.into for each in state.imports.values()), default=0)
    if since >= began:
        return None
    # The table's first version began by no import.
    done = switches(store, *table)
    first = not done or done[0].switch.previous == state.table_version
    return None if first else began
