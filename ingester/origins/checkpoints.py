"""The states of sources that are in the log and not yet in a manifest, table by table.

    applied with its batch ──▶ pending ──▶ claimed by a commit ──▶ settled: an installed version
                                  │                                 has it, or a newer one
                                  └──▶ lost: another process has taken its origin over

Law of this file: a state never shows without the rows that it came with, and never outlives them.
Of a partition the newest pending state is the one that counts. At most :data:`MOST_PENDING` wait
for each partition: between the first and the newest every second one goes, so that of any age one
is left that is not much older. Pure. Loop only, but for
:meth:`Checkpoints.room`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ingester.origins.checkpoint_growth import Growth
from ingester.origins.checkpoint_state import Checkpoint
from ingester.origins.tenure import Tenure
from persist.manifest.actions import Checkpoint as CheckpointAction
from persist.manifest.actions import decoded_size
from persist.manifest.origins import NO_END
from persist.manifest.state import TableState
from persist.table import TableKey

MOST_PENDING = 16
"""The number of states of one partition that wait for their rows to be in files."""


@dataclass(slots=True, eq=False)
class PendingCheckpoint:
    """A state in the log, with the operation that brought it."""

    given: Checkpoint
    stamp: CheckpointAction
    """The operation that brought it, as the action will say."""
    segment: int
    tenure: Tenure | None
    """The share that the operation's sequence belongs to; None without a sequence."""
    noted_at: float
    """The time when it came, on the monotonic clock."""
    missing: bool = False
    """Whether rows below it, that the log has, are another process's to bring."""
    committed_in: tuple[int, int] | None = None
    """The place of the version that has it, or a newer one; it counts until that is installed."""

    @property
    def position(self) -> tuple[int, int]:
        """The operation's place in the order of the daemon's log."""
        return self.stamp.epoch, self.stamp.seq

    @property
    def sequence(self) -> int | None:
        """The number that its origin gave the operation."""
        return self.stamp.sequence

    @property
    def nbytes(self) -> int:
        """The bytes of the state, without those that it shares."""
        return self.given.nbytes

    @property
    def lost(self) -> bool:
        """Whether another process has taken over the sequence that it came with, or one below."""
        sequence = self.stamp.sequence
        if sequence is None or self.tenure is None:
            return False
        return self.missing or sequence >= self.tenure.end

    def action(self) -> CheckpointAction:
        """Make the action that commits it."""
        return self.given.filled(self.stamp)


@dataclass(frozen=True, slots=True)
class CheckpointTotals:
    """The numbers of a table's checkpoints, or of all tables'."""

    count: int = 0
    bytes: int = 0
    """Bytes of states, and of those that they share."""
    pending: int = 0
    """Partitions whose newest state is in the log only."""


class _Table:
    """The checkpoints of one table."""

    def __init__(self) -> None:
        self.pending: dict[str, list[PendingCheckpoint]] = {}
        self.pending_bytes = 0
        """Bytes of memory of all that wait; what several share counts once."""
        self._shared: Counter[str] = Counter()
        self.committed: Mapping[str, CheckpointAction] = {}
        self.growth = Growth()
        self.committed_bytes = 0
        self.committed_count = 0

    def hold(self, pending: PendingCheckpoint) -> None:
        """Count the bytes of one that waits."""
        self.pending_bytes += pending.nbytes
        if (shared := pending.given.shared) is not None:
            self.pending_bytes += 0 if self._shared[shared.id] else len(shared.state)
            self._shared[shared.id] += 1

    def keep(self, partition: str, kept: list[PendingCheckpoint]) -> None:
        """Let these alone go on waiting in a partition."""
        for each in kept:
            self.hold(each)
        for each in self.pending[partition]:
            self._let_go(each)
        if kept:
            self.pending[partition] = kept
        else:
            del self.pending[partition]

    def _let_go(self, pending: PendingCheckpoint) -> None:
        self.pending_bytes -= pending.nbytes
        if (shared := pending.given.shared) is not None:
            self._shared[shared.id] -= 1
            if not self._shared[shared.id]:
                del self._shared[shared.id]
                self.pending_bytes -= len(shared.state)


class Checkpoints:
    """All states that the daemon has applied and no installed version has."""

    def __init__(self, most_in_table: int = 1 << 31) -> None:
        """``most_in_table``: the partitions of sources that a table may keep the states of."""
        self.most_in_table = most_in_table
        self._tables: dict[TableKey, _Table] = {}

    def note(self, table: TableKey, pending: PendingCheckpoint) -> bool:
        """Note a state that was applied with its operation; positions rise.

        Returns:
            Whether it is the only one that waits in the table.
        """
        known = self._tables.setdefault(table, _Table())
        first = not known.pending
        waiting = known.pending.setdefault(pending.given.partition, [])
        known.growth.note(waiting[-1].given if waiting else None, pending.given)
        waiting.append(pending)
        known.hold(pending)
        if len(waiting) > MOST_PENDING:
            known.keep(pending.given.partition, [*waiting[:-1:2], waiting[-1]])
        return first

    def newest(
        self, table: TableKey, partition: str, state: TableState
    ) -> PendingCheckpoint | None:
        """Find the state that is newer than the version's; None where the version's counts."""
        known = self._tables.get(table)
        waiting = [] if known is None else known.pending.get(partition, [])
        return _newest(waiting, state.checkpoints.get(partition))

    def pending(self, table: TableKey) -> Mapping[str, list[PendingCheckpoint]]:
        """List what waits in a table, by partition, each in log order."""
        known = self._tables.get(table)
        return {} if known is None else known.pending

    def waiting_tables(self) -> list[TableKey]:
        """List the tables in which something waits."""
        return [key for key, known in self._tables.items() if known.pending]

    def oldest(self, table: TableKey) -> float | None:
        """Find the time at which the oldest one that waits in a table came; None without any."""
        return min((waiting[0].noted_at for waiting in self.pending(table).values()), default=None)

    def forget_from(self, table: TableKey, origin: str, sequence: int) -> None:
        """Let go of the states of an origin from a sequence on: rows that they need are missing."""
        known = self._tables.get(table)
        for waiting in () if known is None else list(known.pending.values()):
            for each in waiting:
                stamp = each.stamp
                if stamp.origin == origin and (stamp.sequence or -1) >= sequence:
                    each.missing = True

    def settle(self, table: TableKey, state: TableState) -> None:
        """Let go of what an installed version has, of what it has newer ones of, and of the lost.

        Everything that stands before such a one in its partition goes with it.
        """
        known = self._tables.get(table)
        if known is None:
            known = self._tables[table] = _Table()
        if known.committed is not state.checkpoints:
            known.committed = state.checkpoints
            known.committed_bytes, known.committed_count = _sizes(state)
        for partition, waiting in list(known.pending.items()):
            there = state.checkpoints.get(partition)
            upto = -1
            for index, each in enumerate(waiting):
                done = each.committed_in is not None and each.committed_in <= state.place
                if done or not each.stamp.replaces(there):
                    upto = index
            kept = [each for each in waiting[upto + 1 :] if not each.lost]
            if len(kept) != len(waiting):
                known.keep(partition, kept)
        growth = Growth(state.checkpoints, state.shared_states)
        for waiting in known.pending.values():
            growth.note(None, waiting[-1].given)
        known.growth = growth

    def first_needed_segment(self, default: int) -> int:
        """Find the oldest log segment that has a state which no version has."""
        return min(
            (each.segment for each in self._all() if each.segment < default), default=default
        )

    def room(self, table: TableKey, given: Checkpoint) -> tuple[int, int]:
        """Tell how many bytes a table's states have, and by how many another makes them grow.

        Those that wait count, and so does what they share. Any thread.
        """
        known = self._tables.get(table) or _Table()
        waiting = known.pending.get(given.partition)
        before = waiting[-1].given if waiting else None
        return known.committed_bytes + known.growth.nbytes, known.growth.by(before, given)

    def is_full_for(self, table: TableKey, given: Checkpoint) -> bool:
        """Whether a state of a further partition finds no room in its table. Any thread."""
        known = self._tables.get(table)
        if known is None or given.state is None or given.partition in known.pending:
            return False
        there = known.committed.get(given.partition)
        if there is not None and there.state is not None:
            return False
        # Most tables are far from it: exactly counted are those alone that may be full.
        if known.committed_count + len(known.pending) < self.most_in_table:
            return False
        return self.statistics(table).count >= self.most_in_table

    @property
    def nbytes(self) -> int:
        """The bytes of memory that states of all tables take."""
        return sum(known.pending_bytes + known.committed_bytes for known in self._tables.values())

    def statistics(self, table: TableKey | None = None) -> CheckpointTotals:
        """The numbers of one table, or of all that are open."""
        if table is None:
            return _sum(self.statistics(key) for key in self._tables)
        known = self._tables.get(table)
        if known is None:
            return CheckpointTotals()
        count, pending = known.committed_count, 0
        for partition, waiting in list(known.pending.items()):
            there = known.committed.get(partition)
            newest = _newest(waiting, there)
            if newest is None:
                continue
            pending += 1
            had = there is not None and there.state is not None
            count += (newest.given.state is not None) - had
        return CheckpointTotals(count, known.committed_bytes + known.growth.nbytes, pending)

    def _all(self) -> Iterator[PendingCheckpoint]:
        for known in self._tables.values():
            for waiting in known.pending.values():
                yield from waiting


def newest_of(pending: Iterable[PendingCheckpoint]) -> PendingCheckpoint | None:
    """Find the newest of one partition's states, which come in log order."""
    found: PendingCheckpoint | None = None
    for each in pending:
        if found is None or each.stamp.replaces(found.stamp):
            found = each
    return found


class MissingSequences:
    """The sequences of a log that are in no file and are not brought into one: others have them.

    A state belongs to all rows up to it, so none counts that stands above one of these.
    """

    def __init__(self) -> None:
        self._missing: dict[tuple[TableKey, str], set[int]] = {}

    def note(self, table: TableKey, origin: str, sequence: int, *, there: bool) -> bool:
        """Note an operation of the log, in its order; whether all of the log up to it is there."""
        missing = self._missing.setdefault((table, origin), set())
        if there:
            missing.discard(sequence)
        else:
            missing.add(sequence)
        return min(missing, default=NO_END) > sequence


def _newest(
    waiting: Iterable[PendingCheckpoint], there: CheckpointAction | None
) -> PendingCheckpoint | None:
    found = newest_of(each for each in waiting if not each.lost)
    return None if found is None or not found.stamp.replaces(there) else found


def _sizes(state: TableState) -> tuple[int, int]:
    """The bytes and the number of a version's states."""
    states = [each.state for each in state.checkpoints.values() if each.state is not None]
    shared = [each.state for each in state.shared_states.values()]
    return sum(map(decoded_size, (*states, *shared))), len(states)


def _sum(totals: Iterable[CheckpointTotals]) -> CheckpointTotals:
    each = list(totals)
    return CheckpointTotals(
        count=sum(one.count for one in each),
        bytes=sum(one.bytes for one in each),
        pending=sum(one.pending for one in each),
    )
