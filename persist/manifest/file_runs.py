"""The files of one partition, in the order in which they were committed.

    add 1, add 1, add 1, add 1      [a]   [a b]   [a b][c]   [a b c d]

Law of this file: pure, immutable. Adding a few costs about as much as the few, however many there
are: runs of files are shared between states, and each run has at least twice as many files as the
next, so that there are few runs and each file is copied as often as the logarithm of their number.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain
from typing import overload

from persist.manifest.actions import Add

Run = tuple[Add, ...]


class FileRuns(Sequence[Add]):
    """A sequence of files, equal to any other of the same files in the same order."""

    __slots__ = ("_length", "runs")

    def __init__(self, runs: tuple[Run, ...] = ()) -> None:
        """Take ``runs`` that are not empty, each at least twice as long as the next."""
        self.runs = runs
        self._length = sum(map(len, runs))

    def and_then(self, adds: Iterable[Add]) -> FileRuns:
        """The files of this sequence, and the given ones behind them."""
        last = tuple(adds)
        if not last:
            return self
        runs = list(self.runs)
        while runs and len(runs[-1]) < 2 * len(last):
            last = runs.pop() + last
        return FileRuns((*runs, last))

    def without(self, paths: Collection[str]) -> FileRuns:
        """The files of this sequence but for some; walks all of them."""
        return FileRuns().and_then(add for add in self if add.path not in paths)

    def __iter__(self) -> Iterator[Add]:
        return chain.from_iterable(self.runs)

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Add: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Add]: ...
    def __getitem__(self, index: int | slice) -> Add | Sequence[Add]:
        return tuple(self)[index]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or len(other) != len(self):
            return False
        if isinstance(other, FileRuns) and other.runs == self.runs:
            return True
        return all(mine == its for mine, its in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"FileRuns{tuple(self)!r}"
