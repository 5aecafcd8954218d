"""A stream superseded by a newer one: batches not yet submitted to the log are refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
from prometheus_client import CollectorRegistry

from ingester.buffer import TableBuffer
from ingester.config.levels import AckLevels
from ingester.config.settings import Settings
from ingester.dml.operation import Operation
from ingester.dml.record import LoggedSchema
from ingester.errors import Superseded
from ingester.observability.metrics import Metrics
from ingester.origins.checkpoints import Checkpoints
from ingester.origins.registry import Origins
from ingester.quotas.use import NamespaceUse
from ingester.schema import Normaliser
from ingester.write.acknowledgement import Acknowledgement
from ingester.write.admission import AdmissionControl
from ingester.write.operation_maker import OperationMaker
from ingester.write.partition_room import PartitionRoom
from ingester.write.plan import WritePlan
from ingester.write.stream import Outcome, Write, WritePath, WriteStream
from persist.partitioning import UNPARTITIONED
from persist.table import TableDefinition
from wal import Route

SCHEMA = pa.schema({"i": pa.int64()})


class Gate:
    """A gate that admits everything and counts what is inside."""

    inside = 0
    era = 0

    def enter(self, nbytes: int, use: NamespaceUse) -> None:
        self.inside += nbytes

    def leave(self, nbytes: int, use: NamespaceUse) -> None:
        self.inside -= nbytes


class Room:
    """A partition limit that allows everything."""

    def enter(self, table: TableBuffer, operation: Operation) -> None:
        pass

    def leave(self, operation: Operation) -> None:
        pass


class Log:
    """A fake log that answers its operations when the test says so."""

    def __init__(self) -> None:
        self.taken: list[Acknowledgement] = []

    def submit(self, acknowledgement: Acknowledgement) -> None:
        self.taken.append(acknowledgement)


def test_a_batch_that_was_let_in_before_and_comes_to_the_loop_after_a_newer_stream_is_refused() -> (
    None
):
    definition = TableDefinition(SCHEMA, UNPARTITIONED)
    normalise = Normaliser(definition, SCHEMA)
    schema = LoggedSchema.of(1, ("ns", "t"), normalise.schema)
    table = cast(
        TableBuffer,
        SimpleNamespace(
            key=("ns", "t"),
            definition=definition,
            order=None,
            use=NamespaceUse("ns"),
            route=Route("ns/t"),
        ),
    )
    plan = WritePlan(table, normalise, schema)
    gate, log = Gate(), Log()
    path = WritePath(
        admission=cast(AdmissionControl, gate),
        dedup=cast(Any, log),
        log=cast(Any, SimpleNamespace(wait_for_room=lambda route, nbytes, at_store: None)),
        metrics=Metrics(CollectorRegistry()),
        origins=Origins(),
        relief=cast(Any, None),
        checkpoints=Checkpoints(),
        partitions=cast(PartitionRoom, Room()),
        epoch=1,
        upto=lambda table: 7,
        levels=AckLevels(Settings()),
    )
    delivered: list[Outcome] = []
    stream = WriteStream(path, plan, "o", delivered.extend, lambda closed: None)
    maker = OperationMaker(1 << 20)
    operations = []
    for sequence in (1, 2):
        batch = pa.record_batch([pa.array([sequence])], schema=SCHEMA)
        operation = maker.make(plan, batch, stream.numbered(sequence))
        stream.admit_operation(operation)
        operations.append(operation)
    stream.decide(Write(stream, 1), operations[0])
    stream.superseded = Superseded("a newer stream")
    stream.decide(Write(stream, 2), operations[1])
    # The first operation was already in the log, so it completes.
    [acknowledgement] = log.taken
    acknowledgement.operation.seq = 5
    acknowledgement.finish(None)
    assert not isinstance(delivered[0], BaseException)
    assert delivered[0].sequence == 5
    assert delivered[1:] == [stream.superseded]
    assert gate.inside == 0
