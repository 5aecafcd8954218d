"""The shipped proxy does no harm to ordinary clients."""

from __future__ import annotations

import json
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.flight as fl
import pytest

from ingester.client import NEVER, Client, ClientError, ConnectionOptions, InvalidRequest
from tests.deploy.strangers import connected, sealed
from tests.drivers.daemon import Daemon
from tests.drivers.haproxy import CONFIG, Proxy, needs_haproxy
from tests.drivers.ports import steady_flight
from tests.drivers.secured import Secured
from tests.drivers.waiting import until
from tests.drivers.wire import Stream, act, extra, path, put, query, ticket

pytestmark = needs_haproxy

ROWS = pa.record_batch({"a": [1, 2, 3]})
BIG = pa.record_batch({"a": np.arange(6_000_000)})  # 48 MB; the limit of a batch is 64 MiB
SHORT = {"HEAD_TIMEOUT": "1s", "FLIGHT_IDLE": "1s", "HTTP_IDLE": "1s"}
PAUSE_S = 3.0


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("behind")
    with Daemon.start(folder / "d", query__client_timeout="30s") as running:
        yield running


@pytest.fixture(scope="module")
def proxy(daemon: Daemon, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    """A proxy whose timeouts are short, except the one for a silent stream."""
    config = CONFIG.read_text().replace("-fin 30s", "-fin 1s")
    folder = tmp_path_factory.mktemp("proxy")
    with Proxy.start(folder, daemon.flight, daemon.http, config, **SHORT) as running:
        yield running


@pytest.fixture
def client(proxy: Proxy) -> Iterator[fl.FlightClient]:
    with fl.connect(proxy.flight, tls_root_certs=proxy.ca) as opened:
        yield opened


def options(proxy: Proxy, token: str | None = None) -> ConnectionOptions:
    """Return the connection options for the proxy."""
    return ConnectionOptions(tls_ca=str(proxy.authority.path), token=token)


def open_queries(client: fl.FlightClient) -> int:
    """Return the number of open queries at the daemon."""
    (status,) = act(client, "status")
    return int(status["streams"]["open"])


def get(url: str, context: ssl.SSLContext) -> tuple[int, bytes]:
    """Return the status and body of a page."""
    try:
        with urllib.request.urlopen(url, timeout=30, context=context) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def test_large_batches_pass_in_both_directions(client: fl.FlightClient) -> None:
    assert len(put(client, ("big", "t"), BIG, BIG)) == 2
    assert query(client, ("big", "t")).num_rows == 2 * BIG.num_rows


def test_a_stalled_reader_holds_up_no_other_call_of_its_connection(
    client: fl.FlightClient,
) -> None:
    put(client, ("stalled", "t"), BIG)
    put(client, ("stalled", "small"), ROWS)
    answer = client.do_get(ticket(("stalled", "t")))
    until(lambda: open_queries(client) == 1, "the answer to begin")
    assert query(client, ("stalled", "small")).num_rows == 3
    assert sum(chunk.data.num_rows for chunk in answer) == BIG.num_rows


def test_a_stream_on_which_nothing_is_sent_outlives_the_other_timeouts(
    client: fl.FlightClient,
) -> None:
    with Stream(client, path(("idle", "t")), ROWS.schema) as stream:
        assert stream.write(ROWS)["accepted"]
        follow: dict[str, Any] = {
            "namespace": "idle",
            "table": "t",
            "scope": "live",
            "wait_s": PAUSE_S,
        }
        first = client.do_get(fl.Ticket(json.dumps(follow))).read_all()
        follow["after"] = json.loads(first.schema.metadata[b"position"])
        began = time.monotonic()
        client.do_get(fl.Ticket(json.dumps(follow))).read_all()
        assert time.monotonic() - began > PAUSE_S - 0.5, "the live feed waited"
        assert stream.write(ROWS)["accepted"]
    assert query(client, ("idle", "t")).num_rows == 6


def test_a_call_that_its_client_gives_up_ends_at_the_daemon(client: fl.FlightClient) -> None:
    put(client, ("given", "up"), BIG)
    answer = client.do_get(ticket(("given", "up")))
    until(lambda: open_queries(client) == 1, "the answer to begin")
    answer.cancel()
    until(lambda: open_queries(client) == 0, "the daemon to hear of it")


def test_refusals_reach_our_client_by_their_code(client: fl.FlightClient, proxy: Proxy) -> None:
    put(client, ("refused", "t"), ROWS)
    text = pa.record_batch({"a": ["x"]})
    with Client(proxy.flight, options=options(proxy)) as ours:
        with pytest.raises(InvalidRequest, match="table has int64, batch has string"):
            ours.write("refused", "t", text)
        with pytest.raises(ClientError, match="does not exist") as absent:
            ours.query("refused", "nothing")
    assert absent.value.code == "not_found"
    began = b'{"sequence": 1}'
    older = Stream(client, _by_origin(), ROWS.schema)
    older.write(ROWS, began)
    with Stream(client, _by_origin(), ROWS.schema) as newer:
        newer.write(ROWS, b'{"sequence": 2}')
        # HAProxy 2.6 ends the stream as cancelled and adds the daemon's error.
        with pytest.raises((fl.FlightUnavailableError, fl.FlightCancelledError)) as refused:
            older.write(ROWS, b'{"sequence": 3}')
    assert extra(refused.value)["code"] == "superseded"


def _by_origin() -> fl.FlightDescriptor:
    command = {"type": "write", "namespace": "refused", "table": "o", "origin": "one"}
    return fl.FlightDescriptor.for_command(json.dumps(command))


def test_a_restart_of_the_daemon_is_an_outage_of_that_time_only(tmp_path: Path) -> None:
    daemon = Daemon.start(tmp_path / "d", arguments=steady_flight())
    with (
        daemon,
        Proxy.start(tmp_path / "p", daemon.flight, daemon.http) as proxy,
        Client(proxy.flight, options=options(proxy)) as client,
        Client(proxy.flight, retry=NEVER, options=options(proxy)) as hasty,
    ):
        client.write("a", "t", ROWS)
        daemon.kill()
        with pytest.raises(ClientError) as refused:
            hasty.tables()
        assert refused.value.code == "unreachable"
        with daemon.again():
            client.write("a", "t", ROWS)
            assert client.query("a", "t").num_rows == 6


def test_a_replaced_certificate_is_shown_after_a_reload_and_streams_go_on(
    daemon: Daemon, tmp_path: Path
) -> None:
    def shown(proxy: Proxy) -> str:
        with sealed(proxy, proxy.flight) as opened:
            found: Any = opened.getpeercert()
            return str(found["subject"][0][0][1])

    with (
        Proxy.start(tmp_path, daemon.flight, daemon.http) as proxy,
        fl.connect(proxy.flight, tls_root_certs=proxy.ca) as client,
        Stream(client, path(("rolled", "t")), ROWS.schema) as stream,
    ):
        stream.write(ROWS)
        assert shown(proxy) == "first"
        proxy.put(proxy.authority.issue("second"))
        proxy.reload()
        until(lambda: shown(proxy) == "second", "the new certificate")
        assert stream.write(ROWS)["accepted"]


def test_the_proxys_log_has_the_address_of_a_client_and_the_audit_log_that_of_the_proxy(
    tmp_path: Path,
) -> None:
    secured = Secured(tmp_path, {"alice": "alice:write"})
    settings: dict[str, Any] = {"auth__tokens": secured.settings["auth__tokens"]}
    with (
        Daemon.start(tmp_path / "d", audit__file=tmp_path / "audit.jsonl", **settings) as daemon,
        Proxy.start(tmp_path / "p", daemon.flight, daemon.http) as proxy,
    ):
        with Client(proxy.flight, options=options(proxy, secured.tokens["alice"])) as client:
            client.write("alice", "t", ROWS)
            with pytest.raises(ClientError, match="does not have read"):
                client.query("bob", "t")
        with sealed(proxy, proxy.http, "127.0.0.9", alpn="http/1.1") as opened:
            opened.sendall(b"GET /api/status HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert opened.recv(12) == b"HTTP/1.1 401"
        until(lambda: "127.0.0.9" in proxy.log, "the line of the proxy's log")
        told = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert {each["outcome"] for each in told} >= {"forbidden", "unauthenticated"}
    assert not any("127.0.0.9" in each.get("peer", "") for each in told)


def test_with_mutual_tls_only_health_is_answered_without_a_certificate(
    daemon: Daemon, tmp_path: Path
) -> None:
    lines = CONFIG.read_text().splitlines(keepends=True)
    binds = [number for number, line in enumerate(lines) if line.startswith("    #mtls bind")]
    for number in binds:
        plain = max(n for n in range(number) if lines[n].startswith("    bind"))
        lines[plain] = ""
    config = "".join(lines).replace("#mtls ", "")
    with Proxy.start(tmp_path, daemon.flight, daemon.http, config) as proxy:
        known = proxy.authority.issue("client")
        ours = options(proxy)
        with (
            Client(proxy.flight, retry=NEVER, options=ours) as stranger,
            pytest.raises(ClientError),
        ):
            stranger.tables()
        shown = ConnectionOptions(
            tls_ca=ours.tls_ca, tls_cert=str(known.cert), tls_key=str(known.key)
        )
        with Client(proxy.flight, options=shown) as client:
            client.tables()
        context = ssl.create_default_context(cafile=ours.tls_ca)
        assert get(f"{proxy.http}/health/ready", context)[0] == 200
        assert get(f"{proxy.http}/metrics", context)[0] == 403
        context.load_cert_chain(*known)
        assert get(f"{proxy.http}/metrics", context)[0] == 200


def test_what_is_no_call_of_flight_never_reaches_the_daemon(
    client: fl.FlightClient, proxy: Proxy
) -> None:
    context = ssl.create_default_context(cafile=str(proxy.authority.path))
    request = urllib.request.Request(f"{proxy.http}/api/status", b"x", method="POST")
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=30, context=context)
    with refused.value:
        assert refused.value.code == 413
    assert get(f"{proxy.http}/api/status", context)[0] == 200
    with connected(proxy, proxy.http) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"200" not in plain.recv(100)


def test_messages_compressed_by_grpc_are_refused_and_batches_compressed_by_arrow_are_not(
    client: fl.FlightClient, proxy: Proxy
) -> None:
    """A megabyte of gzip could become a gigabyte before the daemon has looked at it."""
    gzip = [("grpc.default_compression_algorithm", 2)]
    with fl.connect(proxy.flight, tls_root_certs=proxy.ca, generic_options=gzip) as zipped:
        with pytest.raises(NotImplementedError, match="compress batches with Arrow"):
            act(zipped, "status")
        # HAProxy also resets a request that is still being sent, which may arrive first.
        with pytest.raises((NotImplementedError, fl.FlightCancelledError)):
            put(zipped, ("zipped", "t"), ROWS)
    zstd = fl.FlightCallOptions(write_options=pa.ipc.IpcWriteOptions(compression="zstd"))
    writer, reader = client.do_put(path(("zstd", "t")), ROWS.schema, zstd)
    with writer:
        writer.write_batch(ROWS)
        writer.done_writing()
        assert reader.read() is not None
    assert query(client, ("zstd", "t")).num_rows == 3
