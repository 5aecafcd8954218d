"""Operations of one origin into one table that are under way, and who waits for their fates.

    begin ──▶ under way ──end──▶ applied ──▶ whoever waits is told at once
                       └──end──▶ failed ───▶ told when nothing is under way any more

Law of this file: an operation under way is neither applied nor unknown, and its repeat waits for
its fate. If that is a failure, the repeats take their places in the order of their sequences, and
none goes in over one that failed and is not repeated: that could never come after it. Loop only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

Fate = Callable[[BaseException | None], None]


class Fates:
    """Sequences on their way into the log, in rising order."""

    __slots__ = ("_again", "_failed", "_waiting", "missing")

    def __init__(self) -> None:
        self.missing: int | None = None
        """The lowest sequence that failed and that nobody repeats: nothing above it may go in."""
        self._waiting: dict[int, list[Fate]] = {}
        self._failed: set[int] = set()
        self._again: list[tuple[int, Fate]] = []

    @property
    def under_way(self) -> Collection[int]:
        """The sequences whose fate is not known yet."""
        return self._waiting.keys()

    @property
    def newest(self) -> int:
        """The highest sequence under way; -1 for none."""
        return next(reversed(self._waiting), -1)

    def begin(self, sequence: int) -> bool:
        """Note an operation under way; False if it, or one above it, already is."""
        if self._waiting and sequence <= self.newest:
            return False
        self._waiting[sequence] = []
        return True

    def await_first(self, sequence: int, fate: Fate) -> None:
        """Call ``fate`` when the copy under way, or the next one above, is durable or failed."""
        waited_for = sequence
        if sequence not in self._waiting:
            waited_for = min(seq for seq in self._waiting if seq > sequence)
        self._waiting[waited_for].append(fate)

    def end(self, sequence: int, error: BaseException | None) -> list[Fate]:
        """The operation under way is durable (``error`` is None) or never will be.

        Returns:
            Those to be told now, in the order of their sequences. After a failure that is when
            nothing is under way any more: the log refuses all that waits behind what it refuses.

        Raises:
            KeyError: the sequence is not under way.
        """
        waiting = self._waiting.pop(sequence)
        if error is None:
            return waiting
        self._failed.add(sequence)
        self._again += [(sequence, fate) for fate in waiting]
        if self._waiting:
            return []
        again, failed = sorted(self._again, key=lambda one: one[0]), self._failed
        self._again, self._failed = [], set()
        self.missing = min(failed - {seq for seq, _ in again}, default=None)
        return [fate for _, fate in again]
