"""The copy of one table, step by step: files of a version, what they lack, then live.

    fill ─▶ resync ─▶ step, step, …      ``step`` asks the feed, and takes later versions in
              ▲          │ stale         ``resync`` takes the newest version in, and all that it
              └──────────┘               lacks in place of the groups that are in no file yet

Of a table version that does not count yet there is no feed: ``prepare`` fills the copy and takes
later manifest versions in. Once it counts, ``resync`` is what is left, and the copy is shown.

Law of this file: what a transaction of the sink does, it does with the state that describes it; so
whatever happens, the copy is what its last state says. Nothing live is taken before the files of a
version are all there. A step that raised is done again from the state that is kept. One thread.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from ingester.client.errors import Unavailable
from ingester.followers.applying import Applying, Resync
from ingester.followers.copied_version import CopiedVersion
from ingester.followers.errors import FellBehind, StateOfAnother
from ingester.followers.feed import Feed, LiveAnswer
from ingester.followers.files import Files
from ingester.followers.filling import BESIDE_BYTES, FILL_BYTES, Filling
from ingester.followers.keeping import BuildAnew, Keeping, Place
from ingester.followers.progress import Progress
from ingester.followers.sink import FollowedTable
from ingester.followers.state import FollowState, Ledger, Position, Selection, part_name
from persist.manifest import TableState
from persist.store import NotFound as FileGone

TAKE_BYTES = 32 << 20
"""The bytes of live answers that are taken in one transaction, about."""
BEFORE_ALL = Position(0, -1)
"""What nothing is before."""
TRIES = 20
"""The attempts to find a version that its tail is still there of."""


@dataclass(frozen=True, slots=True)
class Source:
    """What a copy is made from."""

    files: Files
    feed: Feed


class TableCopy:
    """A copy and its state. Made by :mod:`ingester.followers.opening`."""

    def __init__(
        self, table: FollowedTable, source: Source, place: Place, state: FollowState, ledger: Ledger
    ) -> None:
        self.table = table
        self.progress = Progress()
        self._files, self._feed, self._sink = source.files, source.feed, place.sink
        self._keeping = Keeping(place, table.key(place.name), state, ledger)
        self._applying = Applying(table, self._files, self._sink, self._keeping, self.progress)
        self._version = CopiedVersion(table, self._files, self._applying, self._keeping)
        self._filling = Filling(
            self._files, self._sink, self._applying, self._keeping, self.progress
        )
        self._resyncs = False
        self._unsure = False
        self._together = place.own and place.sink.transactional
        self._may_lag = False
        """Whether the copy may have rows of behind its state, which are told again as long as the
        daemon knows the state's position."""

    @property
    def state(self) -> FollowState:
        """The state of the copy."""
        return self._keeping.state

    # ----------------------------------------------------------------------------------- the steps

    def advance(self, wait_s: float) -> None:
        """Do the next thing: fill some files, resync, or a step of the live feed.

        Raises:
            StoreError, ClientError: To be called again where that may pass.
        """
        self._guarded(lambda: self._advance(wait_s))

    def prepare(self) -> bool:
        """Do the next thing of a copy whose table version does not count yet.

        Returns:
            Whether it has all files of the version; then it was brought up to the newest ones.

        Raises:
            StoreError, ClientError: As :meth:`advance`.
        """
        self._guarded(self._prepare)
        return self.state.filled is None

    def _advance(self, wait_s: float) -> None:
        if self.state.filled is not None:
            self._filling.step(self._version.state(), FILL_BYTES)
        elif self._resyncs or self.state.position is None or not self.state.complete:
            self._resync()
        else:
            self._step(wait_s)

    def _prepare(self) -> None:
        if self.state.filled is not None:
            self._filling.step(self._version.state(), BESIDE_BYTES)
            return
        now = self._files.newest(self._version.state())
        if now.version != self.state.version:
            with self._keeping.transaction():
                self._version.fold(now, ())

    def _guarded(self, step: Callable[[], None]) -> None:
        """Do a step, from the state that is kept where the last one failed."""
        try:
            if self._unsure:
                self._version.forget()
                self._filling.forget()
                self._keeping.read()
                self._may_lag = not self._together
            self._unsure = True
            step()
            self._unsure = False
        except Resync:
            self._resyncs = True
        except BuildAnew:
            self.begin()
        except FileGone as exc:
            # Clean-up takes files that no kept version has; one that the newest has is lost.
            if any(exc.path.endswith(f"/{path}") for path in self._files.newest().files):
                raise
            self.begin()

    def begin(self, selection: Selection | None = None) -> None:
        """Begin the copy anew, beside the one that there is."""
        self._unsure = True
        self._filling.forget()
        now, was = self._files.newest(), self.state
        self._version.begin(now)
        self._may_lag = False
        parts = sorted(part_name(partition) for partition in now.partitions)
        replaces = was.complete or was.replaces
        with self._keeping.transaction():
            self._sink.start_version(parts, not replaces)
            self._keeping.ledger = Ledger()
            self._keeping.set(
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

    def begin_behind(self, version: TableState, position: Position | None) -> None:
        """Begin the copy without what is in a version's files, or before a position."""
        self._version.begin(version)
        with self._keeping.transaction():
            self._sink.start_version((), not self.state.replaces)
            if position is not None:
                self._sink.end_version()
            self._keeping.set(
                version=version.version,
                uid=version.uid,
                position=position,
                floor=position or BEFORE_ALL,
                complete=position is not None,
            )

    def show_again(self) -> None:
        """Have readers see the copy once it has all that the table has: they see another version's.

        All groups come again before: the table was at another of its versions meanwhile.
        """
        with self._keeping.transaction():
            self._keeping.set(complete=False, replaces=True)

    def recover(self) -> None:
        """Go on from the state, and keep it.

        Raises:
            BuildAnew, TableReplaced: The state's version is none.
        """
        self._version.state()
        self._may_lag = not self._together
        with self._keeping.transaction():
            self._sink.recovery()
            self._keeping.set()

    def _resync(self) -> None:
        """Take the newest version in, and all that it lacks; then the copy is complete.

        Groups that are in no file yet are taken out first: nobody says that they will ever be, as
        a daemon may have lost its disk, or given rows up to another one. What there is of them
        comes again.

        Raises:
            Unavailable: No version had a tail, several times in a row.
            BuildAnew, FellBehind: As :meth:`_check_known`.
        """
        now, answer = self._version_with_tail()
        # Behind it: what is told again now was not lost before the tail was told.
        self._check_known()
        with self._keeping.transaction():
            emptied = self._applying.take_out_groups()
            self._keeping.set(position=None)
            self._version.fold(now, emptied)
            self._applying.take([answer], now)
            while answer.more:
                answer = self._ask(self.state.position, now.version, 0.0)
                self._applying.take([answer], now)
            if not self.state.complete:
                self._sink.end_version()
                self._keeping.set(complete=True, replaces=False)
        self._resyncs = self._may_lag = False
        self.progress.caught_up(answer)

    def _step(self, wait_s: float) -> None:
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
        moved = last.version != self.state.version
        if moved and last.more:
            self._check_switches(last.version)
        moved = moved and not last.more
        if any(each.batches for each in answers) or moved or not self._is_passed(last.position):
            with self._keeping.transaction():
                self._applying.take(answers, self._version.state())
                if moved:
                    self._version.fold(self._files.version(last.version, self._version.state()))
        if not last.more:
            self._may_lag = False
            self.progress.caught_up(last, asked_at)

    def _is_passed(self, position: Position) -> bool:
        """Whether an answer without rows leaves nothing to be kept."""
        return position == self.state.position or self._keeping.pass_over(position)

    def _check_switches(self, version: int) -> None:
        """Raise :class:`Resync` where the table was at another of its versions since ours.

        Then files have rows that come before those that the feed tells.
        """
        before = self._version.state()
        if self._files.version(version, before).imports != before.imports:
            raise Resync

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
            self._check_not_behind()
            self._unsure = False  # nothing was done: what is kept may be older than what is here
            raise Resync
        with self._keeping.transaction():
            self._version.fold(self._files.version(version, self._version.state()))

    def _check_known(self) -> None:
        """See that what the copy may have of behind its state is told again.

        Raises:
            BuildAnew, FellBehind: As :meth:`_check_not_behind`.
        """
        if not self._may_lag or self.state.position is None:
            return
        try:
            self._ask(self.state.position, self.state.version, 0.0)
        except Unavailable as exc:
            if exc.code != "stale":
                raise
            if exc.details.get("anew", True):
                self._check_not_behind()

    def _check_not_behind(self) -> None:
        """Raise :class:`BuildAnew` where the copy may have rows that the daemon has lost since."""
        if not self._may_lag:
            return
        if self.state.floor is not None:
            raise FellBehind(
                "the copy may have rows that the daemon has lost, and its state does not name"
                " them; a copy that did not begin at the beginning cannot be built anew; seek to"
                " the beginning"
            )
        raise BuildAnew

    # ------------------------------------------------------------------------------ what they do

    def _version_with_tail(self) -> tuple[TableState, LiveAnswer]:
        """The newest version, and the first answer to what it lacks."""
        for attempt in range(1, TRIES + 1):
            now = self._files.newest(self._version.state())
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
        self.progress.answered(answer)
        return answer


def other_daemon(state: FollowState, found: str) -> StateOfAnother:
    """The error where a state is of one daemon, and another one answers."""
    return StateOfAnother(
        f"the copy of {state.namespace}/{state.table} follows daemon {state.ingester_id!r}, and"
        f" {found!r} answers: follow that one into another copy, or seek to the beginning"
    )
