"""Deletes table versions that can never be current again, and prevents switches to a version.

    given up    neither the current version nor one of the last ``keep`` before it, nor one of the
                ``keep`` that rollbacks would go to
    deleted     given up longer than the grace period ago

No switch goes to a version that was given up, and its objects are deleted only a grace period
later, when its readers are done. The current version, and one that a seal names, are never deleted.
Of a published table, neither are versions that were current since a pin was written, or within the
time that manifest versions are kept: published snapshots list their files.
Any process may run it, also two at once, and a run may end at any step
(tests/persist/switching/test_version_gc.py).

`forbid_switch` writes the record ``_versions/<N>.<n>.gone`` and then one commit without changes to
the current version. A seal checks for the record on each state that it is tried on. A seal after
that commit has seen the record; one before it is found by the commit, and completed
(tests/persist/switching/test_forbidding.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import msgspec

from persist.manifest.actions import Action, Properties, is_before
from persist.manifest.committing import Proposal, commit
from persist.manifest.errors import SwitchRefused, TableNotFound, VersionSealed
from persist.manifest.gc import Deleted
from persist.manifest.paths import claimed_folder, current_folder, parse_entry, version_folder
from persist.manifest.published import read_pins, since_pins
from persist.manifest.reading import Manifest
from persist.manifest.state import TableState
from persist.manifest.table_versions import (
    NumberedSwitch,
    Switch,
    TableVersion,
    current_version,
    give_up_version,
    last_switch,
    list_versions,
    read_gone,
    switches,
)
from persist.store import ObjectInfo, ObjectStore, delete_all
from persist.switching.sealing import switcher
from persist.switching.switch import load_current, versions_before


def forbid_switch(
    store: ObjectStore, namespace: str, table: str, version: int, why: str = "given up"
) -> bool:
    """Give a table version up, so that no switch to it takes effect after this returns. Blocks.

    A switch that has passed its seal is completed first. Any other, however long it was paused,
    raises ``TableVersionNotKept``, or ``SwitchedMeanwhile`` if another was faster.

    Args:
        why: Kept beside the version, for people.

    Returns:
        Whether the version is current: then it is not given up, and :func:`roll_back` can leave it.

    Raises:
        ManifestDamaged: The switches cannot be read.
        StoreUnavailable, CommitUnclear: Call it again: completed steps stay done.
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
            continue  # a switch was faster, perhaps to this version
        except TableNotFound:
            pass  # so it is not sealed either
        # A switch to the version that was completed before that commit has voided the record.
        if read_gone(store, namespace, table, version) is not None:
            return False


def _commit_nothing(manifest: Manifest) -> None:
    def rule(state: TableState, actions: tuple[Action, ...]) -> tuple[Action, ...]:
        if state.version == 0:
            raise TableNotFound(manifest.namespace, manifest.table)
        return (Properties(values=dict(state.properties)),)

    commit(manifest, None, Proposal([Properties(values={})]), switcher(), rule)


KEEP = 2
"""The number of versions kept that were current before the present one."""


class VersionRetention(msgspec.Struct, frozen=True):
    """What is kept of a table's versions; ``grace_s`` and ``retain_s`` are seconds.

    ``retain_s`` is that of :class:`~persist.manifest.Retention`; it matters to published tables.
    """

    keep: int = KEEP
    grace_s: float = 3600.0
    retain_s: float = 86400.0


class VersionsCleaned(msgspec.Struct, frozen=True):
    """The outcome of one run; with ``dry_run`` the expected one.

    Attributes:
        marked: Versions that were given up now.
        deleted: Versions whose objects were deleted.
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
    """Give up and delete a table's versions that are no longer needed. Blocks.

    Raises:
        ManifestDamaged: An object about the versions, or a pin, cannot be read; nothing is deleted.
        StoreUnavailable: Run it again: completed steps stay done.
    """
    known = _all_versions(store, namespace, table)
    numbered = switches(store, namespace, table) if known else []
    done = [each.switch for each in numbered]
    counted = {each.previous for each in done} | {each.table_version for each in done}
    kept = _kept(store, namespace, table, done, retention.keep)
    kept |= _published(store, namespace, table, numbered, retention.retain_s)
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
        # Checked again: a process that was paused could have switched to one of them.
        kept = _kept(store, namespace, table, done, 0)
        kept |= _published(store, namespace, table, numbered, retention.retain_s)
        deleted = {version: infos for version, infos in deleted.items() if version not in kept}
        _delete(store, [info for infos in deleted.values() for info in infos])
    gone = Deleted.of(info for infos in deleted.values() for info in infos)
    return VersionsCleaned(namespace, table, dry_run, tuple(marked), tuple(deleted), gone)


def _all_versions(store: ObjectStore, namespace: str, table: str) -> list[TableVersion]:
    """The table's versions; empty if version 1 was always the only one, as in most tables."""
    for folder in (current_folder(namespace, table), claimed_folder(namespace, table)):
        if any(True for _ in store.list(folder)):
            return list_versions(store, namespace, table)
    return []


def _kept(
    store: ObjectStore, namespace: str, table: str, done: Sequence[Switch], keep: int
) -> set[int]:
    """The current version, the one that a seal names, and the last that were current before.

    Versions that were rolled back do not count against those that rollbacks would go to.
    """
    number, last = last_switch(store, namespace, table)
    kept = {last.table_version}
    try:
        sealed = Manifest(store, namespace, table, last.table_version).load().sealed
    except TableNotFound:
        sealed = None
    if sealed is not None and sealed.switch > number:
        kept.add(sealed.next)
    history = dict.fromkeys(reversed(_history(done)))
    before = [version for version in history if version not in kept]
    return kept | set(before[:keep]) | set(versions_before(done)[::-1][:keep])


def _published(
    store: ObjectStore,
    namespace: str,
    table: str,
    done: Sequence[NumberedSwitch],
    retain_s: float,
) -> set[int]:
    """The versions that were current since a pin was written, or within ``retain_s`` if there is
    one.
    """
    pins = read_pins(store, namespace, table)
    if not pins:
        return set()
    before = store.now() - timedelta(seconds=retain_s)
    young = {each.switch.previous for each in done if each.written > before}
    return young | since_pins(pins, _history([each.switch for each in done]))


def _history(done: Sequence[Switch]) -> list[int]:
    """The versions in the order in which they became current."""
    return [done[0].previous, *(each.table_version for each in done)] if done else []


def is_commit(path: str) -> bool:
    """Whether an object is a manifest's commit."""
    entry = parse_entry(path)
    return entry is not None and entry.kind == "commit"


def _objects(store: ObjectStore, namespace: str, table: str, version: int) -> list[ObjectInfo]:
    return list(store.list(f"{version_folder(namespace, table, version)}/"))


def _delete(store: ObjectStore, infos: Sequence[ObjectInfo]) -> None:
    # Invariant: ascending, each deleted before the next. A writer that was paused for long and
    # creates a commit again finds its parent missing, and knows that it does not count.
    commits = [info for info in infos if is_commit(info.path)]
    for info in commits:
        store.delete(info.path)
    delete_all(store, (info.path for info in infos if not is_commit(info.path)))
