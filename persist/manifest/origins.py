"""An origin's writes: which are in a table's files, and who may still commit others.

    0 ─────── run 1 ───────┬─────── run 2 ───────┬─── run 3 ──▶        sequences of one origin
      taken by (a, 3)      │ taken by (b, 1)     │ taken by (b, 2)
      ├─ complete ─┤       ├─ complete ──┤       │
      ├─ ahead in one partition ─┤               └ first: the sequence it began with

Law of this file: pure. ``complete`` and ``ahead`` are facts for ever: the rows are in files that
were committed with them. Whoever opens an origin's stream with sequence ``n`` takes ``n`` and all
above it from whoever had them. An earlier process keeps what lies below, and may still commit that
from its log; what lies above is not its any more, because the client sends it to the new one. So
every sequence has one process that may commit it, at every moment.

Whether a sequence is there already is asked of :func:`verdict_of` alone: by streams and
replication through :class:`ingester.origins.origin_table.OriginTable`, by replay, by adoption, and
by the look-up of how far an origin is.

                       in files       in no file
    the process's      DUPLICATE      NEW
    another's          IN_FILES       FOREIGN

Within a run sequences rise in log order, and a partition's files are a prefix of the log: that is
why one number per partition is enough. A process lays an origin's rows out by another partition
spec only when none of them waits by an earlier one; so each number holds for its spec's partition,
and a row is in files if any of them says so. Beyond :data:`MAX_RUNS` the oldest run
counts as one with the next, of the later owner, if all of it is in files or its owner has nothing
left to commit: rows that somebody still has must stay theirs, or nobody would commit them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import zip_longest
from typing import NamedTuple

from persist.manifest.actions import Origin, OriginAhead, OriginRun, PartitionKey

MAX_RUNS = 8
"""The number of runs beyond which those that are done count as one with the next."""

MOST_RUNS = 64
"""The number of runs at which an origin cannot be taken over any more: none of them is done."""

NO_END = 2**63 - 1
"""A bound above all sequences."""

Process = tuple[str, int]
"""An ingester id and its epoch."""


Done = Callable[[Process], bool]
"""Whether a process certainly has nothing left to commit of an origin."""


def nobody_is_done(process: Process) -> bool:
    """Know of no process that it has nothing left."""
    return False


class Verdict(Enum):
    """The standing of an origin's sequence for one process."""

    NEW = "new"
    """The sequence is in no file, and the process may commit it."""
    DUPLICATE = "duplicate"
    """The sequence is durable, and was the process's to commit."""
    IN_FILES = "in files"
    """The sequence is durable, and was another process's to commit."""
    FOREIGN = "foreign"
    """The sequence is in no file, and another process may commit it."""

    @property
    def durable(self) -> bool:
        """Whether the rows are safe, so that they are a duplicate when they are sent again."""
        return self is DUPLICATE or self is IN_FILES

    @property
    def own(self) -> bool:
        """Whether the sequence is, or was, the process's to commit."""
        return self is NEW or self is DUPLICATE


# Every write asks: a member of an enum is looked up by Python code, a name of a module is not.
NEW, DUPLICATE, IN_FILES, FOREIGN = Verdict


class Held(NamedTuple):
    """Sequences of a process that whoever takes over has from its log: nobody sends them again."""

    first: int
    last: int
    owner: Process


class Run(NamedTuple):
    """The sequences from ``first`` on, up to the next run: their owner, and what is in files."""

    first: int
    owner: Process | None
    """The process that may commit them; None where whoever has them may."""
    complete: int | None
    ahead: Mapping[PartitionKey, int]

    @property
    def upto(self) -> int:
        """The last sequence all of which is in files; -1 for none."""
        return -1 if self.complete is None else self.complete

    def has(self, sequence: int, partition: PartitionKey | None = None) -> bool:
        """Tell whether the rows of a sequence of this run are in files: a partition's, or all."""
        if sequence <= self.upto:
            return True
        return partition is not None and sequence <= self.ahead.get(partition, -1)

    def advanced(self, complete: int | None, ahead: Mapping[PartitionKey, int]) -> Run:
        """Add facts to the run."""
        upto = max(self.upto, -1 if complete is None else complete)
        further = dict(self.ahead)
        for partition, sequence in ahead.items():
            further[partition] = max(sequence, further.get(partition, -1))
        left = {partition: seq for partition, seq in further.items() if seq > upto}
        return self._replace(complete=upto if upto >= 0 else None, ahead=left)


def runs_of(origin: Origin | None) -> list[Run]:
    """List the runs in order: at least one, or none where nothing is known of the origin."""
    if origin is None:
        return []
    top = (origin.complete, _as_map(origin.ahead))
    if not origin.runs:
        return [Run(0, None, *top)]
    first, *others = origin.runs
    return [
        Run(first.first, (first.owner_id, first.owner_epoch), *top),
        *(Run(o.first, (o.owner_id, o.owner_epoch), o.complete, _as_map(o.ahead)) for o in others),
    ]


def origin_of(
    name: str, owner: Process, runs: list[Run], at: str | None, done: Done = nobody_is_done
) -> Origin:
    """Make the action that says what ``runs``, as of :func:`runs_of`, say.

    Args:
        owner: who takes what comes.
        done: tells of which processes' rows everything is in files.
    """
    runs = _fewer(_folded(runs), done)
    named = [
        OriginRun(run.first, *run.owner, run.complete, _as_tuple(run.ahead))
        for run in runs
        if run.owner is not None
    ]
    if named:
        named[0] = OriginRun(named[0].first, named[0].owner_id, named[0].owner_epoch)
    return Origin(
        name=name,
        owner_id=owner[0],
        owner_epoch=owner[1],
        complete=runs[0].complete,
        ahead=_as_tuple(runs[0].ahead),
        runs=tuple(named),
        at=at,
    )


def run_at(runs: list[Run], sequence: int) -> Run | None:
    """Find the run of a sequence; None where it lies below all of them, and is in files."""
    found = None
    for run in runs:
        if run.first > sequence:
            break
        found = run
    return found


def end_of(runs: list[Run], first: int, process: Process) -> int:
    """Find the first sequence from ``first`` on that is not for the process to commit."""
    run = run_at(runs, first) or runs[0]
    if run.owner not in (None, process):
        return first  # or, below all runs, in files already
    for later in runs:
        if later.first > first and later.owner != process:
            return later.first
    return NO_END


def with_ends(runs: Sequence[Run]) -> Iterator[tuple[Run, int]]:
    """Pair each run with the first sequence of the next one."""
    for run, following in zip_longest(runs, runs[1:]):
        yield run, NO_END if following is None else following.first


def verdict_of(
    runs: list[Run], sequence: int, process: Process | None, partition: PartitionKey | None = None
) -> Verdict:
    """Tell where a sequence stands for a process, by what a version says of the origin.

    Args:
        runs: as of :func:`runs_of` or :func:`owned`; none where nothing is known of the origin.
        process: None for one that has not taken the origin.
        partition: the one whose rows are asked about; None for all rows of the sequence.
    """
    if not runs:
        return NEW
    run = run_at(runs, sequence)
    if run is None:
        return IN_FILES
    own = run.owner in (None, process)
    if run.has(sequence, partition):
        return DUPLICATE if own else IN_FILES
    return NEW if own else FOREIGN


def durable_of(origin: Origin) -> int | None:
    """Find the last sequence that is in files with all before it, as the newest owner knows it."""
    for run in reversed(runs_of(origin)):
        if run.complete is not None:
            return run.complete
    return None


def taken_over(
    origin: Origin,
    process: Process,
    first: int,
    at: str | None,
    done: Done = nobody_is_done,
    held: Collection[Held] = (),
) -> Origin:
    """Give all from sequence ``first`` on to ``process``.

    What is in files stays known. What others have taken below ``first`` and no file has remains
    theirs, and so does what is ``held``.
    """
    runs: list[Run] = []
    for run, end in with_ends(owned(origin)):
        if run.owner == process or end <= first:
            runs.append(run)
            continue
        if run.first < first:
            runs.append(run)
        start = max(run.first, first)
        for one in sorted(held):
            if one.owner != run.owner or one.last < start or one.first >= end:
                continue
            if start < one.first:
                runs.append(_part(run, start, process))
            runs.append(_part(run, max(start, one.first), run.owner))
            start = one.last + 1
        if start < end:
            runs.append(_part(run, start, process))
    return origin_of(origin.name, process, runs, at, done)


def _part(run: Run, first: int, owner: Process | None) -> Run:
    ahead = {partition: seq for partition, seq in run.ahead.items() if seq >= first}
    return Run(first, owner, run.complete, ahead)


def further(origin: Origin, sequence: int, partition: PartitionKey) -> Origin:
    """Add to an origin that a partition's rows of a run, up to ``sequence``, are in files."""
    runs = owned(origin)
    run = run_at(runs, sequence)
    if run is not None:
        runs[runs.index(run)] = run.advanced(None, {partition: sequence})
    owner = (origin.owner_id, origin.owner_epoch)
    return origin_of(origin.name, owner, runs, origin.at)


def completed(origin: Origin, sequence: int) -> Origin:
    """Add to an origin that all of a run up to ``sequence`` is in files."""
    runs = owned(origin)
    run = run_at(runs, sequence)
    if run is not None:
        runs[runs.index(run)] = run.advanced(sequence, {})
    return origin_of(origin.name, (origin.owner_id, origin.owner_epoch), runs, origin.at)


def owned(origin: Origin) -> list[Run]:
    """List the runs, each with its owner: where none is named it is the origin's."""
    owner = (origin.owner_id, origin.owner_epoch)
    return [run._replace(owner=run.owner or owner) for run in runs_of(origin)]


def fresh(name: str, process: Process) -> Origin:
    """Make an origin that a process has taken from the first sequence on, and nothing else."""
    return Origin(name, *process, None, (), (OriginRun(0, *process),))


def _folded(runs: list[Run]) -> list[Run]:
    """Drop leading runs all of which is in files: what follows says so."""
    while len(runs) > 1:
        lowest, following = runs[0], runs[1]
        if lowest.complete is None or lowest.complete < following.first - 1:
            break
        runs = [following.advanced(following.first - 1, {}), *runs[2:]]
    return runs


def _fewer(runs: list[Run], done: Done) -> list[Run]:
    runs = list(runs)
    at = 0
    while len(runs) > MAX_RUNS and at + 1 < len(runs):
        older, later = runs[at], runs[at + 1]
        in_files = older.upto >= later.first - 1
        if not in_files and (older.owner is None or not done(older.owner)):
            at += 1
            continue
        merged = later.advanced(older.complete, older.ahead)
        runs[at : at + 2] = [merged._replace(first=older.first)]
    return runs


def _as_map(ahead: Iterable[OriginAhead]) -> dict[PartitionKey, int]:
    return {(one.spec_id, one.values): one.seq for one in ahead}


def _as_tuple(ahead: Mapping[PartitionKey, int]) -> tuple[OriginAhead, ...]:
    return tuple(OriginAhead(spec_id, values, seq) for (spec_id, values), seq in ahead.items())
