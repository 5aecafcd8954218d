"""Batches that a stream passes on are submitted in order, up to the first refused one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ingester.buffer.table import TableBuffer
from ingester.dml.operation import Operation
from ingester.dml.record import LoggedSchema
from ingester.errors import BadRequest, LimitReached
from ingester.schema import Normaliser
from ingester.write.metadata import NO_METADATA, ReceivedMetadata
from ingester.write.operation_maker import OperationMaker
from ingester.write.plan import WritePlan
from ingester.write.sender import Preparation
from ingester.write.stream import Outcome, WriteStream
from persist.partitioning import UNPARTITIONED, PartitionSpec
from persist.table import TableDefinition
from tests.write.held_combiner import Held

SCHEMA = pa.schema({"i": pa.int64(), "text": pa.string()})


def _batch(number: int, *, good: bool) -> pa.RecordBatch:
    text = pa.array([b"text" if good else b"\xff"], pa.binary()).view(pa.string())
    return pa.record_batch([pa.array([number]), text], schema=SCHEMA)


class _Stream:
    """A fake stream that records the calls made to it, in order."""

    def __init__(self, spec: PartitionSpec = UNPARTITIONED) -> None:
        definition = TableDefinition(SCHEMA, spec)
        normalise = Normaliser(definition, SCHEMA)
        schema = LoggedSchema.of(1, ("ns", "t"), normalise.schema)
        table = cast(TableBuffer, SimpleNamespace(key=("ns", "t"), definition=definition))
        self.plan = WritePlan(table, normalise, schema)
        self.origin = None
        self.notes_contents = False
        self.slots: list[list[Outcome]] = []
        self.submitted: list[tuple[int, int]] = []
        """(number in the batch, number of the slot)."""
        self.refused: list[tuple[type, int]] = []
        self.admitted_bytes = 0
        self.breaks_at: int | None = None

    def check_partitions(self, count: int, sequence: int | None) -> None:
        raise LimitReached(f"{count} of batch {sequence}")

    def reserve(self) -> list[Outcome]:
        self.slots.append([])
        return self.slots[-1]

    def submit(self, operation: Operation, slot: list[Outcome]) -> None:
        (number,) = operation.parts[0].batch.column("i").to_pylist()
        if number == self.breaks_at:
            raise RuntimeError("what nobody thought of")
        self.submitted.append((number, self._place(slot)))
        assert operation.admitted_bytes == 1 << number

    def refuse(self, error: BaseException, slot: list[Outcome]) -> None:
        self.refused.append((type(error), self._place(slot)))

    def leave(self, nbytes: int) -> None:
        self.admitted_bytes -= nbytes

    def _place(self, slot: list[Outcome]) -> int:
        return next(number for number, each in enumerate(self.slots) if each is slot)


class _Portal:
    """A fake event loop that runs the posted callbacks only on request."""

    def __init__(self) -> None:
        self._posted: list[tuple[object, ...]] = []

    def post(self, *call: object) -> None:
        self._posted.append(call)

    def run(self) -> None:
        for callback, *arguments in self._posted:
            assert callable(callback)
            callback(*arguments)


@given(st.lists(st.booleans(), min_size=1, max_size=10))
@example([True, False, True, True, False, True])
def test_nothing_behind_the_first_that_is_refused_is_submitted(goods: list[bool]) -> None:
    held, portal, recorded = Held(), _Portal(), _Stream()
    stream = cast(WriteStream, recorded)
    ready = Preparation(stream, held.combiner, OperationMaker(1 << 20), portal.post)
    for number, good in enumerate(goods):
        batch = _batch(number, good=good)
        # The combiner is busy, so even a client that waits for the answer passes its batch on.
        assert ready.passes_on(batch, ahead=False)
        recorded.admitted_bytes += 1 << number
        ready.pass_on(batch, NO_METADATA, 1 << number)
    assert recorded.submitted == []
    held.free()
    whole = all(goods)
    assert ready.settle() == whole
    first = len(goods) if whole else goods.index(False)
    assert recorded.submitted == [(number, number) for number in range(first)]
    # A submitted batch stays admitted until it is answered.
    assert recorded.admitted_bytes == (1 << first) - 1
    portal.run()
    assert recorded.refused == ([] if whole else [(BadRequest, first)])
    assert not ready.passes_on(_batch(0, good=True), ahead=False)
    assert ready.passes_on(_batch(0, good=True), ahead=True)


def test_what_cannot_be_submitted_ends_its_stream_and_no_other() -> None:
    held, portal, broken, other = Held(), _Portal(), _Stream(), _Stream()
    broken.breaks_at = 1
    ready = {
        each: Preparation(
            cast(WriteStream, each), held.combiner, OperationMaker(1 << 20), portal.post
        )
        for each in (broken, other)
    }
    for number in range(3):
        for each in (broken, other):
            batch = _batch(number, good=True)
            ready[each].pass_on(batch, NO_METADATA, 1 << number)
    held.free()
    assert [each.settle() for each in ready.values()] == [False, True]
    portal.run()
    assert broken.submitted == [(0, 0)]
    assert broken.refused == [(RuntimeError, 1)]
    assert other.submitted == [(0, 0), (1, 1), (2, 2)]
    assert other.refused == []


def test_a_stream_is_asked_for_room_before_a_batch_is_split_by_partition() -> None:
    held, portal, recorded = Held(), _Portal(), _Stream(PartitionSpec.parse(["identity(i)"]))
    held.free()
    ready = Preparation(
        cast(WriteStream, recorded), held.combiner, OperationMaker(1 << 20), portal.post
    )
    rows = pa.record_batch([[1, 2, 3], ["a", "b", "c"]], schema=SCHEMA)
    with pytest.raises(LimitReached, match="3 of batch 7"):
        ready.operation(rows, ReceivedMetadata(sequence=7))
    ready.pass_on(rows, NO_METADATA, rows.nbytes)
    assert not ready.settle()
    portal.run()
    assert recorded.refused == [(LimitReached, 0)]
