"""All origins: what survives a crash, and what is in object storage.

    Origin ──┬── OriginTable (one table) ──┬── Tenure: what one process has applied, in log order
             │                             └── Tenure
             └── OriginTable …

Law of this file: an origin's durable sequence is the highest one such that it and everything before
it has left the buffers for committed files. Loop only, but for :meth:`Origins.is_applied`. Two
integers are kept per operation of an origin until its rows, and all before them, are in files.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence

from ingester.errors import LimitReached, limit_facts
from ingester.origins.origin_table import LOST, NOBODY, OriginTable
from ingester.origins.tenure import Tenure
from ingester.shown_text import shown_name
from persist.manifest.actions import Origin as OriginAction
from persist.manifest.actions import Writer
from persist.manifest.origins import NO_END, Done, Process, durable_of
from persist.table import TableKey

ROOM_RETRY_S = 10.0


class Origin:
    """One origin over all tables, and how far its writes have come."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.memory_sequence: int | None = None
        self.answered = False
        self.open_streams = 0
        self.tables: dict[TableKey, OriginTable] = {}
        self._durable: int | None = None
        self._stale = False

    @property
    def durable_sequence(self) -> int | None:
        """The highest sequence up to which everything is in object storage."""
        if self._stale:
            self._settle()
        return self._durable

    def note_applied(self, sequence: int, waits: bool) -> None:
        """Note an operation, which is in buffers if it ``waits`` for files."""
        if self.memory_sequence is None or sequence > self.memory_sequence:
            self.memory_sequence = sequence
        if not waits or (self._durable is not None and sequence <= self._durable):
            self._stale = True

    def note_settled(self) -> None:
        """Note that rows have left a buffer for committed files."""
        self._stale = True

    def note_known(self, durable: int | None) -> None:
        """Note that a manifest says that all up to this sequence is in files."""
        if durable is None:
            return
        self._durable = durable if self._durable is None else max(durable, self._durable)
        self.note_applied(durable, waits=False)

    def first_waiting(self, besides: frozenset[Hashable] = NOBODY) -> int:
        """Find the lowest sequence that is in a buffer other than these, over all tables."""
        waiting = (tenure.first_waiting(besides) for tenure in self._tenures())
        return min((first for first in waiting if first is not None), default=NO_END)

    def _tenures(self) -> list[Tenure]:
        return [tenure for each in self.tables.values() for tenure in each.tenures]

    def _settle(self) -> None:
        self._stale = False
        limit = self.first_waiting()
        tenures = self._tenures()
        found = [tenure.last_below(limit) for tenure in tenures]
        # What is known of one table says nothing of rows that wait in another, or came again.
        below = [each for each in (*found, self._durable) if each is not None and each < limit]
        self._durable = max(below, default=None)
        if self._durable is not None:
            for tenure in tenures:
                tenure.trim(self._durable)


class Origins:
    """All origins the daemon knows."""

    def __init__(
        self, clock: Callable[[], float] = lambda: 0.0, most_origins: int = sys.maxsize
    ) -> None:
        """``most_origins``: how many are remembered before :meth:`check_room` refuses new ones."""
        self._clock = clock
        self._most = most_origins
        self.replaying = False
        """Whether the log may have operations that no buffer has yet."""
        self.log_since = 0
        """The first epoch whose log was here: rows of earlier ones may be on a lost disk."""
        self._told: dict[tuple[str, TableKey], int] | None = None
        self._origins: dict[str, Origin] = {}
        self._of_table: dict[TableKey, dict[str, OriginTable]] = {}

    def check_room(self, name: str) -> None:
        """Raise :class:`LimitReached` for an origin that is new and has no room."""
        found = len(self._origins)
        if found >= self._most and name not in self._origins:
            raise LimitReached(
                f"origin {shown_name(name)} is new, and {found} are remembered; limits.origins is"
                f" {self._most}. They are forgotten origins.expire_after after their last write:"
                " have each writer use one name for as long as it lives",
                retry_after_s=ROOM_RETRY_S,
                details=limit_facts("limits.origins", self._most, found + 1),
            )

    def get(self, name: str) -> Origin:
        """Find the origin, or make it."""
        origin = self._origins.get(name)
        if origin is None:
            origin = self._origins[name] = Origin(name)
        return origin

    def forget_unused(self, name: str) -> None:
        """Forget an origin that has written to no table, and has nothing open."""
        origin = self._origins.get(name)
        if origin is not None and not origin.tables and not origin.open_streams:
            del self._origins[name]

    def find(self, name: str) -> Origin | None:
        """Find the origin, if it ever wrote."""
        return self._origins.get(name)

    def __iter__(self) -> Iterator[Origin]:
        return iter(list(self._origins.values()))

    def table(self, name: str, key: TableKey) -> OriginTable:
        """Find the origin's sequences into the table, or make them."""
        of_table = self._of_table.get(key)
        if of_table is None:
            of_table = self._of_table[key] = {}
        found = of_table.get(name)
        if found is None:
            found = of_table[name] = self.get(name).tables[key] = OriginTable(name, key)
            found.touched = self._clock()
        return found

    def of_table(self, key: TableKey) -> list[OriginTable]:
        """List every origin that has written to a table."""
        return list(self._of_table.get(key, {}).values())

    def is_applied(self, name: str, key: TableKey, sequence: int) -> bool:
        """Tell whether this sequence is a duplicate of something durable. Any thread."""
        found = self._of_table.get(key, {}).get(name)
        if found is None or found.state is LOST or not (found.tenures or found.runs):
            return False
        return found.verdict(sequence).durable

    def note_applied(
        self,
        name: str,
        key: TableKey,
        sequence: int,
        op_seq: int,
        holders: Sequence[Hashable],
        process: Process = ("", 0),
        spec_id: int | None = None,
    ) -> Tenure:
        """Note an operation that is applied to the buffers ``holders`` (none: in files)."""
        found = self.table(name, key)
        found.touched = self._clock()
        if spec_id is not None:
            found.spec_id = spec_id
        tenure = found.tenure_of(sequence, process)
        tenure.note_applied(sequence, op_seq, holders)
        self.get(name).note_applied(sequence, bool(holders))
        return tenure

    def note_released(self, holder: Hashable, tenures: Iterable[Tenure]) -> None:
        """Note that the rows of a buffer, which are of these tenures, are in committed files."""
        for tenure in tenures:
            tenure.note_released(holder)
            self.get(tenure.origin).note_settled()

    def load(self, found: OriginTable, known: OriginAction | None, ingester_id: str) -> None:
        """Adopt what a manifest version says of an origin in a table."""
        found.load(known, ingester_id)
        if known is not None:
            self.get(found.name).note_known(durable_of(known))

    def claim(self, found: OriginTable, known: OriginAction, process: Process) -> None:
        """Adopt a version that gives what comes of an origin to ``process``, which is us."""
        found.claim(known, process)
        self.get(found.name).note_known(durable_of(known))

    def restore(self, name: str, key: TableKey, sequence: int, process: Process) -> None:
        """Note what the head of a segment says that ``process`` wrote."""
        if self.table(name, key).restore(sequence, process):
            self.get(name).note_applied(sequence, waits=False)

    def restore_all(self, carried: Iterable[tuple[str, str, str, int]], process: Process) -> None:
        """Note what the newest head of a segment says, when all operations are replayed.

        Older heads do not count: what they speak of may have gone elsewhere since.
        """
        self._told = {}
        for name, namespace, table, sequence in carried:
            self._told[name, (namespace, table)] = sequence
            self.restore(name, (namespace, table), sequence, process)

    def carried(self) -> list[tuple[str, str, str, int]] | None:
        """List (origin, namespace, table, applied sequence) for the head of a new segment.

        Returns:
            None where there is nothing to tell, and never was: an empty list takes back what older
            segments say.
        """
        found = {
            (name, key): of_origin.next_sequence - 1
            for key, of_table in self._of_table.items()
            for name, of_origin in of_table.items()
            if of_origin.next_sequence > 0
        }
        if not found and self._told is None:
            return None
        self._told = found
        return [(name, *key, sequence) for (name, key), sequence in found.items()]

    def is_told(self, found: OriginTable, first: int) -> bool:
        """Tell whether the newest head of a segment says that ``first``, or more, was applied.

        That has to be taken back before they are taken over anew: they were not applied since.
        """
        return (self._told or {}).get((found.name, found.table), -1) >= first

    def done(
        self,
        found: OriginTable,
        process: Process,
        writers: Mapping[str, Writer],
        besides: frozenset[Hashable] = NOBODY,
    ) -> Done:
        """Make the judge of which processes have nothing left to commit of an origin.

        Args:
            process: this daemon, whose log has all that epochs of its id from :attr:`log_since` on
                may still have.
            writers: what a version says of others: who has closed has all in files. It says nothing
                of earlier epochs of its id, whose log may have been lost, or is being adopted: what
                of their rows is in files, the runs themselves say.
            besides: buffers that count as in files.
        """
        live = found.live(besides)
        settled = not (self.replaying or found.fates.under_way)

        def is_done(other: Process) -> bool:
            if other[0] == process[0]:
                return settled and self.log_since <= other[1] <= process[1] and other not in live
            writer = writers.get(other[0])
            return writer is not None and writer.state == "closed" and writer.epoch == other[1]

        return is_done

    def forget_idle(self, for_s: float) -> None:
        """Forget what has not been written to for so long, unless it is in buffers."""
        for name in list(self._origins):
            self.forget_unused(name)
        before = self._clock() - for_s
        for key, of_table in self._of_table.items():
            for name, found in list(of_table.items()):
                origin = self._origins[name]
                if found.touched < before and found.idle and not origin.open_streams:
                    del of_table[name]
                    del origin.tables[key]
                    if not origin.tables:
                        del self._origins[name]
