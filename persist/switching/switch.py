"""From one version of a table to another, and back: three steps, of which anyone may do the rest.

    the old version's manifest   sealed      nothing comes into it any more
    the new version's manifest   imported    what the old one knew of writers, origins, checkpoints
    _current/<n>                 created     readers and writers find the new one

Law of this file: each step is done once, whoever does it and however often. All three carry the
number n, which is the next after the switch that was the last when this one began: a process that
slept through other switches finds a higher number, and does nothing. Whatever can refuse a switch
refuses it before the seal, on the very state that is sealed; so what is sealed can be finished. A
version that was given up meanwhile is refused there, too (``forbidding``).

What a retry of a batch is known by is imported in the same commit as the rest: a batch that was
written before the seal is a duplicate behind it, too. Rows that were streamed into the version that
is left go along, in a rollback those since it counts, to a new version those since ``since``: their
files are copied, most of them before the seal, and listed in that same commit.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from persist.manifest import (
    Action,
    Add,
    Imported,
    Manifest,
    ManifestDamaged,
    Proposal,
    Sealed,
    Switch,
    SwitchedMeanwhile,
    SwitchRefused,
    TableState,
    Unsealed,
    UploadExpired,
    VersionSealed,
    WriterIdentity,
    check_kept,
    check_uploads,
    commit,
    last_switch,
    switches,
)
from persist.manifest.paths import current_folder, numbered
from persist.manifest.table_versions import read_switch
from persist.store import AlreadyExists, ObjectStore
from persist.switching.carrying import copied
from persist.switching.importing import (
    carried,
    carried_after,
    check_since,
    clash,
    imported_actions,
)


@dataclass(frozen=True, slots=True)
class _Move:
    """One switch under way: from which version, and what the seal says of it."""

    store: ObjectStore
    namespace: str
    table: str
    old: int
    sealed: Sealed

    def manifest(self, version: int) -> Manifest:
        return Manifest(self.store, self.namespace, self.table, version)

    def refused(self, reason: str) -> SwitchRefused:
        return SwitchRefused(self.namespace, self.table, self.sealed.next, reason)

    @property
    def over(self) -> SwitchedMeanwhile:
        return SwitchedMeanwhile(self.namespace, self.table, self.sealed.switch)


def switcher() -> WriterIdentity:
    """An identity to commit switches under that no daemon can have, and that fences nobody."""
    return WriterIdentity(ingester_id="_table_versions", incarnation=uuid.uuid4().hex, epoch=0)


def switch_version(
    store: ObjectStore,
    namespace: str,
    table: str,
    version: int,
    *,
    push_id: str | None = None,
    since: int | None = None,
    previous: int | None = None,
) -> Switch:
    """Make a version of the table the one that counts; nothing where it is that. Blocks.

    Args:
        push_id: Of the push that made it, which goes in once: whoever comes back to that does not
            undo a rollback.
        since: A version of the manifest of the table version that counts: rows that came into it
            after that go along, each once. Only a version that has not counted yet takes them.
        previous: The version that has to count now. Give it with ``since``, which says nothing of
            another one's manifest.

    Raises:
        TableVersionNotKept: There is no such version, or it was given up.
        SwitchRefused: Its columns, partitions or keys do not go on from the present ones; or the
            push was in, and another version counts by now; or that is not ``previous``; or what
            came ``since`` cannot be told.
        VersionSealed: Another switch is under way: :func:`finish_switch` ends it.
        SwitchedMeanwhile: Another one was faster.
        StoreUnavailable, CommitUnclear: Call it again: whatever was done stays done.
    """
    number, last = last_switch(store, namespace, table)
    if last.table_version == version:
        return last
    for each in switches(store, namespace, table):
        if push_id is not None and (each.switch.push_id, each.switch.why) == (push_id, "swap"):
            reason = f"push {push_id} was in by switch {each.number}, and is not any more"
            raise SwitchRefused(namespace, table, version, reason)
    if previous not in (None, last.table_version):
        reason = f"version {last.table_version} counts by now, and not {previous}"
        raise SwitchRefused(namespace, table, version, reason)
    check_kept(store, namespace, table, version)
    sealed = Sealed(next=version, switch=number + 1, push_id=push_id, since=since)
    return _carry_out(_Move(store, namespace, table, last.table_version, sealed))


def roll_back(
    store: ObjectStore,
    namespace: str,
    table: str,
    version: int | None = None,
    *,
    push_id: str | None = None,
    carry: bool = True,
) -> Switch:
    """Make the version count again that did so before the present one. Blocks.

    Args:
        version: The one to be left: where another counts, nothing is done, so that a rollback that
            is repeated goes back once. By default whichever counts.
        carry: Whether the rows that were streamed into the present version go along. Without it
            they stay there, and are gone with it; a client that sends them again is told that they
            are duplicates.

    Raises:
        SwitchRefused: There was no version before; or ``carry``, and its rows cannot be told apart
            or taken along.
        TableVersionNotKept, VersionSealed, SwitchedMeanwhile, StoreUnavailable, CommitUnclear: As
            :func:`switch_version`.
    """
    done = switches(store, namespace, table)
    number = done[-1].number if done else 0
    current = done[-1].switch if done else Switch(table_version=1)
    if version not in (None, current.table_version):
        return current
    before = _versions_before([each.switch for each in done])
    if not before:
        raise SwitchRefused(namespace, table, 0, "no version counted before the present one")
    check_kept(store, namespace, table, before[-1])
    sealed = Sealed(
        next=before[-1], switch=number + 1, push_id=push_id, why="rollback", carry=carry
    )
    return _carry_out(_Move(store, namespace, table, current.table_version, sealed))


def finish_switch(store: ObjectStore, namespace: str, table: str) -> Switch:
    """Do what is left of a switch that somebody has begun; the last one where none is under way.

    Raises:
        StoreUnavailable, CommitUnclear: Call it again.
        TableNotFound: There is no such table.
    """
    number, last = last_switch(store, namespace, table)
    state = Manifest(store, namespace, table, last.table_version).load()
    if state.sealed is None or state.sealed.switch <= number:
        return last
    return _carry_out(_Move(store, namespace, table, last.table_version, state.sealed))


def load_current(store: ObjectStore, namespace: str, table: str) -> TableState:
    """The newest state of the table version that counts; a switch under way is finished first.

    Raises:
        TableNotFound: There is no such table.
        ManifestDamaged: The version that counts is sealed for a switch that is over.
        StoreUnavailable, CommitUnclear: Call it again.
    """
    while True:
        number, last = last_switch(store, namespace, table)
        state = Manifest(store, namespace, table, last.table_version).load()
        if state.sealed is None:
            return state
        if state.sealed.switch > number:
            with suppress(SwitchedMeanwhile, VersionSealed):  # others are on it, so look again
                finish_switch(store, namespace, table)
        elif last_switch(store, namespace, table)[0] == number:
            path = numbered(current_folder(namespace, table), number)
            raise ManifestDamaged(path, state.version, state.uid, "it names a sealed version")


def rollback_target(store: ObjectStore, namespace: str, table: str) -> int | None:
    """The version that :func:`roll_back` would go to; None where there is none."""
    done = [each.switch for each in switches(store, namespace, table)]
    return next(iter(reversed(_versions_before(done))), None)


def _versions_before(done: Sequence[Switch]) -> list[int]:
    """The versions that counted before the present one and were not rolled back, the last last."""
    stack = [done[0].previous if done else 1]
    for switch in done:
        if switch.why == "rollback" and switch.table_version in stack:
            del stack[stack.index(switch.table_version) + 1 :]
        else:
            stack.append(switch.table_version)
    return stack[:-1]


def _carry_out(move: _Move) -> Switch:
    _copy_ahead(move)
    old = _seal(move)
    _import(move, old)
    return _make_current(move)


def _copy_ahead(move: _Move) -> None:
    """Copy what is there already, so that little is left to copy while nobody can commit."""
    source, target = move.manifest(move.old), move.manifest(move.sealed.next)
    state, new = source.load(), target.load()
    if state.sealed is not None or clash(state, new) or _cannot_carry(move, state, new):
        return
    after = carried_after(move.sealed, state)
    if after is not None:
        with suppress(LookupError):  # cleaned up since: the seal tells
            for _ in copied(source, target, carried(source, state, after)):
                pass


def _seal(move: _Move) -> TableState:
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
        check_kept(move.store, move.namespace, move.table, sealed.next)
        reason = clash(state, new) or _cannot_carry(move, state, new)
        if reason is not None:
            raise move.refused(reason)
        return actions

    return commit(move.manifest(move.old), None, Proposal([sealed]), switcher(), rule)


def _cannot_carry(move: _Move, state: TableState, new: TableState) -> str | None:
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
    began = _began(move, state)
    if sealed.since is not None and sealed.since < began:
        return (
            f"version {move.old} counts only since its manifest version {began}, and not since"
            f" {sealed.since}"
        )
    if after is None or not state.properties.get("primary_key"):
        return None
    if carried(move.manifest(move.old), state, after):
        return (
            f"version {move.old} has rows that were written meanwhile, and in a table with a"
            " primary key they cannot be taken along; without carry they stay behind"
        )
    return None


def _began(move: _Move, state: TableState) -> int:
    """The version of its manifest since which a table version counts; what is before was pushed."""
    done = switches(move.store, move.namespace, move.table)
    if not done or done[0].switch.previous == move.old:
        return 0
    return min((each.into for each in state.imports.values()), default=0)


def _import(move: _Move, old: TableState) -> None:
    sealed, manifest = move.sealed, move.manifest(move.sealed.next)

    def is_done(state: TableState) -> bool:
        known = state.imports.get(move.old)
        return known is not None and known.switch >= sealed.switch

    anew = False
    while not is_done(state := manifest.load()):
        if old.sealed != sealed:
            raise move.over
        copies = _copies(move, old, anew=anew)

        def rule(
            state: TableState, actions: tuple[Action, ...], copies: tuple[Add, ...] = copies
        ) -> tuple[Action, ...]:
            if is_done(state):
                return ()
            if state.switch >= sealed.switch:
                raise move.over
            check_uploads(state, copies)
            return tuple(_import_actions(move, old, state, copies))

        try:
            commit(manifest, state, Proposal([Unsealed(switch=sealed.switch)]), switcher(), rule)
        except UploadExpired:
            anew = True


def _import_actions(
    move: _Move, old: TableState, new: TableState, copies: Sequence[Add]
) -> Iterator[Action]:
    if new.sealed is not None:
        yield Unsealed(switch=move.sealed.switch)
    yield from imported_actions(old, new)
    yield from (add for add in copies if add.path not in new.files)
    yield Imported(
        table_version=move.old,
        manifest_version=old.version,
        uid=old.uid,
        switch=move.sealed.switch,
        into=new.version + 1,
    )


def _copies(move: _Move, old: TableState, *, anew: bool) -> tuple[Add, ...]:
    """The files that go along, in the folder of the version that they go to."""
    source, target = move.manifest(move.old), move.manifest(move.sealed.next)
    try:
        after = carried_after(move.sealed, old)
        adds = [] if after is None else carried(source, old, after)
    except LookupError as exc:
        raise ManifestDamaged(source.folder, old.version, old.uid, str(exc)) from exc
    return tuple(copied(source, target, adds, anew=anew))


def _make_current(move: _Move) -> Switch:
    sealed = move.sealed
    path = numbered(current_folder(move.namespace, move.table), sealed.switch)
    switch = Switch(
        table_version=sealed.next,
        previous=move.old,
        at=move.store.now().isoformat(),
        push_id=sealed.push_id,
        why=sealed.why,
    )
    try:
        move.store.create(path, msgspec.json.encode(switch))
    except AlreadyExists:
        # Whoever it was: only this switch could pass the seal with this number.
        switch = read_switch(move.store, path)
        if switch.table_version != sealed.next:
            reason = f"the manifest says that it goes to table version {sealed.next}"
            raise ManifestDamaged(path, 0, "", reason) from None
    return switch
