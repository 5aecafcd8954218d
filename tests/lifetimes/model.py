"""What has to be there after each start, and what must not be.

Law of this file: an operation is a range of numbers. Acknowledged, or seen by a query once, it is
there for ever, whole and once; one that was only sent is there whole or not at all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


@dataclass
class Model:
    """All operations of all lives on one machine, by their first number."""

    next_number: int = 0
    sent: dict[int, range] = field(default_factory=dict)
    promised: set[int] = field(default_factory=set)
    """First numbers of those that were acknowledged or seen."""

    def send(self, rows: int) -> range:
        """The numbers of a new operation."""
        numbers = range(self.next_number, self.next_number + rows)
        self.next_number = numbers.stop
        self.sent[numbers.start] = numbers
        return numbers

    def acknowledged(self, numbers: range) -> None:
        """It was answered."""
        self.promised.add(numbers.start)

    def seen(self, numbers: Iterable[int]) -> None:
        """A query was answered with these.

        Raises:
            AssertionError: a promise is broken.
        """
        there = self._whole(numbers)
        lost = self.promised - there
        assert not lost, f"operations at {sorted(lost)} were promised and are gone"
        self.promised |= there

    def in_files(self, numbers: Sequence[int]) -> None:
        """The manifest's files have these; of an operation they may have some partitions alone."""
        twice = [number for number, count in Counter(numbers).items() if count > 1]
        assert not twice, f"rows {twice} are in files twice"
        unknown = [number for number in numbers if not self._was_sent(number)]
        assert not unknown, f"rows {unknown} were never sent"

    def _whole(self, numbers: Iterable[int]) -> set[int]:
        found = Counter(numbers)
        twice = [number for number, count in found.items() if count > 1]
        assert not twice, f"rows {twice} are there twice"
        there = set()
        for first, operation in self.sent.items():
            rows = sum(number in found for number in operation)
            assert rows in (0, len(operation)), f"{rows} of the {len(operation)} rows at {first}"
            if rows:
                there.add(first)
        assert len(found) == sum(len(self.sent[first]) for first in there), "rows nobody sent"
        return there

    def _was_sent(self, number: int) -> bool:
        return any(number in operation for operation in self.sent.values())
