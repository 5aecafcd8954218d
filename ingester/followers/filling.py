"""The fill of a copy from the files of a version: some files in each transaction.

Law of this file: files are put in the order of their paths, and the state says how many are; a fill
that was broken off goes on from there. A file is never cut. One thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ingester.followers.applying import Applying
from ingester.followers.files import Files
from ingester.followers.guard import Guard
from ingester.followers.keeping import Keeping
from ingester.followers.progress import Progress
from persist.manifest import Add, TableState

FILL_BYTES = 256 << 20
"""The bytes of files that are put in one transaction, about."""
BESIDE_BYTES = 32 << 20
"""The same while another version of the table is followed live, which waits meanwhile."""


class Filling:
    """Puts the files of one version after another; one fill is under way at most."""

    def __init__(
        self, files: Files, sink: Guard, applying: Applying, keeping: Keeping, progress: Progress
    ) -> None:
        self._files, self._sink = files, sink
        self._applying, self._keeping, self._progress = applying, keeping, progress
        self._steps: Iterator[None] | None = None

    def step(self, state: TableState, nbytes: int) -> None:
        """Put the rows of the next files, about so many bytes of them.

        Args:
            state: The version; a fill that goes on is of the one that it began with.
        """
        if self._steps is None:
            self._steps = self._fill(state, nbytes)
        if next(self._steps, self) is self:
            self._steps = None

    def forget(self) -> None:
        """Begin anew at the next step, from what the state says."""
        self._steps = None

    def _fill(self, state: TableState, nbytes: int) -> Iterator[None]:
        adds = [state.files[path] for path in sorted(state.files)]
        done = self._keeping.state.filled or 0
        self._progress.filling(adds, done)
        left = adds[done:]
        local = self._files.local(left) if self._sink.takes_files else None
        pieces = iter(self._files.pieces(state, left)) if local is None else iter(())
        for first, last in _chunks(left, nbytes):
            with self._keeping.transaction():
                if local is not None:
                    self._sink.put_files(local[first:last])
                else:
                    for _ in left[first:last]:
                        self._applying.put_file(pieces)
                self._keeping.set(filled=done + last)
            self._progress.filled(adds[: done + last])
            yield
        with self._keeping.transaction():
            self._keeping.set(filled=None)


def _chunks(adds: Sequence[Add], most: int) -> Iterator[tuple[int, int]]:
    """Ranges of files of so many bytes, about."""
    first = nbytes = 0
    for place, add in enumerate(adds, 1):
        nbytes += add.bytes
        if nbytes >= most or place == len(adds):
            yield first, place
            first, nbytes = place, 0
