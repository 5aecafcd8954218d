"""A writer with an origin, which sends bursts of small batches and resends what is unanswered."""

from __future__ import annotations

import random
import threading
from collections import deque

import pyarrow.flight as fl

from tests.drivers.wire import Stream, writing
from tests.power.rows import SCHEMA, TABLE, make_rows, metadata_of


class Source:
    """The rows 0, 1, 2, … of one writer. A batch's sequence is the number of its first row.

    Args:
        seed: determines the sizes of its batches and bursts.
        stated: whether batches carry a state; those without one share records of the log.
    """

    def __init__(self, writer: int, seed: int, *, stated: bool = False) -> None:
        self.sent = 0
        self.acknowledged = 0
        self.operations = 0
        """The number of acknowledged batches."""
        self._writer = writer
        self._stated = stated
        self._dice = random.Random(f"{seed}/{writer}")
        self._unanswered: deque[tuple[int, int]] = deque()

    def write(self, client: fl.FlightClient, ended: threading.Event) -> None:
        """Write in one stream until ``ended`` is set.

        Raises:
            FlightError, ArrowException, OSError: The stream has ended.
        """
        with Stream(client, writing(TABLE, f"writer-{self._writer}"), SCHEMA) as stream:
            while not ended.is_set():
                self._burst(stream)

    def _burst(self, stream: Stream) -> None:
        if not self._unanswered:
            for _ in range(self._dice.choice((1, 1, 3, 12))):
                count = self._dice.choice((1, 2, 40))
                self._unanswered.append((self.sent, count))
                self.sent += count
        for first, count in self._unanswered:
            state = first + count if self._stated else None
            metadata = metadata_of(self._writer, first, state)
            stream.send(make_rows(self._writer, first, count), metadata)
        while self._unanswered:
            if stream.answer() is None:
                raise OSError("the stream has ended")
            first, count = self._unanswered.popleft()
            self.acknowledged = first + count
            self.operations += 1
