"""A table version that no switch goes to any more, also none that has begun and sleeps.

    _versions/<N>.<n>.gone        the word that it is given up
    the version that counts       one more commit, which changes nothing

Law of this file: a seal looks for that word each time before it is tried on a state. So one that is
behind the commit has seen the word, and one that was before it is met by the commit, and finished.
"""

from __future__ import annotations

from persist.manifest.actions import Action, Properties
from persist.manifest.committing import Proposal, commit
from persist.manifest.errors import SwitchRefused, TableNotFound, VersionSealed
from persist.manifest.reading import Manifest
from persist.manifest.state import TableState
from persist.manifest.table_versions import current_version, give_up_version, read_gone
from persist.store import ObjectStore
from persist.switching.move import switcher
from persist.switching.switch import load_current


def forbid_switch(
    store: ObjectStore, namespace: str, table: str, version: int, why: str = "given up"
) -> bool:
    """Give a table version up, so that no switch to it takes effect after this returned. Blocks.

    A switch that had passed its seal is finished first; any other one, however long its caller
    was paused, raises ``TableVersionNotKept``, or ``SwitchedMeanwhile`` where another was faster.

    Args:
        why: Kept beside the version, for people.

    Returns:
        Whether the version counts: then it is not given up. It is for :func:`roll_back` to leave.

    Raises:
        ManifestDamaged: What says which version counts cannot be read.
        StoreUnavailable, CommitUnclear: Call it again: whatever was done stays done.
    """
    while True:
        try:
            counts = load_current(store, namespace, table).table_version
        except TableNotFound:
            counts = current_version(store, namespace, table)
        if counts == version:
            return True
        try:
            give_up_version(store, namespace, table, version, why)
            _commit_nothing(Manifest(store, namespace, table, counts))
        except (SwitchRefused, VersionSealed):
            continue  # a switch was faster, perhaps the one to this version
        except TableNotFound:
            pass  # nor has anybody sealed it
        # A switch to the version that was over before that commit has made the word void.
        if read_gone(store, namespace, table, version) is not None:
            return False


def _commit_nothing(manifest: Manifest) -> None:
    def rule(state: TableState, actions: tuple[Action, ...]) -> tuple[Action, ...]:
        if state.version == 0:
            raise TableNotFound(manifest.namespace, manifest.table)
        return (Properties(values=dict(state.properties)),)

    commit(manifest, None, Proposal([Properties(values={})]), switcher(), rule)
