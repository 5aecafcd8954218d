"""The plain loop that bounds every log: append to a preallocated file, fdatasync, repeat.

The file is written in full before the clock starts, as the log's segments are. The bytes are
those that the writers send: the Arrow messages of their batches.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from tests.bench.clients import Written

_BLOCK = 1 << 20


class AppendFile:
    """A file of zeros on the disk that is overwritten from start to end, repeatedly."""

    def __init__(self, folder: Path, file_bytes: int) -> None:
        self._path = folder / "append"
        self._file_bytes = file_bytes
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        block = bytes(_BLOCK)
        for offset in range(0, file_bytes, _BLOCK):
            os.pwrite(self._descriptor, block, offset)
        os.fsync(self._descriptor)

    def __enter__(self) -> AppendFile:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)
        self._path.unlink()

    def append(
        self, batches: Sequence[pa.RecordBatch], *, together: int, seconds: float
    ) -> Written:
        """Append batches in turn for some seconds, ``together`` of them with one sync.

        Each sync answers ``together`` writers, so the latencies are those of the rounds.
        """
        messages = [memoryview(batch.serialize()) for batch in batches]
        rounds = _Rounds(messages, together, self._file_bytes)
        latencies = _loop(self._descriptor, rounds, seconds)
        sent = len(latencies) * together
        return Written(sent * batches[0].num_rows, sent, sum(latencies), np.array(latencies))


class _Rounds:
    """The content of each round: some messages in turn, at the next offset."""

    def __init__(self, messages: Sequence[memoryview], together: int, file_bytes: int) -> None:
        self._messages = itertools.cycle(messages)
        self._together = together
        self._file_bytes = file_bytes
        self._offset = 0

    def next_round(self) -> tuple[list[memoryview], int, int]:
        """Return (pieces, their bytes, their offset)."""
        pieces = list(itertools.islice(self._messages, self._together))
        size = sum(piece.nbytes for piece in pieces)
        if self._offset + size > self._file_bytes:
            # Wrap around to overwrite: this stands for the next preallocated segment.
            self._offset = 0
        offset, self._offset = self._offset, self._offset + size
        return pieces, size, offset


def _loop(descriptor: int, rounds: _Rounds, seconds: float) -> list[float]:
    """Return the seconds of each round."""
    latencies = []
    first = began = time.monotonic()
    while began - first < seconds:
        pieces, size, offset = rounds.next_round()
        written = os.pwritev(descriptor, pieces, offset)
        assert written == size
        os.fdatasync(descriptor)
        ended = time.monotonic()
        latencies.append(ended - began)
        began = ended
    return latencies
