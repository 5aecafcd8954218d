"""Readers of one table's manifest, and snapshots, which shorten reading.

A state is returned only if its commit counts and everything in it was read under its lineage. A
reader with a known state loads only what follows it; if that does not link up (the state lost its
commit, or is deleted) it loads in full (tests/persist/manifest/test_reading.py).

A snapshot is only a shorter way to read what is committed. It is written beside commits and never
delays them; if it is late, missing or damaged, reading takes longer and gives the same result.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import msgspec

from persist.manifest.actions import Action, WriterIdentity
from persist.manifest.errors import ManifestDamaged, TableNotFound, VersionNotKept
from persist.manifest.files import CommitRecord, encode_changelog, encode_snapshot
from persist.manifest.lineage import (
    VersionLoader,
    counts,
    find_head,
    kept_range,
    read_changelogs,
    read_commit,
    replay,
)
from persist.manifest.paths import (
    after_folder,
    is_name,
    snapshot_path,
    table_folder,
    version_folder,
)
from persist.manifest.state import Lineage, TableState
from persist.manifest.table_versions import current_version, is_committed
from persist.store import ObjectStore

# Beyond this many versions a snapshot is likely to exist: a full load finds it.
_FOLLOW_AT_MOST = 32


class CommittedVersion(msgspec.Struct, frozen=True):
    """One version: its actions, its writer, and its time by the store's clock."""

    version: int
    uid: str
    at: str
    writer: WriterIdentity
    actions: tuple[Action, ...]


class Manifest:
    """The manifest of one table. Keeps no state of the table; threads may share it."""

    def __init__(
        self, store: ObjectStore, namespace: str, table: str, table_version: int | None = None
    ) -> None:
        """Touches nothing in the store.

        Args:
            table_version: Of the table; by default the one that is current at the first use.

        Raises:
            ValueError: Invalid names, or a table version below 1.
        """
        table_folder(namespace, table)
        if table_version is not None and table_version < 1:
            raise ValueError(f"table version {table_version} is below 1, the first")
        self.store = store
        self.namespace = namespace
        self.table = table
        # The newest version seen, where the search for the head begins. A lost update between
        # threads only costs a few more requests.
        self._hint = 0
        self.contended = False
        """Whether other processes commit to the table, as far as the last commit shows."""
        self._table_version = table_version

    @property
    def table_version(self) -> int:
        """The table version of this manifest, constant for the life of this object.

        The store is asked once. Two threads may ask at the same time, because a lock would make one
        table wait for another's store; the first answer is kept.
        """
        if self._table_version is None:
            found = current_version(self.store, self.namespace, self.table)
            if self._table_version is None:
                self._table_version = found
        return self._table_version

    @property
    def root(self) -> str:
        """The folder of the table version: ``<namespace>/<table>/v1``."""
        return version_folder(self.namespace, self.table, self.table_version)

    @property
    def folder(self) -> str:
        """The folder of the manifest's files, with the final '/'."""
        return f"{self.root}/_manifest/"

    def object_path(self, path: str) -> str:
        """The path in the store of the data file that an ``Add`` calls ``path``."""
        return f"{self.root}/{path}"

    def head(self) -> int:
        """The newest committed version.

        Raises:
            TableNotFound: There is none.
        """
        found = find_head(self.store, self.folder, self._hint)
        if found is None:
            raise TableNotFound(self.namespace, self.table)
        self.note(found)
        return found

    def note(self, version: int) -> None:
        """Record that ``version`` is committed, so that the next search begins there."""
        self._hint = max(self._hint, version)

    def load(self, version: int | None = None, known: TableState | None = None) -> TableState:
        """The state at ``version``, or at the head.

        Args:
            known: A known state; files that it shares with the result are not read again.

        Raises:
            TableNotFound: No version was ever committed.
            VersionNotKept: The version is older than the kept ones, or newer than the head.
            ManifestDamaged: A needed file is missing or broken, and nothing covers it.
        """
        if known is not None and known.version == 0:
            known = None
        if version is None:
            if known is not None:
                return self.refresh(known)
            commit = self._commit_of_head()
        else:
            commit = self._commit_of(version)
        if known is not None and known.version <= commit.version <= known.version + _FOLLOW_AT_MOST:
            followed = self._follow(known, commit.version)
            if followed is not None and (followed.version, followed.uid) == (
                commit.version,
                commit.uid,
            ):
                return followed
        return self._load_in_full(commit)

    def refresh(self, known: TableState) -> TableState:
        """The head's state; ``known`` itself if nothing was committed since.

        Costs two small reads, and two more for each new version.
        """
        if known.version > 0:
            followed = self._follow(known, known.version + _FOLLOW_AT_MOST)
            if followed is not None and followed.version < known.version + _FOLLOW_AT_MOST:
                return followed
        return self.load()

    def uid_of(self, version: int) -> str | None:
        """The uid of a version, which tells it from one of a table that was created again.

        None if neither the version nor the one after it is kept.
        """
        own = read_commit(self.store, self.folder, version)
        if own is not None and counts(self.store, self.folder, own):
            return own.uid
        following = read_commit(self.store, self.folder, version + 1)
        return None if following is None else following.parent

    def changes(self, from_version: int, to_version: int) -> list[CommittedVersion]:
        """The versions after ``from_version`` up to and including ``to_version``, in order.

        Raises:
            VersionNotKept: One of them is not kept, or does not exist yet.
            ManifestDamaged: One of their changelogs is missing or broken.
        """
        if to_version <= from_version:
            return []
        newest = self._commit_of(to_version)
        commits = [newest]
        while commits[-1].version > from_version + 1:
            before = read_commit(self.store, self.folder, commits[-1].version - 1)
            if before is None or before.uid != commits[-1].parent:
                raise self._not_kept(commits[-1].version - 1)
            commits.append(before)
        commits.reverse()
        logs = read_changelogs(self.store, self.folder, _places(commits))
        return [
            CommittedVersion(commit.version, commit.uid, commit.at, commit.writer, log.actions)
            for commit, log in zip(commits, logs, strict=True)
        ]

    def _load_in_full(self, commit: CommitRecord) -> TableState:
        """The state that ``commit`` made, also during garbage collection.

        Garbage collection writes a snapshot before it deletes the changelogs that the snapshot
        replaces. A load that missed a changelog therefore finds the snapshot at the second attempt.
        """
        try:
            state = VersionLoader(self.store, self.folder).load(commit)
        except ManifestDamaged:
            try:
                state = VersionLoader(self.store, self.folder).load(commit)
            except ManifestDamaged as exc:
                if read_commit(self.store, self.folder, commit.version) is None:
                    raise self._not_kept(commit.version) from exc
                raise
        return replace(state, table_version=self.table_version)

    def _follow(self, known: TableState, up_to: int) -> TableState | None:
        """The state from ``known`` and what follows it; None if that does not link up."""
        commits: list[CommitRecord] = []
        uid = known.uid
        for version in range(known.version + 1, up_to + 1):
            commit = read_commit(self.store, self.folder, version)
            if commit is None:
                break
            if commit.parent != uid:
                return None
            commits.append(commit)
            uid = commit.uid
        # Checked last: while this commit exists, garbage collection, which ascends, has deleted
        # none above it, so the missing one does not exist yet.
        own = read_commit(self.store, self.folder, known.version)
        if own is None or own.uid != known.uid:
            return None
        if not commits:
            return known
        lineage = _places(commits)
        try:
            logs = read_changelogs(self.store, self.folder, lineage)
            state = replay(known, self.folder, lineage, logs)
        except ManifestDamaged:
            return None  # a snapshot may cover it: a full load finds out
        self.note(state.version)
        return state

    def _commit_of_head(self) -> CommitRecord:
        while True:
            commit = read_commit(self.store, self.folder, self.head())
            if commit is not None:
                return commit
            # Garbage collection keeps the newest versions; only a long pause leads here.

    def _commit_of(self, version: int) -> CommitRecord:
        commit = read_commit(self.store, self.folder, version) if version > 0 else None
        if commit is None or not counts(self.store, self.folder, commit):
            raise self._not_kept(version)
        self.note(version)
        return commit

    def _not_kept(self, version: int) -> VersionNotKept:
        return VersionNotKept(version, *kept_range(self.store, self.folder, self.head()))


def _places(commits: list[CommitRecord]) -> Lineage:
    return tuple((commit.version, commit.uid) for commit in commits)


def list_tables(store: ObjectStore) -> list[tuple[str, str]]:
    """All (namespace, table), in order of their paths. Takes a few requests for each.

    A table exists once a version of it is committed. A store does not list folders, so the first
    object of a folder names it, and the next search begins after the folder.
    """
    return list(_tables(store, ""))


def tables_of(store: ObjectStore, namespace: str) -> Iterator[str]:
    """The names of a namespace's tables, in order of their paths; see :func:`list_tables`."""
    return (table for _, table in _tables(store, f"{namespace}/"))


def _tables(store: ObjectStore, prefix: str) -> Iterator[tuple[str, str]]:
    start = ""
    while (path := _first(store, prefix, start)) is not None:
        namespace, _, rest = path.partition("/")
        table, _, inside = rest.partition("/")
        if not is_name(namespace) or not rest:
            start = after_folder(namespace) if rest else path
        elif not inside or not is_name(table):
            start = after_folder(f"{namespace}/{table}") if inside else path
        else:
            if is_committed(store, namespace, table, current_version(store, namespace, table)):
                yield namespace, table
            start = after_folder(f"{namespace}/{table}")


def _first(store: ObjectStore, prefix: str, start_after: str) -> str | None:
    for info in store.list(prefix, start_after):
        return info.path
    return None


AT_THE_LATEST_AFTER = 200
# A small table would get a snapshot with almost every commit, because any changelog outweighs it.
NOT_BEFORE = 10

_SAMPLE = 32
_APPLIED_BYTES = 150
_FIXED_BYTES = 1_000


def snapshot_due(state: TableState, bytes_since_last: int | None = None) -> bool:
    """Whether to write a snapshot of ``state`` now.

    Args:
        bytes_since_last: Size of the changelogs since the last one; by default the state's own
            count.
    """
    versions = len(state.lineage) - 1
    if versions >= AT_THE_LATEST_AFTER:
        return True
    if versions < NOT_BEFORE:
        return False
    since = state.changelog_bytes if bytes_since_last is None else bytes_since_last
    return since * 2 > approximate_bytes(state)


def approximate_bytes(state: TableState) -> int:
    """The size of the state as changelog lines, from a sample of its files."""
    sample = list(islice(state.files.values(), _SAMPLE))
    per_file = len(encode_changelog((), sample)) / len(sample) if sample else 0
    schemas = sum(len(schema.arrow) for schema in state.schemas.values())
    return int(
        per_file * state.file_count + _APPLIED_BYTES * len(state.applied) + schemas + _FIXED_BYTES
    )


def write_snapshot(manifest: Manifest, state: TableState) -> TableState:
    """Write the snapshot of a committed state; return the state with its lineage cut to it.

    A newer state learns of the snapshot through ``newer.after_snapshot(state.version, state.uid)``;
    commits on top of it, and thereby other processes, then have the shorter lineage.

    Raises:
        ValueError: The state was never committed.
        StoreUnavailable: Nothing is lost; do it later.
    """
    if state.version == 0:
        raise ValueError("a table without a version has no snapshot")
    path = snapshot_path(manifest.folder, state.version, state.uid)
    manifest.store.put(path, encode_snapshot(state))
    return state.after_snapshot(state.version, state.uid)
