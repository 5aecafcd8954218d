"""What taking a later version's files in means for a copy: a rule over groups and actions.

Law of this file: pure. A copy that has version V's files and every operation of its daemon behind
them up to a position, has after the plan is carried out version W's files, and behind these every
operation up to the same position; or the plan says ``resync``, and all groups that are left have to
come again, from what W's files lack.

A file of our daemon is *covered* if its rows are here from the tail. In a table without a primary
key that is counted: of a partition and epoch, the rows of the groups that a version says to be in
files, beside the rows of those files. Where both are the same nothing is read. Where not (the tail
fell behind, an adopted log, an origin that went to another daemon, operations lost with a disk),
the groups are taken back and the files are read. In a keyed table a flush is covered if a group
reaches up to where the flush does; else the keys of the partition's files that went and the rows of
those that came are the difference, or where rows came live the partition is read anew.

A table version that counts again knows operations as applied whose rows went into another: then
groups say nothing, and all come again.

Compaction changes no row; any other removal in a table without a key has the partition read anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ingester.followers.errors import FellBehind
from ingester.followers.state import Group, Ledger, Position
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
"""The reason of removals that change no row."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What the copy has of its daemon: operations behind ``floor`` up to ``position``."""

    ingester_id: str
    position: Position | None
    floor: Position | None = None

    def reaches(self, epoch: int, sequence: int) -> bool:
        """Whether an operation is not behind the position."""
        return self.position is not None and Position(epoch, sequence) <= self.position

    def is_below(self, epoch: int, sequence: int) -> bool:
        """Whether an operation is of before the copy's beginning."""
        return self.floor is not None and Position(epoch, sequence) <= self.floor


@dataclass(slots=True)
class Fold:
    """What is to be done; groups that are not named stay.

    Attributes:
        retired: Groups whose rows are those of files now.
        taken_back: Groups whose rows are to be removed.
        loads: Files whose rows are to be added.
        reloads: Partitions to be emptied but for groups that stay, and read from the later version.
        diffs: Partitions of a keyed table whose files are to be compared.
    """

    retired: list[Group] = field(default_factory=list)
    taken_back: list[Group] = field(default_factory=list)
    loads: list[Add] = field(default_factory=list)
    reloads: list[PartitionKey] = field(default_factory=list)
    diffs: list[PartitionKey] = field(default_factory=list)
    resync: bool = False


@dataclass(slots=True)
class _Changes:
    """The actions between two versions, told apart."""

    own: dict[tuple[PartitionKey, int], list[Add]] = field(default_factory=dict)
    """Files of our daemon's flushes, by partition and epoch."""
    others: list[Add] = field(default_factory=list)
    applied: dict[tuple[PartitionKey, int], int] = field(default_factory=dict)
    """Where flushes of our daemon reach to."""
    epochs_complete: bool = False
    removed_in: set[PartitionKey] = field(default_factory=set)
    """Partitions that lost files to something else than compaction."""
    imported: bool = False
    """Whether the table was at another of its versions in between."""


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
        count: The rows that a file has of those that the copy is of.

    Raises:
        FellBehind: The copy began behind a floor, and a file has rows of both sides of it.
    """
    found = _told_apart(seen, before, changes)
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
        # Some of its rows are older than the copy: they cannot be told from the others.
        if behind or cut:
            raise _behind(f"file {adds[0].path} has rows of before the copy's beginning")
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
    found, plan = _told_apart(seen, before, changes), Fold()
    reached = dict(found.applied)
    for key, adds in found.own.items():
        reached[key] = max([reached.get(key, -1), *(add.last_seq for add in adds)])
    uncovered = {add.partition for add in found.others}
    uncovered |= found.removed_in - {partition for partition, _ in reached}
    for (partition, epoch), sequence in reached.items():
        if seen.is_below(epoch, sequence):
            continue
        there = max((group.last for group in ledger.of(partition, epoch)), default=-1)
        if not seen.reaches(epoch, sequence) or there < sequence:
            uncovered.add(partition)
    left = set()
    for group in ledger:
        if group.last <= now.applied_to(seen.ingester_id, group.epoch, *group.partition):
            plan.retired.append(group)
        else:
            left.add(group.partition)
    # Keys that came live and are in neither version's files may have gone since.
    live = {group.partition for group in ledger}
    plan.diffs = sorted(uncovered - live, key=repr)
    plan.reloads = sorted(uncovered & live, key=repr)
    # What a daemon had acknowledged when another one took the table over may never be in files.
    moved = len(ledger) > 0 and _owner(before) != _owner(now)
    plan.resync = bool(uncovered & left) or moved or found.imported
    return plan


def _owner(state: TableState) -> str | None:
    return None if state.owner is None else state.owner.ingester_id


def _told_apart(seen: Seen, before: TableState, changes: Iterable[CommittedVersion]) -> _Changes:
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
        # A rewrite that changes no row has its files where the ones before lay.
        found.removed_in |= compacted[True] ^ compacted[False]
    return found


def _behind(why: str) -> FellBehind:
    return FellBehind(
        f"{why}: a copy that did not begin at the beginning cannot be gone on with exactly; seek"
        " to the tail, or to the beginning"
    )
