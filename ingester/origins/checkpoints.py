"""Checkpoints that are in the log and in no manifest yet, table by table.

    applied with its batch ──▶ pending ──▶ claimed by a commit ──▶ settled: an installed version
                                  │                                 has it, or a newer one
                                  └──▶ lost: another process has taken its origin over

A checkpoint is never visible without the rows it came with, and never outlives them
(tests/origins). Of a partition's pending checkpoints the newest counts. At most
:data:`MOST_PENDING` wait per partition: every second one between the first and the newest is
dropped, so that for any age one remains that is not much older. Pure. Event loop only, except
:meth:`Checkpoints.room` and :class:`Growth`'s reads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ingester.origins.checkpoint_state import SharedBytes, SourceCheckpoint
from ingester.origins.tenure import Tenure
from persist.manifest.actions import CheckpointAction as CheckpointAction
from persist.manifest.actions import SharedState, decoded_size
from persist.manifest.origins import NO_END
from persist.manifest.state import TableState
from persist.table import TableKey


class Growth:
    """The bytes that pending checkpoints will add to their version; shared bytes count once."""

    def __init__(
        self,
        committed: Mapping[str, CheckpointAction] | None = None,
        shared: Mapping[str, SharedState] | None = None,
    ) -> None:
        self._shared_bytes = 0
        self._state_bytes = 0
        self._committed = committed or {}
        self._shared = shared or {}
        self._references: Counter[str] = Counter()

    @property
    def nbytes(self) -> int:
        """The bytes added; negative if states are deleted."""
        return self._state_bytes + self._shared_bytes

    def note(self, before: SourceCheckpoint | None, given: SourceCheckpoint) -> None:
        """Count a checkpoint after ``before``, its partition's last pending one."""
        self._state_bytes += given.nbytes - self._size(before, given.partition)
        if (new := given.shared) is not None and new.id not in self._shared:
            self._shared_bytes += 0 if self._references[new.id] else len(new.state)
            self._references[new.id] += 1
        if before is not None and (old := before.shared) is not None:
            self._let_go(old)

    def by(self, before: SourceCheckpoint | None, given: SourceCheckpoint) -> int:
        """Return how many bytes a further checkpoint would add. Thread-safe."""
        grows = given.nbytes - self._size(before, given.partition)
        new = given.shared
        if new is None or new.id in self._shared or self._references.get(new.id):
            return grows
        return grows + len(new.state)

    def _size(self, before: SourceCheckpoint | None, partition: str) -> int:
        if before is not None:
            return before.nbytes
        there = self._committed.get(partition)
        return 0 if there is None else decoded_size(there.state)

    def _let_go(self, old: SharedBytes) -> None:
        if old.id in self._shared:
            return
        self._references[old.id] -= 1
        if not self._references[old.id]:
            del self._references[old.id]
            self._shared_bytes -= len(old.state)


MOST_PENDING = 16
"""Limit on pending checkpoints per partition."""


@dataclass(slots=True, eq=False)
class PendingCheckpoint:
    """A checkpoint in the log, with its operation."""

    given: SourceCheckpoint
    stamp: CheckpointAction
    """Stamp of the operation that brought it."""
    segment: int
    tenure: Tenure | None
    """The tenure that the operation's sequence belongs to; None without a sequence."""
    noted_at: float
    """When it arrived, by the monotonic clock."""
    missing: bool = False
    """Whether rows below it in the log are another process's to flush."""
    committed_in: tuple[int, int] | None = None
    """The version that contains it or a newer one; it counts until that is installed."""

    @property
    def position(self) -> tuple[int, int]:
        """The operation's position in the daemon's log."""
        return self.stamp.epoch, self.stamp.seq

    @property
    def sequence(self) -> int | None:
        """The operation's sequence at its origin."""
        return self.stamp.sequence

    @property
    def nbytes(self) -> int:
        """Size of the state without its shared bytes."""
        return self.given.nbytes

    @property
    def lost(self) -> bool:
        """Whether another process took over its sequence, or one below it."""
        sequence = self.stamp.sequence
        if sequence is None or self.tenure is None:
            return False
        return self.missing or sequence >= self.tenure.end

    def action(self) -> CheckpointAction:
        """Return the action that commits it."""
        return self.given.filled(self.stamp)


@dataclass(frozen=True, slots=True)
class CheckpointTotals:
    """Checkpoint statistics of one table or of all tables."""

    count: int = 0
    bytes: int = 0
    """Bytes of states and of their shared bytes."""
    pending: int = 0
    """Partitions whose newest state is only in the log."""


class _TableCheckpoints:
    """The pending checkpoints of one table."""

    def __init__(self) -> None:
        self.pending: dict[str, list[PendingCheckpoint]] = {}
        self.pending_bytes = 0
        """Bytes of memory of the pending checkpoints; shared bytes count once."""
        self._shared: Counter[str] = Counter()
        self.committed: Mapping[str, CheckpointAction] = {}
        self.growth = Growth()
        self.committed_bytes = 0
        self.committed_count = 0

    def hold(self, pending: PendingCheckpoint) -> None:
        """Count the bytes of a pending checkpoint."""
        self.pending_bytes += pending.nbytes
        if (shared := pending.given.shared) is not None:
            self.pending_bytes += 0 if self._shared[shared.id] else len(shared.state)
            self._shared[shared.id] += 1

    def keep(self, partition: str, kept: list[PendingCheckpoint]) -> None:
        """Keep only these pending checkpoints of a partition."""
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
    """All checkpoints that are applied and in no installed version."""

    def __init__(self, most_in_table: int = 1 << 31) -> None:
        """``most_in_table``: limit on source partitions with checkpoints per table."""
        self.most_in_table = most_in_table
        self._tables: dict[TableKey, _TableCheckpoints] = {}

    def note(self, table: TableKey, pending: PendingCheckpoint) -> bool:
        """Record a checkpoint that was applied with its operation; positions rise.

        Returns:
            Whether it is the only pending one of the table.
        """
        known = self._tables.setdefault(table, _TableCheckpoints())
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
        """Return the checkpoint that is newer than the version's; None if the version's is
        current.
        """
        known = self._tables.get(table)
        waiting = [] if known is None else known.pending.get(partition, [])
        return _newest(waiting, state.checkpoints.get(partition))

    def pending(self, table: TableKey) -> Mapping[str, list[PendingCheckpoint]]:
        """Return a table's pending checkpoints by partition, each in log order."""
        known = self._tables.get(table)
        return {} if known is None else known.pending

    def waiting_tables(self) -> list[TableKey]:
        """Return the tables with pending checkpoints."""
        return [key for key, known in self._tables.items() if known.pending]

    def oldest(self, table: TableKey) -> float | None:
        """Return when a table's oldest pending checkpoint arrived; None without any."""
        return min((waiting[0].noted_at for waiting in self.pending(table).values()), default=None)

    def forget_from(self, table: TableKey, origin: str, sequence: int) -> None:
        """Drop an origin's checkpoints from a sequence on, because rows that they need are
        missing.
        """
        known = self._tables.get(table)
        for waiting in () if known is None else list(known.pending.values()):
            for each in waiting:
                stamp = each.stamp
                if stamp.origin == origin and (stamp.sequence or -1) >= sequence:
                    each.missing = True

    def settle(self, table: TableKey, state: TableState) -> None:
        """Drop what an installed version contains or supersedes, and what is lost.

        Earlier checkpoints of the partition are dropped with it.
        """
        known = self._tables.get(table)
        if known is None:
            known = self._tables[table] = _TableCheckpoints()
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
        """Return the oldest log segment with a checkpoint that no version has."""
        return min(
            (each.segment for each in self._all() if each.segment < default), default=default
        )

    def room(self, table: TableKey, given: SourceCheckpoint) -> tuple[int, int]:
        """Return the size of a table's checkpoints, and how much another one would add.

        Pending ones and shared bytes count. Thread-safe.
        """
        known = self._tables.get(table) or _TableCheckpoints()
        waiting = known.pending.get(given.partition)
        before = waiting[-1].given if waiting else None
        return known.committed_bytes + known.growth.nbytes, known.growth.by(before, given)

    def is_full_for(self, table: TableKey, given: SourceCheckpoint) -> bool:
        """Return whether the table cannot take a checkpoint for a further partition. Thread-
        safe.
        """
        known = self._tables.get(table)
        if known is None or given.state is None or given.partition in known.pending:
            return False
        there = known.committed.get(given.partition)
        if there is not None and there.state is not None:
            return False
        # Counted exactly only near the limit.
        if known.committed_count + len(known.pending) < self.most_in_table:
            return False
        return self.statistics(table).count >= self.most_in_table

    @property
    def nbytes(self) -> int:
        """Bytes of memory of the checkpoints of all tables."""
        return sum(known.pending_bytes + known.committed_bytes for known in self._tables.values())

    def statistics(self, table: TableKey | None = None) -> CheckpointTotals:
        """Return the statistics of one table, or of all open tables."""
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
    """Return the newest of one partition's checkpoints, given in log order."""
    found: PendingCheckpoint | None = None
    for each in pending:
        if found is None or each.stamp.replaces(found.stamp):
            found = each
    return found


class MissingSequences:
    """Sequences of a log that are in no file and will not be flushed, because others have them.

    A checkpoint covers all rows up to it, so none after such a sequence is valid.
    """

    def __init__(self) -> None:
        self._missing: dict[tuple[TableKey, str], set[int]] = {}

    def note(self, table: TableKey, origin: str, sequence: int, *, there: bool) -> bool:
        """Record an operation of the log, in order; return whether the log is complete up to it."""
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
    """Return bytes and number of a version's checkpoints."""
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
