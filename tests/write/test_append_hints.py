"""Hints given to the log with a small batch: a waiting client, and the thread that may write."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from ingester.write.coalescer import Arrival
from ingester.write.metadata import NO_METADATA
from ingester.write.operation_maker import OperationMaker
from ingester.write.sender import Awaits, Preparation, Sender
from ingester.write.stream import WriteStream
from wal import OrderedSession

BATCH = pa.record_batch({"i": [1]})


class Stream:
    """A write stream that records the batches it is offered and marks them as checked."""

    def __init__(self) -> None:
        self.session = OrderedSession()
        self.origin = None
        self.plan = SimpleNamespace(normaliser=SimpleNamespace(most_bytes=lambda batch: 8))
        self.offered: list[tuple[Arrival, bool]] = []

    def reserve(self) -> list[Any]:
        return []

    def admit(self, nbytes: int, sequence: int | None) -> int:
        return nbytes

    def offer(self, arrival: Arrival, *, here: bool) -> None:
        self.offered.append((arrival, here))
        arrival.note_checked()


@pytest.mark.parametrize(
    ("awaits", "waits", "here"),
    [
        pytest.param(Awaits.ANSWER, True, True, id="in turns"),
        pytest.param(
            Awaits.CHECK, True, False, id="while it is seen whether the client runs ahead"
        ),
        pytest.param(Awaits.NOTHING, False, False, id="in the reader's thread"),
    ],
)
def test_a_client_that_waits_is_known_to_wait(awaits: Awaits, waits: bool, here: bool) -> None:
    recorded, sent = Stream(), list[int]()
    stream, nothing = cast(WriteStream, recorded), cast(Any, None)
    preparation = Preparation(stream, nothing, OperationMaker(1 << 20), nothing)
    sender = Sender(stream, preparation, nothing, nothing, sent.append)
    assert sender.send(BATCH, NO_METADATA, awaits)
    ((arrival, written_here),) = recorded.offered
    assert (arrival.waits, written_here) == (waits, here)
    assert sent == [arrival.stored_bytes]
