"""Which of an origin's writes are in a table's files, and which process may commit the others.
Pure.

    0 ─────── run 1 ───────┬─────── run 2 ───────┬─── run 3 ──▶        sequences of one origin
      taken by (a, 3)      │ taken by (b, 1)     │ taken by (b, 2)
      ├─ complete ─┤       ├─ complete ──┤       │
      ├─ ahead in one partition ─┤               └ first: the sequence it began with

``complete`` and ``ahead`` never become wrong: the rows are in files that were committed with them.
A process that opens an origin's stream with sequence ``n`` takes ``n`` and everything above it from
earlier processes. An earlier process keeps what lies below, and may still commit that from its log;
the client sends everything above to the new one. Each sequence therefore has exactly one process
that may commit it, at every moment (tests/persist/manifest/test_origins.py).

:func:`verdict_of` is the only place that decides whether a sequence is applied: streams and
replication ask it through :class:`ingester.origins.origin_table.OriginTable`, and replay, adoption
and the look-up of an origin's progress ask it directly (tests/origins/test_one_verdict.py).

                       in files       in no file
    the process's      DUPLICATE      NEW
    another's          IN_FILES       FOREIGN

Within a run sequences rise in log order, and a partition's files are a prefix of the log, so one
number per partition is enough. A process lays an origin's rows out by another partition spec only
when none of them waits under an earlier one; each number therefore holds for its spec's partition,
and a row is in files if any of them says so.

Beyond :data:`MAX_RUNS` a run is merged with the next, under the later owner, if all of it is in
files (tests/origins/test_transactions_and_losses.py). Either it says so itself; or the origin's
owner began above it, so that its client had sent all of it by then, and its own owner has nothing
left to commit. The merged run says so for every partition of the table. Otherwise the runs stay
apart: a client that has gone back may still send what is in no file. So of the sequences of a run
that are not in files, only its owner ever wrote any, and that process knows which.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import zip_longest
from typing import NamedTuple

import msgspec

from persist.manifest.actions import (
    OriginAction,
    OriginAhead,
    OriginRun,
    PartitionKey,
    SequenceContent,
)

MAX_RUNS = 8
"""Beyond this number, finished runs are merged with the next."""

MOST_RUNS = 64
"""At this number of unfinished runs an origin can no longer be taken over."""

MOST_CONTENTS = 16
"""The number of sequences whose contents an origin keeps in the manifest."""

NO_END = 2**63
"""A bound above all sequences, of which the highest is 2**63 - 1."""

EVERY_PARTITION: PartitionKey = (-1, ())
"""In ``ahead``: all partitions of this table. It says nothing about other tables, unlike
``complete``, so no origin's durable sequence follows from it."""

Process = tuple[str, int]
"""An ingester id and its epoch."""


Done = Callable[[Process], bool]
"""Whether a process certainly has nothing left to commit of an origin."""


def nobody_is_done(process: Process) -> bool:
    """Assume that every process may have something left."""
    return False


class OriginVerdict(Enum):
    """The classification of an origin's sequence for one process."""

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
        """Whether the rows are safe, so that sending them again is a duplicate."""
        return self is DUPLICATE or self is IN_FILES

    @property
    def own(self) -> bool:
        """Whether the sequence is, or was, the process's to commit."""
        return self is NEW or self is DUPLICATE


# Names of the module for the write path, because looking up a member of an enum runs Python code.
NEW, DUPLICATE, IN_FILES, FOREIGN = OriginVerdict


class HeldSequences(NamedTuple):
    """Sequences in a process's log that a takeover leaves with it: no client sends them again."""

    first: int
    last: int
    owner: Process


class SequenceRun(NamedTuple):
    """The sequences from ``first`` up to the next run: their owner, and what is in files."""

    first: int
    owner: Process | None
    """The process that may commit them; None if any process that has them may."""
    complete: int | None
    ahead: Mapping[PartitionKey, int]

    @property
    def upto(self) -> int:
        """The last sequence up to which everything is in files; -1 for none."""
        return -1 if self.complete is None else self.complete

    @property
    def settled(self) -> int:
        """The last sequence up to which all partitions of the table are in files; -1 for none."""
        return max(self.upto, self.ahead.get(EVERY_PARTITION, -1))

    @property
    def newest(self) -> int:
        """The last sequence that some partition's files have; -1 for none."""
        return max((self.upto, *self.ahead.values()))

    def has(self, sequence: int, partition: PartitionKey | None = None) -> bool:
        """Whether the rows of a sequence of this run are in files: a partition's, or all."""
        if sequence <= self.settled:
            return True
        return partition is not None and sequence <= self.ahead.get(partition, -1)

    def without_partitions(self) -> SequenceRun:
        """The run without what single partitions have."""
        every = {key: last for key, last in self.ahead.items() if key == EVERY_PARTITION}
        return self._replace(ahead=every)

    def advanced(self, complete: int | None, ahead: Mapping[PartitionKey, int]) -> SequenceRun:
        """The run with further facts."""
        upto = max(self.upto, -1 if complete is None else complete)
        further = dict(self.ahead)
        for partition, sequence in ahead.items():
            further[partition] = max(sequence, further.get(partition, -1))
        run = self._replace(complete=upto if upto >= 0 else None, ahead=further)
        every = run.settled
        left = {partition: seq for partition, seq in further.items() if seq > every}
        if every > upto:
            left[EVERY_PARTITION] = every
        return run._replace(ahead=left)


def runs_of(origin: OriginAction | None) -> list[SequenceRun]:
    """The runs in order; empty if nothing is known of the origin."""
    if origin is None:
        return []
    top = (origin.complete, _as_map(origin.ahead))
    if not origin.runs:
        return [SequenceRun(0, None, *top)]
    first, *others = origin.runs
    return [
        SequenceRun(first.first, (first.owner_id, first.owner_epoch), *top),
        *(
            SequenceRun(o.first, (o.owner_id, o.owner_epoch), o.complete, _as_map(o.ahead))
            for o in others
        ),
    ]


def origin_of(
    before: OriginAction,
    owner: Process,
    runs: list[SequenceRun],
    at: str | None,
    done: Done = nobody_is_done,
) -> OriginAction:
    """The action that records ``runs``, as of :func:`runs_of`, and what ``before`` contained.

    Args:
        owner: the process that takes new sequences.
        done: tells whether all of a process's rows are in files.
    """
    runs = _fewer(_folded(runs), owner, done)
    named = [
        OriginRun(run.first, *run.owner, run.complete, _as_tuple(run.ahead))
        for run in runs
        if run.owner is not None
    ]
    if named:
        named[0] = OriginRun(named[0].first, named[0].owner_id, named[0].owner_epoch)
    return OriginAction(
        name=before.name,
        owner_id=owner[0],
        owner_epoch=owner[1],
        complete=runs[0].complete,
        ahead=_as_tuple(runs[0].ahead),
        runs=tuple(named),
        at=at,
        contents=before.contents,
    )


def with_contents(origin: OriginAction, more: Iterable[SequenceContent]) -> OriginAction:
    """The origin with the contents of further sequences that are in files.

    The first is kept, because a program that begins again begins there, and the newest.
    """
    known = {each.sequence: each for each in (*origin.contents, *more)}
    kept = [known[sequence] for sequence in sorted(known)]
    if len(kept) > MOST_CONTENTS:
        kept = [kept[0], *kept[1 - MOST_CONTENTS :]]
    return msgspec.structs.replace(origin, contents=tuple(kept))


def run_at(runs: list[SequenceRun], sequence: int) -> SequenceRun | None:
    """The run of a sequence; None if it lies below all runs, and is in files."""
    found = None
    for run in runs:
        if run.first > sequence:
            break
        found = run
    return found


def end_of(runs: list[SequenceRun], first: int, process: Process) -> int:
    """The first sequence from ``first`` on that the process may not commit."""
    run = run_at(runs, first) or runs[0]
    if run.owner not in (None, process):
        return first  # or it lies below all runs, and is in files
    for later in runs:
        if later.first > first and later.owner != process:
            return later.first
    return NO_END


def with_ends(runs: Sequence[SequenceRun]) -> Iterator[tuple[SequenceRun, int]]:
    """Each run with the first sequence of the next one."""
    for run, following in zip_longest(runs, runs[1:]):
        yield run, NO_END if following is None else following.first


def verdict_of(
    runs: list[SequenceRun],
    sequence: int,
    process: Process | None,
    partition: PartitionKey | None = None,
) -> OriginVerdict:
    """How a sequence stands for a process, by a version's knowledge of the origin.

    Args:
        runs: as of :func:`runs_of` or :func:`owned`; empty if nothing is known of the origin.
        process: None for one that has not taken the origin.
        partition: the partition in question; None for all rows of the sequence.
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


def of_every(ahead: Iterable[OriginAhead]) -> tuple[OriginAhead, ...]:
    """The part of ``ahead`` that holds whatever the partitions are."""
    return tuple(one for one in ahead if (one.spec_id, one.values) == EVERY_PARTITION)


def durable_of(origin: OriginAction) -> int | None:
    """The last sequence up to which everything is in files, as the newest owner knows it."""
    for run in reversed(runs_of(origin)):
        if run.complete is not None:
            return run.complete
    return None


def taken_over(
    origin: OriginAction,
    process: Process,
    first: int,
    at: str | None,
    done: Done = nobody_is_done,
    held: Collection[HeldSequences] = (),
) -> OriginAction:
    """Give everything from sequence ``first`` on to ``process``.

    What is in files stays known. Sequences below ``first`` that others took and that are in no file
    remain theirs, and so do those ``held``.
    """
    runs: list[SequenceRun] = []
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
    return origin_of(origin, process, runs, at, done)


def _part(run: SequenceRun, first: int, owner: Process | None) -> SequenceRun:
    ahead = {partition: seq for partition, seq in run.ahead.items() if seq >= first}
    return SequenceRun(first, owner, run.complete, ahead)


def further(origin: OriginAction, sequence: int, partition: PartitionKey) -> OriginAction:
    """The origin with a partition's rows of a run, up to ``sequence``, in files."""
    runs = owned(origin)
    run = run_at(runs, sequence)
    if run is not None:
        runs[runs.index(run)] = run.advanced(None, {partition: sequence})
    owner = (origin.owner_id, origin.owner_epoch)
    return origin_of(origin, owner, runs, origin.at)


def completed(origin: OriginAction, sequence: int) -> OriginAction:
    """The origin with all of a run up to ``sequence`` in files."""
    runs = owned(origin)
    run = run_at(runs, sequence)
    if run is not None:
        runs[runs.index(run)] = run.advanced(sequence, {})
    return origin_of(origin, (origin.owner_id, origin.owner_epoch), runs, origin.at)


def owned(origin: OriginAction) -> list[SequenceRun]:
    """The runs, each with its owner; the origin's owner if none is named."""
    owner = (origin.owner_id, origin.owner_epoch)
    return [run._replace(owner=run.owner or owner) for run in runs_of(origin)]


def fresh(name: str, process: Process) -> OriginAction:
    """An origin that a process has taken from the first sequence on."""
    return OriginAction(name, *process, None, (), (OriginRun(0, *process),))


def _folded(runs: list[SequenceRun]) -> list[SequenceRun]:
    """Drop leading runs that are wholly in files: the next run implies them."""
    while len(runs) > 1:
        lowest, following = runs[0], runs[1]
        if lowest.complete is None or lowest.complete < following.first - 1:
            break
        runs = [following.advanced(following.first - 1, {}), *runs[2:]]
    return runs


def _fewer(runs: list[SequenceRun], owner: Process, done: Done) -> list[SequenceRun]:
    runs = list(runs)
    at = 0
    while len(runs) > MAX_RUNS and at + 1 < len(runs):
        older, later = runs[at], runs[at + 1]
        if older.settled < later.first - 1 and not (
            _began_above(runs, at, owner) and older.owner is not None and done(older.owner)
        ):
            at += 1
            continue
        # Not ``complete``: another table may have earlier sequences of the origin in buffers.
        ahead = {**older.ahead, EVERY_PARTITION: later.first - 1}
        merged = later.advanced(older.complete, ahead)
        runs[at : at + 2] = [merged._replace(first=older.first)]
    return runs


def _began_above(runs: list[SequenceRun], at: int, owner: Process) -> bool:
    """Whether the lowest run of ``owner`` is above the run at this index."""
    lowest = next((index for index, run in enumerate(runs) if run.owner == owner), None)
    return lowest is not None and lowest > at


def _as_map(ahead: Iterable[OriginAhead]) -> dict[PartitionKey, int]:
    return {(one.spec_id, one.values): one.seq for one in ahead}


def _as_tuple(ahead: Mapping[PartitionKey, int]) -> tuple[OriginAhead, ...]:
    return tuple(OriginAhead(spec_id, values, seq) for (spec_id, values), seq in ahead.items())
