"""One origin's sequences into one table: new, a duplicate, or not ours.

    new ──begin──▶ under way ──end──▶ applied
                       │  ▲   └─────▶ failed ──┐
                   repeat │                    │ nothing is under way any more
                       ▼  └────────────────────┘
                   waits: a duplicate, or the next copy

Law of this file: sequences of an origin rise. What is not above the highest applied one is a
duplicate; an operation under way is neither applied nor unknown, and its repeat waits for its fate.
If that is a failure, the repeats take their places in the order of their sequences, and none goes
in over one that failed and is not repeated: that could never come after it.

What the manifest says of an origin comes in by :meth:`OriginTable.load`: which sequences are ours,
and which parts of those are in files although we never had them. Loop only, but for
:meth:`OriginTable.judge`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from itertools import zip_longest
from typing import Literal

from ingester.origins.tenure import Tenure
from persist.manifest.actions import Origin as OriginAction
from persist.manifest.actions import PartitionKey
from persist.manifest.origins import (
    NO_END,
    Held,
    Process,
    Run,
    end_of,
    fresh,
    owned,
    run_at,
    taken_over,
)
from persist.table import TableKey

Fate = Callable[[BaseException | None], None]
Verdict = Literal["new", "duplicate", "foreign"]
NOBODY: frozenset[Hashable] = frozenset()


class OriginTable:
    """Sequences of one origin into one table."""

    def __init__(self, name: str, table: TableKey) -> None:
        self.name = name
        self.table = table
        self.taken: tuple[Tenure, ...] = ()
        """By rising first sequence."""
        self.view: list[Run] | None = None
        """What the manifest says, as of the last :meth:`load`."""
        self.process: Process | None = None
        """Ours, once the manifest says that this daemon takes the origin's writes."""
        self.ours: Process | None = None
        """What this daemon calls itself, once it has asked for the origin."""
        self.owner: Process | None = None
        """Whoever takes its writes, as of the last :meth:`load`."""
        self.lost = False
        """Another daemon has taken the origin over."""
        self.missing: int | None = None
        """The lowest sequence that failed and that nobody repeats: nothing above it may go in."""
        self.touched = 0.0
        self.spec_id: int | None = None
        """Of the partition spec that its newest operation was laid out by."""
        self._under_way: dict[int, list[Fate]] = {}
        self._failed: set[int] = set()
        self._again: list[tuple[int, Fate]] = []

    def judge(self, sequence: int) -> Verdict:
        """What a sequence is that is not under way."""
        found = self._at(sequence)
        if found is not None:
            if sequence <= found.last:
                return "duplicate"
            if sequence < found.end and self.process in (None, (found.owner_id, found.epoch)):
                return "new"
        if self.view is None:
            return "new"
        run = run_at(self.view, sequence)
        if run is None or (run.complete is not None and sequence <= run.complete):
            return "duplicate"
        held = any(one.first <= sequence <= one.last for one in self.held())
        return "duplicate" if held else "foreign"

    def owns(self, first: int) -> bool:
        """Whether all from ``first`` on can be judged without taking anything over."""
        return self.process is not None and not self.lost and self.first_foreign(first) is None

    def first_foreign(self, first: int) -> int | None:
        """The first sequence from ``first`` on that another process has, and no file.

        None where there is none: all is ours, a duplicate of what is ours, or in files.
        """
        for run, end in self._runs():
            start = max(first, run.first, -1 if run.complete is None else run.complete + 1)
            if (last := self._held_to(run, end)) is not None:
                start = max(start, last + 1)
            if run.owner != (self.process or self.ours) and start < end:
                return start
        return None

    def ahead_at(self, sequence: int) -> dict[PartitionKey, int]:
        """Partitions with files up to further sequences than we ever had; mostly none."""
        found = self._at(sequence)
        return {} if found is None else found.ahead

    @property
    def newest_under_way(self) -> int:
        """The highest sequence on its way into the log; -1 for none."""
        return next(reversed(self._under_way), -1)

    def begin(self, sequence: int) -> bool:
        """Note an operation under way; False if it, or one above it, already is."""
        if self._under_way and sequence <= self.newest_under_way:
            return False
        self._under_way[sequence] = []
        return True

    def await_first(self, sequence: int, fate: Fate) -> None:
        """Call ``fate`` when the copy under way, or the next one above, is durable or failed."""
        waited_for = sequence
        if sequence not in self._under_way:
            waited_for = min(seq for seq in self._under_way if seq > sequence)
        self._under_way[waited_for].append(fate)

    def end(self, sequence: int, error: BaseException | None) -> list[Fate]:
        """The copy under way is durable (``error`` is None) or never will be.

        Returns:
            Those to be told now, in the order of their sequences. After a failure that is when
            nothing is under way any more: the log refuses all that waits behind what it refuses.
        """
        waiting = self._under_way.pop(sequence, [])
        if error is None:
            return waiting
        self._failed.add(sequence)
        self._again += [(sequence, fate) for fate in waiting]
        if self._under_way:
            return []
        again, failed = sorted(self._again, key=lambda one: one[0]), self._failed
        self._again, self._failed = [], set()
        self.missing = min(failed - {seq for seq, _ in again}, default=None)
        return [fate for _, fate in again]

    def taken_by(self, sequence: int, process: Process) -> Tenure:
        """Where a process's sequence is kept, made when it is new."""
        for one in reversed(self.taken):
            if one.first <= sequence < one.end and one.epoch == process[1]:
                one.owner_id = process[0]
                return one
        if self.view is None:
            # No manifest knows it: what an earlier epoch of ours has lies below.
            first = sequence if self.taken else 0
        else:
            run = run_at(self.view, sequence)
            first = 0 if run is None else run.first
        made = self._add(Tenure(self.name, self.table, first, process))
        if self.view is not None:
            # A process may have several runs, with those of others in between; what came too late
            # for its run has none.
            made.end = self._end_of(made)
        return made

    def writer_of(self, sequence: int, upto: Process) -> Process | None:
        """Which epoch of ours, up to this one, has taken a sequence; None where none has."""
        if self.view is None:
            return upto
        run = run_at(self.view, sequence)
        if run is None or run.owner is None:
            return None
        return run.owner if run.owner[0] == upto[0] and run.owner[1] <= upto[1] else None

    def unknown_origin(self, process: Process) -> OriginAction:
        """What to start from where the manifest knows nothing: what is in buffers is ours."""
        found: OriginAction | None = None
        live = self.live()
        for one in self.taken:
            theirs = (one.owner_id, one.epoch)
            if theirs in live and found is None:
                found = fresh(self.name, theirs)
            elif theirs in live and found is not None:
                found = taken_over(found, theirs, one.first, None, live)
        return found or fresh(self.name, process)

    def load(self, known: OriginAction | None, ingester_id: str) -> None:
        """Take over what a manifest version says of the origin in this table.

        The origin has to hear of it too: :meth:`ingester.origins.registry.Origins.load`.
        """
        if known is None:
            self.view = self.owner = None
            return
        self.owner = (known.owner_id, known.owner_epoch)
        self.view = owned(known)
        kept = []
        for one in self.taken:
            run = run_at(self.view, max(one.applied, one.first))
            if one.carried and not one.adjust(run, ingester_id):
                continue
            # What was taken away stays so: later versions may not name it any more.
            one.end = min(one.end, self._end_of(one))
            kept.append(one)
        self.taken = tuple(kept)

    def claim(self, known: OriginAction, process: Process) -> None:
        """The manifest says that ``process``, which is us, takes what comes.

        The origin has to hear of it too: :meth:`ingester.origins.registry.Origins.claim`.
        """
        self.load(known, process[0])
        assert self.view is not None
        for run in self.view:
            if run.owner == process and not any(
                one.first == run.first < one.end and one.epoch == process[1] for one in self.taken
            ):
                made = self._add(Tenure(self.name, self.table, run.first, process))
                made.applied = -1 if run.complete is None else run.complete
                made.ahead = dict(run.ahead)
                made.end = self._end_of(made)
        self.process, self.lost = process, False

    def standing(self, known: OriginAction | None) -> tuple[int | None, list[int]]:
        """Up to where everything is known to be here, and all marks.

        Between two marks, and up to the first, all sequences are judged alike in every partition:
        a client that puts its rows into other batches than before ends one at each mark.

        Args:
            known: what the newest manifest version says.
        """
        runs = [] if known is None else owned(known)
        marks = set(self._under_way)
        for run in runs:
            marks.update((run.first - 1, -1 if run.complete is None else run.complete))
            marks.update(run.ahead.values())
        for one in self.taken:
            marks.update((one.first - 1, one.last, one.end - 1, *one.ahead.values()))
        in_order = sorted(mark for mark in marks if 0 <= mark < NO_END - 1)
        upto = None
        for mark in in_order:
            if not (
                any(one.first <= mark <= one.last for one in self.taken)
                or (runs and _is_complete(run_at(runs, mark), mark))
            ):
                break
            upto = mark
        return upto, in_order

    @property
    def next_sequence(self) -> int:
        """One above all that this daemon has taken and nobody took over since."""
        return max((one.last for one in self.taken), default=-1) + 1

    def live(self, besides: frozenset[Hashable] = NOBODY) -> set[Process]:
        """Whose operations are in buffers, other than these."""
        return {
            (one.owner_id, one.epoch)
            for one in self.taken
            if one.first_waiting(besides) is not None
        }

    def held(self) -> list[Held]:
        """What this daemon has from its log, of whichever epoch."""
        found = []
        for run, end in self._runs():
            last = self._held_to(run, end)
            if last is not None and run.owner is not None:
                found.append(Held(run.first, last, run.owner))
        return found

    @property
    def idle(self) -> bool:
        """Whether nothing is in buffers or on its way."""
        return not self._under_way and not self.live()

    def _at(self, sequence: int) -> Tenure | None:
        for one in reversed(self.taken):
            if one.first <= sequence:
                return one
        return None

    def _add(self, made: Tenure) -> Tenure:
        self.taken = tuple(sorted((*self.taken, made), key=lambda one: (one.first, one.epoch)))
        return made

    def _runs(self) -> Iterator[tuple[Run, int]]:
        """What the manifest says, each run with the first sequence of the next."""
        view = self.view or []
        for run, following in zip_longest(view, view[1:]):
            yield run, NO_END if following is None else following.first

    def _held_to(self, run: Run, end: int) -> int | None:
        """Up to where a run is in our log, or is not and lies below what we have of a later one."""
        of_run = [
            one
            for one in self.taken
            if (one.owner_id, one.epoch) == run.owner and run.first <= one.last and one.first < end
        ]
        if not of_run:
            return None
        own = max(min(one.last, end - 1) for one in of_run)
        # Only what was begun afterwards shows that nothing was to come in between.
        skipped = any(
            one.first == end <= one.last and one.epoch > of_run[0].epoch for one in self.taken
        )
        return end - 1 if skipped else own

    def _end_of(self, one: Tenure) -> int:
        assert self.view is not None
        return end_of(self.view, one.first, (one.owner_id, one.epoch))


def _is_complete(run: Run | None, sequence: int) -> bool:
    """Whether all of a sequence is in files, by the run that it is of; below all runs it is."""
    return run is None or (run.complete is not None and sequence <= run.complete)
