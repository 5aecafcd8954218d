"""The second step of a switch: the version that takes over learns what the sealed one knows.

Law of this file: one commit, whoever makes it and however often it is tried. What goes along is
made before that commit, and listed by it alone: files of streamed rows are copied, in a keyed table
the changes are applied to the files that are there.
"""

from __future__ import annotations

from collections.abc import Iterator

from persist.manifest import (
    Action,
    Add,
    Imported,
    PartitionsChanged,
    Proposal,
    TableState,
    Unsealed,
    UploadExpired,
    check_uploads,
    commit,
)
from persist.switching.along import Along, made
from persist.switching.importing import imported_actions
from persist.switching.move import Move, switcher


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
