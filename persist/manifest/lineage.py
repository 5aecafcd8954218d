"""Reads the state of one version, along the lineage of its commit.

    snapshot of (V, uid)?  that is the state
    else the lineage in V's changelog:  (38,a) (39,b) (40,c) (41,uid)
         the highest valid snapshot in it, then the changelogs above, in order
         none valid?  the changelog of (38,a) has a lineage too: further back, to version 1

A file is read only under a (version, uid) that the lineage names; other uids of the same version
are never read (test_reading_cases.py). A damaged snapshot is skipped. A damaged or missing
changelog that no snapshot covers raises ``ManifestDamaged`` (test_reading_damage.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from persist.manifest.draft import StateDraft
from persist.manifest.errors import ActionRefused, ManifestDamaged
from persist.manifest.files import (
    Changelog,
    CommitRecord,
    DamagedFile,
    decode_changelog,
    decode_snapshot,
)
from persist.manifest.paths import before_version, changelog_path, parse_entry, snapshot_path
from persist.manifest.state import EMPTY, Lineage, TableState
from persist.store import ObjectNotFound, ObjectStore

# Reading a changelog is mostly waiting for the store. For a few, threads cost more than they save.
_READERS = 8
_FEW = 4


def read_changelog(store: ObjectStore, folder: str, version: int, uid: str) -> Changelog:
    """The changelog of exactly (version, uid), with its own lineage checked.

    Raises:
        ManifestDamaged: It is missing or damaged.
    """
    path = changelog_path(folder, version, uid)
    try:
        changelog = decode_changelog(store.get(path))
        if changelog.lineage[-1] != (version, uid):
            raise DamagedFile(f"its lineage ends at {changelog.lineage[-1]}")
        if version > 1 and len(changelog.lineage) == 1:
            raise DamagedFile("its lineage does not name its parent")
    except ObjectNotFound as exc:
        raise ManifestDamaged(path, version, uid, "it is missing") from exc
    except DamagedFile as exc:
        raise ManifestDamaged(path, version, uid, str(exc)) from exc
    return changelog


def read_changelogs(store: ObjectStore, folder: str, lineage: Lineage) -> list[Changelog]:
    """The changelogs of ``lineage``, in order, each made on top of the previous one.

    Raises:
        ManifestDamaged: One is missing, damaged, or names another predecessor.
    """
    if len(lineage) <= _FEW:
        found = [read_changelog(store, folder, *place) for place in lineage]
    else:
        with ThreadPoolExecutor(_READERS, thread_name_prefix="manifest") as pool:
            reads = [pool.submit(read_changelog, store, folder, *place) for place in lineage]
            try:
                found = [read.result() for read in reads]
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
    for before, place, changelog in zip(lineage, lineage[1:], found[1:], strict=False):
        if changelog.lineage[-2] != before:
            reason = f"it was made on top of {changelog.lineage[-2]}, and not of {before}"
            raise ManifestDamaged(changelog_path(folder, *place), *place, reason)
    return found


def replay(
    base: TableState, folder: str, lineage: Lineage, changelogs: Sequence[Changelog]
) -> TableState:
    """The state at the end of ``lineage``, which follows ``base`` without a gap.

    Raises:
        ManifestDamaged: An action is inconsistent.
    """
    draft = StateDraft(base)
    for (version, uid), changelog in zip(lineage, changelogs, strict=True):
        try:
            draft.apply(changelog.actions)
        except ActionRefused as exc:
            path = changelog_path(folder, version, uid)
            raise ManifestDamaged(path, version, uid, str(exc)) from exc
    version, uid = lineage[-1]
    state = draft.finish(version, uid, changelogs[-1].lineage)
    start = state.lineage[0][0]
    above = sum(log.bytes for log in changelogs if log.lineage[-1][0] > start)
    # If a snapshot was made in between, the lineage and the count start there.
    kept = base.changelog_bytes if start <= base.version else 0
    return replace(state, changelog_bytes=kept + above)


class VersionLoader:
    """One full load of one version; remembers damaged snapshots. Used once.

    Attributes:
        base: The snapshot that the load began with; (0, "") for none.
        replayed: The changelogs read on top of ``base``.
    """

    def __init__(self, store: ObjectStore, folder: str) -> None:
        self._store = store
        self._folder = folder
        self._damaged: list[str] = []
        self.base: tuple[int, str] = (0, "")
        self.replayed: Lineage = ()

    def load(self, commit: CommitRecord) -> TableState:
        """The state that ``commit`` made.

        Raises:
            ManifestDamaged: A changelog that no valid snapshot covers is missing or damaged.
        """
        target = (commit.version, commit.uid)
        state = self._snapshot(*target)
        if state is not None:
            self.base = target
        else:
            own = self._changelog_of_target(commit)
            base, lineage = self._base(own.lineage)
            self.base, self.replayed = (base.version, base.uid), lineage
            state = base
            if lineage:  # else the snapshot was written after the first look
                logs = read_changelogs(self._store, self._folder, lineage)
                state = replay(base, self._folder, lineage, logs)
            # A newer snapshot than the changelogs know of shortens later reads.
            state = state.after_snapshot(base.version, base.uid)
        return replace(state, damaged_snapshots=tuple(self._damaged))

    def _changelog_of_target(self, commit: CommitRecord) -> Changelog:
        own = read_changelog(self._store, self._folder, commit.version, commit.uid)
        parent = own.lineage[-2][1] if len(own.lineage) > 1 else None
        if parent != commit.parent:
            path = changelog_path(self._folder, commit.version, commit.uid)
            reason = f"it was made on top of uid {parent}, its commit says {commit.parent}"
            raise ManifestDamaged(path, commit.version, commit.uid, reason)
        return own

    def _base(self, lineage: Lineage) -> tuple[TableState, Lineage]:
        """The state to start from, and the lineage to replay on it; goes back as far as needed."""
        tail: Lineage = ()
        while True:
            for place in self._snapshots_in(lineage):
                if (state := self._snapshot(*place)) is not None:
                    return state, lineage[lineage.index(place) + 1 :] + tail
            if lineage[0][0] == 1:
                return EMPTY, lineage + tail
            tail = lineage[1:] + tail
            lineage = read_changelog(self._store, self._folder, *lineage[0]).lineage

    def _snapshots_in(self, lineage: Lineage) -> Lineage:
        """The places in ``lineage`` that have a snapshot not known to be damaged, newest first."""
        places = set(lineage)
        found = []
        for info in self._store.list(self._folder, before_version(self._folder, lineage[0][0])):
            entry = parse_entry(info.path)
            if entry is None:
                continue
            if entry.version > lineage[-1][0]:
                break
            place = (entry.version, entry.uid)
            if entry.kind == "snapshot" and place in places and info.path not in self._damaged:
                found.append(place)
        return tuple(reversed(found))

    def _snapshot(self, version: int, uid: str) -> TableState | None:
        path = snapshot_path(self._folder, version, uid)
        try:
            state = decode_snapshot(self._store.get(path))
            if (state.version, state.uid) != (version, uid):
                raise DamagedFile(f"it holds version {state.version}, uid {state.uid}")
        except ObjectNotFound:
            return None
        except DamagedFile:
            self._damaged.append(path)
            return None
        return state
