"""The copy of one table, step by step: files of a version, what they lack, then live.

    fill ─▶ resync ─▶ step, step, …      ``step`` asks the feed, and takes later versions in
              ▲          │ stale         ``resync`` takes the newest version in, and all that it
              └──────────┘               lacks in place of the groups that are in no file yet

Law of this file: what a transaction of the sink does, it does with the state that describes it; so
whatever happens, the copy is what its last state says. Nothing live is taken before the files of a
version are all there. Each step may raise and be done again after ``reopen``. One thread.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa

from ingester.client.errors import Unavailable
from ingester.client.follower import batches
from ingester.client.follower.errors import FellBehind, StateOfAnother, TableReplaced
from ingester.client.follower.feed import OPERATION, Feed, LiveAnswer
from ingester.client.follower.files import Files, Piece, selected
from ingester.client.follower.fold import Fold, Seen, fold_appended, fold_keyed
from ingester.client.follower.guard import Guard
from ingester.client.follower.progress import Progress
from ingester.client.follower.sink import CheckpointStore, FollowedTable
from ingester.client.follower.state import (
    FollowState,
    Group,
    Ledger,
    Position,
    decode_state,
    encode_state,
    part_name,
)
from persist.manifest import Add, PartitionKey, TableState, VersionNotKept
from persist.store import NotFound as FileGone
from persist.table import TableDefinition

FILL_BYTES = 256 << 20
"""The bytes of files that are put in one transaction, about; a file is never cut."""
TAKE_BYTES = 32 << 20
"""The bytes of live answers that are taken in one transaction, about."""
BEFORE_ALL = Position(0, -1)
"""What nothing is before."""
TRIES = 20
"""The attempts to find a version that its tail is still there of."""


class BuildAnew(Exception):
    """The copy cannot be made equal in place: it is to be filled from the beginning."""


class Resync(Exception):
    """The groups that are left have to come again, from what a version's files lack."""


@dataclass(frozen=True, slots=True)
class Source:
    """What a copy is made from."""

    files: Files
    feed: Feed


@dataclass(frozen=True, slots=True)
class Place:
    """Where a copy is kept, and its state."""

    sink: Guard
    states: CheckpointStore
    own: bool = True
    """Whether the states are kept by the sink: in its transactions, if it has any."""
    name: str = ""
    """Tells copies apart whose states are in one store."""


class TableCopy:
    """A copy and its state. Made by :mod:`ingester.client.follower.opening`."""

    def __init__(
        self, table: FollowedTable, source: Source, place: Place, state: FollowState, ledger: Ledger
    ) -> None:
        self.table = table
        self.state = state
        self.progress = Progress()
        self._files, self._feed = source.files, source.feed
        self._sink, self._states = place.sink, place.states
        self._key = table.key(place.name)
        # A state must not be ahead of its rows: one that is kept elsewhere comes after them.
        self._deferred = place.sink.transactional and not place.own
        self._due: list[bytes] = []
        self._ledger = ledger
        self._schema = table.schema
        self._version: TableState | None = None
        self._anew = False

    # ----------------------------------------------------------------------------------- the steps

    def advance(self, wait_s: float) -> None:
        """Do the next thing: fill, resync, or a step of the live feed.

        Raises:
            BuildAnew: Begin with :meth:`begin`.
            StoreError, ClientError: The copy is to be opened again.
        """
        try:
            if self.state.filled is not None:
                self.fill()
            elif self._anew or self.state.position is None or not self.state.complete:
                self.resync()
            else:
                self.step(wait_s)
        except Resync:
            self._anew = True
            self.reopen()
        except FileGone as exc:
            # Clean-up takes files that no kept version has; one that the newest has is lost.
            if any(exc.path.endswith(f"/{path}") for path in self._files.newest().files):
                raise
            raise BuildAnew from exc

    def begin(self, ingester_id: str) -> None:
        """Begin the copy anew, beside the one that there is."""
        now = self._files.newest()
        self._ledger = Ledger()
        self._version = now
        self.state = msgspec.structs.replace(
            self.state,
            ingester_id=ingester_id,
            version=now.version,
            uid=now.uid,
            position=None,
            filled=0,
            replaces=self.state.complete or self.state.replaces,
            complete=False,
            floor=None,
        )
        parts = sorted(part_name(partition) for partition in now.partitions)
        with self._transaction():
            self._sink.start_version(parts, not self.state.replaces)
            self._keep()

    def begin_behind(self, version: TableState, position: Position | None) -> None:
        """Begin the copy without what is in a version's files, or before a position."""
        self._ledger, self._version = Ledger(), version
        self.state = msgspec.structs.replace(
            self.state,
            version=version.version,
            uid=version.uid,
            position=position,
            floor=position or BEFORE_ALL,
            complete=position is not None,
        )
        with self._transaction():
            self._sink.start_version((), not self.state.replaces)
            if position is not None:
                self._sink.end_version()
            self._keep()

    def check(self) -> None:
        """Raise :class:`BuildAnew` or ``TableReplaced`` where the state's version is none."""
        self._state_of_version()

    def keep(self) -> None:
        """Keep the state as it is."""
        with self._transaction():
            self._keep()

    def fill(self) -> None:
        """Put the rows of the version's files, from the one on that comes next."""
        state = self._state_of_version()
        adds = [state.files[path] for path in sorted(state.files)]
        done = self.state.filled or 0
        self.progress.filling(adds, done)
        left = adds[done:]
        local = self._files.local(left) if self._sink.takes_files else None
        pieces = iter(self._files.pieces(state, left)) if local is None else iter(())
        for first, last in _chunks(left):
            with self._transaction():
                if local is not None:
                    self._sink.put_files(local[first:last])
                else:
                    for _ in left[first:last]:
                        self._put_file(pieces)
                self._set(filled=done + last)
            self.progress.filled(adds[: done + last])
        with self._transaction():
            self._set(filled=None)

    def resync(self) -> None:
        """Take the newest version in, and all that it lacks; then the copy is complete.

        Groups that are in no file yet are taken out first: nobody says that they will ever be, as
        a daemon may have lost its disk, or given rows up to another one. What there is of them
        comes again.

        Raises:
            Unavailable: No version had a tail, several times in a row.
        """
        now, answer = self._version_with_tail()
        with self._transaction():
            emptied = self._take_out_groups()
            self._set(position=None)
            self._fold(now, emptied)
            self._take([answer])
            while answer.more:
                answer = self._ask(self.state.position, now.version, 0.0)
                self._take([answer])
            if not self.state.complete:
                self._sink.end_version()
                self._set(complete=True, replaces=False)
        self._anew = False
        self.progress.caught_up(answer)

    def step(self, wait_s: float) -> None:
        """Take what came next, within ``wait_s`` seconds, and the version that came with it."""
        try:
            answer = self._ask(self.state.position, self.state.version, wait_s)
        except Unavailable as exc:
            if exc.code != "stale":
                raise
            self._go_on_from_files(exc)
            return
        asked_at = self.progress.now()
        answers = self._with_what_follows(answer)
        last = answers[-1]
        moved = last.version != self.state.version and not last.more
        if any(each.batches for each in answers) or last.position != self.state.position or moved:
            with self._transaction():
                self._take(answers)
                if moved:
                    self._fold(self._files.version(last.version, self._state_of_version()))
        if not last.more:
            self.progress.caught_up(last, asked_at)

    def _with_what_follows(self, answer: LiveAnswer) -> list[LiveAnswer]:
        """An answer, and those that are there behind it: a copy that lags takes them at once."""
        answers, nbytes = [answer], answer.nbytes
        with suppress(Unavailable):
            while answers[-1].more and nbytes < TAKE_BYTES:
                answers.append(self._ask(answers[-1].position, self.state.version, 0.0))
                nbytes += answers[-1].nbytes
        return answers

    def _go_on_from_files(self, stale: Unavailable) -> None:
        """Take the version in that the daemon names; what it lacks is answered from there on."""
        version = stale.details.get("version")
        if stale.details.get("anew", True) or not isinstance(version, int):
            raise Resync
        with self._transaction():
            self._fold(self._files.version(version, self._state_of_version()))

    # ------------------------------------------------------------------------------ what they do

    def _version_with_tail(self) -> tuple[TableState, LiveAnswer]:
        """The newest version, and the first answer to what it lacks."""
        for attempt in range(1, TRIES + 1):
            now = self._files.newest(self._state_of_version())
            try:
                return now, self._ask(None, now.version, 0.0)
            except Unavailable as exc:
                if exc.code != "stale" or attempt == TRIES:
                    raise
        raise AssertionError("the last attempt returns or raises")

    def _ask(self, after: Position | None, version: int, wait_s: float) -> LiveAnswer:
        answer = self._feed.ask(after, version, wait_s)
        if answer.ingester_id != self.state.ingester_id:
            raise other_daemon(self.state, answer.ingester_id)
        return answer

    def _take(self, answers: Sequence[LiveAnswer]) -> None:
        """Put the rows of answers that follow one another, with the state behind them."""
        for answer in answers if self.table.columns is None else ():
            self._schema = batches.with_new_columns(self._schema, answer.schema)
        schema = self._schema
        if self.table.keyed:
            schema = schema.append(pa.field(OPERATION, pa.string()))
        seen, known = self._seen(), self._state_of_version()
        arrived = []
        for one in batches.grouped([b for answer in answers for b in answer.batches], schema):
            of = one.of
            applied = known.applied_to(seen.ingester_id, of.epoch, *of.partition)
            if of.last_seq <= applied or seen.is_below(of.epoch, of.last_seq):
                continue
            if of.first_seq <= applied and not self.table.keyed:
                raise Resync
            arrived.append(one)
        next_at = self.state.next_at
        if arrived:
            groups, next_at = batches.numbered(arrived, self._ledger, next_at)
            self._put_arrived(arrived, groups)
        self._set(position=answers[-1].position, next_at=next_at)

    def _put_arrived(self, arrived: Sequence[batches.Arrived], groups: Sequence[Group]) -> None:
        if self.table.keyed:
            put, keys = batches.merged(arrived, groups, self.table.primary_key)
            if keys is not None:
                self._sink.delete(keys)
                self.progress.deleted_rows += keys.num_rows
        else:
            put = batches.appended(arrived, groups)
        if put is not None:
            self._sink.put(put)
            self.progress.put_rows += put.batch.num_rows

    def _fold(self, now: TableState, emptied: Collection[PartitionKey] | None = None) -> None:
        """Take a later version's files in.

        Args:
            emptied: Where all groups were taken out before: partitions of a keyed table that have
                to be read anew for that.
        """
        before = self._state_of_version()
        plan = self._plan(before, now) if now.version != before.version else Fold()
        if emptied is not None:
            plan.reloads = list(dict.fromkeys([*plan.reloads, *emptied]))
            plan.diffs = [partition for partition in plan.diffs if partition not in emptied]
        elif plan.resync:
            raise Resync
        if (plan.taken_back or plan.reloads) and not self._sink.takes_back:
            raise BuildAnew
        self._carry_out(plan, before, now)
        self._version = now
        self._set(version=now.version, uid=now.uid)

    def _plan(self, before: TableState, now: TableState) -> Fold:
        if now.version < before.version:
            raise _replaced(self.table, before, now)
        try:
            changes = self._files.changes(before.version, now.version)
        except VersionNotKept as exc:
            raise BuildAnew from exc
        if self.table.keyed:
            return fold_keyed(self._ledger, self._seen(), before, now, changes)
        return fold_appended(
            self._ledger,
            self._seen(),
            before,
            now,
            changes,
            lambda add: self._files.count(now, add),
        )

    def _carry_out(self, plan: Fold, before: TableState, now: TableState) -> None:
        self._learn_columns(now)
        for part, numbers in _by_part(plan.taken_back).items():
            self._sink.take_back(part, numbers)
        self._ledger.drop([*plan.retired, *plan.taken_back])
        self._reload(plan.reloads, now)
        self._load(now, plan.loads)
        for partition in plan.diffs:
            self._merge_difference(before, now, partition)

    def _reload(self, partitions: Sequence[PartitionKey], now: TableState) -> None:
        """Read partitions anew, but for the groups that are in no file."""
        for partition in partitions:
            keep = sorted(group.at for group in self._ledger.of_partition(partition))
            self._sink.take_back_all(part_name(partition), keep)
            self._load(now, list(now.partitions.get(partition, ())))

    def _merge_difference(
        self, before: TableState, now: TableState, partition: PartitionKey
    ) -> None:
        """Bring the keys up to date that files of a keyed table's partition have changed."""
        old = [a for a in before.partitions.get(partition, ()) if a.path not in now.files]
        new = [a for a in now.partitions.get(partition, ()) if a.path not in before.files]
        names = list(self.table.primary_key)
        if old:
            gone = pa.concat_tables(p.rows for p in self._files.pieces(now, old, names))
            if new:
                # Of the rows of the copy: those that match no more are gone, too.
                there = pa.concat_tables(p.rows.select(names) for p in self._files.pieces(now, new))
                gone = batches.missing_keys(gone, there)
            self._sink.delete(gone)
        elif new and self.table.filter is not None:
            self._sink.delete(pa.concat_tables(p.rows for p in self._files.pieces(now, new, names)))
        self._load(now, new)

    def _take_out_groups(self) -> list[PartitionKey]:
        """Take out all groups that are in no file; returns the partitions to be read anew."""
        groups = list(self._ledger)
        if groups and not self._sink.takes_back:
            raise BuildAnew
        self._ledger.drop(groups)
        if self.table.keyed:
            if groups and self.state.floor is not None:
                raise FellBehind(
                    "operations may be lost that are in no file, and a copy that did not begin at"
                    " the beginning cannot know the rows before them; seek to the beginning"
                )
            return list(dict.fromkeys(group.partition for group in groups))
        for part, numbers in _by_part(groups).items():
            self._sink.take_back(part, numbers)
        return []

    def _load(self, now: TableState, adds: Sequence[Add]) -> None:
        if not adds:
            return
        pieces = iter(self._files.pieces(now, adds))
        for _ in adds:
            self._put_file(pieces)

    def _put_file(self, pieces: Iterator[Piece]) -> None:
        """Put the rows of the next file."""
        for add, rows, last in pieces:
            self._sink.put(batches.from_file(rows, part_name(add.partition)))
            self.progress.put_rows += rows.num_rows
            if last:
                return

    # --------------------------------------------------------------------------------- the state

    def _seen(self) -> Seen:
        return Seen(self.state.ingester_id, self.state.position, self.state.floor)

    def _state_of_version(self) -> TableState:
        """The manifest's state at the version that the copy has.

        Raises:
            BuildAnew: It is not kept any more.
            TableReplaced: It is of another table of the same name.
        """
        if self._version is None or self._version.version != self.state.version:
            try:
                found = self._files.version(self.state.version)
            except VersionNotKept as exc:
                if exc.newest < self.state.version:
                    raise _replaced(self.table, self.state, exc) from exc
                raise BuildAnew from exc
            if found.uid != self.state.uid:
                raise _replaced(self.table, self.state, found)
            self._version = found
            self._learn_columns(found)
        return self._version

    def _learn_columns(self, now: TableState) -> None:
        if self.table.columns is None:
            schema = selected(TableDefinition.of_state(now).schema, None)
            self._schema = batches.with_new_columns(self._schema, schema)

    def _set(self, **changes: Any) -> None:
        self.state = msgspec.structs.replace(self.state, **changes)
        self._keep()

    def _keep(self) -> None:
        data = encode_state(self.state, self._ledger)
        if self._deferred:
            self._due.append(data)
        else:
            self._states.put(self._key, data)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._due.clear()
        with self._sink.transaction():
            yield
        for data in self._due[-1:]:
            self._states.put(self._key, data)

    def reopen(self) -> None:
        """Go back to the state that is kept, after an error.

        Raises:
            BuildAnew: Nobody knows what of a file was put.
        """
        with self._sink.transaction():
            data = self._states.get(self._key)
        if data is not None:
            self.state, self._ledger = decode_state(data)
        self._version = None
        if self.state.filled is not None and not self._sink.transactional:
            raise BuildAnew


def other_daemon(state: FollowState, found: str) -> StateOfAnother:
    """The error where a state is of one daemon, and another one answers."""
    return StateOfAnother(
        f"the copy of {state.namespace}/{state.table} follows daemon {state.ingester_id!r}, and"
        f" {found!r} answers: follow that one into another copy, or seek to the beginning"
    )


def _replaced(table: FollowedTable, before: Any, now: Any) -> TableReplaced:
    return TableReplaced(
        f"table {table.namespace}/{table.table} was dropped and made anew: the copy has version"
        f" {before.version} of the earlier one; seek to the beginning to copy the new one"
    )


def _chunks(adds: Sequence[Add]) -> Iterator[tuple[int, int]]:
    """Ranges of files of some size."""
    first = nbytes = 0
    for place, add in enumerate(adds, 1):
        nbytes += add.bytes
        if nbytes >= FILL_BYTES or place == len(adds):
            yield first, place
            first, nbytes = place, 0


def _by_part(groups: Sequence[Group]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for group in groups:
        numbers = found.setdefault(part_name(group.partition), [])
        if group.at not in numbers:
            numbers.append(group.at)
    return found
