"""JSON, names and texts that a well-meaning client does not send."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from tests.drivers.wire import act, ticket
from tests.fuzz.attacked import Attacked
from tests.fuzz.raw_flight import (
    INVALID_ARGUMENT,
    OK,
    Answered,
    call,
    field,
    flight_data,
    ipc_stream,
    path_descriptor,
)


@pytest.mark.parametrize("text", ["x" * 20_000, "é" * 9_000, "\0" * 9_000, '"' * 9_000])
def test_a_long_message_reaches_the_client(attacked: Attacked, text: str) -> None:
    with fl.connect(attacked.daemon.flight) as client:
        with pytest.raises(pa.ArrowInvalid, match="unknown column"):
            client.do_get(ticket(attacked.table, columns=[text]))
        with pytest.raises(pa.ArrowInvalid, match="letters, digits"):
            client.get_flight_info(fl.FlightDescriptor.for_path(text, "t"))
        with pytest.raises(pa.ArrowNotImplementedError, match="does not exist"):
            act(client, text)


def test_metadata_and_descriptors_of_any_depth_are_refused(attacked: Attacked) -> None:
    deep = b"[" * 100_000
    messages = ipc_stream(pa.record_batch({"a": [1]}))
    where = path_descriptor("attacked", "deep")
    for metadata in (deep, b'{"sequence":' + b"9" * 5_000 + b"}", b"\xff", b'{"a":' * 50_000):
        answered = attacked.put(messages, descriptor=where, metadata=metadata)
        assert answered.status == INVALID_ARGUMENT, answered.message


def test_metadata_counts_on_the_message_of_a_batch_and_arrow_hides_it_on_that_of_the_schema(
    attacked: Attacked,
) -> None:
    """The protocol page says so; if this test fails, pyarrow has begun to show the metadata."""
    (schema, _), (header, body) = ipc_stream(pa.record_batch({"a": [1]}))
    where = path_descriptor("attacked", "metadata")

    def put(on_schema: bytes, *on_batches: bytes) -> Answered:
        batches = [flight_data(header, body, None, metadata) for metadata in on_batches]
        first = flight_data(schema, b"", where, on_schema)
        return call(attacked.daemon.flight, "DoPut", [first, *batches])

    assert put(b"garbage", b"").status == OK
    assert put(b"garbage").status == OK
    refused = put(b"", b"garbage")
    assert (refused.status, refused.results) == (INVALID_ARGUMENT, 0)
    # Without a batch the metadata would refer to nothing.
    alone = [flight_data(schema, b"", where), field(3, b'{"sequence": 1}')]
    refused = call(attacked.daemon.flight, "DoPut", alone)
    assert refused.status == INVALID_ARGUMENT
    assert "has no record batch" in refused.message
