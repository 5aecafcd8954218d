"""Messages of Flight SQL with hostile bytes are refused at once, by name."""

from __future__ import annotations

import base64
import json
import struct

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingester.errors import BadRequest, NotAvailable
from ingester.protobuf import bytes_field, varint_field
from ingester.server.flight_sql.ingest import parse_ingest
from ingester.server.flight_sql.messages import (
    MAX_FIELDS,
    Message,
    encoded_handle,
    handle_of,
    packed,
    unpacked,
)
from ingester.sql.request import Statement, parse_statement

ROW = pa.record_batch({"p": ["abcd"], "n": [[1, 2]], "v": pa.array(["x" * 20], pa.string_view())})
HANDLE = encoded_handle(Statement("SELECT ?", "shop", ROW), "q1")


@pytest.mark.parametrize("packs", [False, True])
def test_a_message_of_very_many_values_is_refused(packs: bool) -> None:
    """Regression: a packed field of 16 MiB took hours."""
    count = 1_000_000
    data = bytes_field(1, b"\x01" * count) if packs else varint_field(1, 1) * count
    with pytest.raises(BadRequest, match=f"more than {MAX_FIELDS}"):
        Message("CommandGetSqlInfo", data).numbers(1)
    most = bytes_field(1, b"\x01" * MAX_FIELDS) if packs else varint_field(1, 1) * MAX_FIELDS
    assert Message("CommandGetSqlInfo", most).numbers(1) == [1] * MAX_FIELDS


def test_a_packed_field_that_is_cut_is_refused() -> None:
    """Regression: it counted as no values."""
    with pytest.raises(BadRequest, match="ends inside a number"):
        Message("CommandGetSqlInfo", bytes_field(1, b"\x01\x80")).numbers(1)


def _stream(row: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, row.schema) as writer:
        writer.write_batch(row.slice(0, 0))
        writer.write_batch(row)
    return bytes(sink.getvalue())


def _taken(stream: bytes) -> object:
    encoded = base64.b64encode(stream).decode()
    return parse_statement(json.dumps({"sql": "SELECT ?", "parameters": encoded}).encode())


def test_parameters_with_offsets_beyond_their_text_are_refused() -> None:
    """Regression: Arrow followed them when it copied the row."""
    stream = _stream(pa.record_batch({"p": ["abcd"]}))
    text = stream.rindex(b"abcd")
    at = stream.rindex(struct.pack("<ii", 0, 4), 0, text)
    for first, last in (0, 2_000_000_000), (1 << 30, 1 << 30), (-8, 4):
        hostile = stream[:at] + struct.pack("<ii", first, last) + stream[at + 8 :]
        with pytest.raises(BadRequest, match="parameters"):
            _taken(hostile)


def test_parameters_that_show_the_same_text_again_and_again_are_refused() -> None:
    text = pa.array(["y" * 1_000_000], pa.string_view())
    views = pa.Array.from_buffers(
        pa.string_view(),
        100,
        [None, pa.py_buffer(bytes(text.buffers()[1]) * 100), text.buffers()[2]],
    )
    row = pa.record_batch({"p": pa.ListArray.from_arrays([0, 100], views)})
    with pytest.raises(BadRequest, match="100000000 B of text"):
        _taken(_stream(row))


@given(st.data())
def test_mutated_messages_are_taken_or_refused(data: st.DataObject) -> None:
    ingest = bytes_field(1, varint_field(1, 1) + varint_field(2, 2)) + bytes_field(2, "t")
    seeds = [HANDLE, packed("CommandStatementIngest", ingest + bytes_field(3, "n"))]
    message = bytearray(data.draw(st.sampled_from(seeds)))
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, len(message) - 1))
        message[at] = data.draw(st.integers(0, 255))
    cut = bytes(message[: data.draw(st.integers(0, len(message)))])
    for take in (handle_of, lambda sent: parse_ingest(unpacked(sent))):
        try:
            take(cut)
        except (BadRequest, NotAvailable):
            continue


def test_a_handle_comes_back() -> None:
    statement, query_id = handle_of(HANDLE)
    assert (statement, query_id) == (Statement("SELECT ?", "shop", ROW), "q1")
