"""Switches a table from one version to another, and back, in three steps that any process can
complete.

    the old version's manifest   sealed      takes no further commits
    the new version's manifest   imported    the old one's writers, origins and checkpoints
    _current/<n>                 created     readers and writers find the new one

Each step takes effect once, however often and by whichever process it is done
(tests/persist/switching/test_switch_model.py, tests/tables/test_switching_kills.py). All three
carry the number n, the next after the last switch when this one began: a process that slept through
other switches finds a higher number and does nothing. Only the seal can refuse a switch, so a
sealed switch can be completed. A version that was given up is refused there too (``version_gc``).

The import includes what identifies a retried batch, so a batch written before the seal is a
duplicate after it. The same commit carries over the rows that were streamed into the old version:
in a rollback those since it became current, to a new version those since ``since``, as copied files
or, in a keyed table, as changes to the files. Most of that is made before the seal, so writers wait
little.
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
from persist.switching.carrying import CarriedRows, made, made_ahead
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
    """Make a version of the table current; nothing if it already is. Blocks.

    Args:
        push_id: Of the push that made it, which is switched to once: a repeated call does not undo
            a rollback.
        since: A manifest version of the current table version: rows that came after it are carried
            over, each once. Only a version that was never current accepts them. In a keyed table
            these are the net changes by key: a row written again unchanged is no change, and stays
            as pushed.
        previous: The version that must be current now. Give it with ``since``, which is meaningless
            for another version's manifest.
        reshape: The owner of the table's writes, if the version defines the table again: its
            schemas, specs and properties are its own, with ids above those of the current version.
            Nothing of the table may be in a buffer or under way.

    Raises:
        TableVersionNotKept: The version does not exist, or was given up.
        Fenced: A newer process has the identity of ``reshape``.
        SwitchRefused: Its columns, partitions or keys do not continue the current ones; or the push
            was switched to before, and another version is current; or the current one is not
            ``previous``; or it is not known what came ``since``.
        VersionSealed: Another switch is under way: :func:`finish_switch` completes it.
        SwitchedMeanwhile: Another one was faster.
        StoreUnavailable, CommitUnclear: Call it again: completed steps stay done.
    """
    number, last = last_switch(store, namespace, table)
    if last.table_version == version:
        return last
    for each in switches(store, namespace, table):
        if push_id is not None and (each.switch.push_id, each.switch.why) == (push_id, "swap"):
            reason = f"push {push_id} was current by switch {each.number}, and no longer is"
            raise SwitchRefused(namespace, table, version, reason)
    if previous not in (None, last.table_version):
        reason = f"version {last.table_version} is current now, not {previous}"
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
    """Make the previous current version current again. Blocks.

    Args:
        version: The one to leave: if another is current, nothing is done, so a repeated rollback
            goes back once. By default the current one.
        carry: Carry over the rows streamed into the current version, except those that it took over
            with ``since``, which are in the previous version. Without it they stay behind and are
            no longer visible; a client that sends them again is told that they are duplicates.

    Raises:
        SwitchRefused: There was no previous version; or ``carry``, and it is not known what came
            since the present one became current.
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
        raise SwitchRefused(namespace, table, 0, "no version was current before the present one")
    check_kept(store, namespace, table, before[-1])
    sealed = Sealed(
        next=before[-1], switch=number + 1, push_id=push_id, why="rollback", carry=carry
    )
    return _carry_out(Move(store, namespace, table, current.table_version, sealed))


def finish_switch(store: ObjectStore, namespace: str, table: str) -> Switch:
    """Complete a switch that is under way; the last switch if none is.

    Raises:
        StoreUnavailable, CommitUnclear: Call it again.
        TableNotFound: The table does not exist.
    """
    number, last = last_switch(store, namespace, table)
    state = Manifest(store, namespace, table, last.table_version).load()
    if state.sealed is None or state.sealed.switch <= number:
        return last
    return _carry_out(Move(store, namespace, table, last.table_version, state.sealed))


def load_current(store: ObjectStore, namespace: str, table: str) -> TableState:
    """The newest state of the current table version; a switch under way is completed first.

    Raises:
        TableNotFound: The table does not exist.
        ManifestDamaged: The current version is sealed for a switch that is over.
        StoreUnavailable, CommitUnclear: Call it again.
    """
    while True:
        number, last = last_switch(store, namespace, table)
        state = Manifest(store, namespace, table, last.table_version).load()
        if state.sealed is None:
            return state
        if state.sealed.switch > number:
            with suppress(SwitchedMeanwhile, VersionSealed):  # another process completes it
                finish_switch(store, namespace, table)
        elif last_switch(store, namespace, table)[0] == number:
            path = numbered(current_folder(namespace, table), number)
            raise ManifestDamaged(path, state.version, state.uid, "it names a sealed version")


def rollback_target(store: ObjectStore, namespace: str, table: str) -> int | None:
    """The version that :func:`roll_back` would go to, or None."""
    done = [each.switch for each in switches(store, namespace, table)]
    return next(iter(reversed(versions_before(done))), None)


def versions_before(done: Sequence[Switch]) -> list[int]:
    """The versions that were current before the present one and were not rolled back, oldest
    first.
    """
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
        # Only this switch could pass the seal with this number.
        switch = read_switch(move.store, path)
        if switch.table_version != sealed.next:
            reason = f"the manifest names table version {sealed.next}"
            raise ManifestDamaged(path, 0, "", reason) from None
    return switch


def import_into_next(move: Move, old: TableState, ahead: CarriedRows | None = None) -> None:
    """Commit what the old version knows to the new one, unless it was done: exactly one commit.

    Args:
        old: The sealed state of the old version.
        ahead: What was made before the seal.

    Raises:
        SwitchedMeanwhile: Another switch was faster.
        ManifestDamaged: It is no longer known what is carried over.
        FileDamaged: A file of a keyed table is damaged.
        StoreError, CommitUnclear: Call it again.
    """
    sealed, manifest = move.sealed, move.manifest(move.sealed.next)

    def is_done(state: TableState) -> bool:
        known = state.imports.get(move.old)
        return known is not None and known.switch >= sealed.switch

    again = False
    while not is_done(base := manifest.load()):
        if old.sealed != sealed:
            raise move.over
        carried_rows = made(move, old, base, ahead, again=again)

        def rule(
            state: TableState, actions: tuple[Action, ...], carried_rows: CarriedRows = carried_rows
        ) -> tuple[Action, ...]:
            if is_done(state):
                return ()
            if state.switch >= sealed.switch:
                raise move.over
            if disturbed := carried_rows.disturbed(state):
                raise PartitionsChanged(disturbed, state)
            check_uploads(state, carried_rows.adds)
            return tuple(_import_actions(move, old, state, carried_rows))

        try:
            commit(manifest, base, Proposal([Unsealed(switch=sealed.switch)]), switcher(), rule)
        except (UploadExpired, PartitionsChanged):
            ahead, again = None, True


def _import_actions(
    move: Move, old: TableState, new: TableState, carried_rows: CarriedRows
) -> Iterator[Action]:
    if new.sealed is not None:
        yield Unsealed(switch=move.sealed.switch)
    yield from imported_actions(old, new, reshape=move.sealed.reshape)
    for action in carried_rows.actions:
        if not (isinstance(action, Add) and action.path in new.files):
            yield action
    yield Imported(
        table_version=move.old,
        manifest_version=old.version,
        uid=old.uid,
        switch=move.sealed.switch,
        into=new.version + 1,
    )
