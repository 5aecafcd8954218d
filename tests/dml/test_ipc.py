"""A message decodes to its batch, whether Arrow serialized it or it was built without a copy."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingester.dml.ipc import (
    SMALL_BYTES,
    WASTE_BYTES,
    IpcMessage,
    MessageTemplate,
    body_numbers,
    keeps_more,
)
from ingester.dml.operation import Part
from ingester.dml.record import LoggedSchema, table_rows
from persist.partitioning import PartitionedRows
from wal import Preamble, RecordKind

FLAT: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.int8(): st.integers(-128, 127),
    pa.bool_(): st.booleans(),
    pa.float64(): st.floats(allow_nan=False),
    pa.timestamp("us", "UTC"): st.integers(0, 2**50),
    pa.date32(): st.dates(date(1, 1, 1), date(9999, 1, 1)),
    pa.string(): st.text(max_size=12),
    pa.large_string(): st.text(max_size=12),
    pa.binary(): st.binary(max_size=12),
    pa.binary(3): st.binary(min_size=3, max_size=3),
    pa.decimal128(9, 2): st.decimals(-(10**6), 10**6, places=2).map(Decimal),
}


@st.composite
def batches(draw: st.DrawFn) -> list[pa.RecordBatch]:
    """Batches of one schema."""
    types = draw(st.lists(st.sampled_from(list(FLAT)), min_size=1, max_size=5))
    schema = pa.schema([pa.field(f"c{i}", kind) for i, kind in enumerate(types)])
    times = draw(st.sampled_from([1, SMALL_BYTES]))
    made = []
    for rows in draw(st.lists(st.integers(0, 9), min_size=1, max_size=4)):
        columns = [
            pa.array(draw(st.lists(st.none() | FLAT[t], min_size=rows, max_size=rows)) * times, t)
            for t in types
        ]
        made.append(pa.record_batch(columns, schema=schema))
    return made


def _parts(batch: pa.RecordBatch, template: MessageTemplate) -> tuple[tuple[Part, ...], IpcMessage]:
    schema = LoggedSchema(1, ("ns", "t"), Preamble(RecordKind.SCHEMA, ()), template)
    rows = table_rows(schema, 1, PartitionedRows(batch, [()], [0, batch.num_rows]))
    assert rows.message is not None
    return rows.parts, rows.message


def came(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch as an IPC reader has it, with all its buffers in one body."""
    message = pa.ipc.read_message(batch.serialize())
    return pa.ipc.read_record_batch(message, batch.schema)


def read(message: IpcMessage, schema: pa.Schema) -> pa.RecordBatch:
    data = message.metadata + message.body.to_pybytes()
    assert len(data) == message.size
    assert len(data) % 8 == 0
    found = pa.ipc.read_record_batch(pa.ipc.read_message(pa.py_buffer(data)), schema)
    found.validate(full=True)
    return found


@given(batches())
def test_each_reads_as_its_batch(made: list[pa.RecordBatch]) -> None:
    template = MessageTemplate()
    for batch in [*made, *made]:
        for one in (came(batch), batch, came(batch).slice(1)):
            assert read(template.message(one), one.schema).equals(one)


def sent_over_flight(sent: list[pa.RecordBatch], metadata: bytes) -> list[pa.RecordBatch]:
    """The batches as a server receives them."""
    received: list[pa.RecordBatch] = []

    class Server(fl.FlightServerBase):  # type: ignore[misc]
        def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
            received.extend(chunk.data for chunk in reader)

    with Server("grpc://127.0.0.1:0") as server:
        threading.Thread(target=server.serve, daemon=True).start()
        with fl.connect(f"grpc://127.0.0.1:{server.port}") as client:
            writer, _ = client.do_put(fl.FlightDescriptor.for_path("t"), sent[0].schema)
            for batch in sent:
                writer.write_with_metadata(batch, metadata)
            writer.close()
    return received


SENT = pa.record_batch(
    {"n": list(range(400)), "s": [None, "é"] * 200, "b": [True, None, False, True] * 100}
)


@pytest.mark.parametrize("rows", [1, 400])
def test_what_came_beside_a_batch_is_not_kept(rows: int) -> None:
    template = MessageTemplate()
    for batch in sent_over_flight([SENT.slice(0, rows)] * 3, b" " * 100_000):
        assert keeps_more(batch, batch.nbytes)
        ((part,), message) = _parts(batch, template)
        assert part.nbytes == message.size < 10_000
        assert not keeps_more(part.batch, part.nbytes)
        assert part.batch.equals(batch)


def test_what_came_over_flight_is_not_copied() -> None:
    received = sent_over_flight([SENT.slice(0, rows) for rows in (400, 300, 264, 399)], b"{}")
    template = MessageTemplate()
    assert template.message(received[0]).metadata == b""
    for batch in received:
        message = template.message(batch)
        assert message.metadata
        start, data = message.body.address, batch.column("n").buffers()[1]
        assert start <= data.address < start + message.body.size
        assert read(message, batch.schema).equals(batch)


@pytest.mark.parametrize(
    "column",
    [
        pa.array([[1], None, [2, 3]]),
        pa.array([{"a": 1}, {"a": 2}, None]),
        pa.array(["x", "y", "x"]).dictionary_encode(),
        pa.array(["x" * 20, "y", None], pa.string_view()),
        pa.nulls(3),
    ],
    ids=lambda column: str(column.type)[:8],
)
def test_other_types_are_serialised(column: pa.Array) -> None:
    template = MessageTemplate()
    for _ in range(3):
        batch = pa.record_batch({"n": range(900), "c": pa.concat_arrays([column] * 300)})
        # Dictionaries have messages of their own, and tables have none.
        one = batch if pa.types.is_dictionary(column.type) else came(batch)
        message = template.message(one)
        assert message == IpcMessage(b"", message.body, message.body.size)
        assert message.body.equals(one.serialize())


def in_a_large_body(rows: int) -> pa.RecordBatch:
    """Two columns in a body of a megabyte, as only a hostile client sends it."""
    body = pa.py_buffer(bytes(1 << 20))
    columns = [
        pa.Array.from_buffers(pa.int64(), rows, [None, body.slice(at, 8 * rows)])
        for at in (0, 8 * rows)
    ]
    return pa.record_batch(columns, names=["a", "b"])


def _elsewhere(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.set_column(1, "b", pa.array([5] * batch.num_rows, pa.int64()))


def test_a_body_with_little_in_it_is_not_kept() -> None:
    template = MessageTemplate()
    template.message(came(in_a_large_body(200)))
    assert template.message(came(in_a_large_body(200))).metadata
    batch = in_a_large_body(200)
    for foul in (batch, _elsewhere(batch), batch.set_column(0, "a", pa.array([7] * 200))):
        assert keeps_more(foul, foul.nbytes)
        ((part,), message) = _parts(foul, template)
        assert message.size < 4000
        assert part.nbytes == message.size
        assert not keeps_more(part.batch, part.nbytes)
        assert part.batch.equals(foul)


@given(st.data())
def test_another_layout_of_the_metadata_is_not_understood_and_does_no_harm(data: Any) -> None:
    batch = came(pa.record_batch({"n": range(400), "s": ["x", None] * 200}))
    numbers = body_numbers(batch)
    assert numbers is not None
    whole = batch.serialize().to_pybytes()
    size = 8 + int.from_bytes(whole[4:8], "little")
    body_bytes = len(whole) - size
    assert MessageTemplate().understands(whole[:size], numbers, body_bytes)
    metadata = bytearray(whole[: data.draw(st.integers(8, size))])
    for _ in range(data.draw(st.integers(1, 3))):
        metadata[data.draw(st.integers(0, len(metadata) - 1))] = data.draw(st.integers(0, 255))
    template = MessageTemplate()
    if not template.understands(bytes(metadata), numbers, body_bytes):
        fresh, found = MessageTemplate().message(batch), template.message(batch)
        assert (found.metadata, found.size) == (fresh.metadata, fresh.size)


def test_nulls_that_came_with_a_converted_column_keep_nothing() -> None:
    """A cast makes new values, but reuses the bitmap of nulls."""
    rows = 1 << 16
    sent = pa.record_batch({"n": pa.array([1, None] * (rows // 2), pa.int32()), "m": range(rows)})
    received = came(sent)
    cast = pa.record_batch([received.column("n").cast(pa.int64())], names=["n"]).slice(0, 100)
    assert keeps_more(cast, cast.nbytes)
    ((part,), _) = _parts(cast, MessageTemplate())
    assert not keeps_more(part.batch, part.nbytes)
    assert part.batch.equals(cast)


def test_what_columns_share_is_counted_for_each() -> None:
    body = pa.py_buffer(bytes(8000))
    column = pa.Array.from_buffers(pa.int64(), 1000, [None, body.slice(0, 8000)])
    batch = pa.record_batch([column] * 50, names=[f"c{i}" for i in range(50)])
    template = MessageTemplate()
    for _ in range(3):
        ((part,), message) = _parts(batch, template)
        assert message.size > 50 * 8000
        assert part.nbytes == message.size
        assert read(message, batch.schema).equals(batch)


def test_a_body_that_is_mostly_used_is_kept() -> None:
    template = MessageTemplate()
    template.message(in_a_large_body(60_000))
    batch = in_a_large_body(60_000)
    ((part,), message) = _parts(batch, template)
    assert WASTE_BYTES < (1 << 20) - 2 * 8 * 60_000
    assert message.metadata
    assert part.batch is batch


def _odd(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A body whose columns do not begin at multiples of 8."""
    body = pa.py_buffer(bytes(4000))
    columns = [
        pa.Array.from_buffers(pa.int64(), 200, [None, body.slice(at, 1600)]) for at in (0, 1604)
    ]
    return pa.record_batch(columns, schema=batch.schema)


@pytest.mark.parametrize("change", [_elsewhere, _odd, lambda batch: batch.slice(2)])
def test_what_does_not_lie_as_ipc_wants_it_is_serialised(
    change: Callable[[pa.RecordBatch], pa.RecordBatch],
) -> None:
    template = MessageTemplate()
    whole = came(in_a_large_body(200))
    template.message(whole)
    assert template.message(whole).metadata
    changed = change(whole)
    message = template.message(changed)
    assert message.metadata == b""
    assert read(message, changed.schema).equals(changed)
