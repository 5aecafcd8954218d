"""Clean-up of one table: delete what no kept version needs.

    snapshot of the oldest kept version, where reading it takes long, read back
    horizon, committed: from here on, whoever uploaded before it has to upload again
    floor, raised            nothing below it counts from here on
    commits, ascending       these versions cannot be asked for any more
    changelogs, snapshots    of versions that are gone, and of uids that lost
    data files               that no kept version lists, from before the horizon

Law of this file: it may end at any step and be run again, from the start, by anybody, also by two
at the same time. Whatever is deleted was garbage for ever before: no version that is kept, or is
committed meanwhile, can come to need it. Of a table version that is sealed no versions go.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import msgspec

from persist.manifest.actions import Horizon, WriterIdentity
from persist.manifest.committing import Proposal, commit
from persist.manifest.errors import ManifestDamaged
from persist.manifest.files import DamagedFile, decode_snapshot
from persist.manifest.gc_plan import Plan, Retention, plan_clean_up, still_unlisted
from persist.manifest.head import raise_floor
from persist.manifest.history import committed_lineage
from persist.manifest.paths import snapshot_path
from persist.manifest.reading import Manifest
from persist.manifest.snapshots import write_snapshot
from persist.manifest.state import TableState
from persist.store import ObjectInfo

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
