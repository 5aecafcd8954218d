"""The files of a manifest version in a copy: the first fill, and the step to a later version.

Files are put whole, in the order of their paths, and the state counts them; an interrupted fill
continues from there. A version is identified by its number and its unique id, so a table that was
dropped and created again is detected.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from ingester.followers.applying import Applying, CopyProgress, Resync
from ingester.followers.errors import TableReplaced, table_recreated
from ingester.followers.files import Files
from ingester.followers.fold import Fold, fold_appended, fold_keyed
from ingester.followers.place import RebuildNeeded, SinkCalls, StateKeeper
from ingester.followers.sink import FollowedTable
from persist.manifest import Add, PartitionKey, TableState, VersionNotKept

FILL_BYTES = 256 << 20
"""The approximate bytes of files that one transaction puts."""
BESIDE_BYTES = 32 << 20
"""The same while another version of the table is followed live, which waits for it."""


class Filling:
    """Puts the files of a version, a few in each transaction."""

    def __init__(
        self,
        files: Files,
        sink: SinkCalls,
        applying: Applying,
        keeper: StateKeeper,
        progress: CopyProgress,
    ) -> None:
        self._files, self._sink = files, sink
        self._applying, self._keeper, self._progress = applying, keeper, progress
        self._steps: Iterator[None] | None = None

    def step(self, state: TableState, nbytes: int) -> None:
        """Put the rows of the next files, about ``nbytes`` of them.

        Args:
            state: The version; ignored while a fill is under way.
        """
        if self._steps is None:
            self._steps = self._fill(state, nbytes)
        if next(self._steps, self) is self:
            self._steps = None

    def forget(self) -> None:
        """Continue from the stored state at the next step."""
        self._steps = None

    def _fill(self, state: TableState, nbytes: int) -> Iterator[None]:
        adds = [state.files[path] for path in sorted(state.files)]
        done = self._keeper.state.filled or 0
        self._progress.filling(adds, done)
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
            self._progress.filled(adds[: done + last])
            yield
        with self._keeper.transaction():
            self._keeper.set(filled=None)


def _chunks(adds: Sequence[Add], most: int) -> Iterator[tuple[int, int]]:
    """Ranges of files of about ``most`` bytes."""
    first = nbytes = 0
    for place, add in enumerate(adds, 1):
        nbytes += add.bytes
        if nbytes >= most or place == len(adds):
            yield first, place
            first, nbytes = place, 0


class CopiedVersion:
    """The manifest version whose files a copy has. One thread."""

    def __init__(
        self, table: FollowedTable, files: Files, applying: Applying, keeper: StateKeeper
    ) -> None:
        self._table, self._files = table, files
        self._applying, self._keeper = applying, keeper
        self._known: TableState | None = None

    def forget(self) -> None:
        """Rely on the stored state alone."""
        self._known = None

    def begin(self, version: TableState) -> None:
        """Set the version, which the caller is about to write into the state."""
        self._known = version

    def state(self) -> TableState:
        """The manifest's state at the version that the copy has.

        Raises:
            RebuildNeeded: Garbage collection removed it.
            TableReplaced: It belongs to another table of the same name.
        """
        kept = self._keeper.state
        if self._known is None or self._known.version != kept.version:
            try:
                found = self._files.version(kept.version)
            except VersionNotKept as exc:
                if exc.newest < kept.version:
                    raise self._recreated(kept.version) from exc
                raise RebuildNeeded from exc
            if found.uid != kept.uid:
                raise self._recreated(kept.version)
            self._known = found
            self._applying.learn_columns(found)
        return self._known

    def fold(self, now: TableState, emptied: Collection[PartitionKey] | None = None) -> None:
        """Apply the files of a later version.

        Args:
            emptied: If all groups were removed before: the partitions of a keyed table that have
                to be read again because of it.

        Raises:
            Resync: Groups have to be read again and were not removed.
            RebuildNeeded, TableReplaced: As for :meth:`state`.
        """
        before = self.state()
        plan = self._plan(before, now) if now.version != before.version else Fold()
        if emptied is not None:
            plan.reloads = list(dict.fromkeys([*plan.reloads, *emptied]))
            plan.diffs = [partition for partition in plan.diffs if partition not in emptied]
        elif plan.resync:
            raise Resync
        self._applying.carry_out(plan, before, now)
        self._known = now
        self._keeper.set(version=now.version, uid=now.uid)

    def _plan(self, before: TableState, now: TableState) -> Fold:
        if now.version < before.version:
            raise self._recreated(before.version)
        try:
            changes = self._files.changes(before.version, now.version)
        except VersionNotKept as exc:
            raise RebuildNeeded from exc
        ledger, seen = self._keeper.ledger, self._keeper.seen
        if self._table.keyed:
            return fold_keyed(ledger, seen, before, now, changes)
        return fold_appended(
            ledger, seen, before, now, changes, lambda add: self._files.count(now, add)
        )

    def _recreated(self, version: int) -> TableReplaced:
        return table_recreated(self._table.namespace, self._table.table, version)
