"""One origin's sequences in one table: which are new, durable, or another daemon's.

    UNCLAIMED ──claim──▶ OURS ──lose──▶ LOST       claim: a version gives sequences to this daemon
        ▲                │  ▲             │        lose: a version gives them to another daemon
        └─────expire─────┘  └────claim────┘        expire: a version no longer has the origin

    begin ──▶ under way ──end──▶ applied ──▶ waiting repeats are told at once
                       └──end──▶ failed ───▶ told once nothing is under way

Sequences of an origin rise. A sequence up to the highest applied one is a duplicate; beyond that
:func:`persist.manifest.origins.verdict_of` decides by the manifest, which
:meth:`OriginTable.load` supplies. A sequence under way is neither applied nor unknown, and its
repeat waits for the outcome. After a failure, repeats are applied in order of their sequences, and
none beyond a failed sequence that is not repeated, because that one could not be applied afterwards
(tests/origins).

The loop decides about sequences. The thread of a stream begins one itself if that needs no
decision: it is new, and all that is under way was begun by the same stream
(:meth:`OriginTable.reserve`). It holds :attr:`Fates.lock` until the operation is in the log's
queue, so the log has an origin's sequences in rising order. Otherwise event loop only, except
:meth:`OriginTable.verdict`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Hashable
from enum import Enum
from functools import partial
from operator import itemgetter

from ingester.errors import BadRequest, OwnedElsewhere
from ingester.origins.tenure import Tenure
from persist.manifest.actions import Content, PartitionKey
from persist.manifest.actions import OriginAction as OriginAction
from persist.manifest.origins import (
    DUPLICATE,
    FOREIGN,
    NEW,
    HeldSequences,
    OriginVerdict,
    Process,
    SequenceRun,
    fresh,
    owned,
    run_at,
    taken_over,
    verdict_of,
    with_ends,
)
from persist.table import TableKey

Fate = Callable[[BaseException | None], None]


class Fates:
    """Sequences that are not logged yet, in rising order, and the repeats that wait for them."""

    __slots__ = ("_again", "_begun_by", "_failed", "_waiting", "lock", "missing")

    def __init__(self, lock: threading.RLock | None = None) -> None:
        """``lock``: shared with the origin's other tables."""
        self.lock = lock or threading.RLock()
        self.missing: int | None = None
        """Lowest failed sequence that is not repeated: nothing above it may be written."""
        self._waiting: dict[int, list[tuple[int, Fate]]] = {}
        self._failed: set[int] = set()
        self._again: list[tuple[int, Callable[[], None]]] = []
        self._begun_by: object = None

    @property
    def under_way(self) -> Collection[int]:
        """Sequences with an unknown outcome."""
        return self._waiting.keys()

    @property
    def oldest(self) -> int | None:
        """Lowest sequence under way."""
        return next(iter(self._waiting), None)

    @property
    def newest(self) -> int:
        """Highest sequence under way; -1 for none."""
        return next(reversed(self._waiting), -1)

    def begin(self, sequence: int, whose: object = None) -> bool:
        """Record a sequence under way; return False if it, or one above it, already is.

        Args:
            whose: who begins it, for :meth:`follows`.
        """
        with self.lock:
            if self._waiting and sequence <= self.newest:
                return False
            self._waiting[sequence] = []
            self._begun_by = whose
            return True

    def follows(self, sequence: int, whose: object) -> bool:
        """Return whether a sequence is above all under way, the newest of which ``whose`` began."""
        with self.lock:
            return not self._waiting or (self._begun_by is whose and sequence > self.newest)

    def await_first(self, sequence: int, fate: Fate) -> None:
        """Call ``fate`` when the copy of a sequence that is under way is durable or has failed.

        If there is no copy, the outcome of the next higher sequence counts, or else of the newest.
        """
        with self.lock:
            above = (seq for seq in self._waiting if seq >= sequence)
            self._waiting[min(above, default=self.newest)].append((sequence, fate))

    def end(self, sequence: int, error: BaseException | None) -> None:
        """Record that an operation is durable (``error`` is None) or never will be.

        Those who wait are told, by sequence; after a failure when nothing is under way any more,
        because the log refuses everything queued behind a refused operation. The lock is held
        meanwhile: what they begin comes before whatever a stream's thread begins.

        Raises:
            KeyError: the sequence is not under way.
        """
        with self.lock:
            ready: list[tuple[int, Callable[[], None]]] = [
                (own, partial(fate, error)) for own, fate in self._waiting.pop(sequence)
            ]
            if error is not None:
                self._failed.add(sequence)
                self._again += ready
                ready = []
            if self._failed and not self._waiting:
                self.missing = min(self._failed - {own for own, _ in self._again}, default=None)
                ready = sorted([*ready, *self._again], key=itemgetter(0))
                self._failed, self._again = set(), []
            for _, tell in ready:
                tell()


NOBODY: frozenset[Hashable] = frozenset()


class OriginClaim(Enum):
    """Which daemon takes an origin's writes to the table, as far as this daemon knows."""

    UNCLAIMED = "unclaimed"
    """No version gives the origin to this daemon, or that claim has expired."""
    OURS = "ours"
    """This daemon takes the origin's writes."""
    LOST = "lost"
    """Another daemon took the origin over; writes are refused here."""


LOST = OriginClaim.LOST
"""A plain attribute, because every write reads it and an enum look-up is slower."""


class Event(Enum):
    """What a manifest version reports about an origin."""

    CLAIM = "claim"
    LOSE = "lose"
    EXPIRE = "expire"


TRANSITIONS: dict[tuple[OriginClaim, Event], OriginClaim] = {
    (OriginClaim.UNCLAIMED, Event.CLAIM): OriginClaim.OURS,
    (OriginClaim.OURS, Event.CLAIM): OriginClaim.OURS,
    (OriginClaim.LOST, Event.CLAIM): OriginClaim.OURS,
    (OriginClaim.OURS, Event.LOSE): OriginClaim.LOST,
    (OriginClaim.OURS, Event.EXPIRE): OriginClaim.UNCLAIMED,
}
"""The state after each allowed event."""


class IllegalClaimEvent(Exception):
    """An event that the state does not allow."""


class OriginTable:
    """Decides about the sequences of one origin in one table."""

    def __init__(self, name: str, table: TableKey, lock: threading.RLock | None = None) -> None:
        self.name = name
        self.table = table
        self.state = OriginClaim.UNCLAIMED
        self.process: Process | None = None
        """This daemon in state ``OURS``, otherwise None."""
        self.tenures: tuple[Tenure, ...] = ()
        """The tenures of processes that applied sequences, by rising first sequence."""
        self.runs: list[SequenceRun] = []
        """The runs of the last loaded version; empty if it does not know the origin."""
        self.contents: dict[int, Content] = {}
        """What sequences contained, by the last loaded version."""
        self.owner: Process | None = None
        """The process that takes the origin's writes, by the last loaded version."""
        self.fates = Fates(lock)
        self.touched = 0.0
        self.spec_id: int | None = None
        """The partition spec of the newest operation."""

    @property
    def refusal(self) -> OwnedElsewhere | None:
        """The error for all writes after another daemon took the origin over."""
        if self.state is not LOST:
            return None
        return OwnedElsewhere(
            f"origin {self.name!r} now writes to {'/'.join(self.table)} through another daemon;"
            " a new stream here takes it back"
        )

    def is_new(self, sequence: int) -> bool:
        """Return whether to write a sequence; False for a duplicate of a durable one.

        Raises:
            OwnedElsewhere: another daemon has the origin, or this sequence of it.
        """
        if self.state is LOST and (refusal := self.refusal) is not None:
            raise refusal
        verdict = self.verdict(sequence)
        if verdict is FOREIGN:
            raise OwnedElsewhere(
                f"origin {self.name!r}: sequence {sequence} belongs to a daemon that had this"
                " origin before; a stream that starts with it takes it over"
            )
        return verdict is NEW

    def verdict(self, sequence: int) -> OriginVerdict:
        """Return the status of a sequence that is not under way. Thread-safe."""
        tenure = _tenure_at(self.tenures, self.runs, sequence)
        if tenure is not None:
            if sequence <= tenure.last:
                return DUPLICATE
            if sequence < tenure.end and self.process in (None, tenure.process):
                return NEW
        # As for a process without a run: what this one may write is in a tenure, even if runs of
        # several processes were merged into one under its name.
        verdict = verdict_of(self.runs, sequence, None)
        if verdict is FOREIGN and any(h.first <= sequence <= h.last for h in self.held()):
            return DUPLICATE
        return verdict

    def covered(self, sequence: int) -> frozenset[PartitionKey]:
        """Return the partitions whose files have a new sequence that this daemon never had."""
        tenure = _tenure_at(self.tenures, self.runs, sequence)
        if tenure is None or not tenure.ahead:
            return frozenset()
        return frozenset(key for key, last in tenure.ahead.items() if sequence <= last)

    def content(self, sequence: int) -> Content | None:
        """Return what a durable sequence contained; None if that is not known."""
        tenure = _tenure_at(self.tenures, self.runs, sequence)
        found = None
        if tenure is not None and sequence <= tenure.last:
            found = tenure.content(sequence)
        return self.contents.get(sequence) if found is None else found

    def check_repeat(self, sequence: int, content: Content | None) -> None:
        """Check that a repeat of a sequence has the rows of the first copy, if both are known.

        Raises:
            BadRequest: it has other rows.
        """
        first = None if content is None else self.content(sequence)
        if content is None or first is None or content == first:
            return
        newest = max((self.next_sequence - 1, *(run.newest for run in self.runs)))
        raise BadRequest(
            f"origin {self.name!r}: sequence {sequence} of table {'/'.join(self.table)} was written"
            f" before with other rows ({first.rows} rows then, {content.rows} now), and a repeat"
            " must have the same. If these are new rows, use another origin, or sequences above"
            f" {newest}, the newest known one"
        )

    def forget_partitions(self) -> None:
        """Forget what single partitions have: a copy has replaced the table, with other
        partitions.
        """
        self.spec_id = None
        self.runs = [run.without_partitions() for run in self.runs]
        for tenure in self.tenures:
            tenure.ahead = {}

    def begin(self, sequence: int, spec_id: int, whose: object = None) -> bool:
        """Record a sequence under way; return False if it, or one above it, already is."""
        begun = self.fates.begin(sequence, whose)
        if begun:
            self.spec_id = spec_id
        return begun

    def reserve(self, sequence: int, spec_id: int, whose: object) -> bool:
        """Begin a sequence that needs no decision of the loop; return False for any other.

        In the thread of a stream, which holds the lock of the fates until the operation is in the
        log's queue. If an operation before it fails, the log refuses it: both are in one session.
        """
        return (
            self.state is not LOST
            and self.fates.follows(sequence, whose)
            and self.verdict(sequence) is NEW
            and not self.covered(sequence)
            and self.begin(sequence, spec_id, whose)
        )

    def owns(self, first: int) -> bool:
        """Return whether everything from ``first`` on is this daemon's or durable."""
        return self.process is not None and self.first_foreign(first, self.process) is None

    def first_foreign(self, first: int, process: Process) -> int | None:
        """Return the first sequence from ``first`` on that another process has outside of files.

        Returns:
            None if all are the process's own, duplicates, or in files.
        """
        for run, end in with_ends(self.runs):
            start = max(first, run.first, run.settled + 1)
            if (last := _held_to(self.tenures, run, end)) is not None:
                start = max(start, last + 1)
            if run.owner != process and start < end:
                return start
        return None

    def tenure_of(self, sequence: int, process: Process) -> Tenure:
        """Return the tenure that a process's sequence belongs to, created if necessary."""
        run = run_at(self.runs, sequence)
        for tenure in reversed(self.tenures):
            if tenure.first <= sequence < tenure.end and tenure.process[1] == process[1]:
                if run is not None and tenure.first < run.first:
                    break  # another process's sequences in between start a new tenure
                tenure.process = process
                return tenure
        if not self.runs:
            # No manifest knows the origin: an earlier epoch of this daemon has what lies below.
            return self._add(sequence if self.tenures else 0, process)
        tenure = self._add(0 if run is None else run.first, process)
        # A process may have several runs with others' in between; what came too late for its run
        # has none.
        tenure.end = tenure.end_in(self.runs)
        return tenure

    def restore(self, sequence: int, upto: Process) -> bool:
        """Record that ``upto``, or an earlier epoch of it, applied everything up to a sequence.

        Returns:
            False if that is known, or if the sequence is another process's by now.
        """
        writer = upto
        if self.runs:
            run = run_at(self.runs, sequence)
            if run is None or run.owner is None:
                return False
            writer = run.owner
            if writer[0] != upto[0] or writer[1] > upto[1]:
                return False
        if sequence < self.next_sequence:
            return False
        self.tenure_of(sequence, writer).restore(sequence)
        return True

    def unknown_origin(self, process: Process) -> OriginAction:
        """Return the starting point if no version knows the origin: what is buffered is this
        daemon's.
        """
        found: OriginAction | None = None
        live = self.live()
        for tenure in self.tenures:
            if tenure.process in live:
                base = found or fresh(self.name, tenure.process)
                found = taken_over(base, tenure.process, tenure.first, None)
        return found or fresh(self.name, process)

    def load(self, known: OriginAction | None, ingester_id: str) -> None:
        """Load a manifest version's view; called by
        :meth:`ingester.origins.registry.Origins.load`.
        """
        if known is None:
            self.runs, self.owner, self.contents = [], None, {}
            return
        self.contents = {
            sequence: Content(rows, digest) for sequence, rows, digest in known.contents
        }
        self.owner = (known.owner_id, known.owner_epoch)
        self.runs = owned(known)
        kept = []
        for tenure in self.tenures:
            run = run_at(self.runs, max(tenure.applied, tenure.first))
            if tenure.carried and not tenure.adjust(run, ingester_id):
                continue
            # What was taken over stays so; later versions may no longer name it.
            tenure.end = min(tenure.end, tenure.end_in(self.runs))
            kept.append(tenure)
        self.tenures = tuple(kept)

    def loses(self, known: OriginAction) -> bool:
        """Return whether a version gives away sequences that are buffered here.

        That can happen without a change of owner, when another daemon takes older sequences
        over.
        """
        there = [(run.first, (run.owner_id, run.owner_epoch)) for run in known.runs]
        if there == [(run.first, run.owner) for run in self.runs]:
            return False
        runs = owned(known)
        return any(
            tenure.end_in(runs) < tenure.end
            for tenure in self.tenures
            if tenure.first_waiting() is not None
        )

    def claim(self, known: OriginAction, process: Process) -> None:
        """Load a version that gives the origin to this daemon; called by ``Origins.claim``."""
        self.load(known, process[0])
        for run in self.runs:
            if run.owner == process and not any(
                one.first == run.first < one.end and one.process == process for one in self.tenures
            ):
                tenure = self._add(run.first, process)
                tenure.applied = run.settled
                tenure.ahead = {
                    partition: last for partition, last in run.ahead.items() if last > run.settled
                }
                tenure.end = tenure.end_in(self.runs)
        self.move(Event.CLAIM, process)

    def move(self, event: Event, process: Process | None = None) -> None:
        """Change the state according to :data:`TRANSITIONS`.

        Args:
            process: this daemon, if it claims the origin.

        Raises:
            IllegalClaimEvent: the state does not allow the event.
        """
        following = TRANSITIONS.get((self.state, event))
        if following is None:
            raise IllegalClaimEvent(
                f"origin {self.name!r} of table {'/'.join(self.table)}: {event.value} while"
                f" {self.state.value}"
            )
        self.state, self.process = following, process

    @property
    def next_sequence(self) -> int:
        """The highest sequence that this daemon applied and no other took over since."""
        return max((tenure.last for tenure in self.tenures), default=-1) + 1

    def live(self, besides: frozenset[Hashable] = NOBODY) -> set[Process]:
        """Return the processes whose operations are in buffers other than these."""
        return {
            tenure.process for tenure in self.tenures if tenure.first_waiting(besides) is not None
        }

    def held(self) -> list[HeldSequences]:
        """Return what this daemon has from its log, of any epoch."""
        found = []
        for run, end in with_ends(self.runs):
            last = _held_to(self.tenures, run, end)
            if last is not None and run.owner is not None:
                found.append(HeldSequences(run.first, last, run.owner))
        return found

    @property
    def idle(self) -> bool:
        """Whether nothing is buffered or under way."""
        return not self.fates.under_way and not self.live()

    def _add(self, first: int, process: Process) -> Tenure:
        made = Tenure(self.name, self.table, first, process)
        self.tenures = tuple(
            sorted((*self.tenures, made), key=lambda one: (one.first, one.process[1]))
        )
        return made


def _tenure_at(
    tenures: tuple[Tenure, ...], runs: list[SequenceRun], sequence: int
) -> Tenure | None:
    for tenure in reversed(tenures):
        if tenure.first <= sequence:
            if sequence < tenure.end:
                return tenure
            break
    else:
        return None
    # That one was taken over as a whole, and hides no other one of the same run.
    run = run_at(runs, sequence)
    first = 0 if run is None else run.first
    for tenure in reversed(tenures):
        if first <= tenure.first <= sequence < tenure.end:
            return tenure
    return None


def _held_to(tenures: tuple[Tenure, ...], run: SequenceRun, end: int) -> int | None:
    """Return up to where a run is in this daemon's log, or below a later run's part of it."""
    of_run = [
        one
        for one in tenures
        if one.process == run.owner and run.first <= one.last and one.first < end
    ]
    if not of_run:
        return None
    own = max(min(one.last, end - 1) for one in of_run)
    # Only what was begun afterwards shows that nothing could come in between.
    skipped = any(
        one.first == end <= one.last and one.process[1] > of_run[0].process[1] for one in tenures
    )
    return end - 1 if skipped else own
