"""Wrong arguments are refused immediately with a hint."""

from collections.abc import Callable
from typing import Any, cast

import pyarrow as pa
import pytest

from ingester.client import Client, InvalidRequest, RetryPolicy, Writer
from ingester.client.arguments import endpoint as checked
from tests.client.rows import SCHEMA, batch
from tests.client.small_daemon import SmallDaemon
from tests.drivers.daemon import Daemon

CALLS: list[tuple[str, Callable[[Any], object], str]] = [
    ("columns", lambda c: c.query("ns", "t", "host"), r"a list, such as columns=\['host'\]"),
    ("columns", lambda c: c.query("ns", "t", [1]), r"of names, such as columns=\['host', 'v'\]"),
    (
        "filter",
        lambda c: c.query("ns", "t", filter=[[]]),
        "an empty list of terms: leave the filter",
    ),
    ("filter", lambda c: c.query("ns", "t", filter=[]), "or a list of terms, such as"),
    ("filter", lambda c: c.query("ns", "t", filter="v >"), "filter, at 3: expected a value"),
    ("filter", lambda c: c.query("ns", "t", filter=b"v > 3"), "expected text, such as"),
    ("filter", lambda c: c.query("ns", "t", filter=("v", ">", 3)), "one term: put it into a list"),
    (
        "filter",
        lambda c: c.query("ns", "t", filter=[("v", "<", float("nan"))]),
        "nan is not supported",
    ),
    ("scope", lambda c: c.query("ns", "t", scope="bufered"), "did you mean 'buffered'"),
    ("scope", lambda c: c.query("ns", "t", scope="version"), "needs a version, such as version=3"),
    ("limit", lambda c: c.query("ns", "t", limit=-1), "limit=-1: expected at least 0"),
    ("limit", lambda c: c.query_stream("ns", "t", limit="3"), "expected an integer"),
    ("version", lambda c: c.query("ns", "t", version=1.5), "expected an integer"),
    ("table", lambda c: c.query("ns", None), "table: expected a name, not None"),
    ("namespace", lambda c: c.write(5, "t", batch(1)), "namespace: expected a name, not 5"),
    ("origin", lambda c: c.write("ns", "t", batch(1), origin=5), "origin: expected a name"),
    (
        "sequence",
        lambda c: c.write("ns", "t", batch(1), first_sequence=5),
        "needs an origin, such as",
    ),
    (
        "sequence",
        lambda c: c.delete("ns", "t", batch(1), first_sequence=0),
        "needs an origin, such as",
    ),
    (
        "sequence",
        lambda c: c.writer("ns", "t", SCHEMA, first_sequence=5),
        "needs an origin, such as",
    ),
    (
        "sequence",
        lambda c: c.write("ns", "t", batch(1), origin="o", first_sequence="5"),
        "first_sequence='5': expected an integer",
    ),
    (
        "sequence",
        lambda c: c.writer("ns", "t", SCHEMA, origin="o", first_sequence=-1),
        "expected at least 0",
    ),
    ("max", lambda c: c.writer("ns", "t", SCHEMA, max_unanswered=-1), "expected at least 1"),
    ("max", lambda c: c.writer("ns", "t", SCHEMA, max_unanswered=0), "expected at least 1"),
    (
        "schema",
        lambda c: c.writer("ns", "t", pa.table({"v": [1]})),
        "not a Table: pass its .schema",
    ),
    ("schema", lambda c: c.create_table("ns", "t", {"v": "int64"}), r"pyarrow.schema\(\{'time'"),
    ("schema", lambda c: c.create_table("ns", "t", ["v"]), "expected a pyarrow.Schema, such as"),
    (
        "partition_by",
        lambda c: c.create_table("ns", "t", SCHEMA, partition_by="day(time)"),
        r"expected a list, such as partition_by=\['day\(time\)'\]",
    ),
    (
        "primary_key",
        lambda c: c.create_table("ns", "t", SCHEMA, primary_key="id"),
        r"expected a list, such as primary_key=\['id'\]",
    ),
    (
        "unit",
        lambda c: c.create_table("ns", "t", SCHEMA, timestamp_unit="ms"),
        "timestamp_unit='ms': expected one of us, ns",
    ),
    (
        "retry",
        lambda c: Client(c.endpoint, retry=cast(Any, 5)),
        "expected a RetryPolicy, such as RetryPolicy",
    ),
    (
        "timeout",
        lambda c: Client(c.endpoint, timeout_s=cast(Any, "3")),
        "expected seconds, such as timeout_s=30.0",
    ),
]


@pytest.mark.parametrize(("what", "call", "said"), CALLS)
def test_a_wrong_argument_is_refused_with_a_hint(
    daemon: SmallDaemon, client: Client, what: str, call: Callable[[Any], object], said: str
) -> None:
    with pytest.raises(InvalidRequest, match=said):
        call(client)
    assert (daemon.seen, daemon.commands, daemon.tickets) == (0, [], [])


@pytest.mark.parametrize("checkpoint", ["x", ("p",), ("p", "text"), (b"p", b"s"), 5])
def test_a_wrong_checkpoint_is_refused_and_the_writer_stays_usable(
    daemon: SmallDaemon, client: Client, checkpoint: Any
) -> None:
    with client.writer("ns", "t", SCHEMA) as writer:
        with pytest.raises(InvalidRequest, match="a source partition and its state, such as"):
            writer.write(batch(1), checkpoint)
        writer.write(batch(2))
    assert daemon.seen == 1


@pytest.mark.parametrize(
    ("endpoint", "said"),
    [
        ("127.0.0.1", "names no port.*'grpc://127.0.0.1:8082'"),
        ("grpc+tls://daemon", r"names no port.*'grpc\+tls://daemon:8082'"),
        ("http://127.0.0.1:8080", "uses the Flight port, not the HTTP port: grpc://HOST"),
        ("https://daemon:8080", r"not the HTTP port: grpc\+tls://HOST:PORT"),
        ("flight://daemon:8082", "the scheme must be one of grpc,"),
        ("::1:8082", "an IPv6 address needs brackets"),
        ("[::1:8082", "Invalid IPv6 URL: expected an address"),
        ("127.0.0.1:99999", "out of range 0-65535"),
        ("127.0.0.1:port", "'grpc://127.0.0.1:8082'"),
        ("", "names no host"),
        ("foo bar:1", "names no host"),
        (5, "expected an address such as 'grpc://127.0.0.1:8082', not 5"),
        (None, "expected an address"),
    ],
)
def test_an_invalid_endpoint_is_refused_at_once(endpoint: Any, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        Client(endpoint)


@pytest.mark.parametrize(
    "endpoint",
    ["grpc://a:1", "grpc+tcp://a:1", "grpc+tls://a.b:1/", "grpc://[::1]:1", "grpc+unix:///run/x"],
)
def test_a_valid_endpoint_is_used_unchanged(endpoint: str) -> None:
    assert checked(endpoint) == endpoint
    assert checked("daemon:8082") == "grpc://daemon:8082"


def test_the_http_port_is_recognised_at_once(tmp_path_factory: Any) -> None:
    retry = RetryPolicy(for_s=600)
    with Daemon.start(tmp_path_factory.mktemp("ports") / "d") as daemon:
        http = daemon.http.removeprefix("http://")
        with Client(http, retry=retry) as client:
            for call in (
                client.tables,
                lambda: client.write("ns", "t", batch(1)),
                lambda: client.query("ns", "t"),
            ):
                with pytest.raises(InvalidRequest, match=r"use the port of `flight\.listen`"):
                    call()
        tls = daemon.flight.replace("grpc://", "grpc+tls://")
        with (
            Client(tls, retry=retry) as client,
            pytest.raises(InvalidRequest, match="not speak TLS"),
        ):
            client.tables()


def test_clients_and_writers_cannot_be_pickled(client: Client) -> None:
    import pickle

    writer: Writer = client.writer("ns", "t", SCHEMA)
    for thing in (client, writer):
        with pytest.raises(TypeError, match="belongs to its process"):
            pickle.dumps(thing)
