"""How far a copy has come; numbers that other threads may read at any time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ingester.followers.feed import LiveAnswer
from persist.manifest import Add


@dataclass(slots=True)
class Progress:
    """Counts since the follower began.

    Attributes:
        files, bytes: Of the version that is being filled: those put, and all.
        current_at: The moment up to which everything acknowledged is in the copy, by ``now``.
        lag_operations: The operations of the daemon behind the copy, when it last answered.
        lag_rows: The table's rows that were there then, and were not in the copy.
    """

    now: Callable[[], float] = time.monotonic
    put_rows: int = 0
    deleted_rows: int = 0
    files: tuple[int, int] = (0, 0)
    bytes: tuple[int, int] = (0, 0)
    version: int = 0
    lag_operations: int = 0
    lag_rows: int = 0
    current_at: float | None = field(default=None)

    def goes_on_from(self, former: Progress) -> None:
        """Count from here on for the copy of another version, too, that this one is to replace."""
        self.put_rows += former.put_rows
        self.deleted_rows += former.deleted_rows
        self.current_at = former.current_at

    def filling(self, adds: Sequence[Add], done: int) -> None:
        """A fill of these files goes on, of which so many are put."""
        self.files, self.bytes = (0, len(adds)), (0, sum(add.bytes for add in adds))
        self.filled(adds[:done])

    def filled(self, adds: Sequence[Add]) -> None:
        """These files are put."""
        self.files = (len(adds), self.files[1])
        self.bytes = (sum(add.bytes for add in adds), self.bytes[1])

    def answered(self, answer: LiveAnswer) -> None:
        """The daemon has answered; the rows are not in the copy yet."""
        self.lag_rows = answer.rows_behind + sum(each.rows.num_rows for each in answer.batches)

    def caught_up(self, answer: LiveAnswer, asked_at: float | None = None) -> None:
        """All that there was at a moment is in the copy."""
        self.current_at = self.now() if asked_at is None else asked_at
        self.lag_rows = answer.rows_behind
        newest = answer.newest
        self.lag_operations = 0 if newest is None else max(0, newest - answer.position.sequence)

    def lag_s(self) -> float | None:
        """The age of the copy in seconds; None before it is complete."""
        return None if self.current_at is None else self.now() - self.current_at
