"""Batches with contradictory contents, each of which once caused ``internal`` or a crash."""

from __future__ import annotations

import base64
import json
import struct

import numpy as np
import pyarrow as pa
import pyarrow.flight as fl
import pytest

from tests.drivers.wire import act, put, ticket
from tests.fuzz.attacked import Attacked, Messages
from tests.fuzz.raw_flight import (
    INVALID_ARGUMENT,
    command_descriptor,
    flight_data,
    ipc_stream,
)


def one_column(column: pa.Array) -> Messages:
    return ipc_stream(pa.record_batch({"a": column}))


def replaced(messages: Messages, old: bytes, new: bytes) -> Messages:
    """Replace some bytes of the messages, at least once."""
    changed = [(header.replace(old, new), body.replace(old, new)) for header, body in messages]
    assert changed != messages
    return changed


def number(value: int) -> bytes:
    return struct.pack("<q", value)


@pytest.mark.parametrize("rows", [10**7, 10**10, 2**62])
def test_rows_without_any_bytes_are_counted_as_what_they_become(
    attacked: Attacked, rows: int
) -> None:
    with fl.connect(attacked.daemon.flight) as client:
        put(client, ("attacked", "nulls"), pa.record_batch({"a": [1]}))
    messages = replaced(one_column(pa.nulls(12_345)), number(12_345), number(rows))
    answered = attacked.put(messages, table="nulls")
    assert answered.status == INVALID_ARGUMENT
    assert f"batch of {rows} rows" in answered.message


LARGE = "x" * (1 << 20)


def views(rows: int, text: bytes = LARGE.encode()) -> pa.Array:
    """A number of views, each of the whole large text."""
    view = struct.pack("<i4sii", len(text), text[:4], 0, 0)
    buffers = [None, pa.py_buffer(view * rows), pa.py_buffer(text)]
    return pa.Array.from_buffers(pa.string_view(), rows, buffers)


def list_views(rows: int) -> pa.Array:
    """A number of lists, each of the same 100,000 numbers."""
    offsets, sizes = np.zeros(rows, "<i4"), np.full(rows, 100_000, "<i4")
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(sizes)]
    numbers = pa.array(range(100_000))
    return pa.Array.from_buffers(pa.list_view(pa.int64()), rows, buffers, children=[numbers])


def dictionary(rows: int, kind: pa.DataType) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int16()), pa.array([LARGE], kind))


EXPANDING = {
    "a dictionary of strings": dictionary(3_000, pa.string()),
    "a dictionary of large strings": dictionary(8_000, pa.large_string()),
    "views": views(8_000),
    # A validation that examines eight gigabytes of text gives another error.
    "views of no UTF-8": views(8_000, b"\xff" * len(LARGE)),
    "list views": list_views(2_000),
    "a list of dictionaries": pa.ListArray.from_arrays([0, 3_000], dictionary(3_000, pa.string())),
    "a struct of views": pa.StructArray.from_arrays([views(8_000)], ["v"]),
    "a dictionary of views": pa.DictionaryArray.from_arrays(pa.nulls(5, pa.int16()), views(8_000)),
    "json in views": pa.ExtensionArray.from_storage(pa.json_(pa.string_view()), views(8_000)),
}


@pytest.mark.parametrize("column", EXPANDING.values(), ids=EXPANDING.keys())
def test_a_batch_that_stands_for_far_more_than_its_bytes_is_refused_before_it_is_decoded(
    attacked: Attacked, column: pa.Array
) -> None:
    before = attacked.peak_bytes
    answered = attacked.put(one_column(column))
    assert answered.status == INVALID_ARGUMENT
    assert "send smaller batches" in answered.message
    assert attacked.peak_bytes < before + (300 << 20)


def test_lists_of_nulls_are_counted_as_what_they_become(attacked: Attacked) -> None:
    with fl.connect(attacked.daemon.flight) as client:
        put(client, ("attacked", "lists"), pa.record_batch({"a": [[1]]}))
    nulls = pa.FixedSizeListArray.from_arrays(pa.nulls(10**9), 10**6)
    answered = attacked.put(one_column(nulls), table="lists")
    assert answered.status == INVALID_ARGUMENT
    assert "batch of 1000 rows has 8000004000 B" in answered.message


SMALL = {
    "dictionary": pa.array(["a", None, "b"] * 5).dictionary_encode(),
    "views": pa.array(["a" * 30, None, "b"] * 5, pa.string_view()),
    "list views": pa.array([[1, 2], None, [], [3]] * 5, pa.list_view(pa.int64())),
    "fixed lists": pa.array([[1, 2], None, [3, 4]] * 5, pa.list_(pa.int64(), 2)),
    "struct of views": pa.array([{"v": "a"}, None] * 5, pa.struct([("v", pa.string_view())])),
    "map": pa.array([[("k", "v")], None], pa.map_(pa.string(), pa.string_view())),
}


@pytest.mark.parametrize("column", SMALL.values(), ids=SMALL.keys())
def test_an_honest_batch_of_such_columns_is_kept(attacked: Attacked, column: pa.Array) -> None:
    table = ("attacked", f"small-{attacked.attempts}")
    attacked.attempts += 1
    with fl.connect(attacked.daemon.flight) as client:
        put(client, table, pa.record_batch({"a": column.slice(1)}))
        found = client.do_get(ticket(table)).read_all()["a"].to_pylist()
    assert found == column.slice(1).to_pylist()


@pytest.mark.parametrize("claim", [2**33, 2**40, 2**63 - 1, -5])
def test_a_compressed_buffer_that_claims_another_size_does_not_decode(
    attacked: Attacked, claim: int
) -> None:
    batch = pa.record_batch({"a": np.zeros(1_000, "i8")})
    schema, (header, body) = ipc_stream(batch, compression="zstd")
    messages = [schema, (header, body.replace(number(8_000), number(claim), 1))]
    answered = attacked.put(messages)
    assert answered.status == INVALID_ARGUMENT
    assert "does not decode" in answered.message


@pytest.mark.parametrize(
    "offsets", [(1 << 20, 1 << 20, 1 << 20, (1 << 20) + 3), (-(1 << 30), 0, 1, 2)]
)
@pytest.mark.parametrize("column", [["a", "bc", "def"], [[1], [2, 3], [4, 5, 6]]])
@pytest.mark.parametrize("way", ["write", "sync"])
def test_offsets_that_lead_elsewhere_are_refused_before_a_compressed_batch_is_copied(
    attacked: Attacked, way: str, column: list[object], offsets: tuple[int, ...]
) -> None:
    """The copy followed the offsets, and ended the daemon."""
    kind = pa.string() if isinstance(column[0], str) else pa.list_(pa.int8())
    batch = pa.record_batch({"k": [0, 0, 0], "v": pa.array(column, kind)})
    table = f"forged_{way}_{kind.id}"
    schema, (header, body) = ipc_stream(batch, compression="zstd")
    packed = pa.Codec("zstd").compress(struct.pack("<4i", 0, 1, 3, 6), asbytes=True)
    old = number(16) + packed
    assert body.count(old) == 1
    plain = (number(-1) + struct.pack("<4i", *offsets)).ljust(len(old), b"\0")
    messages = [schema, (header, body.replace(old, plain))]
    if way == "write":
        with fl.connect(attacked.daemon.flight) as client:
            put(client, ("attacked", table), batch)  # otherwise the table's creation checks it
        answered = attacked.put(messages, table=table)
    else:
        command = {
            "type": "sync",
            "namespace": "attacked",
            "table": table,
            "origin": table,
            "begin": True,
            "sequence": 1,
            "last": True,
            "columns": [{"role": "new_pk", "name": "k"}, {"role": "value", "name": "v"}],
        }
        descriptor = command_descriptor(json.dumps(command).encode())
        frames = [flight_data(*messages[0], descriptor), flight_data(*messages[1])]
        answered = attacked.send("DoPut", frames)
    assert answered.status == INVALID_ARGUMENT
    assert "batch is not valid" in answered.message
    attacked.check()


def test_a_schema_in_the_middle_of_a_stream_is_refused(attacked: Attacked) -> None:
    schema, batch = one_column(pa.array([1]))
    answered = attacked.put([schema, batch, schema])
    assert answered.status == INVALID_ARGUMENT


def test_a_column_name_that_is_not_utf8_is_refused(attacked: Attacked) -> None:
    messages = ipc_stream(pa.record_batch({"abcdefgh": [1]}))
    answered = attacked.put(replaced(messages, b"abcdefgh", b"abcd\xff\xfe\xffh"))
    assert answered.status == INVALID_ARGUMENT
    assert "not UTF-8" in answered.message


def test_a_time_zone_or_a_field_that_is_not_utf8_is_refused(attacked: Attacked) -> None:
    kind = pa.struct([("abcdefgh", pa.timestamp("us", "Europe/Berlin"))])
    messages = one_column(pa.array([None], kind))
    for old, new in ((b"abcdefgh", b"abc\xff\xfffgh"), (b"Europe", b"Eu\xff\xffpe")):
        answered = attacked.put(replaced(messages, old, new))
        assert answered.status == INVALID_ARGUMENT
        assert "not UTF-8" in answered.message


def test_a_schema_that_is_not_utf8_makes_no_table(attacked: Attacked) -> None:
    schema = pa.schema([("abcdefgh", pa.int64())]).serialize().to_pybytes()
    broken = base64.b64encode(schema.replace(b"abcdefgh", b"abcd\xff\xfe\xffh")).decode()
    with (
        fl.connect(attacked.daemon.flight) as client,
        pytest.raises(pa.ArrowInvalid, match="not UTF-8"),
    ):
        act(client, "create_table", namespace="attacked", table="utf8", schema=broken)
