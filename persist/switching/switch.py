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
is left go along in that same commit, in a rollback those since it counts, to a new version those
since ``since``: as files that are copied, or in a keyed table as changes to the files that are
there. Most of that is made before the seal, so that writers wait for little.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

import msgspec

from persist.manifest import (
    Action,
    Add,
    Imported,
    Manifest,
    ManifestDamaged,
    PartitionsChanged,
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
from persist.switching.carrying import Along, made, made_ahead
from persist.switching.sealing import Move, imported_actions, seal, switcher


def switch_version(
    store: ObjectStore,
    namespace: str,
    table: str,
    version: int,
    *,
    push_id: str | None = None,
    since: int | None = None,
    previous: int | None = None,
    reshape: WriterIdentity | None = None,
) -> Switch:
    """Make a version of the table the one that counts; nothing where it is that. Blocks.

    Args:
        push_id: Of the push that made it, which goes in once: whoever comes back to that does not
            undo a rollback.
        since: A version of the manifest of the table version that counts: rows that came into it
            after that go along, each once. Only a version that has not counted yet takes them. In
            a keyed table it is what changed by then, by key: a row that was written again as it was
            is no change, and stays as it was pushed.
        previous: The version that has to count now. Give it with ``since``, which says nothing of
            another one's manifest.
        reshape: The daemon that takes the table's writes, where the version makes the table anew:
            its schemas, specs and properties are its own, with ids above those of the one that
            counts. Nothing of the table may be in a buffer or on its way there.

    Raises:
        TableVersionNotKept: There is no such version, or it was given up.
        Fenced: A newer process has the identity of ``reshape``.
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
    sealed = Sealed(
        next=version,
        switch=number + 1,
        push_id=push_id,
        since=since,
        reshape=reshape is not None,
    )
    return _carry_out(Move(store, namespace, table, last.table_version, sealed, reshape))


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
        carry: Whether the rows that were streamed into the present version go along, but not those
            that it has taken over with ``since``: they are in the version before. Without it they
            stay there, and are gone with it; a client that sends them again is told that they
            are duplicates.

    Raises:
        SwitchRefused: There was no version before; or ``carry``, and what came since the present
            one counts cannot be told any more.
        TableVersionNotKept, VersionSealed, SwitchedMeanwhile, StoreUnavailable, CommitUnclear: As
            :func:`switch_version`.
    """
    done = switches(store, namespace, table)
    number = done[-1].number if done else 0
    current = done[-1].switch if done else Switch(table_version=1)
    if version not in (None, current.table_version):
        return current
    before = versions_before([each.switch for each in done])
    if not before:
        raise SwitchRefused(namespace, table, 0, "no version counted before the present one")
    check_kept(store, namespace, table, before[-1])
    sealed = Sealed(
        next=before[-1], switch=number + 1, push_id=push_id, why="rollback", carry=carry
    )
    return _carry_out(Move(store, namespace, table, current.table_version, sealed))


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
    return _carry_out(Move(store, namespace, table, last.table_version, state.sealed))


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
    return next(iter(reversed(versions_before(done))), None)


def versions_before(done: Sequence[Switch]) -> list[int]:
    """The versions that counted before the present one and were not rolled back, the last last."""
    stack = [done[0].previous if done else 1]
    for switch in done:
        if switch.why == "rollback" and switch.table_version in stack:
            del stack[stack.index(switch.table_version) + 1 :]
        else:
            stack.append(switch.table_version)
    return stack[:-1]


def _carry_out(move: Move) -> Switch:
    ahead = made_ahead(move)
    old = seal(move)
    import_into_next(move, old, ahead)
    return _make_current(move)


def _make_current(move: Move) -> Switch:
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


def import_into_next(move: Move, old: TableState, ahead: Along | None = None) -> None:
    """Commit to the version that takes over, unless it was done.

    Args:
        old: The sealed state of the version that is left.
        ahead: What was made before the seal.

    Raises:
        SwitchedMeanwhile: Another switch was faster.
        ManifestDamaged: What goes along cannot be told any more.
        FileDamaged: A file of a keyed table is not what was written.
        StoreError, CommitUnclear: Call it again.
    """
    sealed, manifest = move.sealed, move.manifest(move.sealed.next)

    def is_done(state: TableState) -> bool:
        known = state.imports.get(move.old)
        return known is not None and known.switch >= sealed.switch

    anew = False
    while not is_done(base := manifest.load()):
        if old.sealed != sealed:
            raise move.over
        along = made(move, old, base, ahead, anew=anew)

        def rule(
            state: TableState, actions: tuple[Action, ...], along: Along = along
        ) -> tuple[Action, ...]:
            if is_done(state):
                return ()
            if state.switch >= sealed.switch:
                raise move.over
            if disturbed := along.disturbed(state):
                raise PartitionsChanged(disturbed, state)
            check_uploads(state, along.adds)
            return tuple(_import_actions(move, old, state, along))

        try:
            commit(manifest, base, Proposal([Unsealed(switch=sealed.switch)]), switcher(), rule)
        except (UploadExpired, PartitionsChanged):
            ahead, anew = None, True


def _import_actions(move: Move, old: TableState, new: TableState, along: Along) -> Iterator[Action]:
    if new.sealed is not None:
        yield Unsealed(switch=move.sealed.switch)
    yield from imported_actions(old, new, reshape=move.sealed.reshape)
    for action in along.actions:
        if not (isinstance(action, Add) and action.path in new.files):
            yield action
    yield Imported(
        table_version=move.old,
        manifest_version=old.version,
        uid=old.uid,
        switch=move.sealed.switch,
        into=new.version + 1,
    )
