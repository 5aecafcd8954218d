"""One origin's sequences into one table: which are new, durable, or another daemon's.

    UNCLAIMED ──claim──▶ OURS ──lose──▶ LOST       claim: a version says that we take what comes
        ▲                │  ▲             │        lose: a version says that another daemon does
        └─────expire─────┘  └────claim────┘        expire: a version knows the origin no more

Law of this file: sequences of an origin rise. What is not above the highest applied one is a
duplicate; beyond that :func:`persist.manifest.origins.verdict_of` decides by the manifest, which
comes in by :meth:`OriginTable.load`. What is under way is in :mod:`ingester.origins.fates`. Loop
only, but for :meth:`OriginTable.verdict`.
"""

from __future__ import annotations

from collections.abc import Hashable
from enum import Enum

from ingester.errors import OwnedElsewhere
from ingester.origins.fates import Fates
from ingester.origins.tenure import Tenure
from persist.manifest.actions import Origin as OriginAction
from persist.manifest.actions import PartitionKey
from persist.manifest.origins import (
    DUPLICATE,
    FOREIGN,
    NEW,
    Held,
    Process,
    Run,
    Verdict,
    fresh,
    owned,
    run_at,
    taken_over,
    verdict_of,
    with_ends,
)
from persist.table import TableKey

NOBODY: frozenset[Hashable] = frozenset()


class Claim(Enum):
    """The state of an origin: who takes its writes into the table, as far as the daemon knows."""

    UNCLAIMED = "unclaimed"
    """No version gives the origin's writes to this daemon, or the one that did has expired."""
    OURS = "ours"
    """This daemon takes the origin's writes."""
    LOST = "lost"
    """Another daemon has taken the origin over, and its writes are refused here."""


LOST = Claim.LOST
"""The member by itself: every write asks for it, and an enum's look-up takes longer."""


class Event(Enum):
    """News that a manifest version brings of the origin."""

    CLAIM = "claim"
    LOSE = "lose"
    EXPIRE = "expire"


TRANSITIONS: dict[tuple[Claim, Event], Claim] = {
    (Claim.UNCLAIMED, Event.CLAIM): Claim.OURS,
    (Claim.OURS, Event.CLAIM): Claim.OURS,
    (Claim.LOST, Event.CLAIM): Claim.OURS,
    (Claim.OURS, Event.LOSE): Claim.LOST,
    (Claim.OURS, Event.EXPIRE): Claim.UNCLAIMED,
}
"""The state after each event that may come in a state."""


class IllegalTransition(Exception):
    """An event came in a state that has no transition for it."""


class OriginTable:
    """Decides about the sequences of one origin into one table."""

    def __init__(self, name: str, table: TableKey) -> None:
        self.name = name
        self.table = table
        self.state = Claim.UNCLAIMED
        self.process: Process | None = None
        """This daemon while the state is ``OURS``, else None."""
        self.tenures: tuple[Tenure, ...] = ()
        """The shares of the processes that have applied sequences, by rising first sequence."""
        self.runs: list[Run] = []
        """The runs of the version that was loaded last; empty where it does not know the origin."""
        self.owner: Process | None = None
        """The process that takes the origin's writes, by the version that was loaded last."""
        self.fates = Fates()
        self.touched = 0.0
        self.spec_id: int | None = None
        """The partition spec that the newest operation was laid out by."""

    @property
    def refusal(self) -> OwnedElsewhere | None:
        """The error that refuses all writes here, where another daemon has the origin by now."""
        if self.state is not LOST:
            return None
        return OwnedElsewhere(
            f"origin {self.name!r} writes to {'/'.join(self.table)} through another daemon by now;"
            " a new stream here takes it back"
        )

    def is_new(self, sequence: int) -> bool:
        """Tell whether a sequence is to be written; False for a duplicate of a durable one.

        Raises:
            OwnedElsewhere: another daemon has the origin, or this sequence of it.
        """
        if self.state is LOST and (refusal := self.refusal) is not None:
            raise refusal
        verdict = self.verdict(sequence)
        if verdict is FOREIGN:
            raise OwnedElsewhere(
                f"origin {self.name!r}: sequence {sequence} belongs to a daemon that had this"
                " origin before; a stream that begins there takes it over"
            )
        return verdict is NEW

    def verdict(self, sequence: int) -> Verdict:
        """Tell where a sequence stands that is not under way. Any thread."""
        tenure = _tenure_at(self.tenures, sequence)
        if tenure is not None:
            if sequence <= tenure.last:
                return DUPLICATE
            if sequence < tenure.end and self.process in (None, tenure.process):
                return NEW
        # As for a process without a share: what this one may write is in a tenure of its own, also
        # where runs of several were merged into one of its name.
        verdict = verdict_of(self.runs, sequence, None)
        if verdict is FOREIGN and any(h.first <= sequence <= h.last for h in self.held()):
            return DUPLICATE
        return verdict

    def covered(self, sequence: int) -> frozenset[PartitionKey]:
        """Find the partitions whose files have a new sequence, although we never had it."""
        tenure = _tenure_at(self.tenures, sequence)
        if tenure is None or not tenure.ahead:
            return frozenset()
        return frozenset(key for key, last in tenure.ahead.items() if sequence <= last)

    def forget_partitions(self) -> None:
        """Forget what single partitions have: a copy has made the table anew, with others."""
        self.spec_id = None
        self.runs = [run._replace(ahead={}) for run in self.runs]
        for tenure in self.tenures:
            tenure.ahead = {}

    def begin(self, sequence: int, spec_id: int) -> bool:
        """Note an operation under way; False if it, or one above it, already is."""
        begun = self.fates.begin(sequence)
        if begun:
            self.spec_id = spec_id
        return begun

    def owns(self, first: int) -> bool:
        """Tell whether everything from ``first`` on is ours, or durable."""
        return self.process is not None and self.first_foreign(first, self.process) is None

    def first_foreign(self, first: int, process: Process) -> int | None:
        """Find the first sequence from ``first`` on that another process has, and no file.

        Returns:
            None where all is the process's own, a duplicate of what we have, or in files.
        """
        for run, end in with_ends(self.runs):
            start = max(first, run.first, run.upto + 1)
            if (last := _held_to(self.tenures, run, end)) is not None:
                start = max(start, last + 1)
            if run.owner != process and start < end:
                return start
        return None

    def tenure_of(self, sequence: int, process: Process) -> Tenure:
        """Find the tenure that a process's sequence belongs to, or make it."""
        run = run_at(self.runs, sequence)
        for tenure in reversed(self.tenures):
            if tenure.first <= sequence < tenure.end and tenure.process[1] == process[1]:
                if run is not None and tenure.first < run.first:
                    break  # what was another's in between begins a share of its own
                tenure.process = process
                return tenure
        if not self.runs:
            # No manifest knows it: what an earlier epoch of ours has lies below.
            return self._add(sequence if self.tenures else 0, process)
        tenure = self._add(0 if run is None else run.first, process)
        # A process may have several runs, with those of others in between; what came too late for
        # its run has none.
        tenure.end = tenure.end_in(self.runs)
        return tenure

    def restore(self, sequence: int, upto: Process) -> bool:
        """Note that ``upto``, or an earlier epoch of it, had applied all up to a sequence.

        Returns:
            False where that is known, or the sequence is of another process by now.
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
        """Make what to start from where no version knows the origin: what is in buffers is ours."""
        found: OriginAction | None = None
        live = self.live()
        for tenure in self.tenures:
            if tenure.process in live:
                base = found or fresh(self.name, tenure.process)
                found = taken_over(base, tenure.process, tenure.first, None)
        return found or fresh(self.name, process)

    def load(self, known: OriginAction | None, ingester_id: str) -> None:
        """Adopt a manifest version's view; for :meth:`ingester.origins.registry.Origins.load`."""
        if known is None:
            self.runs, self.owner = [], None
            return
        self.owner = (known.owner_id, known.owner_epoch)
        self.runs = owned(known)
        kept = []
        for tenure in self.tenures:
            run = run_at(self.runs, max(tenure.applied, tenure.first))
            if tenure.carried and not tenure.adjust(run, ingester_id):
                continue
            # What was taken away stays so: later versions may not name it any more.
            tenure.end = min(tenure.end, tenure.end_in(self.runs))
            kept.append(tenure)
        self.tenures = tuple(kept)

    def loses(self, known: OriginAction) -> bool:
        """Tell whether a version gives away sequences that are in buffers here.

        That it may do while the origin's owner stays who it was: which takes older ones over, too.
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
        """Adopt a version that gives the origin to this daemon; for ``Origins.claim``."""
        self.load(known, process[0])
        for run in self.runs:
            if run.owner == process and not any(
                one.first == run.first < one.end and one.process == process for one in self.tenures
            ):
                tenure = self._add(run.first, process)
                tenure.applied = run.upto
                tenure.ahead = dict(run.ahead)
                tenure.end = tenure.end_in(self.runs)
        self.move(Event.CLAIM, process)

    def move(self, event: Event, process: Process | None = None) -> None:
        """Change the state as :data:`TRANSITIONS` says.

        Args:
            process: this daemon, where it claims the origin.

        Raises:
            IllegalTransition: the event cannot come in this state.
        """
        following = TRANSITIONS.get((self.state, event))
        if following is None:
            raise IllegalTransition(
                f"origin {self.name!r} of table {'/'.join(self.table)}: {event.value} while"
                f" {self.state.value}"
            )
        self.state, self.process = following, process

    @property
    def next_sequence(self) -> int:
        """The sequence above all that this daemon has applied and nobody took over since."""
        return max((tenure.last for tenure in self.tenures), default=-1) + 1

    def live(self, besides: frozenset[Hashable] = NOBODY) -> set[Process]:
        """List the processes whose operations are in buffers other than these."""
        return {
            tenure.process for tenure in self.tenures if tenure.first_waiting(besides) is not None
        }

    def held(self) -> list[Held]:
        """List what this daemon has from its log, of whichever epoch."""
        found = []
        for run, end in with_ends(self.runs):
            last = _held_to(self.tenures, run, end)
            if last is not None and run.owner is not None:
                found.append(Held(run.first, last, run.owner))
        return found

    @property
    def idle(self) -> bool:
        """Whether nothing is in buffers or on its way."""
        return not self.fates.under_way and not self.live()

    def _add(self, first: int, process: Process) -> Tenure:
        made = Tenure(self.name, self.table, first, process)
        self.tenures = tuple(
            sorted((*self.tenures, made), key=lambda one: (one.first, one.process[1]))
        )
        return made


def _tenure_at(tenures: tuple[Tenure, ...], sequence: int) -> Tenure | None:
    for tenure in reversed(tenures):
        if tenure.first <= sequence:
            return tenure
    return None


def _held_to(tenures: tuple[Tenure, ...], run: Run, end: int) -> int | None:
    """Find up to where a run is in our log, or lies below what we have of a later one."""
    of_run = [
        one
        for one in tenures
        if one.process == run.owner and run.first <= one.last and one.first < end
    ]
    if not of_run:
        return None
    own = max(min(one.last, end - 1) for one in of_run)
    # Only what was begun afterwards shows that nothing was to come in between.
    skipped = any(
        one.first == end <= one.last and one.process[1] > of_run[0].process[1] for one in tenures
    )
    return end - 1 if skipped else own
