"""Small batches coalesced into one operation keep their rows, order and sequences."""

from __future__ import annotations

import gc
import struct
import time
import weakref
from collections.abc import Callable
from typing import Any, cast

import pyarrow as pa
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from ingester.buffer.rows import BufferedRows
from ingester.buffer.table import TableBuffer
from ingester.dml.control_records import decode_record
from ingester.dml.ipc import IpcMessage
from ingester.dml.operation import Operation, OriginWrite, Part
from ingester.dml.record import (
    DamagedRecord,
    LoggedSchema,
    TableRows,
    decode_operation,
    make_operation,
)
from ingester.errors import LimitReached
from ingester.observability.metrics import Metrics
from ingester.schema import Normaliser
from ingester.write.coalescer import MANY_PARTITIONS, Coalescer
from ingester.write.operation_log import OperationLog
from ingester.write.operation_maker import Numbered, OperationMaker
from ingester.write.plan import WritePlan
from ingester.write.sender import FEW_ROWS, Sender
from ingester.write.stream import Unfit, Write, WriteStream
from persist.manifest import TableState, apply
from persist.partitioning import PartitionSpec
from persist.table import TableDefinition
from wal import OrderedSession

DAY_US = 86_400_000_000
KEPT = pa.schema({"time": pa.timestamp("us", "UTC"), "host": pa.string(), "v": pa.float64()})
SENT = pa.schema(
    {
        "v": pa.float32(),
        "host": pa.dictionary(pa.int8(), pa.string()),
        "time": pa.timestamp("us", "UTC"),
    }
)
SPECS: tuple[list[str], ...] = (
    [],
    ["day(time)"],
    ["bucket(4, host)", "day(time)"],
    ["identity(host)"],
)
MAKER = OperationMaker(1 << 20)

rows = st.fixed_dictionaries(
    {
        "time": st.one_of(st.none(), st.integers(0, 3 * DAY_US)),
        "host": st.one_of(st.none(), st.sampled_from("abc")),
        "v": st.one_of(st.none(), st.floats(width=32, allow_nan=False)),
    }
)
batches = st.lists(st.lists(rows, max_size=4), min_size=1, max_size=12)


def _plan(spec: list[str], sent: pa.Schema) -> WritePlan:
    definition = TableDefinition(KEPT, PartitionSpec.parse(spec))
    normalise = Normaliser(definition, sent)
    schema = LoggedSchema.of(1, ("ns", "t"), normalise.schema)
    table = TableBuffer("ns", "t", apply(TableState(), definition.actions()))
    return WritePlan(table, normalise, schema)


def _batch(found: list[dict[str, Any]], sent: pa.Schema) -> pa.RecordBatch:
    columns = {
        "time": pa.array([row["time"] for row in found], pa.timestamp("us", "UTC")),
        "host": pa.array([row["host"] for row in found], pa.string()),
        "v": pa.array([row["v"] for row in found], pa.float64()),
    }
    arrays = []
    for field in sent:
        column = columns[field.name]
        if pa.types.is_dictionary(field.type):
            column = column.dictionary_encode().cast(field.type)
        arrays.append(column.cast(field.type))
    # A batch received over Flight is read from an IPC message.
    message = pa.ipc.read_message(pa.RecordBatch.from_arrays(arrays, schema=sent).serialize())
    if any(pa.types.is_dictionary(field.type) for field in sent):
        return pa.RecordBatch.from_arrays(arrays, schema=sent)
    return pa.ipc.read_record_batch(message, sent)


def _by_number(operation: Operation) -> dict[int, dict[Any, list[dict[str, Any]]]]:
    """Rows by batch number and partition."""
    found: dict[int, dict[Any, list[dict[str, Any]]]] = {}
    for part in operation.parts:
        part.batch.validate(full=True)
        rows_, start = part.batch.to_pylist(), 0
        for number, count in part.row_counts or ((0, part.batch.num_rows),):
            found.setdefault(number, {})[part.values] = rows_[start : start + count]
            start += count
        assert start == len(rows_)
    return found


@given(batches, st.sampled_from(SPECS), st.sampled_from([KEPT, SENT]))
def test_a_coalesced_batch_holds_what_its_batches_would_be_one_by_one(
    found: list[list[dict[str, Any]]], spec: list[str], sent: pa.Schema
) -> None:
    plan = _plan(spec, sent)
    came = [_batch(each, sent) for each in found]
    made = MAKER.coalesce(plan, came, 1 << 20)
    assert made.operations == len(came)
    assert made.rows == sum(len(each) for each in found)
    together = _by_number(made)
    for number, batch in enumerate(came):
        alone = _by_number(MAKER.make(plan, batch))
        assert together.get(number, {}) == alone.get(0, {})


@given(batches, st.sampled_from(SPECS))
def test_the_record_of_a_run_says_whose_its_rows_are(
    found: list[list[dict[str, Any]]], spec: list[str]
) -> None:
    plan = _plan(spec, KEPT)
    made = MAKER.coalesce(plan, [_batch(each, KEPT) for each in found], 1 << 20)
    assert made.entry is not None
    assert made.entry.operations == len(found)
    payload = pa.py_buffer(b"".join(map(bytes, made.entry.body.pieces))[: made.entry.body.length])
    logged = decode_operation(payload, {1: plan.normaliser.schema}, len(found))
    assert [(part.values, part.batch.to_pylist(), part.row_counts) for part in logged.parts] == [
        (part.values, part.batch.to_pylist(), part.row_counts) for part in made.parts
    ]
    if made.parts:
        with pytest.raises(DamagedRecord):
            decode_operation(payload, {1: plan.normaliser.schema}, made.parts[0].row_counts[-1][0])  # type: ignore[index]


@given(
    st.lists(
        st.tuples(st.lists(rows, max_size=4), st.sampled_from([None, "a", "b"])),
        min_size=2,
        max_size=12,
    ),
    st.sampled_from(SPECS),
)
def test_the_operations_of_a_record_with_origins_are_decoded_one_by_one(
    found: list[tuple[list[dict[str, Any]], str | None]], spec: list[str]
) -> None:
    plan = _plan(spec, KEPT)
    came = [_batch(each, KEPT) for each, _ in found]
    numbered = [
        None if origin is None else Numbered(origin, 10 * n, n % 3 > 0)
        for n, (_, origin) in enumerate(found)
    ]
    made = MAKER.coalesce(plan, came, 1 << 20, numbered)
    assert made.entry is not None
    payload = pa.py_buffer(b"".join(map(bytes, made.entry.body.pieces))[: made.entry.body.length])
    logged = decode_record(payload, {1: plan.normaliser.schema}, len(found))
    if not any(numbered):
        assert len(logged) == 1
        return
    assert len(logged) == len(found)
    for batch, one, its in zip(came, numbered, logged, strict=True):
        alone = MAKER.make(plan, batch, one)
        header = its.header
        named = (header.origin, header.origin_sequence)
        assert named == ((None, None) if one is None else (one.origin, one.sequence))
        assert header.content == alone.content
        assert header.spec_id == alone.spec_id
        mine = {part.values: part.batch.to_pylist() for part in its.parts if part.batch.num_rows}
        assert mine == {
            part.values: part.batch.to_pylist() for part in alone.parts if part.batch.num_rows
        }
        assert [part.values for part in header.parts] == [part.values for part in its.parts]


def _again(plan: WritePlan, parts: tuple[Part, ...]) -> TableRows:
    """The rows of the one part, for another record."""
    (part,) = parts
    return TableRows(plan.schema, 1, parts, IpcMessage.serialized(part.batch))


def test_a_record_with_origins_that_names_other_operations_is_damage() -> None:
    plan = _plan([], KEPT)
    one = {"time": 1, "host": "a", "v": 0.5}
    two = [_batch([one], KEPT), _batch([one], KEPT)]
    for wrong in (
        [OriginWrite(2, "a", 1, None)],
        [OriginWrite(-1, "a", 1, None)],
        [OriginWrite(1, "a", 1, None), OriginWrite(0, "a", 2, None)],
    ):
        made = MAKER.coalesce(plan, two, 1 << 20)
        made = make_operation(_again(plan, made.parts), operations=2, writes=tuple(wrong))
        assert made.entry is not None
        pieces = b"".join(map(bytes, made.entry.body.pieces))
        payload = pa.py_buffer(pieces[: made.entry.body.length])
        with pytest.raises(DamagedRecord):
            decode_record(payload, {1: plan.normaliser.schema}, 2)


@pytest.mark.parametrize(
    ("row_counts", "operations"),
    [
        (None, 2),
        (((0, 1), (0, 1)), 2),
        (((1, 1), (0, 1)), 2),
        (((0, 1), (2, 1)), 2),
        (((0, 2), (1, 0)), 2),
        (((0, 1), (1, 2)), 2),
        (((-1, 1), (1, 1)), 2),
    ],
)
def test_members_that_cannot_be_are_damage(row_counts: Any, operations: int) -> None:
    plan = _plan([], KEPT)
    one = {"time": 1, "host": "a", "v": 0.5}
    made = MAKER.coalesce(plan, [_batch([one], KEPT), _batch([one], KEPT)], 1 << 20)
    parts = tuple(part._replace(row_counts=row_counts) for part in made.parts)
    made = make_operation(_again(plan, parts), operations=2)
    assert made.entry is not None
    payload = pa.py_buffer(b"".join(map(bytes, made.entry.body.pieces))[: made.entry.body.length])
    with pytest.raises(DamagedRecord):
        decode_operation(payload, {1: plan.normaliser.schema}, operations)


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=5), min_size=1, max_size=6))
def test_a_buffer_knows_each_operation_of_a_run(runs: list[list[int]]) -> None:
    buffer, seq, ends = BufferedRows(), 10, {9: 0}
    for counts in runs:
        row_counts = tuple((number, count) for number, count in enumerate(counts) if count)
        total = sum(counts)
        if row_counts:
            batch = pa.record_batch({"n": list(range(total))})
            buffer.append(batch, seq=seq, nbytes=8 * total, schema_number=1, row_counts=row_counts)
        for count in counts:
            ends[seq] = ends[seq - 1] + count
            seq += 1
    for each, end in ends.items():
        assert sum(count for _, count in buffer.slices_without(each, ())) == buffer.rows - end


def test_arrow_refuses_a_message_whose_columns_have_other_lengths_than_their_batch() -> None:
    """Otherwise, a short column next to a long one would still give the right total."""
    batch = pa.record_batch({"a": [1, 2], "b": [1, 2]})
    message = bytearray(batch.serialize().to_pybytes())
    nodes = struct.pack("<qqqq", 2, 0, 2, 0)  # (rows, nulls) of each column
    at = message.index(nodes)
    message[at : at + 8] = struct.pack("<q", 1)
    with pytest.raises(OSError, match="length"):
        pa.ipc.read_record_batch(pa.py_buffer(bytes(message)), batch.schema)


class _Stream:
    """The parts of a write stream that a coalesced batch uses."""


def _stream(plan: WritePlan, check: Callable[..., None] = lambda *_: None) -> WriteStream:
    stream = cast(WriteStream, _Stream())
    vars(stream).update(
        plan=plan,
        origin=None,
        notes_contents=False,
        at_store=False,
        session=OrderedSession(),
        numbered=lambda sequence: None,
        check_partitions=check,
        claim=lambda *_: None,
        leave_with=lambda *_: None,
        stored=lambda entry, number, own: entry.seq + number,
        hand_out=lambda: None,
    )
    return stream


def _write(stream: WriteStream, batch: pa.RecordBatch, nbytes: int) -> Write:
    write = Write(stream)
    write.batch, write.stored_bytes = batch, nbytes
    return write


def _coalescer() -> Coalescer:
    nothing = cast(Any, None)

    async def make() -> OperationLog:
        return OperationLog(nothing, nothing, epoch=1, relief=nothing, on_group=nothing)

    log = trio.run(make)
    return Coalescer(log, Metrics(CollectorRegistry()), MAKER, lambda *_: None)


def _hosts(first: int, count: int) -> pa.RecordBatch:
    hosts = [{"time": 1, "host": f"host-{first + n}", "v": 0.5} for n in range(count)]
    return _batch(hosts, KEPT)


@pytest.mark.parametrize("counts", [[MANY_PARTITIONS + 1], [MANY_PARTITIONS // 2 + 1] * 2])
def test_a_table_whose_batches_have_many_partitions_has_the_next_made_by_who_reads_them(
    counts: list[int],
) -> None:
    plan, other = _plan(["identity(host)"], KEPT), _plan(["identity(host)"], KEPT)
    stream = _stream(plan)
    nothing = cast(Any, None)
    ready, ready_other = (
        Sender(_stream(each), MAKER, nothing, nothing, nothing) for each in (plan, other)
    )
    many, few = _hosts(0, 300), _hosts(0, FEW_ROWS)
    assert ready.coalesces(many) is not None
    writes = [_write(stream, _hosts(1000 * n, count), 20_000) for n, count in enumerate(counts)]
    assert len(_coalescer().make(writes)) == 1
    assert ready.coalesces(many) is None
    assert ready.coalesces(few) is not None
    assert ready_other.coalesces(many) is not None
    plan.table.scattered_until = time.monotonic()
    assert ready.coalesces(many) is not None


def test_partitions_without_room_are_refused_before_they_are_made_by_the_logs_writer() -> None:
    def check(partitions: int, sequence: int | None) -> None:
        raise LimitReached(f"{partitions} of batch {sequence}")

    plan = _plan(["identity(host)"], KEPT)
    stream = _stream(plan, check)
    assert _coalescer().make([_write(stream, _hosts(0, 300), 20_000)]) == []
    assert isinstance(stream.session.refusal, Unfit)
    assert str(stream.session.refusal) == "300 of batch None"
    assert plan.table.scattered_until > time.monotonic()


def test_an_answered_batch_is_let_go_without_a_collection() -> None:
    """An answered batch is no longer counted as memory, so no reference cycle may keep it alive."""
    stream = _stream(_plan([], KEPT))
    one = {"time": 1, "host": "a", "v": 0.5}
    writes = [_write(stream, _batch([one], KEPT), 100) for _ in range(3)]
    kept = [weakref.ref(write.batch) for write in writes]
    gc.disable()
    try:
        [entry] = _coalescer().make(writes)
        assert entry.operations == 3
        assert entry.on_stored is not None
        entry.on_stored(entry)
        entry.answer(None)
        del entry, writes
        assert [each() for each in kept] == [None] * 3
    finally:
        gc.enable()


@pytest.mark.parametrize("applied_first", [False, True])
def test_batches_are_accepted_once_whether_stored_or_applied_is_noted_first(
    applied_first: bool,
) -> None:
    """The loop may apply a group before the thread that wrote it notes that it is stored."""
    stream = _stream(_plan([], KEPT))
    one = {"time": 1, "host": "a", "v": 0.5}
    writes = [_write(stream, _batch([one], KEPT), 100) for _ in range(3)]
    [entry] = _coalescer().make(writes)
    entry.seq = 7
    assert entry.on_stored is not None
    if applied_first:
        entry.answer(None)
        assert [each.outcome for each in writes] == [None] * 3
    entry.on_stored(entry)
    if not applied_first:
        entry.answer(None)
    outcomes: list[Any] = [each.outcome for each in writes]
    assert outcomes == [7, 8, 9]


def test_batches_of_different_levels_are_separate_entries_of_which_one_asks_for_the_store() -> None:
    plan = _plan([], KEPT)
    streams = [_stream(plan) for _ in range(4)]
    for stream in streams[1:3]:
        stream.at_store = True
    entries = _coalescer().make([_write(stream, _hosts(0, 2), 2_000) for stream in streams])
    assert [(each.at_store, each.operations, each.routes) for each in entries] == [
        (False, 2, (plan.table.route,)),
        (True, 2, (plan.table.route,)),
    ]
