"""A commit takes along the states of sources whose rows are in files with it.

    with a sequence      everything of its origin up to it is in files: the commit says so, too
    without one          every row of the table that came before it is in files

Law of this file: a state is committed in the version that has the last of its rows, or in a later
one; never before, and never if another process has taken over the sequence that it came with.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from ingester.buffer import BufferHandle, BufferTree, TableBuffer
from ingester.origins.checkpoint_state import shared_actions
from ingester.origins.checkpoints import PendingCheckpoint, newest_of
from ingester.origins.tenure import Tenure
from ingester.tables.origin_claims import end_of_share
from persist.manifest import Action, Origin, TableState
from persist.manifest.origins import NO_END, owned, verdict_of


class CheckpointClaims:
    """Finds the states that a commit takes along. Loop only."""

    def __init__(self, tree: BufferTree) -> None:
        self._tree = tree

    def ready(
        self, table: TableBuffer, state: TableState, besides: frozenset[BufferHandle]
    ) -> list[PendingCheckpoint]:
        """Find the newest state of each partition whose rows are in files, or in ``besides``."""
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
        """Let go of the states that the table's installed version has, or has newer ones of."""
        self._tree.checkpoints.settle(table.key, table.state)


class _Rules:
    """Tells which states a commit on top of ``state`` may take along."""

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
    """Leave out the states whose origin is not complete up to them by what a commit says of it."""
    runs = {each.name: owned(each) for each in origins if isinstance(each, Origin)}

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
    """Name the shares of origins that states come with, each with the highest sequence."""
    found: dict[Tenure, int] = {}
    for each in ready:
        if each.tenure is not None and each.sequence is not None:
            found[each.tenure] = max(each.sequence, found.get(each.tenure, -1))
    return found


def actions_of(ready: Sequence[PendingCheckpoint]) -> Iterator[Action]:
    """Make the actions that commit these states, and once the bytes that they share."""
    yield from shared_actions(each.given for each in ready)
    for each in ready:
        yield each.action()
