"""A table version that no switch goes to any more, also none that has begun and sleeps.

    _versions/<N>.<n>.gone        the word that it is given up
    the version that counts       one more commit, which changes nothing

Law of this file: a seal looks for that word each time before it is tried on a state. So one that is
behind the commit has seen the word, and one that was before it is met by the commit, and finished.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import msgspec

from persist.manifest.actions import Action, Properties, is_before
from persist.manifest.committing import Proposal, commit
from persist.manifest.errors import SwitchRefused, TableNotFound, VersionSealed
from persist.manifest.gc import Deleted
from persist.manifest.paths import claimed_folder, current_folder, parse_entry, version_folder
from persist.manifest.reading import Manifest
from persist.manifest.state import TableState
from persist.manifest.table_versions import (
    Switch,
    TableVersion,
    current_version,
    give_up_version,
    last_switch,
    list_versions,
    read_gone,
    switches,
)
from persist.store import ObjectInfo, ObjectStore
from persist.switching.sealing import switcher
from persist.switching.switch import load_current, versions_before


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


KEEP = 2
"""So many versions stay that counted before the present one."""

_DELETERS = 8


class VersionRetention(msgspec.Struct, frozen=True):
    """Limits of what is kept of a table's versions; ``grace_s`` are seconds."""

    keep: int = KEEP
    grace_s: float = 3600.0


class VersionsCleaned(msgspec.Struct, frozen=True):
    """The outcome of one run; with ``dry_run`` the one that it would have.

    Attributes:
        marked: Versions that will not count any more from now on.
        deleted: Versions whose objects went.
    """

    namespace: str
    table: str
    dry_run: bool
    marked: tuple[int, ...] = ()
    deleted: tuple[int, ...] = ()
    objects: Deleted = Deleted()


def clean_up_versions(
    store: ObjectStore,
    namespace: str,
    table: str,
    retention: VersionRetention,
    *,
    dry_run: bool = False,
) -> VersionsCleaned:
    """Mark and delete what will not be needed any more of a table's versions. Blocks.

    Raises:
        ManifestDamaged: What says of the versions cannot be read: nothing is deleted then.
        StoreUnavailable: Run it again: whatever was done stays done.
    """
    known = _all_versions(store, namespace, table)
    done = [each.switch for each in switches(store, namespace, table)] if known else []
    counted = {each.previous for each in done} | {each.table_version for each in done}
    kept = _kept(store, namespace, table, done, retention.keep)
    left = [each for each in known if each.version not in kept]
    marked = [each.version for each in left if each.version in counted and each.gone is None]
    before = store.now() - timedelta(seconds=retention.grace_s)
    objects = {
        each.version: _objects(store, namespace, table, each.version)
        for each in left
        if each.gone is not None and is_before(each.gone.at, before.isoformat())
    }
    deleted = {version: infos for version, infos in objects.items() if infos}
    if not dry_run:
        marked = [
            version
            for version in marked
            if not forbid_switch(store, namespace, table, version, "replaced")
        ]
        # Once more: a process that slept since it looked could have switched to one of them.
        kept = _kept(store, namespace, table, done, 0)
        deleted = {version: infos for version, infos in deleted.items() if version not in kept}
        _delete(store, [info for infos in deleted.values() for info in infos])
    gone = Deleted.of(info for infos in deleted.values() for info in infos)
    return VersionsCleaned(namespace, table, dry_run, tuple(marked), tuple(deleted), gone)


def _all_versions(store: ObjectStore, namespace: str, table: str) -> list[TableVersion]:
    """The table's versions; none where version 1 is all that there ever was, as in most tables."""
    for folder in (current_folder(namespace, table), claimed_folder(namespace, table)):
        if any(True for _ in store.list(folder)):
            return list_versions(store, namespace, table)
    return []


def _kept(
    store: ObjectStore, namespace: str, table: str, done: Sequence[Switch], keep: int
) -> set[int]:
    """The version that counts, the one that a seal names, and the last that counted before.

    Of those that were rolled back none is on the way back: they do not stand in its place.
    """
    number, last = last_switch(store, namespace, table)
    kept = {last.table_version}
    try:
        sealed = Manifest(store, namespace, table, last.table_version).load().sealed
    except TableNotFound:
        sealed = None
    if sealed is not None and sealed.switch > number:
        kept.add(sealed.next)
    history = [done[0].previous, *(each.table_version for each in done)] if done else []
    before = [version for version in dict.fromkeys(reversed(history)) if version not in kept]
    return kept | set(before[:keep]) | set(versions_before(done)[::-1][:keep])


def is_commit(path: str) -> bool:
    """Whether an object is a manifest's commit."""
    entry = parse_entry(path)
    return entry is not None and entry.kind == "commit"


def _objects(store: ObjectStore, namespace: str, table: str, version: int) -> list[ObjectInfo]:
    return list(store.list(f"{version_folder(namespace, table, version)}/"))


def _delete(store: ObjectStore, infos: Sequence[ObjectInfo]) -> None:
    # Invariant: ascending, each gone before the next. A writer that slept since long before creates
    # a commit again, finds its parent missing, and knows that it does not count.
    commits = [info for info in infos if is_commit(info.path)]
    for info in commits:
        store.delete(info.path)
    infos = [info for info in infos if not is_commit(info.path)]
    with ThreadPoolExecutor(_DELETERS, thread_name_prefix="clean-up") as pool:
        for _ in pool.map(store.delete, [info.path for info in infos]):
            pass
