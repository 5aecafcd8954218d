"""The second step of a switch: the version that takes over learns what the sealed one knows.

Law of this file: one commit, whoever makes it and however often it is tried. What goes along is
made before that commit, and listed by it alone: files of streamed rows are copied, in a keyed table
the changes are applied to the files that are there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from persist.manifest import (
    EMPTY,
    Action,
    Add,
    Imported,
    ManifestDamaged,
    PartitionsChanged,
    Proposal,
    TableState,
    Unsealed,
    UploadExpired,
    VersionNotKept,
    apply,
    check_uploads,
    commit,
)
from persist.switching.carrying import copied
from persist.switching.importing import carried, carried_after, imported_actions
from persist.switching.keyed import KeyedActions, apply_changes
from persist.switching.move import Move, switcher
from persist.switching.sealing import hindrance


def copy_ahead(move: Move) -> None:
    """Copy what is there before the seal, so that little is left while nobody can commit."""
    source, target = move.manifest(move.old), move.manifest(move.sealed.next)
    state, new = source.load(), target.load()
    if state.sealed is not None or _keyed(state) or hindrance(move, state, new):
        return
    after = carried_after(move.sealed, state)
    if after is not None:
        with suppress(LookupError):  # cleaned up since: the seal tells
            for _ in copied(source, target, carried(source, state, after)):
                pass


def import_into_next(move: Move, old: TableState) -> None:
    """Commit to the version that takes over, unless it was done; ``old`` is the sealed state.

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
        along = _along(move, old, base, anew=anew)

        def rule(
            state: TableState,
            actions: tuple[Action, ...],
            base: TableState = base,
            along: KeyedActions = along,
        ) -> tuple[Action, ...]:
            if is_done(state):
                return ()
            if state.switch >= sealed.switch:
                raise move.over
            others = [
                k for k in along.partitions if state.partitions.get(k) != base.partitions.get(k)
            ]
            if others:
                raise PartitionsChanged(others, state)
            check_uploads(state, along.adds)
            return tuple(_import_actions(move, old, state, along))

        try:
            commit(manifest, base, Proposal([Unsealed(switch=sealed.switch)]), switcher(), rule)
        except (UploadExpired, PartitionsChanged):
            anew = True


def _import_actions(
    move: Move, old: TableState, new: TableState, along: KeyedActions
) -> Iterator[Action]:
    if new.sealed is not None:
        yield Unsealed(switch=move.sealed.switch)
    yield from imported_actions(old, new)
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


def _along(move: Move, old: TableState, new: TableState, *, anew: bool) -> KeyedActions:
    """The removals and additions that take the streamed rows along; files are made for them."""
    source, target = move.manifest(move.old), move.manifest(move.sealed.next)
    try:
        after = carried_after(move.sealed, old)
        if after is None:
            return KeyedActions()
        if not _keyed(old):
            return KeyedActions(
                tuple(copied(source, target, carried(source, old, after), anew=anew))
            )
        before = source.load(after) if after else EMPTY
    except (LookupError, VersionNotKept) as exc:
        raise ManifestDamaged(source.folder, old.version, old.uid, str(exc)) from exc
    return apply_changes(source, before, old, target, apply(new, imported_actions(old, new)))


def _keyed(state: TableState) -> bool:
    return bool(state.properties.get("primary_key"))
