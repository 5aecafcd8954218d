"""The claims of a commit about origins and checkpoints.

    buffers of a commit   ──▶ per origin: ``ahead`` of their partitions and ``complete``
    another's version     ──▶ operations that are no longer this daemon's are left out of files
    checkpoint + sequence ──▶ committed with the origin's ``complete``
    checkpoint alone      ──▶ committed once every earlier row of the table is in files

A claim about an origin is computed from one version and committed only on top of a version that
says the same about it, so two daemons cannot both own a sequence. A checkpoint is committed in
the version that has the last of its rows, or later; never earlier, and never if another process
took over its sequence (tests/origins).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import NamedTuple

import structlog

from ingester.buffer import BufferHandle, BufferTree, TableBuffer
from ingester.origins.checkpoint_state import shared_actions
from ingester.origins.checkpoints import PendingCheckpoint, newest_of
from ingester.origins.origin_table import Event, OriginClaim, OriginTable
from ingester.origins.registry import Origins
from ingester.origins.tenure import Tenure
from persist.manifest import (
    Action,
    Add,
    OriginAction,
    OriginExpired,
    PartitionKey,
    TableState,
    WriterIdentity,
)
from persist.manifest.actions import is_before, parse_time
from persist.manifest.origins import (
    NO_END,
    Done,
    origin_of,
    owned,
    run_at,
    verdict_of,
    with_contents,
    with_ends,
)
from persist.table import TableKey

log = structlog.get_logger(__name__)

EXPIRED_AT_ONCE = 1000
EXPIRE_AFTER_S = 7 * 86400.0

Seen = dict[str, OriginAction | None]

NO_SHARES: Mapping[Tenure, int] = {}


class Claims(NamedTuple):
    """A commit's actions about origins."""

    actions: tuple[Action, ...]
    seen: Seen
    """The origins as the previous version must have them for the actions to be valid."""


NO_CLAIMS = Claims((), {})


class _Mark(NamedTuple):
    tenure: Tenure
    partition: PartitionKey | None
    """The partition whose files have everything up to ``last``; None if it is merely in no
    buffer."""
    last: int


class OriginClaims:
    """Computes the claims of commits and detects those of other daemons. Event loop only."""

    def __init__(
        self, origins: Origins, writer: WriterIdentity, expire_after_s: float = EXPIRE_AFTER_S
    ) -> None:
        self._expire_after_s = expire_after_s
        self._origins = origins
        self._writer = writer
        self._contested: dict[TableKey, set[OriginTable]] = {}
        self._noticed: dict[TableKey, tuple[int, int]] = {}
        self._look_at: dict[TableKey, datetime] = {}

    def of(
        self,
        state: TableState,
        handles: Collection[BufferHandle],
        adds: Iterable[Action] = (),
        shares: Mapping[Tenure, int] = NO_SHARES,
    ) -> Claims:
        """Return the claims of a commit of these buffers on top of ``state``.

        Args:
            shares: tenures whose completeness the commit must state, each with a sequence that
                is in no buffer.
        """
        marks: dict[OriginTable, list[_Mark]] = {}
        for handle in handles:
            for tenure, last in handle.origins.items():
                mark = _Mark(tenure, handle.partition, last)
                marks.setdefault(self._origins.table(tenure.origin, tenure.table), []).append(mark)
        for tenure, last in shares.items():
            mark = _Mark(tenure, None, last)
            marks.setdefault(self._origins.table(tenure.origin, tenure.table), []).append(mark)
        if not marks:
            return NO_CLAIMS
        times = [action.at for action in adds if isinstance(action, Add)]
        besides = frozenset(handles)
        actions: list[Action] = []
        seen: Seen = {}
        for origin_table, of_table in marks.items():
            name = origin_table.name
            known = seen[name] = state.origins.get(name)
            base = known or origin_table.unknown_origin(of_table[0].tenure.process)
            at = max(times, default=base.at)
            process = (self._writer.ingester_id, self._writer.epoch)
            done = self._origins.done(origin_table, process, state.writers, besides)
            actions.append(self._advanced(origin_table, base, of_table, besides, at, done))
        return Claims(tuple(actions), seen)

    def left_out(
        self, state: TableState, handles: Collection[BufferHandle]
    ) -> list[frozenset[int]]:
        """Return, per buffer, the log sequences of operations that are no longer this daemon's to
        commit.

        All buffers of a commit are handled at once, so that each origin's end is computed once:
        a thousand origins in a hundred buffers would block the loop otherwise.
        """
        ends = {
            tenure: end_of_share(state, tenure)
            for tenure in {tenure for handle in handles for tenure in handle.origins}
        }
        return [
            frozenset(
                seq
                for tenure, last in handle.origins.items()
                if last >= ends[tenure]
                for seq in tenure.op_seqs(ends[tenure], handle.first_seq, handle.last_seq)
            )
            for handle in handles
        ]

    def lost_rows(self, table: TableBuffer, state: TableState) -> list[BufferHandle]:
        """Return the buffers with rows of origins that others took over by this version.

        Such rows may be in others' files; this daemon does not commit them.
        """
        if state.place >= self._noticed.get(table.key, (0, 0)):
            self._noticed[table.key] = state.place
            self._notice(table.key, state)
        if not self._contested.get(table.key):
            return []
        found = [
            handle
            for handle in table.handles()
            if any(last >= tenure.end for tenure, last in handle.origins.items())
        ]
        if not found:
            del self._contested[table.key]
        return found

    def _notice(self, table: TableKey, state: TableState) -> None:
        """Find sequences in a version that have another owner now."""
        for origin_table in self._origins.of_table(table):
            known = state.origins.get(origin_table.name)
            if known is None:
                if origin_table.state is OriginClaim.OURS:
                    origin_table.move(Event.EXPIRE)  # the next stream claims it again
                continue
            owner = (known.owner_id, known.owner_epoch)
            if owner == origin_table.owner and not origin_table.loses(known):
                continue
            self._origins.load(origin_table, known, self._writer.ingester_id)
            self._contested.setdefault(table, set()).add(origin_table)
            if origin_table.state is OriginClaim.OURS and origin_table.process != owner:
                log.warning(
                    "origin taken over by another daemon",
                    table=table,
                    origin=origin_table.name,
                    owner=owner,
                    runbook="origin-taken-over",
                )
                origin_table.move(Event.LOSE)

    def due_to_expire(
        self, table: TableKey, state: TableState, actions: Iterable[Action]
    ) -> tuple[Action, ...]:
        """Return actions that forget origins without recent writes; at most once per interval.

        The time is the store's: that of the newest upload among ``actions``.
        """
        times = [parse_time(action.at) for action in actions if isinstance(action, Add)]
        now = max((at for at in times if at is not None), default=None)
        if now is None or now < self._look_at.get(table, now):
            return ()
        self._look_at[table] = now + timedelta(seconds=min(3600.0, self._expire_after_s / 4))
        self._origins.forget_idle(self._expire_after_s)
        before = (now - timedelta(seconds=self._expire_after_s)).isoformat()
        busy = {
            origin_table.name
            for origin_table in self._origins.of_table(table)
            if not origin_table.idle or self._origins.get(origin_table.name).open_streams
        }
        expired = (
            OriginExpired(name, origin.at)
            for name, origin in state.origins.items()
            if origin.at is not None and is_before(origin.at, before) and name not in busy
        )
        return tuple(islice(expired, EXPIRED_AT_ONCE))

    def _advanced(
        self,
        origin_table: OriginTable,
        base: OriginAction,
        marks: list[_Mark],
        besides: frozenset[BufferHandle],
        at: str | None,
        done: Done,
    ) -> OriginAction:
        runs = owned(base)
        limit = self._origins.get(origin_table.name).first_waiting(besides)
        further: dict[int, dict[PartitionKey, int]] = {}
        complete: dict[int, int | None] = {}
        ends = {mark.tenure: min(mark.tenure.end, mark.tenure.end_in(runs)) for mark in marks}
        for tenure, end in ends.items():
            if (run := run_at(runs, min(tenure.applied, end - 1))) is not None:
                complete[runs.index(run)] = tenure.last_below(min(limit, end), besides)
        for tenure, partition, last in marks:
            last = min(last, ends[tenure] - 1)
            if last < tenure.first:
                continue
            for index, (run, end) in enumerate(with_ends(runs)):
                if run.first <= last and tenure.first < end and run.owner == tenure.process:
                    ahead = further.setdefault(index, {})
                    if partition is not None:
                        ahead[partition] = max(min(last, end - 1), ahead.get(partition, -1))
        for index, ahead in further.items():
            runs[index] = runs[index].advanced(complete.get(index), ahead)
        contents = [
            content
            for tenure, tenure_end in ends.items()
            for run, run_end in with_ends(runs)
            if run.owner == tenure.process
            for content in tenure.contents(min(run.newest, tenure_end - 1, run_end - 1))
            if content.sequence >= run.first
        ]
        owner = (base.owner_id, base.owner_epoch)
        return origin_of(with_contents(base, contents), owner, runs, at, done)


def end_of_share(state: TableState, tenure: Tenure) -> int:
    """Return the first sequence that is no longer the process's, according to a version."""
    known = state.origins.get(tenure.origin)
    return tenure.end if known is None else min(tenure.end, tenure.end_in(owned(known)))


class CheckpointClaims:
    """Finds the checkpoints that a commit includes. Event loop only."""

    def __init__(self, tree: BufferTree) -> None:
        self._tree = tree

    def ready(
        self, table: TableBuffer, state: TableState, besides: frozenset[BufferHandle]
    ) -> list[PendingCheckpoint]:
        """Return each partition's newest checkpoint whose rows are in files or in ``besides``."""
        waiting = self._tree.checkpoints.pending(table.key)
        if not waiting:
            return []
        rules = _Rules(self._tree, table, state, besides)
        found = (
            newest_of(each for each in pending if rules.is_ready(each))
            for pending in waiting.values()
        )
        return [each for each in found if each is not None and each.committed_in is None]

    def settle(self, table: TableBuffer) -> None:
        """Drop the checkpoints that the installed version contains or supersedes."""
        self._tree.checkpoints.settle(table.key, table.state)


class _Rules:
    """Decides which checkpoints a commit on top of ``state`` may include."""

    def __init__(
        self,
        tree: BufferTree,
        table: TableBuffer,
        state: TableState,
        besides: frozenset[BufferHandle],
    ) -> None:
        self._tree = tree
        self._state = state
        self._besides = besides
        self._first_waiting: dict[str, int] = {}
        self._oldest_buffered = min(
            ((each.epoch, each.first_seq) for each in table.handles() if each not in besides),
            default=(NO_END, 0),
        )

    def is_ready(self, pending: PendingCheckpoint) -> bool:
        if pending.tenure is None or pending.sequence is None:
            return pending.position < self._oldest_buffered
        if pending.missing:
            return False
        return pending.sequence < min(
            self._waiting_from(pending.tenure.origin), end_of_share(self._state, pending.tenure)
        )

    def _waiting_from(self, origin: str) -> int:
        found = self._first_waiting.get(origin)
        if found is None:
            found = self._tree.origins.get(origin).first_waiting(self._besides)
            self._first_waiting[origin] = found
        return found


def covered(
    ready: Sequence[PendingCheckpoint], origins: Collection[Action]
) -> list[PendingCheckpoint]:
    """Drop checkpoints beyond what the commit says is complete of their origin."""
    runs = {each.name: owned(each) for each in origins if isinstance(each, OriginAction)}

    def is_complete(pending: PendingCheckpoint) -> bool:
        if pending.tenure is None or pending.sequence is None:
            return True
        of_origin = runs.get(pending.tenure.origin)
        if not of_origin:
            return False
        process = pending.tenure.process
        return verdict_of(of_origin, pending.sequence, process).durable

    return [each for each in ready if is_complete(each)]


def shares_of(ready: Sequence[PendingCheckpoint]) -> dict[Tenure, int]:
    """Return the tenures that checkpoints belong to, each with the highest sequence."""
    found: dict[Tenure, int] = {}
    for each in ready:
        if each.tenure is not None and each.sequence is not None:
            found[each.tenure] = max(each.sequence, found.get(each.tenure, -1))
    return found


def actions_of(ready: Sequence[PendingCheckpoint]) -> Iterator[Action]:
    """Return the actions that commit these checkpoints, and their shared bytes once."""
    yield from shared_actions(each.given for each in ready)
    for each in ready:
        yield each.action()
