"""Queries, actions and their errors."""

import datetime
import decimal
import json
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from ingester.client import (
    Client,
    ClientError,
    Forbidden,
    Internal,
    InvalidRequest,
    NotFound,
    RetryPolicy,
    TableSummary,
    TimedOut,
    Unauthenticated,
    Unavailable,
    Unimplemented,
    Unreachable,
)
from ingester.client.errors import from_arrow
from ingester.client.wire import QueryRequest, encode_filter
from tests.client.small_daemon import SmallDaemon, unavailable

ROWS = pa.table({"v": pa.array([1, 2, 3], pa.int64())})


def test_a_query_returns_the_written_rows(client: Client, daemon: SmallDaemon) -> None:
    client.write("ns", "t", ROWS)
    assert client.query("ns", "t").column("v").to_pylist() == [1, 2, 3]
    assert daemon.tickets == [{"namespace": "ns", "table": "t"}]
    with client.query_stream("ns", "t", limit=3) as stream:
        parts = list(stream)
    assert [(part.num_rows, source.source) for part, source in parts] == [(3, "buffer")]
    assert (stream.snapshot.epoch, stream.snapshot.snapshot_sequence) == (1, 7)


def test_the_tables_and_their_schemas_are_listed(client: Client) -> None:
    client.write("ns", "u", ROWS)
    client.write("ns", "t", ROWS)
    assert client.tables() == [TableSummary("ns", "t", 3, -1), TableSummary("ns", "u", 3, -1)]
    assert client.schema("ns", "t") == ROWS.schema
    assert client.status() == {"id": "small", "epoch": 1}


def test_a_ticket_contains_only_the_given_options() -> None:
    request = QueryRequest(
        namespace="n",
        table="t",
        columns=("a",),
        filter=[("a", ">", datetime.date(2026, 11, 21)), ("b", "is null")],
        limit=0,
        version=4,
    )
    assert json.loads(request.ticket()) == {
        "namespace": "n",
        "table": "t",
        "columns": ["a"],
        "filter": [[["a", ">", "2026-11-21"], ["b", "is null"]]],
        "limit": 0,
        "scope": "version",
        "version": 4,
    }
    tail = QueryRequest(namespace="n", table="t", scope="buffered", version=4)
    assert json.loads(tail.ticket())["scope"] == "buffered"


def test_filter_values_are_encoded_for_the_wire() -> None:
    at = datetime.datetime(2026, 11, 21, 1, 2, 3, tzinfo=datetime.UTC)
    filter_ = [[("a", "=", b"\xff"), ("b", "in", {decimal.Decimal("1.10")})], [("c", "<", at)]]
    assert encode_filter(filter_) == [
        [["a", "=", "/w=="], ["b", "in", ["1.10"]]],
        [["c", "<", "2026-11-21T01:02:03+00:00"]],
    ]
    assert encode_filter([("a", "=", pa.scalar(3))]) == [[["a", "=", 3]]]


def test_a_filter_may_be_text(client: Client, daemon: SmallDaemon) -> None:
    client.write("ns", "t", ROWS)
    client.query("ns", "t", filter="host = 'x' and not v > 3")
    with client.query_stream("ns", "t", filter="v in (1, 2)"):
        pass
    assert [ticket["filter"] for ticket in daemon.tickets] == [
        [[["host", "=", "x"], ["v", "not >", 3]]],
        [[["v", "in", [1, 2]]]],
    ]


@pytest.mark.parametrize("value", [b"h1", pa.scalar(b"h1"), [b"h1", b"h2"], [bytearray(b"h1")]])
def test_bytes_are_compared_with_binary_columns_only(
    client: Client, daemon: SmallDaemon, value: Any
) -> None:
    """They are base64 text on the wire, which a text column would be compared with."""
    client.write("ns", "t", pa.table({"s": ["h1"], "y": [b"h1"]}))
    operator = "in" if isinstance(value, list) else "="
    for query in (client.query, client.query_stream):
        with pytest.raises(InvalidRequest, match="'s' of type string is not compared with bytes"):
            query("ns", "t", filter=[[("s", "=", "h1")], [("s", operator, value)]])
    assert daemon.tickets == []
    client.query("ns", "t", filter=[("y", operator, value)])
    assert len(daemon.tickets) == 1


@pytest.mark.parametrize("wrong", ["a =", [], [("a",)], [("a", "=", None)], [("a", "=", {})]])
def test_a_filter_of_another_form_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidRequest, match="filter"):
        encode_filter(wrong)


def test_a_transiently_refused_query_is_retried(client: Client, daemon: SmallDaemon) -> None:
    client.write("ns", "t", ROWS)

    def refuse(n: int) -> None:
        if n < 3:
            raise unavailable("limit", retry_after_s=0.001)

    daemon.on_get = refuse
    assert client.query("ns", "t").num_rows == 3
    assert daemon.gets == 3


def test_a_missing_table_is_not_retried(client: Client, daemon: SmallDaemon) -> None:
    with pytest.raises(NotFound, match=r"^no table ns\.none$"):
        client.query("ns", "none")
    with pytest.raises(NotFound):
        client.query_stream("ns", "none")
    assert daemon.gets == 2


def test_an_action_that_does_not_exist_is_unimplemented(client: Client) -> None:
    with pytest.raises(Unimplemented, match=r"^no action persist$"):
        client.persist()


def test_a_missing_daemon_is_reported_in_plain_words(daemon: SmallDaemon) -> None:
    daemon.shutdown()
    client = Client(daemon.endpoint, retry=RetryPolicy(for_s=0))
    with client, pytest.raises(Unreachable) as failed:
        client.tables()
    assert str(failed.value) == f"cannot connect to 127.0.0.1:{daemon.port}: Connection refused"


@pytest.mark.parametrize(
    ("raised", "code", "expected"),
    [
        (flight.FlightUnavailableError, "store", Unavailable),
        (flight.FlightUnavailableError, "stale", Unavailable),
        (flight.FlightTimedOutError, "timeout", TimedOut),
        (flight.FlightUnauthenticatedError, "unauthenticated", Unauthenticated),
        (flight.FlightUnauthorizedError, "forbidden", Forbidden),
        (flight.FlightInternalError, "internal", Internal),
        (flight.FlightInternalError, "invalid", InvalidRequest),
    ],
)
def test_each_error_code_has_a_class(raised: Any, code: str, expected: type[ClientError]) -> None:
    info = {"code": code, "message": "one sentence", "retry_after_s": 1.5, "version": 9}
    error = from_arrow(raised("long text. gRPC client debug context: x", json.dumps(info).encode()))
    assert type(error) is expected
    assert (error.code, str(error), error.retry_after_s) == (code, "one sentence", 1.5)
    assert error.details["version"] == 9


def test_a_lost_connection_is_distinguished_from_a_refusal() -> None:
    assert type(from_arrow(flight.FlightUnavailableError("Socket closed", b""))) is Unreachable
    assert type(from_arrow(flight.FlightInternalError("Stream removed", b""))) is Unreachable
    assert type(from_arrow(flight.FlightInternalError("a bug", b""))) is Internal
    assert type(from_arrow(OSError("server disconnect?"))) is Unreachable
