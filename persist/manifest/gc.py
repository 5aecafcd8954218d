"""Garbage collection of one table: deletes what no kept version needs.

    commits       … ─ 38 ─ 39 ─┊─ oldest=40 ─ 41 ─ … ─ head     ┊ kept: young, or of the last ten
    changelogs     base=36 ─ 37 ─ 38 ─ 39 ─ 40 ─ …              reading 40 begins at a snapshot: 36
    other uids     of these versions lost, and are garbage; above the head one may still win
    data           listed by no kept version, older than the horizon

The plan only reads. The committed lineage decides what is needed, never a version number alone: a
stray snapshot of version 39 is not what version 40 is read from. Then, in this order:

    snapshot of the oldest kept version, if reading it takes long; read back
    horizon, committed: files uploaded before it must be uploaded again from now on
    floor, raised            nothing below it counts from now on
    commits, ascending       these versions can no longer be read
    changelogs, snapshots    of versions that are gone, and of uids that lost
    data files               that no kept version lists, from before the horizon

Of a published table, all versions from the lowest pin on are kept (``published``), and the one that
was current when the retention began: readers of published snapshots may have begun with it then.

It may stop at any step and be run again from the start, by any process, also by two at once
(test_gc_interrupted.py). No kept or later version can come to need what is deleted. The versions of
a sealed table version are all kept. Commits below a gap, made by a writer that was paused during a
collection, are garbage too.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import NamedTuple

import msgspec

from persist.manifest.actions import Horizon, WriterIdentity, parse_time
from persist.manifest.committing import Proposal, commit
from persist.manifest.errors import ManifestDamaged, VersionNotKept
from persist.manifest.files import DamagedFile, decode_snapshot
from persist.manifest.history import Removals, committed_lineage
from persist.manifest.lineage import VersionLoader, raise_floor, read_commit
from persist.manifest.paths import parse_entry, snapshot_path
from persist.manifest.published import Pin, lowest_pin, read_pins
from persist.manifest.reading import Manifest, snapshot_due, write_snapshot
from persist.manifest.retention import Retention, oldest_kept
from persist.manifest.state import Lineage, TableState
from persist.store import ObjectInfo, delete_all

# A store may date an object by the start of its upload, while its add has the time of the answer.
# Deleted files are therefore older than refused ones: by a sixth of the grace, at most this.
LONGEST_UPLOAD_S = 600.0


class ManifestFiles(NamedTuple):
    """The objects of a manifest's folder by kind, each in ascending order of version."""

    commits: dict[int, ObjectInfo]
    changelogs: dict[tuple[int, str], ObjectInfo]
    snapshots: dict[tuple[int, str], ObjectInfo]


@dataclass(frozen=True, slots=True)
class CleanUpPlan:
    """The plan of one collection; :func:`carry_out` executes it.

    Attributes:
        state: The head that the plan was made for.
        first: The oldest readable version before.
        oldest: The oldest readable version afterwards.
        horizon: To be committed before any of ``data`` is deleted; None if not needed.
        snapshot: The state of ``oldest``, if its snapshot must be written first.
        commits: To be deleted in this order, one after another.
    """

    state: TableState
    first: int
    oldest: int
    horizon: str | None
    snapshot: TableState | None
    commits: tuple[ObjectInfo, ...]
    changelogs: tuple[ObjectInfo, ...]
    snapshots: tuple[ObjectInfo, ...]
    data: tuple[ObjectInfo, ...]
    removals: Removals = field(repr=False)


def plan_clean_up(
    manifest: Manifest,
    retention: Retention,
    *,
    known: TableState | None = None,
    removals: Removals | None = None,
) -> CleanUpPlan:
    """Plan a collection of what may be deleted now.

    Args:
        known: A known state, from which the head is found.
        removals: Knowledge from an earlier plan of the same table.

    Raises:
        TableNotFound: The table does not exist.
        ManifestDamaged: Something that is kept, or a pin, cannot be read; nothing is deleted.
    """
    now = manifest.store.now()
    state = manifest.load(known=known)
    pins = _pins(manifest)
    files = list_manifest(manifest)
    first = _first_of_run(files.commits, state.version)
    oldest = first
    if state.sealed is None:
        oldest = oldest_kept(manifest, first, state.version, now, retention, published=bool(pins))
        oldest = max(first, min(oldest, lowest_pin(pins, manifest.table_version) or oldest))
    # else: the process that finishes the switch needs all versions, however long it takes.
    lineage = committed_lineage(manifest, oldest, state)
    base, needed, snapshot = _what_oldest_needs(manifest, oldest, lineage)
    grace = timedelta(seconds=retention.orphan_grace_s)

    def garbage(place: tuple[int, str], info: ObjectInfo) -> bool:
        version = place[0]
        if version > state.version or place in needed:
            return False
        return version < base or info.at < now - grace

    removals = Removals() if removals is None else removals
    removals.follow(manifest, lineage)
    margin = timedelta(seconds=min(retention.orphan_grace_s / 6, LONGEST_UPLOAD_S))
    data = tuple(_unlisted(manifest, state, removals, now - grace - margin))
    return CleanUpPlan(
        state=state,
        first=first,
        oldest=oldest,
        horizon=_horizon(state, data, now - grace, margin),
        snapshot=snapshot,
        commits=tuple(info for version, info in files.commits.items() if version < oldest),
        changelogs=tuple(info for at, info in files.changelogs.items() if garbage(at, info)),
        snapshots=tuple(info for at, info in files.snapshots.items() if garbage(at, info)),
        data=data,
        removals=removals,
    )


def list_manifest(manifest: Manifest) -> ManifestFiles:
    """The objects in the manifest's folder by kind, without foreign files."""
    files = ManifestFiles({}, {}, {})
    for info in manifest.store.list(manifest.folder):
        entry = parse_entry(info.path)
        if entry is None:
            continue
        if entry.kind == "commit":
            files.commits[entry.version] = info
        elif entry.kind == "changelog":
            files.changelogs[entry.version, entry.uid] = info
        else:
            files.snapshots[entry.version, entry.uid] = info
    return files


def list_data(manifest: Manifest) -> Iterator[ObjectInfo]:
    """All data files in the table's folder, with full paths."""
    for info in manifest.store.list(f"{manifest.root}/data/"):
        if info.path.endswith(".parquet"):
            yield info


def still_unlisted(
    manifest: Manifest, state: TableState, removals: Removals, info: ObjectInfo
) -> bool:
    """Whether neither ``state`` nor a kept version before it lists the file."""
    path = info.path.removeprefix(f"{manifest.root}/")
    return path not in state.files and path not in removals


def _unlisted(
    manifest: Manifest, state: TableState, removals: Removals, before: datetime
) -> Iterator[ObjectInfo]:
    for info in list_data(manifest):
        if info.at < before and still_unlisted(manifest, state, removals, info):
            yield info


def _horizon(
    state: TableState, data: tuple[ObjectInfo, ...], horizon: datetime, margin: timedelta
) -> str | None:
    """The horizon to commit; None if the committed one covers everything to be deleted."""
    committed = parse_time(state.horizon) if state.horizon is not None else None
    if all(committed is not None and info.at + margin < committed for info in data):
        return None
    return horizon.isoformat()


def _first_of_run(commits: dict[int, ObjectInfo], head: int) -> int:
    first = head
    while first - 1 in commits:
        first -= 1
    return first


def _pins(manifest: Manifest) -> dict[str, Pin]:
    return read_pins(manifest.store, manifest.namespace, manifest.table)


def _what_oldest_needs(
    manifest: Manifest, oldest: int, lineage: Lineage
) -> tuple[int, set[tuple[int, str]], TableState | None]:
    """The version of the snapshot that reading begins at, everything read from there, and what to
    write.

    Loading the oldest version proves that it can be read; later versions read the same and more.
    """
    made = read_commit(manifest.store, manifest.folder, oldest)
    if made is None or (made.version, made.uid) != lineage[0]:
        raise VersionNotKept(oldest, oldest + 1, lineage[-1][0])
    loader = VersionLoader(manifest.store, manifest.folder)
    state = loader.load(made)
    if loader.base != lineage[0] and (state.damaged_snapshots or snapshot_due(state)):
        return oldest, set(lineage), state
    return loader.base[0], {loader.base, *loader.replayed, *lineage}, None


class Deleted(msgspec.Struct, frozen=True):
    """How many objects of one kind were deleted, and the sum of their sizes in bytes."""

    files: int = 0
    bytes: int = 0

    @classmethod
    def of(cls, infos: Iterable[ObjectInfo]) -> Deleted:
        sizes = [info.bytes for info in infos]
        return cls(len(sizes), sum(sizes))


class CleanUp(msgspec.Struct, frozen=True):
    """The outcome of a collection, or with ``dry_run`` the expected one.

    Attributes:
        oldest_before: The oldest readable version before; ``oldest``: afterwards.
        newest: The table's newest version at the end.
        horizon: The horizon that was committed, if any.
        snapshot_version: The version whose snapshot was written, if any.
    """

    namespace: str
    table: str
    dry_run: bool
    oldest_before: int
    oldest: int
    newest: int
    horizon: str | None
    snapshot_version: int | None
    commits: Deleted
    changelogs: Deleted
    snapshots: Deleted
    data: Deleted

    @property
    def files(self) -> int:
        """The number of deleted objects of all kinds."""
        return sum(kind.files for kind in self._kinds())

    @property
    def bytes(self) -> int:
        """The sum of their sizes."""
        return sum(kind.bytes for kind in self._kinds())

    def _kinds(self) -> tuple[Deleted, ...]:
        return (self.commits, self.changelogs, self.snapshots, self.data)


def janitor() -> WriterIdentity:
    """An identity for horizon commits that no daemon has and that fences nobody."""
    return WriterIdentity(ingester_id="_manifest_gc", incarnation=uuid.uuid4().hex[:16], epoch=0)


def clean_up(
    manifest: Manifest,
    retention: Retention,
    *,
    writer: WriterIdentity | None = None,
    dry_run: bool = False,
) -> CleanUp:
    """Collect one table's garbage, or only report with ``dry_run``. Blocks.

    Raises:
        TableNotFound: The table does not exist.
        ManifestDamaged: Something that is kept cannot be read; nothing is deleted.
        VersionNotKept: Another collection was faster; run it again.
        StoreUnavailable, CommitUnclear: Run it again; completed steps stay done.
    """
    plan = plan_clean_up(manifest, retention)
    if dry_run:
        return _report(manifest, plan, plan.state, plan.data, dry_run=True)
    write_due_snapshot(manifest, plan)
    state = plan.state
    if plan.horizon is not None:
        proposal = Proposal([Horizon(at=plan.horizon)])
        state = commit(manifest, state, proposal, writer or janitor())
    return carry_out(manifest, plan, state)


def write_due_snapshot(manifest: Manifest, plan: CleanUpPlan) -> None:
    """Write the snapshot that the plan relies on, and read it back.

    Raises:
        ManifestDamaged: It does not read back; nothing was deleted.
    """
    if plan.snapshot is None:
        return
    state = plan.snapshot
    write_snapshot(manifest, state)
    path = snapshot_path(manifest.folder, state.version, state.uid)
    try:
        found = decode_snapshot(manifest.store.get(path))
    except DamagedFile as exc:
        raise ManifestDamaged(path, state.version, state.uid, str(exc)) from exc
    if found != state:
        raise ManifestDamaged(path, state.version, state.uid, "it does not hold what was written")


def carry_out(manifest: Manifest, plan: CleanUpPlan, state: TableState) -> CleanUp:
    """Execute the plan, and return what was deleted.

    Args:
        state: A state that contains the plan's horizon, after :func:`write_due_snapshot`.

    Raises:
        ManifestDamaged, StoreUnavailable: As :func:`clean_up`.
    """
    if plan.commits and _kept_after_all(manifest, plan, state):
        # The next run plans again.
        plan = replace(plan, oldest=plan.first, commits=(), changelogs=(), snapshots=())
        return _report(manifest, plan, state, (), dry_run=False)
    data = plan.data
    if plan.horizon is not None:
        # Versions between plan and horizon may list files that were unlisted; later ones cannot.
        plan.removals.follow(manifest, committed_lineage(manifest, plan.oldest, state))
        data = tuple(i for i in data if still_unlisted(manifest, state, plan.removals, i))
    for info in plan.commits:
        # Invariant: ascending, each deleted before the next. A writer that creates a commit again
        # finds its parent missing and knows that it does not count.
        manifest.store.delete(info.path)
    for kind in (plan.changelogs, plan.snapshots, data):
        delete_all(manifest.store, (info.path for info in kind))
    return _report(manifest, plan, state, data, dry_run=False)


def _kept_after_all(manifest: Manifest, plan: CleanUpPlan, state: TableState) -> bool:
    """Whether versions that the plan deletes have become needed since it was made."""
    if manifest.load(known=state).sealed is not None:
        return True  # the process that finishes the switch needs all versions
    # Invariant: the floor is raised before the pins are read. A publisher does the reverse.
    raise_floor(manifest.store, manifest.folder, plan.oldest)
    return (lowest_pin(_pins(manifest), manifest.table_version) or plan.oldest) < plan.oldest


def _report(
    manifest: Manifest,
    plan: CleanUpPlan,
    state: TableState,
    data: tuple[ObjectInfo, ...],
    *,
    dry_run: bool,
) -> CleanUp:
    return CleanUp(
        namespace=manifest.namespace,
        table=manifest.table,
        dry_run=dry_run,
        oldest_before=plan.first,
        oldest=plan.oldest,
        newest=state.version,
        horizon=plan.horizon,
        snapshot_version=plan.snapshot.version if plan.snapshot is not None else None,
        commits=Deleted.of(plan.commits),
        changelogs=Deleted.of(plan.changelogs),
        snapshots=Deleted.of(plan.snapshots),
        data=Deleted.of(data),
    )
