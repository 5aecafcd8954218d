"""The plan of one table's clean-up: what it may delete.

    commits       … ─ 38 ─ 39 ─┊─ oldest=40 ─ 41 ─ … ─ head     ┊ kept: young, or of the last ten
    changelogs     base=36 ─ 37 ─ 38 ─ 39 ─ 40 ─ …              reading 40 begins at a snapshot: 36
    other uids     of these versions lost, and are garbage; above the head one may still win
    data           what no kept version lists, from before the horizon

Law of this file: reads only. What is needed is decided by the committed lineage and never by a
version's number: a stray snapshot of version 39 is not what version 40 is read from. Commits below
a gap, which a writer made that slept through a clean-up, are garbage too.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import msgspec

from persist.manifest.actions import Horizon, WriterIdentity, parse_time
from persist.manifest.committing import Proposal, commit
from persist.manifest.errors import ManifestDamaged, VersionNotKept
from persist.manifest.files import Commit, DamagedFile, decode_snapshot
from persist.manifest.head import raise_floor, read_commit
from persist.manifest.history import Removals, committed_lineage
from persist.manifest.lineage import Loader
from persist.manifest.paths import parse_entry, snapshot_path
from persist.manifest.reading import Manifest, snapshot_due, write_snapshot
from persist.manifest.state import Lineage, TableState
from persist.store import ObjectInfo

KEEP_VERSIONS = 10

# A store may date an object by the start of its upload, while its add says when the answer came. So
# what is deleted is a little older than what is refused: a sixth of the grace, this at most.
LONGEST_UPLOAD_S = 600.0

_READERS = 8
_AT_ONCE = 64


class Retention(msgspec.Struct, frozen=True):
    """Limits of what is kept: versions younger than ``retain_s``, at least ``keep_versions`` of
    them, and files that no version lists for ``orphan_grace_s``.
    """

    retain_s: float = 86400.0
    orphan_grace_s: float = 3600.0
    keep_versions: int = KEEP_VERSIONS


class ManifestFiles(NamedTuple):
    """The objects of a manifest's folder by kind, each in ascending order of version."""

    commits: dict[int, ObjectInfo]
    changelogs: dict[tuple[int, str], ObjectInfo]
    snapshots: dict[tuple[int, str], ObjectInfo]


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps of one clean-up; ``cleaning.carry_out`` does it.

    Attributes:
        state: The head that the plan was made for.
        first: The oldest version that could be asked for before.
        oldest: The oldest one afterwards.
        horizon: To be committed before any of ``data`` is deleted; None where nothing has to be.
        snapshot: The state of ``oldest``, when its snapshot has to be written before all else.
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
) -> Plan:
    """Plan a clean-up: what of the table may go now.

    Args:
        known: A state that one has; the head is found from there.
        removals: What an earlier plan of the same table has learnt.

    Raises:
        TableNotFound: There is no such table.
        ManifestDamaged: Something that is kept cannot be read: nothing is deleted then.
    """
    now = manifest.store.now()
    state = manifest.load(known=known)
    files = list_manifest(manifest)
    first = _first_of_run(files.commits, state.version)
    oldest = first
    if state.sealed is None:
        oldest = _oldest(manifest, first, state.version, now, retention)
    # else: whoever finishes the switch has to be told what came, however long that takes.
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
    return Plan(
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
    """The objects in the manifest's folder by kind; foreign files are left out."""
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
    """The data files in the table's folder, listed by a version or not, with full paths."""
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
    """The horizon to commit; None where the committed one covers all that is to go."""
    committed = parse_time(state.horizon) if state.horizon is not None else None
    if all(committed is not None and info.at + margin < committed for info in data):
        return None
    return horizon.isoformat()


def _first_of_run(commits: dict[int, ObjectInfo], head: int) -> int:
    first = head
    while first - 1 in commits:
        first -= 1
    return first


def _oldest(manifest: Manifest, first: int, head: int, now: datetime, retention: Retention) -> int:
    """The lowest version that counts and is young, or one of the last that are kept anyway."""
    limit = max(head - max(retention.keep_versions, 1) + 1, first)
    cutoff = now - timedelta(seconds=retention.retain_s)
    commits = _read_commits(manifest, first, min(limit + 1, head))
    for made, following in pairwise(commits):
        if made is None or following is None or following.parent != made.uid:
            continue  # deleted meanwhile by another clean-up, or made by one that slept through it
        at = parse_time(made.at)
        if made.version >= limit or at is None or at > cutoff:
            return made.version
    return min(limit + 1, head)


def _read_commits(manifest: Manifest, first: int, last: int) -> Iterator[Commit | None]:
    read = partial(read_commit, manifest.store, manifest.folder)
    with ThreadPoolExecutor(_READERS, thread_name_prefix="clean-up") as pool:
        for start in range(first, last + 1, _AT_ONCE):
            yield from pool.map(read, range(start, min(start + _AT_ONCE, last + 1)))


def _what_oldest_needs(
    manifest: Manifest, oldest: int, lineage: Lineage
) -> tuple[int, set[tuple[int, str]], TableState | None]:
    """The snapshot's version that reading begins at, all that is read then, and what to write.

    Reading the oldest version proves that it can be read; what comes later reads the same and more.
    """
    made = read_commit(manifest.store, manifest.folder, oldest)
    if made is None or (made.version, made.uid) != lineage[0]:
        raise VersionNotKept(oldest, oldest + 1, lineage[-1][0])
    loader = Loader(manifest.store, manifest.folder)
    state = loader.load(made)
    if loader.base != lineage[0] and (state.damaged_snapshots or snapshot_due(state)):
        return oldest, set(lineage), state
    return loader.base[0], {loader.base, *loader.replayed, *lineage}, None


_DELETERS = 8


class Deleted(msgspec.Struct, frozen=True):
    """The number of objects of one kind that went, and the sum of their sizes in bytes."""

    files: int = 0
    bytes: int = 0

    @classmethod
    def of(cls, infos: Iterable[ObjectInfo]) -> Deleted:
        """The number of these objects, and their size."""
        sizes = [info.bytes for info in infos]
        return cls(len(sizes), sum(sizes))


class CleanUp(msgspec.Struct, frozen=True):
    """The outcome of a clean-up, or with ``dry_run`` the one that it would have.

    Attributes:
        oldest_before: The oldest version that could be asked for before; ``oldest``: afterwards.
        newest: The table's newest version at its end.
        horizon: The horizon that it committed; None where it needed none.
        snapshot_version: The version whose snapshot it wrote; None where it needed none.
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
        """Number of objects of all kinds that went."""
        return sum(kind.files for kind in self._kinds())

    @property
    def bytes(self) -> int:
        """The sum of their sizes."""
        return sum(kind.bytes for kind in self._kinds())

    def _kinds(self) -> tuple[Deleted, ...]:
        return (self.commits, self.changelogs, self.snapshots, self.data)


def janitor() -> WriterIdentity:
    """An identity to commit horizons under that no daemon can have, and that fences nobody."""
    return WriterIdentity(ingester_id="_manifest_gc", incarnation=uuid.uuid4().hex[:16], epoch=0)


def clean_up(
    manifest: Manifest,
    retention: Retention,
    *,
    writer: WriterIdentity | None = None,
    dry_run: bool = False,
) -> CleanUp:
    """Clean one table; with ``dry_run`` only say what that would be. Blocks.

    Raises:
        TableNotFound: There is no such table.
        ManifestDamaged: Something that is kept cannot be read: nothing is deleted then.
        VersionNotKept: Another clean-up was faster; run it again.
        StoreUnavailable, CommitUnclear: Run it again: whatever was done stays done.
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


def write_due_snapshot(manifest: Manifest, plan: Plan) -> None:
    """Write the snapshot that the plan relies on, and see that it can be read.

    Raises:
        ManifestDamaged: What was written does not read back; nothing was deleted.
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


def carry_out(manifest: Manifest, plan: Plan, state: TableState) -> CleanUp:
    """Delete what the plan says, and return what went.

    Args:
        state: A state with the plan's horizon in it, after :func:`write_due_snapshot`.

    Raises:
        ManifestDamaged, StoreUnavailable: As :func:`clean_up`.
    """
    if plan.commits and manifest.load(known=state).sealed is not None:
        # Whoever finishes the switch has to be told what came. The next run plans anew.
        plan = replace(plan, oldest=plan.first, commits=(), changelogs=(), snapshots=(), data=())
    data = plan.data
    if plan.horizon is not None:
        # Versions of between plan and horizon may list what nobody listed before; later ones
        # cannot any more.
        plan.removals.follow(manifest, committed_lineage(manifest, plan.oldest, state))
        data = tuple(i for i in data if still_unlisted(manifest, state, plan.removals, i))
    if plan.commits:
        raise_floor(manifest.store, manifest.folder, plan.oldest)
    for info in plan.commits:
        # Invariant: ascending, each gone before the next. Whoever creates a commit again finds its
        # parent missing and knows that it does not count.
        manifest.store.delete(info.path)
    with ThreadPoolExecutor(_DELETERS, thread_name_prefix="clean-up") as pool:
        for kind in (plan.changelogs, plan.snapshots, data):
            for _ in pool.map(manifest.store.delete, [info.path for info in kind]):
                pass
    return _report(manifest, plan, state, data, dry_run=False)


def _report(
    manifest: Manifest,
    plan: Plan,
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
