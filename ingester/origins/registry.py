"""What each origin has written: duplicates, what survives a crash, what is in object storage.

    Origin ──┬── Lane (one table) ──┬── Taken: sequences that one process took, in log order
             │                      └── Taken
             └── Lane …

Law of this file: an origin's durable sequence is the highest one such that it and everything before
it has left the buffers for committed files. Loop only, but for :meth:`Origins.is_applied`. Two
integers are kept per operation of an origin until its rows, and all before them, are in files.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

from ingester.origins.origin_table import NOBODY, OriginTable
from ingester.origins.tenure import Tenure
from persist.manifest.actions import Origin as OriginAction
from persist.manifest.origins import NO_END, Process, durable_of
from persist.table import TableKey


class Origin:
    """One origin over all tables."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.memory_sequence: int | None = None
        self.answered = False
        self.open_streams = 0
        self.lanes: dict[TableKey, OriginTable] = {}
        self._durable: int | None = None
        self._stale = False

    @property
    def durable_sequence(self) -> int | None:
        """The highest sequence up to which everything is in object storage."""
        if self._stale:
            self._settle()
        return self._durable

    def note_applied(self, sequence: int, waits: bool) -> None:
        """An operation of this origin is in buffers, if it ``waits`` for files."""
        if self.memory_sequence is None or sequence > self.memory_sequence:
            self.memory_sequence = sequence
        if not waits:
            self._stale = True

    def note_settled(self) -> None:
        """Rows have left a buffer for committed files."""
        self._stale = True

    def note_known(self, durable: int | None) -> None:
        """A manifest says that all up to this sequence is in files."""
        if durable is None:
            return
        self._durable = durable if self._durable is None else max(durable, self._durable)
        self.note_applied(durable, waits=False)

    def first_waiting(self, besides: frozenset[Hashable] = NOBODY) -> int:
        """The lowest sequence that is in a buffer other than these, over all tables."""
        return min(
            (
                found
                for lane in self.lanes.values()
                for one in lane.taken
                if (found := one.first_waiting(besides)) is not None
            ),
            default=NO_END,
        )

    def _settle(self) -> None:
        self._stale = False
        limit = self.first_waiting()
        for lane in self.lanes.values():
            for one in lane.taken:
                found = one.last_below(limit)
                if found is not None and (self._durable is None or found > self._durable):
                    self._durable = found
        if self._durable is not None:
            for lane in self.lanes.values():
                for one in lane.taken:
                    one.trim(self._durable)


class Origins:
    """All origins the daemon knows."""

    def __init__(self, clock: Callable[[], float] = lambda: 0.0) -> None:
        self._clock = clock
        self._origins: dict[str, Origin] = {}
        self._lanes: dict[tuple[str, TableKey], OriginTable] = {}
        self._by_table: dict[TableKey, dict[str, OriginTable]] = {}

    def get(self, name: str) -> Origin:
        """The origin, made when it is new."""
        origin = self._origins.get(name)
        if origin is None:
            origin = self._origins[name] = Origin(name)
        return origin

    def find(self, name: str) -> Origin | None:
        """The origin, if it ever wrote."""
        return self._origins.get(name)

    def __iter__(self) -> Iterator[Origin]:
        return iter(list(self._origins.values()))

    def lane(self, name: str, table: TableKey) -> OriginTable:
        """The origin's sequences into the table, made when they are new."""
        lane = self._lanes.get((name, table))
        if lane is None:
            lane = self._lanes[name, table] = OriginTable(name, table)
            self.get(name).lanes[table] = lane
            lane.touched = self._clock()
            self._by_table.setdefault(table, {})[name] = lane
        return lane

    def lanes_of(self, table: TableKey) -> list[OriginTable]:
        """All of a table."""
        return list(self._by_table.get(table, {}).values())

    def is_applied(self, name: str, table: TableKey, sequence: int) -> bool:
        """Whether this sequence is a duplicate of something durable. Any thread."""
        lane = self._lanes.get((name, table))
        if lane is None or lane.lost or (not lane.taken and lane.view is None):
            return False
        return lane.judge(sequence) == "duplicate"

    def note_applied(
        self,
        name: str,
        table: TableKey,
        sequence: int,
        op_seq: int,
        holders: Sequence[Hashable],
        process: Process = ("", 0),
    ) -> Tenure:
        """An operation is applied to the buffers ``holders`` (none: already in files)."""
        lane = self.lane(name, table)
        lane.touched = self._clock()
        taken = lane.taken_by(sequence, process)
        taken.note_applied(sequence, op_seq, holders)
        self.get(name).note_applied(sequence, bool(holders))
        return taken

    def note_released(self, holder: Hashable, tenures: Iterable[Tenure]) -> None:
        """The rows of a buffer, which are of these tenures, are in committed files."""
        for tenure in tenures:
            tenure.note_released(holder)
            self.get(tenure.origin).note_settled()

    def lane_of(self, tenure: Tenure) -> OriginTable:
        """The sequences that a process's share is of."""
        return self.lane(tenure.origin, tenure.table)

    def load(self, lane: OriginTable, known: OriginAction | None, ingester_id: str) -> None:
        """Take over what a manifest version says of an origin in a table."""
        lane.load(known, ingester_id)
        if known is not None:
            self.get(lane.name).note_known(durable_of(known))

    def claim(self, lane: OriginTable, known: OriginAction, process: Process) -> None:
        """The manifest says that ``process``, which is us, takes what comes of an origin."""
        lane.claim(known, process)
        self.get(lane.name).note_known(durable_of(known))

    def restore(self, name: str, table: TableKey, sequence: int, process: Process) -> None:
        """Take over what a segment's carried record says, which ``process`` wrote."""
        lane = self.lane(name, table)
        writer = lane.writer_of(sequence, process)
        if writer is None or sequence < lane.next_sequence:
            return
        lane.taken_by(sequence, writer).restore(sequence)
        self.get(name).note_applied(sequence, waits=False)

    def carried(self) -> list[tuple[str, str, str, int]]:
        """(origin, namespace, table, applied sequence) for the head of a new segment."""
        return [
            (name, table[0], table[1], lane.next_sequence - 1)
            for (name, table), lane in self._lanes.items()
            if lane.next_sequence > 0
        ]

    def forget_idle(self, for_s: float) -> None:
        """Forget what has not been written to for so long, unless it is in buffers."""
        before = self._clock() - for_s
        for (name, table), lane in list(self._lanes.items()):
            origin = self._origins[name]
            if lane.touched < before and lane.idle and not origin.open_streams:
                del self._lanes[name, table]
                del origin.lanes[table]
                del self._by_table[table][name]
                if not origin.lanes:
                    del self._origins[name]
