"""The rows that must be present after each start, and those that must be absent.

An operation is a range of numbers. Once acknowledged or seen by a query, it is present
permanently, completely and once. An operation that was only sent is present completely or not at
all; it is sent again, and is there once nevertheless.
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
    """First numbers of the acknowledged or seen operations."""
    answered: set[int] = field(default_factory=set)
    """First numbers of the acknowledged operations."""

    def send(self, rows: int) -> range:
        """Return the numbers of a new operation."""
        numbers = range(self.next_number, self.next_number + rows)
        self.next_number = numbers.stop
        self.sent[numbers.start] = numbers
        return numbers

    def acknowledged(self, numbers: range) -> None:
        """Record an acknowledgement."""
        self.answered.add(numbers.start)
        self.promised.add(numbers.start)

    def unanswered(self) -> list[range]:
        """Return the operations that were sent and not acknowledged, oldest first."""
        return [numbers for first, numbers in self.sent.items() if first not in self.answered]

    def seen(self, numbers: Iterable[int]) -> None:
        """Record the rows of a query's answer.

        Raises:
            AssertionError: A promise is broken.
        """
        there = self._whole(numbers)
        lost = self.promised - there
        assert not lost, f"operations at {sorted(lost)} were promised and are gone"
        self.promised |= there

    def in_files(self, numbers: Sequence[int]) -> None:
        """Record the rows of the manifest's files, where an operation may lack partitions."""
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
