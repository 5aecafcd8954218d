"""Plans how a copy takes in a later manifest version, from groups and manifest actions.

A copy has the files of version V and every operation of its daemon after them up to a position.
After the plan it has the files of version W and every later operation up to the same position; or
the plan says ``resync``, and all remaining groups are read again from what W's files lack.

A file written by our daemon is *covered* if its rows already arrived live:

- Without a primary key this is a count. For a partition and epoch, the rows of the groups that W
  says are in files are compared with the rows of those files. If they are equal, nothing is read.
  Otherwise (the tail fell behind, a log was adopted, an origin moved to another daemon, operations
  were lost with a disk) the groups are taken back and the files are read.
- With a primary key, a flush is covered if a group reaches as far as the flush. Otherwise the
  difference is computed from the keys of the partition's removed files and the rows of its new
  ones, or the partition is read again if rows arrived live.

A table version that becomes current again counts operations as applied whose rows went into another
version; its groups prove nothing, and all are read again. Compaction changes no row. Any other
removal in a table without a key causes its partition to be read again.

Pure. ``tests/followers/test_model.py`` compares copies with a model of the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ingester.followers.errors import FellBehind
from ingester.followers.state import FeedPosition, FollowedGroup, Ledger
from persist.manifest import (
    Add,
    Applied,
    CommittedVersion,
    EpochComplete,
    Imported,
    PartitionKey,
    Remove,
    TableState,
)

COMPACTION = "compaction"
"""The reason for removals that change no row."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The operations that the copy has: those after ``floor`` up to ``position``."""

    ingester_id: str
    position: FeedPosition | None
    floor: FeedPosition | None = None

    def reaches(self, epoch: int, sequence: int) -> bool:
        """Whether the copy has reached an operation."""
        return self.position is not None and FeedPosition(epoch, sequence) <= self.position

    def is_below(self, epoch: int, sequence: int) -> bool:
        """Whether an operation is older than the beginning of the copy."""
        return self.floor is not None and FeedPosition(epoch, sequence) <= self.floor


@dataclass(slots=True)
class Fold:
    """The plan. Groups that it does not name stay.

    Attributes:
        retired: Groups whose rows are now in files.
        taken_back: Groups whose rows have to be removed.
        loads: Files whose rows have to be added.
        reloads: Partitions to be emptied, except for groups that stay, and read again.
        diffs: Partitions of a keyed table whose old and new files have to be compared.
    """

    retired: list[FollowedGroup] = field(default_factory=list)
    taken_back: list[FollowedGroup] = field(default_factory=list)
    loads: list[Add] = field(default_factory=list)
    reloads: list[PartitionKey] = field(default_factory=list)
    diffs: list[PartitionKey] = field(default_factory=list)
    resync: bool = False


@dataclass(slots=True)
class _Changes:
    """The actions between two versions, by kind."""

    own: dict[tuple[PartitionKey, int], list[Add]] = field(default_factory=dict)
    """Files flushed by our daemon, by partition and epoch."""
    others: list[Add] = field(default_factory=list)
    applied: dict[tuple[PartitionKey, int], int] = field(default_factory=dict)
    """The last sequence in our daemon's flushes."""
    epochs_complete: bool = False
    removed_in: set[PartitionKey] = field(default_factory=set)
    """Partitions with files removed by something other than compaction."""
    imported: bool = False
    """Whether another table version was current in between."""


def fold_appended(
    ledger: Ledger,
    seen: Seen,
    before: TableState,
    now: TableState,
    changes: Iterable[CommittedVersion],
    count: Callable[[Add], int],
) -> Fold:
    """The plan for a table without a primary key.

    Args:
        count: The number of rows in a file that match the copy's filter.

    Raises:
        FellBehind: The copy began after a floor, and a file has rows from both sides of it.
    """
    found = _classified(seen, before, changes)
    plan = Fold(resync=found.imported)
    keys = {*found.own, *found.applied}
    for key in ledger.keys() if found.epochs_complete else ():
        keys.add(key)
    for partition, epoch in sorted(keys, key=repr):
        if partition not in found.removed_in:
            _fold_flushes(plan, ledger, seen, now, found, (partition, epoch), count)
    plan.loads += [add for add in found.others if add.partition not in found.removed_in]
    if found.removed_in and seen.floor is not None:
        raise _behind(f"files of {len(found.removed_in)} partitions were replaced")
    for partition in sorted(found.removed_in, key=repr):
        plan.reloads.append(partition)
        for group in ledger.of_partition(partition):
            applied = now.applied_to(seen.ingester_id, group.epoch, *partition)
            if group.last <= applied:
                plan.retired.append(group)
            elif group.first <= applied:
                plan.resync = True
    return plan


def _fold_flushes(
    plan: Fold,
    ledger: Ledger,
    seen: Seen,
    now: TableState,
    found: _Changes,
    key: tuple[PartitionKey, int],
    count: Callable[[Add], int],
) -> None:
    """Plan for the flushes of one partition and epoch."""
    partition, epoch = key
    applied = now.applied_to(seen.ingester_id, epoch, *partition)
    groups = ledger.of(partition, epoch)
    done = [group for group in groups if group.last <= applied]
    cut = any(group.first <= applied < group.last for group in groups)
    adds = [a for a in found.own.get(key, ()) if not seen.is_below(epoch, a.last_seq)]
    behind = any(not seen.reaches(epoch, add.last_seq) for add in adds)
    if any(seen.is_below(epoch, add.first_seq) for add in adds):
        # Some of its rows are older than the copy and cannot be distinguished.
        if behind or cut:
            raise _behind(f"file {adds[0].path} has rows from before the beginning of the copy")
        plan.retired += done
        return
    if not (behind or cut) and sum(group.rows for group in done) == sum(map(count, adds)):
        plan.retired += done
        return
    plan.resync |= cut
    plan.taken_back += done
    plan.loads += adds


def fold_keyed(
    ledger: Ledger,
    seen: Seen,
    before: TableState,
    now: TableState,
    changes: Iterable[CommittedVersion],
) -> Fold:
    """The plan for a table with a primary key."""
    found, plan = _classified(seen, before, changes), Fold()
    reached = dict(found.applied)
    for key, adds in found.own.items():
        reached[key] = max([reached.get(key, -1), *(add.last_seq for add in adds)])
    uncovered = {add.partition for add in found.others}
    uncovered |= found.removed_in - {partition for partition, _ in reached}
    for (partition, epoch), sequence in reached.items():
        if seen.is_below(epoch, sequence):
            continue
        known = max((group.last for group in ledger.of(partition, epoch)), default=-1)
        if not seen.reaches(epoch, sequence) or known < sequence:
            uncovered.add(partition)
    left = set()
    for group in ledger:
        if group.last <= now.applied_to(seen.ingester_id, group.epoch, *group.partition):
            plan.retired.append(group)
        else:
            left.add(group.partition)
    # Keys that arrived live and are in neither version's files may have been deleted.
    live = {group.partition for group in ledger}
    plan.diffs = sorted(uncovered - live, key=repr)
    plan.reloads = sorted(uncovered & live, key=repr)
    # Rows acknowledged before another daemon took the table over may never reach a file.
    moved = len(ledger) > 0 and _owner(before) != _owner(now)
    plan.resync = bool(uncovered & left) or moved or found.imported
    return plan


def _owner(state: TableState) -> str | None:
    return None if state.owner is None else state.owner.ingester_id


def _classified(seen: Seen, before: TableState, changes: Iterable[CommittedVersion]) -> _Changes:
    found = _Changes()
    where: dict[str, PartitionKey] = {}
    for change in changes:
        compacted: dict[bool, set[PartitionKey]] = {True: set(), False: set()}
        for action in change.actions:
            if isinstance(action, Add):
                where[action.path] = action.partition
                if action.kind == "rewrite":
                    compacted[True].add(action.partition)
                elif action.kind == "persist" and action.writer == seen.ingester_id:
                    found.own.setdefault((action.partition, action.epoch), []).append(action)
                else:
                    found.others.append(action)
            elif isinstance(action, Remove):
                partition = where.get(action.path) or before.files[action.path].partition
                if action.reason == COMPACTION:
                    compacted[False].add(partition)
                else:
                    found.removed_in.add(partition)
            elif isinstance(action, Applied) and action.ingester_id == seen.ingester_id:
                found.applied[(action.spec_id, action.values), action.epoch] = action.seq
            elif isinstance(action, EpochComplete) and action.ingester_id == seen.ingester_id:
                found.epochs_complete = True
            elif isinstance(action, Imported):
                found.imported = True
        # A rewrite that changes no row adds files in the partitions where it removed some.
        found.removed_in |= compacted[True] ^ compacted[False]
    return found


def _behind(why: str) -> FellBehind:
    return FellBehind(
        f"{why}: a copy that did not begin at the beginning cannot be continued exactly; seek to"
        " the tail, or to the beginning"
    )
