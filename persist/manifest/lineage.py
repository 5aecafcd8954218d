"""Finds the versions of a table, and reads the state of one along the lineage of its commit.

Commits are contiguous from the oldest kept version to the head. They are deleted in ascending
order, so a commit below a gap was made by a writer that was paused during the deletion of its
parent; it does not count.

The head is found with a logarithmic number of requests: strides over existing names double, then
halve. The result may lie below a gap, which one listing that starts after it shows. On a store that
reads a whole folder for a listing, the floor is read instead, and a few names above are looked up
in case a commit was deleted by another program.

The floor is a small folder beside the manifest's: from its version on no commit has been deleted.
Garbage collection raises it before it deletes the first commit below it. The highest value counts,
so two concurrent raises do no harm. A commit at or above the floor that nothing follows is
therefore the head, and the commit at the floor exists. Commits below the floor may reappear, made
by a paused writer or after a power loss (tests/persist/manifest/test_floor.py).

    snapshot of (V, uid)?  that is the state
    else the lineage in V's changelog:  (38,a) (39,b) (40,c) (41,uid)
         the highest valid snapshot in it, then the changelogs above, in order
         none valid?  the changelog of (38,a) has a lineage too: further back, to version 1

A file is read only under a (version, uid) that the lineage names; other uids of the same version
are never read (test_reading_cases.py). A damaged snapshot is skipped. A damaged or missing
changelog that no snapshot covers raises ``ManifestDamaged`` (test_reading_damage.py).
"""

from __future__ import annotations

import posixpath
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
    decode_commit,
    decode_snapshot,
)
from persist.manifest.paths import (
    DIGITS,
    after_version,
    before_version,
    changelog_path,
    commit_path,
    parse_entry,
    snapshot_path,
)
from persist.manifest.state import EMPTY, Lineage, TableState
from persist.store import ObjectNotFound, ObjectStore

_LOOK_AHEAD = 20
"""A gap is seen unless it is longer than the commits above it, or than a million versions."""
_FLOORS_KEPT = 8
"""A listing omits objects deleted while it runs; this many collections would have to end
meanwhile.
"""


def read_commit(store: ObjectStore, folder: str, version: int) -> CommitRecord | None:
    """The commit of ``version``, or None.

    Raises:
        ManifestDamaged: It exists but cannot be read.
    """
    path = commit_path(folder, version)
    try:
        data = store.get(path)
    except ObjectNotFound:
        return None
    try:
        commit = decode_commit(data)
        if commit.version != version:
            raise DamagedFile(f"it says version {commit.version}")
    except DamagedFile as exc:
        raise ManifestDamaged(path, version, "unknown", str(exc)) from exc
    return commit


def next_version(store: ObjectStore, folder: str, after: int) -> int | None:
    """The lowest committed version above ``after``, or None."""
    for info in store.list(folder, after_version(folder, after)):
        entry = parse_entry(info.path)
        if entry is not None and entry.kind == "commit":
            return entry.version
    return None


def find_head(store: ObjectStore, folder: str, hint: int) -> int | None:
    """The newest committed version, or None.

    Args:
        hint: A version that was committed once; cheaper the nearer it is to the head. 0 for none.
    """
    found: int | None = hint
    if hint == 0 or store.exists(commit_path(folder, hint)) is None:
        found = _first_known(store, folder, hint)
        if found is None:
            return None if hint == 0 else find_head(store, folder, 0)
    head = 0
    while found is not None:
        head = _end_of_run(store, folder, found)
        if not store.listing_seeks and _is_last(store, folder, head):
            break
        found = next_version(store, folder, head)
    return head


def _first_known(store: ObjectStore, folder: str, hint: int) -> int | None:
    """A version to search from if that of the hint does not exist."""
    if not store.listing_seeks:
        floor = max(1, read_floor(store, folder))
        if store.exists(commit_path(folder, floor)) is not None:
            return floor
    return next_version(store, folder, hint)


def _is_last(store: ObjectStore, folder: str, version: int) -> bool:
    """Whether certainly no commit is above ``version``, if none follows it.

    Everything deleted before that was seen lies below the floor read now.
    """
    floor = read_floor(store, folder)
    if version < floor or store.exists(commit_path(folder, max(1, floor))) is None:
        return False
    strides = (1 << power for power in range(_LOOK_AHEAD))
    return all(
        store.exists(commit_path(folder, version + 1 + stride)) is None for stride in strides
    )


def _end_of_run(store: ObjectStore, folder: str, start: int) -> int:
    last = start
    stride = 1
    while store.exists(commit_path(folder, last + stride)) is not None:
        last += stride
        stride *= 2
    while stride > 1:
        stride //= 2
        if store.exists(commit_path(folder, last + stride)) is not None:
            last += stride
    return last


def counts(store: ObjectStore, folder: str, commit: CommitRecord) -> bool:
    """Whether a commit that was read is part of the table's history, and not below a gap."""
    following = next_version(store, folder, commit.version)
    if following is None:
        return True
    return following == commit.version + 1 and is_parent(store, folder, commit)


def is_parent(store: ObjectStore, folder: str, commit: CommitRecord) -> bool:
    """Whether the next version exists and was made on top of ``commit``."""
    following = read_commit(store, folder, commit.version + 1)
    return following is not None and following.parent == commit.uid


def kept_range(store: ObjectStore, folder: str, head: int) -> tuple[int, int]:
    """The oldest and the newest readable version."""
    oldest = head
    found = next_version(store, folder, 0)
    while found is not None and found < head:
        end = _end_of_run(store, folder, found)
        if end >= head:
            oldest = found
            break
        found = next_version(store, folder, end)
    return oldest, head


def floor_folder(folder: str) -> str:
    """The folder of the floor of the manifest in ``folder``, with the final '/'."""
    return posixpath.dirname(folder.rstrip("/")) + "/_floor/"


def read_floor(store: ObjectStore, folder: str) -> int:
    """The floor; 0 if nothing was ever deleted."""
    return max((version for version, _ in _floors(store, folder)), default=0)


def raise_floor(store: ObjectStore, folder: str, version: int) -> None:
    """Record that commits below ``version`` will be deleted. Durable when it returns."""
    known = sorted(_floors(store, folder))
    # Written again if it exists: its writer may have died before it was durable.
    highest = max([version, *(floor for floor, _ in known)])
    store.put(f"{floor_folder(folder)}{highest:0{DIGITS}d}", b"")
    for _, path in known[:-_FLOORS_KEPT]:
        store.delete(path)


def _floors(store: ObjectStore, folder: str) -> list[tuple[int, str]]:
    found = []
    for info in store.list(floor_folder(folder)):
        name = posixpath.basename(info.path)
        if len(name) == DIGITS and name.isascii() and name.isdigit():
            found.append((int(name), info.path))
    return found


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
