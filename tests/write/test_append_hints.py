"""What the log is told of a small batch: whether its client waits, and who may write it."""

from __future__ import annotations

from typing import Any, cast

import pyarrow as pa
import pytest

from ingester.server.flight.in_flight import Unanswered
from ingester.server.flight.put import PutCall
from ingester.write.coalescer import Arrival
from ingester.write.stream import WriteStream
from wal import OrderedSession

BATCH = pa.record_batch({"i": [1]})


class Stream:
    """Takes what is offered, and judges it at once."""

    def __init__(self) -> None:
        self.session = OrderedSession()
        self.offered: list[tuple[Arrival, bool]] = []

    def admit(self, nbytes: int, sequence: int | None) -> int:
        return nbytes

    def offer(self, arrival: Arrival, slot: list[Any], *, here: bool) -> None:
        self.offered.append((arrival, here))
        arrival.note_checked()


@pytest.mark.parametrize(
    ("looks", "waits", "here"),
    [
        pytest.param(False, True, True, id="in turns"),
        pytest.param(True, True, False, id="while it is seen whether the client sends ahead"),
        pytest.param(None, False, False, id="in the reader's thread"),
    ],
)
def test_a_client_that_waits_is_known_to_wait(looks: bool | None, waits: bool, here: bool) -> None:
    call, stream = object.__new__(PutCall), Stream()
    call._unanswered = Unanswered(10)
    assert call._offer(cast(WriteStream, stream), BATCH, 100, looks)
    ((arrival, written_here),) = stream.offered
    assert (arrival.waits, written_here) == (waits, here)
