"""The bytes that a table's states will have, when those that wait are committed.

Law of this file: of each partition the last state that came counts, and shared bytes count once.
What a version has is not counted again. Pure; loop only, but for :attr:`Growth.nbytes` and
:meth:`Growth.by`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from ingester.origins.checkpoint_state import Checkpoint, SharedBytes
from persist.manifest.actions import Checkpoint as CheckpointAction
from persist.manifest.actions import SharedState, decoded_size


class Growth:
    """Adds up what states that wait add to those of a version."""

    def __init__(
        self,
        committed: Mapping[str, CheckpointAction] | None = None,
        shared: Mapping[str, SharedState] | None = None,
    ) -> None:
        self._shared_bytes = 0
        self._state_bytes = 0
        self._committed = committed or {}
        self._shared = shared or {}
        self._references: Counter[str] = Counter()

    @property
    def nbytes(self) -> int:
        """The bytes that are added; fewer than none, where states go."""
        return self._state_bytes + self._shared_bytes

    def note(self, before: Checkpoint | None, given: Checkpoint) -> None:
        """Note a state after the one ``before``, which is the last that waits of its partition."""
        self._state_bytes += given.nbytes - self._size(before, given.partition)
        if (new := given.shared) is not None and new.id not in self._shared:
            self._shared_bytes += 0 if self._references[new.id] else len(new.state)
            self._references[new.id] += 1
        if before is not None and (old := before.shared) is not None:
            self._let_go(old)

    def by(self, before: Checkpoint | None, given: Checkpoint) -> int:
        """Tell how many bytes a state would add that comes next. Any thread."""
        grows = given.nbytes - self._size(before, given.partition)
        new = given.shared
        if new is None or new.id in self._shared or self._references.get(new.id):
            return grows
        return grows + len(new.state)

    def _size(self, before: Checkpoint | None, partition: str) -> int:
        if before is not None:
            return before.nbytes
        there = self._committed.get(partition)
        return 0 if there is None else decoded_size(there.state)

    def _let_go(self, old: SharedBytes) -> None:
        if old.id in self._shared:
            return
        self._references[old.id] -= 1
        if not self._references[old.id]:
            del self._references[old.id]
            self._shared_bytes -= len(old.state)
