"""What a stream and the log are told of a batch before they take it."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from ingester.buffer import TableBuffer
from ingester.dml.record import LoggedSchema
from ingester.errors import LimitReached
from ingester.schema import Normaliser
from ingester.write.metadata import NO_METADATA, ReceivedMetadata
from ingester.write.operation_maker import OperationMaker
from ingester.write.plan import WritePlan
from ingester.write.sender import FEW_ROWS, Awaits, Sender
from ingester.write.stream import Write, WriteStream
from persist.partitioning import PartitionSpec
from persist.table import TableDefinition
from wal import OrderedSession

BATCH = pa.record_batch({"i": [1]})


class Stream:
    """A write stream that records the batches appended to it and marks them as checked."""

    def __init__(self) -> None:
        self.session = OrderedSession()
        self.origin = None
        self.plan = SimpleNamespace(normaliser=SimpleNamespace(most_bytes=lambda batch: 8))
        self.appended: list[tuple[Write, bool]] = []

    def admit(self, nbytes: int, sequence: int | None) -> int:
        return nbytes

    def append(self, write: Write, *, here: bool) -> bool:
        self.appended.append((write, here))
        write.note_checked()
        return True


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
    sender = Sender(stream, OperationMaker(1 << 20), nothing, nothing, sent.append)
    assert sender.send(BATCH, NO_METADATA, awaits)
    ((write, written_here),) = recorded.appended
    assert (write.waits, written_here) == (waits, here)
    assert sent == [write.stored_bytes]


def test_a_stream_is_asked_for_room_before_a_batch_is_split_by_partition() -> None:
    def check_partitions(count: int, sequence: int | None) -> None:
        raise LimitReached(f"{count} of batch {sequence}")

    rows = pa.record_batch({"i": range(FEW_ROWS + 1)})
    definition = TableDefinition(rows.schema, PartitionSpec.parse(["identity(i)"]))
    normalise = Normaliser(definition, rows.schema)
    table = SimpleNamespace(key=("ns", "t"), definition=definition, scattered_until=math.inf)
    schema = LoggedSchema.of(1, ("ns", "t"), normalise.schema)
    stream, nothing = cast(WriteStream, Stream()), cast(Any, None)
    vars(stream).update(
        plan=WritePlan(cast(TableBuffer, table), normalise, schema),
        check_rate=lambda sequence: None,
        check_partitions=check_partitions,
        numbered=lambda sequence: None,
    )
    sender = Sender(stream, OperationMaker(1 << 20), nothing, nothing, nothing)
    with pytest.raises(LimitReached, match="17 of batch 7"):
        sender.send(rows, ReceivedMetadata(sequence=7), Awaits.NOTHING)
