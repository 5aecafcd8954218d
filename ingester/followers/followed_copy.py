"""The copy of one table version, step by step: fill from files, resync, then live.

    fill ─▶ resync ─▶ step, step, …      ``step`` asks the feed and folds in later versions
              ▲          │ stale         ``resync`` folds in the newest version and replaces the
              └──────────┘               remaining groups by everything that its files lack

A table version that is not current yet has no feed: ``prepare`` fills the copy and folds in later
manifest versions. Once the version is current, a ``resync`` completes the copy and shows it.

Each transaction of the sink includes the state that describes it, so the copy is always what its
last state says. A failed step is repeated from the stored state. ``tests/followers/test_model.py``
checks this with a sink that fails anywhere. One thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from ingester.client.errors import InvalidRequest, Unavailable
from ingester.followers.applying import Applying, CopyProgress, Resync
from ingester.followers.errors import FellBehind, StateOfAnother
from ingester.followers.feed import Feed, LiveAnswer
from ingester.followers.files import Files
from ingester.followers.place import RebuildNeeded, SinkPlace, StateKeeper
from ingester.followers.sink import FollowedTable
from ingester.followers.state import (
    CopySelection,
    FeedPosition,
    FollowState,
    Ledger,
    part_name,
)
from persist.manifest import Add, TableState
from persist.store import ObjectNotFound as FileGone

FILL_BYTES = 256 << 20
"""The approximate bytes of files that one transaction puts."""
BESIDE_BYTES = 32 << 20
"""The same while another version of the table is followed live, which waits for it."""
TAKE_BYTES = 32 << 20
"""The approximate bytes of live answers that one transaction takes."""
BEFORE_ALL = FeedPosition(0, -1)
TRIES = 20
"""The attempts to find a version whose tail the daemon still has."""


@dataclass(frozen=True, slots=True)
class CopySource:
    """The files and the feed that a copy is made from."""

    files: Files
    feed: Feed


class FollowedCopy:
    """A copy of a table and its state."""

    def __init__(
        self,
        table: FollowedTable,
        source: CopySource,
        place: SinkPlace,
        state: FollowState,
        ledger: Ledger,
    ) -> None:
        self.table = table
        self.progress = CopyProgress()
        self._files, self._feed, self._sink = source.files, source.feed, place.sink
        self._keeper = StateKeeper(place, table.key(place.name), state, ledger)
        self._applying = Applying(table, self._files, self._sink, self._keeper, self.progress)
        self._steps: Iterator[None] | None = None
        """The fill under way, a few files at each step."""
        self._resyncs = False
        self._unsure = False
        """A step failed: what was remembered may differ from what is stored."""
        self._together = place.own and place.sink.transactional
        self._may_lag = False
        """The copy may have rows that its state does not cover. The daemon sends them again as long
        as it knows the state's position."""

    @property
    def state(self) -> FollowState:
        """The state of the copy."""
        return self._keeper.state

    def advance(self, wait_s: float) -> None:
        """Fill some files, resync, or take a step of the live feed.

        Raises:
            StoreError, ClientError: The step may be repeated by another call.
        """
        self._guarded(lambda: self._advance(wait_s))

    def prepare(self) -> bool:
        """Advance a copy whose table version is not current yet.

        Returns:
            Whether it has all files of its newest manifest version.

        Raises:
            StoreError, ClientError: As for :meth:`advance`.
        """
        self._guarded(self._prepare)
        return self.state.filled is None

    def _advance(self, wait_s: float) -> None:
        if self.state.filled is not None:
            self._fill(FILL_BYTES)
        elif self._resyncs or self.state.position is None or not self.state.complete:
            self._resync()
        else:
            self._step(wait_s)

    def _prepare(self) -> None:
        if self.state.filled is not None:
            self._fill(BESIDE_BYTES)
            return
        now = self._files.newest(self._applying.version())
        if now.version != self.state.version:
            with self._keeper.transaction():
                self._applying.fold(now, ())

    def _fill(self, nbytes: int) -> None:
        """Put the rows of the next files, about ``nbytes`` of them, in one transaction.

        Files are put whole, in the order of their paths, and the state counts them; an interrupted
        fill continues from there.
        """
        self._steps = self._steps or self._filled(nbytes)
        if next(self._steps, self) is self:
            self._steps = None

    def _filled(self, nbytes: int) -> Iterator[None]:
        state = self._applying.version()
        adds = [state.files[path] for path in sorted(state.files)]
        done = self._keeper.state.filled or 0
        self.progress.filling(adds, done)
        left = adds[done:]
        local = self._files.local(left) if self._sink.takes_files else None
        pieces = iter(self._files.pieces(state, left)) if local is None else iter(())
        for first, last in _chunks(left, nbytes):
            with self._keeper.transaction():
                if local is not None:
                    self._sink.put_files(local[first:last])
                else:
                    for _ in left[first:last]:
                        self._applying.put_file(pieces)
                self._keeper.set(filled=done + last)
            self.progress.filled(adds[: done + last])
            yield
        with self._keeper.transaction():
            self._keeper.set(filled=None)

    def _guarded(self, step: Callable[[], None]) -> None:
        """Take a step; after a failed one, continue from the stored state."""
        try:
            if self._unsure:
                self._applying.forget()
                self._steps = None
                self._keeper.read()
                self._may_lag = not self._together
            self._unsure = True
            step()
            self._unsure = False
        except Resync:
            self._resyncs = True
        except RebuildNeeded:
            self.begin()
        except FileGone as exc:
            # Garbage collection removes files of old versions. A file of the newest one is lost.
            if any(exc.path.endswith(f"/{path}") for path in self._files.newest().files):
                raise
            self.begin()

    def begin(self, selection: CopySelection | None = None) -> None:
        """Begin a new copy beside the existing one."""
        self._unsure = True
        self._steps = None
        now, was = self._files.newest(), self.state
        self._applying.begin(now)
        self._may_lag = False
        parts = sorted(part_name(partition) for partition in now.partitions)
        replaces = was.complete or was.replaces
        with self._keeper.transaction():
            self._sink.start_version(parts, not replaces)
            self._keeper.ledger = Ledger()
            self._keeper.set(
                selection=selection or was.selection,
                version=now.version,
                uid=now.uid,
                position=None,
                filled=0,
                replaces=replaces,
                complete=False,
                floor=None,
            )
        self._unsure = False

    def begin_behind(self, version: TableState, position: FeedPosition | None) -> None:
        """Begin the copy after a version's files, or after a position."""
        self._applying.begin(version)
        with self._keeper.transaction():
            self._sink.start_version((), not self.state.replaces)
            if position is not None:
                self._sink.end_version()
            self._keeper.set(
                version=version.version,
                uid=version.uid,
                position=position,
                floor=position or BEFORE_ALL,
                complete=position is not None,
            )

    def show_again(self) -> None:
        """Show the copy once it is complete; readers see that of another version now.

        All groups are read again first, because another table version was current meanwhile.
        """
        with self._keeper.transaction():
            self._keeper.set(complete=False, replaces=True)

    def recover(self) -> None:
        """Continue from the state and store it.

        Raises:
            RebuildNeeded, TableReplaced: The state's version does not exist.
        """
        self._applying.version()
        self._may_lag = not self._together
        with self._keeper.transaction():
            self._sink.recovery()
            self._keeper.set()

    def _resync(self) -> None:
        """Fold in the newest version and take all that its files lack; then the copy is complete.

        Groups that are not in a file are removed first. They may never reach one: a daemon may have
        lost its disk or given rows up to another daemon. Those that exist are read again.

        Raises:
            Unavailable: No version had a tail, several times in a row.
            RebuildNeeded, FellBehind: As for :meth:`_check_known`.
        """
        now, answer = self._version_with_tail()
        # After that question: rows that are sent now were not lost before the tail was sent.
        self._check_known()
        with self._keeper.transaction():
            emptied = self._applying.take_out_groups()
            self._keeper.set(position=None)
            self._applying.fold(now, emptied)
            self._applying.take([answer])
            while answer.more:
                answer = self._ask(self.state.position, now.version, 0.0)
                self._applying.take([answer])
            if not self.state.complete:
                self._sink.end_version()
                self._keeper.set(complete=True, replaces=False)
        self._resyncs = self._may_lag = False
        self.progress.caught_up(answer)

    def _step(self, wait_s: float) -> None:
        """Take the operations that arrive within ``wait_s`` seconds, and a new manifest version."""
        try:
            answer = self._ask(self.state.position, self.state.version, wait_s)
        except Unavailable as exc:
            if exc.code != "stale":
                raise
            self._continue_from_files(exc)
            return
        asked_at = self.progress.now()
        answers = self._with_what_follows(answer)
        last = answers[-1]
        moved = last.version != self.state.version
        if moved and last.more:
            self._check_switches(last.version)
        moved = moved and not last.more
        if any(each.batches for each in answers) or moved or not self._is_passed(last.position):
            with self._keeper.transaction():
                self._applying.take(answers)
                if moved:
                    self._applying.fold(self._files.version(last.version, self._applying.version()))
        if not last.more:
            self._may_lag = False
            self.progress.caught_up(last, asked_at)

    def _is_passed(self, position: FeedPosition) -> bool:
        """Whether an answer without rows needs no new state."""
        return position == self.state.position or self._keeper.pass_over(position)

    def _check_switches(self, version: int) -> None:
        """Raise :class:`Resync` if another table version was current since ours.

        Then files have rows that come before those of the feed.
        """
        before = self._applying.version()
        if self._files.version(version, before).imports != before.imports:
            raise Resync

    def _with_what_follows(self, answer: LiveAnswer) -> list[LiveAnswer]:
        """An answer and those that are ready after it; a copy that lags takes them together."""
        answers, nbytes = [answer], answer.nbytes
        with suppress(Unavailable):
            while answers[-1].more and nbytes < TAKE_BYTES:
                answers.append(self._ask(answers[-1].position, self.state.version, 0.0))
                nbytes += answers[-1].nbytes
        return answers

    def _continue_from_files(self, stale: Unavailable) -> None:
        """Fold in the version that the daemon names, and continue after its files."""
        version = stale.details.get("version")
        if stale.details.get("anew", True) or not isinstance(version, int):
            self._check_not_ahead()
            self._unsure = False  # nothing was changed; the stored state may be older than this one
            raise Resync
        with self._keeper.transaction():
            self._applying.fold(self._files.version(version, self._applying.version()))

    def _check_known(self) -> None:
        """Check that the daemon sends rows again that the state does not cover.

        Raises:
            RebuildNeeded, FellBehind: As for :meth:`_check_not_ahead`.
        """
        if not self._may_lag or self.state.position is None:
            return
        try:
            self._ask(self.state.position, self.state.version, 0.0)
        except Unavailable as exc:
            if exc.code != "stale":
                raise
            if exc.details.get("anew", True):
                self._check_not_ahead()

    def _check_not_ahead(self) -> None:
        """Raise :class:`RebuildNeeded` if the copy may have rows that the daemon has lost."""
        if not self._may_lag:
            return
        if self.state.floor is not None:
            raise FellBehind(
                "the copy may have rows that the daemon has lost and that its state does not"
                " cover; a copy that did not begin at the beginning cannot be rebuilt; seek to the"
                " beginning"
            )
        raise RebuildNeeded

    def _version_with_tail(self) -> tuple[TableState, LiveAnswer]:
        """The newest version and the first answer of what its files lack."""
        for attempt in range(1, TRIES + 1):
            now = self._files.newest(self._applying.version())
            try:
                return now, self._ask(None, now.version, 0.0)
            except Unavailable as exc:
                if exc.code != "stale" or attempt == TRIES:
                    raise
        raise AssertionError("the last attempt returns or raises")

    def _ask(self, after: FeedPosition | None, version: int, wait_s: float) -> LiveAnswer:
        try:
            answer = self._feed.ask(after, version, wait_s)
        except InvalidRequest:
            # The daemon does not have that version: perhaps the table is another one.
            self._applying.forget()
            self._applying.version()
            raise
        if answer.ingester_id != self.state.ingester_id:
            raise other_daemon(self.state, answer.ingester_id)
        self.progress.answered(answer)
        return answer


def other_daemon(state: FollowState, found: str) -> StateOfAnother:
    """The error for a state of one daemon when another one answers."""
    return StateOfAnother(
        f"the copy of {state.namespace}/{state.table} follows daemon {state.ingester_id!r}, but"
        f" {found!r} answered: follow that one into another copy, or seek to the beginning"
    )


def _chunks(adds: Sequence[Add], most: int) -> Iterator[tuple[int, int]]:
    """Ranges of files of about ``most`` bytes."""
    first = nbytes = 0
    for place, add in enumerate(adds, 1):
        nbytes += add.bytes
        if nbytes >= most or place == len(adds):
            yield first, place
            first, nbytes = place, 0
