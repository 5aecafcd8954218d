"""All origins: what survives a crash, and what is in object storage.

    KnownOrigin ──┬── OriginTable (one table) ──┬── Tenure: one process's sequences, in log order
                  │                             └── Tenure
                  └── OriginTable …

An origin's durable sequence is the highest one such that it and everything before it is in the
store: in committed files, or in log objects. Its files sequence counts files alone (tests/origins).
Two integers are kept per operation until its rows, and all before them, are in files. Event loop
only, except :meth:`Origins.is_applied`.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence

from ingester.errors import LimitReached, limit_facts
from ingester.origins.origin_table import LOST, NOBODY, OriginTable
from ingester.origins.tenure import Tenure
from ingester.shown_text import shown_name
from persist.manifest.actions import Content, WriterAction
from persist.manifest.actions import OriginAction as OriginAction
from persist.manifest.origins import NO_END, Done, Process, durable_of
from persist.table import TableKey

ROOM_RETRY_S = 10.0


class KnownOrigin:
    """One origin over all tables, and its progress."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lock = threading.RLock()
        """The lock of :class:`~ingester.origins.origin_table.Fates`, for all tables."""
        self.memory_sequence: int | None = None
        self.answered = False
        self.open_streams = 0
        self.tables: dict[TableKey, OriginTable] = {}
        self._durable: int | None = None
        self._files: int | None = None
        self._shipped: int | None = None
        """Highest sequence in a log object."""
        self._told: int | None = None
        """Highest sequence up to which a manifest says that all of one table is in files."""
        self._stale = False

    @property
    def durable_sequence(self) -> int | None:
        """Highest sequence up to which everything is in files or log objects."""
        self.settle()
        return self._durable

    @property
    def files_sequence(self) -> int | None:
        """Highest sequence up to which everything is in files."""
        self.settle()
        return self._files

    @property
    def settled_sequence(self) -> int | None:
        """The durable sequence, or a lower one of this process. Any thread.

        Higher than a sequence that is under way only if the loop has decided about that one.
        """
        return self._durable

    @property
    def settled_files(self) -> int | None:
        """The files sequence, or a lower one of this process. Any thread."""
        return self._files

    def is_first_answer(self) -> bool:
        """Return whether nothing of the origin was answered before.

        Any thread. Streams into two tables that are answered at the same moment may both be first.
        """
        first, self.answered = not self.answered, True
        return first

    def note_applied(self, sequence: int, waits: bool, *, in_store: bool = False) -> None:
        """Record an operation; ``waits`` if it is buffered, ``in_store`` if a log object has it."""
        if self.memory_sequence is None or sequence > self.memory_sequence:
            self.memory_sequence = sequence
        if in_store and (self._shipped is None or sequence > self._shipped):
            self._shipped = sequence
        if in_store or not waits:
            self._stale = True
        if waits and self._durable is not None and sequence <= self._durable:
            self._settle()  # at once, as a stream's thread tells it as it is

    def note_settled(self) -> None:
        """Record that rows left a buffer for committed files."""
        self._settle()

    def settle(self) -> None:
        """Bring the sequences up to date."""
        if self._stale:
            self._settle()

    def note_known(self, durable: int | None) -> None:
        """Record that a manifest says everything up to this sequence is in files."""
        if durable is None:
            return
        self.note_applied(durable, waits=False)
        self._told = durable if self._told is None else max(durable, self._told)
        self._settle()  # at once: rows that wait below it must not be told as durable

    def first_waiting(self, besides: frozenset[Hashable] = NOBODY) -> int:
        """Return the lowest sequence in a buffer other than these, over all tables."""
        waiting = (tenure.first_waiting(besides) for tenure in self._tenures())
        return min((first for first in waiting if first is not None), default=NO_END)

    def _tenures(self) -> list[Tenure]:
        return [tenure for each in self.tables.values() for tenure in each.tenures]

    def _settle(self) -> None:
        with self.lock:  # nothing begins meanwhile that is below the result
            oldest = [table.fates.oldest for table in self.tables.values()]
            under_way = min((one for one in oldest if one is not None), default=NO_END)
            tenures = self._tenures()
            self._files = self._upto(tenures, under_way, self._files, in_store=False)
            self._durable = self._upto(tenures, under_way, self._durable, in_store=True)
            behind = self._shipped is not None and self._shipped > (self._durable or -1)
            # What the store has counts once its outcome is known.
            self._stale = behind and under_way < NO_END
        if self._files is not None:
            for tenure in tenures:
                tenure.trim(self._files)

    def _upto(
        self, tenures: list[Tenure], under_way: int, before: int | None, *, in_store: bool
    ) -> int | None:
        waiting = (tenure.first_waiting(for_store=in_store) for tenure in tenures)
        limit = min((one for one in waiting if one is not None), default=NO_END)
        limit = min(limit, under_way)
        found = [tenure.last_below(limit, in_store=in_store) for tenure in tenures]
        # Knowledge about one table says nothing about rows buffered for another, or repeated rows.
        every = (*found, before, self._told)
        return max((each for each in every if each is not None and each < limit), default=None)


class Origins:
    """All origins known to the daemon."""

    def __init__(
        self, clock: Callable[[], float] = lambda: 0.0, most_origins: int = sys.maxsize
    ) -> None:
        """``most_origins``: limit that :meth:`check_room` enforces for new origins."""
        self._clock = clock
        self._most = most_origins
        self.replaying = False
        """Whether the log may have operations that are in no buffer yet."""
        self.log_since = 0
        """First epoch whose log was present: rows of earlier ones may be on a lost disk."""
        self._told: dict[tuple[str, TableKey], int] | None = None
        self._told_in_store: dict[tuple[str, TableKey], int] | None = None
        self._shipping: set[KnownOrigin] = set()
        self._origins: dict[str, KnownOrigin] = {}
        self._of_table: dict[TableKey, dict[str, OriginTable]] = {}

    def check_room(self, name: str) -> None:
        """Raise :class:`LimitReached` for a new origin beyond the limit."""
        found = len(self._origins)
        if found >= self._most and name not in self._origins:
            raise LimitReached(
                f"origin {shown_name(name)} is new, and {found} are known; limits.origins is"
                f" {self._most}. Origins are forgotten origins.expire_after after their last write:"
                " use one name per writer for its whole life",
                retry_after_s=ROOM_RETRY_S,
                details=limit_facts("limits.origins", self._most, found + 1),
            )

    def get(self, name: str) -> KnownOrigin:
        """Return the origin, created if necessary."""
        origin = self._origins.get(name)
        if origin is None:
            origin = self._origins[name] = KnownOrigin(name)
        return origin

    def forget_unused(self, name: str) -> None:
        """Forget an origin that has written to no table and has no open stream."""
        origin = self._origins.get(name)
        if origin is not None and not origin.tables and not origin.open_streams:
            del self._origins[name]

    def find(self, name: str) -> KnownOrigin | None:
        """Return the origin if it ever wrote."""
        return self._origins.get(name)

    def __iter__(self) -> Iterator[KnownOrigin]:
        return iter(list(self._origins.values()))

    def table(self, name: str, key: TableKey) -> OriginTable:
        """Return the origin's sequences in the table, created if necessary."""
        of_table = self._of_table.get(key)
        if of_table is None:
            of_table = self._of_table[key] = {}
        found = of_table.get(name)
        if found is None:
            found = of_table[name] = self.get(name).tables[key] = OriginTable(
                name, key, self.get(name).lock
            )
            found.touched = self._clock()
        return found

    def of_table(self, key: TableKey) -> list[OriginTable]:
        """Return every origin that has written to a table."""
        return list(self._of_table.get(key, {}).values())

    def is_applied(self, name: str, key: TableKey, sequence: int) -> bool:
        """Return whether this sequence duplicates something durable. Thread-safe."""
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
        content: Content | None = None,
        *,
        in_store: bool = False,
    ) -> Tenure:
        """Record an operation applied to the buffers ``holders`` (none: it is in files).

        Args:
            in_store: whether a log object has it.
        """
        found = self.table(name, key)
        found.touched = self._clock()
        if spec_id is not None:
            found.spec_id = spec_id
        tenure = found.tenure_of(sequence, process)
        tenure.note_applied(sequence, op_seq, holders, content, in_store=in_store)
        origin = self.get(name)
        origin.note_applied(sequence, bool(holders), in_store=in_store)
        if in_store:
            self._shipping.add(origin)
        return tenure

    def settle(self) -> None:
        """Bring up to date what other threads see of origins whose operations ship."""
        for origin in self._shipping:
            origin.settle()
        self._shipping.clear()

    def note_released(self, holder: Hashable, tenures: Iterable[Tenure]) -> None:
        """Record that a buffer's rows of these tenures are in committed files."""
        origins = {self.get(tenure.origin) for tenure in tenures}
        for tenure in tenures:
            tenure.note_released(holder)
        for origin in origins:
            origin.note_settled()

    def load(self, found: OriginTable, known: OriginAction | None, ingester_id: str) -> None:
        """Load what a manifest version says about an origin in a table."""
        found.load(known, ingester_id)
        if known is not None:
            self.get(found.name).note_known(durable_of(known))

    def claim(self, found: OriginTable, known: OriginAction, process: Process) -> None:
        """Load a version that gives an origin's new sequences to ``process``, which is this
        daemon.
        """
        found.claim(known, process)
        self.get(found.name).note_known(durable_of(known))

    def restore(self, name: str, key: TableKey, sequence: int, process: Process) -> None:
        """Record what the head of a log segment says that ``process`` wrote."""
        if self.table(name, key).restore(sequence, process):
            self.get(name).note_applied(sequence, waits=False)

    def restore_all(self, carried: Iterable[tuple[str, str, str, int]], process: Process) -> None:
        """Record what the newest segment head says, after everything is replayed.

        Older heads do not count, because origins may have moved since.
        """
        self._told = {}
        for name, namespace, table, sequence in carried:
            self._told[name, (namespace, table)] = sequence
        self._told_in_store = dict(self._told)
        for (name, key), sequence in self._told.items():
            self.restore(name, key, sequence, process)

    def carried(self) -> list[tuple[str, str, str, int]] | None:
        """Return (origin, namespace, table, applied sequence) for the head of a new segment.

        Returns:
            None if there never was anything to record; an empty list revokes what older segments
            say.
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

    def carried_in_store(self) -> list[tuple[str, str, str, int]] | None:
        """Return (origin, namespace, table, sequence) for the log in the store.

        It goes only as far as the durable sequence: what comes later may be lost with the disk, and
        a repeat of it is no duplicate then.

        Returns:
            As :meth:`carried`.
        """
        found: dict[tuple[str, TableKey], int] = {}
        for key, of_table in self._of_table.items():
            for name, of_origin in of_table.items():
                durable = self.get(name).durable_sequence
                if durable is None:
                    continue
                below = [one.last_below(durable + 1, in_store=True) for one in of_origin.tenures]
                if known := [each for each in below if each is not None]:
                    found[name, key] = max(known)
        if not found and self._told_in_store is None:
            return None
        self._told_in_store = found
        return [(name, *key, sequence) for (name, key), sequence in found.items()]

    def is_told(self, found: OriginTable, first: int) -> bool:
        """Return whether a record of origins says that ``first``, or more, was applied: the newest
        segment head, or the newest record in the log in the store.

        That must be revoked before the sequences are taken over again, because they were not
        applied since.
        """
        told = (self._told or {}, self._told_in_store or {})
        return any(each.get((found.name, found.table), -1) >= first for each in told)

    def done(
        self,
        found: OriginTable,
        process: Process,
        writers: Mapping[str, WriterAction],
        besides: frozenset[Hashable] = NOBODY,
    ) -> Done:
        """Return a function that tells which processes have nothing left to commit of an origin.

        Args:
            process: this daemon, whose log has everything that epochs of its id from
                :attr:`log_since` on may have.
            writers: a version's writers; a closed one has everything in files. This says nothing
                about earlier epochs of its id, whose log may
                be lost or under adoption; the runs themselves say what of their rows is in files.
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
        """Forget origins without writes for this long, unless they are buffered."""
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
