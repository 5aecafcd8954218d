"""Verifies that everything kept of a table exists and is intact. Reads only.

    damage      a kept version cannot be read, or one of its files is missing or of another size
    weakness    a snapshot is damaged: it is read around while its changelogs exist
    strays      objects that no kept version needs, by kind: garbage, or attempts under way

It continues after each finding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from persist.manifest.actions import Add
from persist.manifest.errors import ManifestDamaged
from persist.manifest.files import CommitRecord, DamagedFile, decode_snapshot
from persist.manifest.gc import Deleted, ManifestFiles, list_data, list_manifest
from persist.manifest.history import kept_versions
from persist.manifest.lineage import VersionLoader, read_changelog, read_commit, replay
from persist.manifest.paths import snapshot_path
from persist.manifest.reading import Manifest
from persist.manifest.state import TableState
from persist.store import ObjectInfo, ObjectNotFound

CountRows = Callable[[str, Add], int]


class ManifestFinding(msgspec.Struct, frozen=True):
    """One deviation; ``path`` is from the store's root."""

    severity: Literal["damage", "weakness"]
    path: str
    version: int
    problem: str


class Verification(msgspec.Struct, frozen=True):
    """The checked objects, and the findings. ``data_files``: those of any kept version."""

    namespace: str
    table: str
    oldest: int
    newest: int
    data_files: int
    rows_counted: bool
    findings: tuple[ManifestFinding, ...]
    stray_commits: Deleted
    stray_changelogs: Deleted
    stray_snapshots: Deleted
    stray_data: Deleted

    @property
    def damaged(self) -> bool:
        """Whether something that is kept cannot be read."""
        return any(finding.severity == "damage" for finding in self.findings)


def verify(manifest: Manifest, count_rows: CountRows | None = None) -> Verification:
    """Check everything that is kept; the module lists what is reported.

    Args:
        count_rows: Returns the rows of a data file, by its path from the store's root and its
            entry; by default only existence and size are checked. Its exceptions become findings.

    Raises:
        TableNotFound: The table does not exist.
        StoreUnavailable: The store became unreachable.
    """
    oldest, newest = kept_versions(manifest)
    check = _VersionCheck(manifest, count_rows)
    for version in range(oldest, newest + 1):
        check.version(version)
    files, needed = list_manifest(manifest), check.needed
    strays = [info for info in check.stored.values() if info.path not in check.listed]
    return Verification(
        namespace=manifest.namespace,
        table=manifest.table,
        oldest=oldest,
        newest=newest,
        data_files=len(check.listed),
        rows_counted=count_rows is not None,
        findings=tuple(check.findings),
        stray_commits=Deleted.of(info for v, info in files.commits.items() if v < oldest),
        stray_changelogs=Deleted.of(i for at, i in files.changelogs.items() if at not in needed),
        stray_snapshots=Deleted.of(i for at, i in files.snapshots.items() if at not in needed),
        stray_data=Deleted.of(strays),
    )


@dataclass
class _VersionCheck:
    """The versions checked so far, in ascending order, and their findings."""

    manifest: Manifest
    count_rows: CountRows | None
    findings: list[ManifestFinding] = field(default_factory=list)
    needed: set[tuple[int, str]] = field(default_factory=set)
    listed: set[str] = field(default_factory=set)
    stored: dict[str, ObjectInfo] = field(default_factory=dict)
    files: ManifestFiles = field(init=False)
    state: TableState | None = None

    def __post_init__(self) -> None:
        self.stored = {info.path: info for info in list_data(self.manifest)}
        self.files = list_manifest(self.manifest)

    def version(self, version: int) -> None:
        """Check one version and the files that it added."""
        try:
            commit = read_commit(self.manifest.store, self.manifest.folder, version)
            if commit is None:
                return  # deleted meanwhile
            self.needed.add((version, commit.uid))
            adds = self._follow(commit)
            if adds is None:
                adds = self._load(commit)
        except ManifestDamaged as exc:
            self.state = None
            self._found("damage", exc.path, version, exc.reason)
            return
        self._snapshot(commit)
        for add in adds:
            self._data(add, version)

    def _follow(self, commit: CommitRecord) -> Iterable[Add] | None:
        """The files that the version added, read from its own changelog on top of the previous
        state; None if that is impossible.
        """
        state, folder = self.state, self.manifest.folder
        if state is None or commit.parent != state.uid:
            return None
        try:
            log = read_changelog(self.manifest.store, folder, commit.version, commit.uid)
            place = (commit.version, commit.uid)
            if log.lineage[-2] != (state.version, state.uid):
                return None
            self.state = replay(state, folder, (place,), [log])
        except ManifestDamaged as exc:
            self._found("weakness", exc.path, commit.version, exc.reason)
            return None
        return [action for action in log.actions if isinstance(action, Add)]

    def _load(self, commit: CommitRecord) -> Iterable[Add]:
        loader = VersionLoader(self.manifest.store, self.manifest.folder)
        self.state = loader.load(commit)
        self.needed |= {loader.base, *loader.replayed}
        for path in self.state.damaged_snapshots:
            self._found("weakness", path, commit.version, "the snapshot is damaged")
        return self.state.files.values()

    def _snapshot(self, commit: CommitRecord) -> None:
        place = (commit.version, commit.uid)
        if place not in self.files.snapshots or self.state is None:
            return
        path = snapshot_path(self.manifest.folder, *place)
        if path in self.state.damaged_snapshots:
            return
        try:
            if decode_snapshot(self.manifest.store.get(path)) != self.state:
                self._found("damage", path, commit.version, "it differs from the changelogs")
        except ObjectNotFound:
            return  # deleted meanwhile
        except DamagedFile as exc:
            self._found("weakness", path, commit.version, str(exc))

    def _data(self, add: Add, version: int) -> None:
        path = self.manifest.object_path(add.path)
        if path in self.listed:
            return
        self.listed.add(path)
        there = self.stored.get(path) or self.manifest.store.exists(path)
        if there is None:
            self._found("damage", path, version, "the data file is missing")
        elif there.bytes != add.bytes:
            problem = f"the data file has {there.bytes} bytes, and should have {add.bytes}"
            self._found("damage", path, version, problem)
        elif self.count_rows is not None:
            try:
                rows = self.count_rows(path, add)
            except Exception as exc:
                self._found("damage", path, version, f"the data file cannot be read: {exc}")
                return
            if rows != add.rows:
                problem = f"the data file has {rows} rows, and should have {add.rows}"
                self._found("damage", path, version, problem)

    def _found(
        self, severity: Literal["damage", "weakness"], path: str, version: int, problem: str
    ) -> None:
        self.findings.append(ManifestFinding(severity, path, version, problem))
