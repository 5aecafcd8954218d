"""A daemon with TLS and client certificates: admitted clients, and replacement of its own files."""

from __future__ import annotations

import asyncio
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
import trio

from ingester.client import NEVER, Client, ClientError, ConnectionOptions, RetryPolicy
from ingester.client.aio import AsyncClient
from ingester.client.trio_client import TrioClient
from ingester.followers import Follower, FollowOptions
from ingester.pushes.regions.store import RegionDaemons
from ingester.spark.read.tail import TailRequest, connected, tails_of
from persist.manifest import Manifest
from persist.store import open_store
from tests.cli.conftest import check_refused, run_command
from tests.drivers.certificates import Authority, Pair
from tests.drivers.daemon import Daemon
from tests.drivers.waiting import until
from tests.followers.memory_sink import Disk, MemorySink

ROWS = pa.record_batch({"a": [1, 2, 3]})


class Trusted:
    """A daemon whose certificate and client certificates come from one authority."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder / "pki")
        self.stranger = Authority(folder / "elsewhere", "stranger")
        self.client = self.authority.issue("client")
        self._live = Pair(folder / "live.pem", folder / "live.key")
        self.put(self.authority.issue("first"))
        self.daemon = Daemon.start(
            folder / "data",
            tls__cert=self._live.cert,
            tls__key=self._live.key,
            tls__client_ca=self.authority.path,
        )
        self.flight, self.http = self.daemon.flight, self.daemon.http

    def put(self, pair: Pair, *, key: Path | None = None) -> None:
        """Replace the daemon's certificate and key files, one after the other."""
        for source, target in zip((pair.cert, key or pair.key), self._live, strict=True):
            new = target.with_suffix(".new")
            shutil.copy(source, new)
            new.replace(target)

    def options(self, pair: Pair | None = None) -> ConnectionOptions:
        """Connection options that trust the authority."""
        cert, key = pair or self.client
        return ConnectionOptions(
            tls_ca=str(self.authority.path), tls_cert=str(cert), tls_key=str(key)
        )

    def status(self, client: Client) -> dict[str, Any]:
        """The certificate section of the daemon's status."""
        told: dict[str, Any] = client.status()["security"]["certificate"]
        return told

    def shown(self) -> set[str]:
        """The names of the certificates that both listeners present to a new connection."""
        return {self._shown_at(url) for url in (self.flight, self.http)}

    def _shown_at(self, url: str) -> str:
        parts = urlsplit(url)
        context = ssl.create_default_context(cafile=str(self.authority.path))
        context.load_cert_chain(*self.client)
        with (
            socket.create_connection((parts.hostname, parts.port), 10) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as sealed,
        ):
            found: Any = sealed.getpeercert()
            return str(found["subject"][0][0][1])


@pytest.fixture(scope="module")
def trusted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trusted]:
    found = Trusted(tmp_path_factory.mktemp("tls"))
    with found.daemon:
        yield found


def test_flight_lets_in_who_shows_a_certificate_and_tells_others_what_helps(
    trusted: Trusted,
) -> None:
    ca, port = str(trusted.authority.path), urlsplit(trusted.flight).port
    assert trusted.flight.startswith("grpc+tls://")
    with Client(trusted.flight, options=trusted.options()) as client:
        assert client.write("tls", "in", ROWS).rows == 3
        security = client.status()["security"]
    assert security["tls"]
    assert security["client_certificates"]
    assert not security["insecure"]
    with Client(f"localhost:{port}", options=trusted.options()) as client:
        assert client.query("tls", "in").num_rows == 3

    strangers = trusted.stranger.issue("client")
    refused = {
        # No TLS alert: the server just closes a plain connection.
        "may speak TLS": (f"grpc://127.0.0.1:{port}", ConnectionOptions()),
        "may require a client certificate": (trusted.flight, ConnectionOptions(tls_ca=ca)),
        "signed by its client_ca": (trusted.flight, trusted.options(strangers)),
        "does not trust the signer": (
            trusted.flight,
            ConnectionOptions(tls_ca=str(trusted.stranger.path)),
        ),
    }
    for expected, (endpoint, options) in refused.items():
        with Client(endpoint, retry=NEVER, options=options) as client:
            with pytest.raises(ClientError, match=expected):
                client.tables()
            with pytest.raises(ClientError, match=expected):
                client.write("tls", "out", ROWS, exactly_once=False)
    with Client(trusted.flight, options=trusted.options()) as client:
        assert [each.table for each in client.tables()] == ["in"]


def test_http_lets_in_who_shows_a_certificate(trusted: Trusted) -> None:
    plain = ssl.create_default_context(cafile=str(trusted.authority.path))
    assert trusted.http.startswith("https://")
    # With TLS 1.3, a client learns of it only after its own handshake.
    with pytest.raises(OSError, match=r"CERTIFICATE_REQUIRED|EOF|reset|closed"):
        _get(trusted.http + "/health/live", plain)
    known = ssl.create_default_context(cafile=str(trusted.authority.path))
    known.load_cert_chain(*trusted.client)
    assert _get(trusted.http + "/", known)[0] == 200
    status, body = _get(trusted.http + "/metrics", known)
    assert status == 200
    assert b"ingester_tls_certificate_end_timestamp_seconds 1." in body


def _get(url: str, context: ssl.SSLContext) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(url, timeout=30, context=context) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def test_a_stranger_writes_nothing_into_the_log(trusted: Trusted) -> None:
    """gRPC logged the requested server name unescaped, including line breaks."""
    parts = urlsplit(trusted.flight)
    context = ssl.create_default_context(cafile=str(trusted.authority.path))
    context.check_hostname = False
    forged = 'x\n{"level": "error", "event": "forged \x1b[31m"}'
    with (
        socket.create_connection((parts.hostname, parts.port), 10) as plain,
        context.wrap_socket(plain, server_hostname=forged) as sealed,
        suppress(ConnectionError, ssl.SSLError),
    ):
        sealed.recv(1)  # until the server refuses the missing certificate
    told = trusted.daemon.stderr_file.read_text().splitlines()
    assert [line for line in told if not line.startswith('{"at": ')] == []


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
@pytest.mark.parametrize("way", ["flight", "http"])
def test_older_tls_than_1_2_is_refused(trusted: Trusted, way: str) -> None:
    parts = urlsplit(getattr(trusted, way))
    for newest, taken in ((ssl.TLSVersion.TLSv1_1, False), (ssl.TLSVersion.TLSv1_2, True)):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(trusted.authority.path)
        context.load_cert_chain(*trusted.client)
        context.set_ciphers("ALL:@SECLEVEL=0")
        context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
        context.maximum_version = newest
        with socket.create_connection((parts.hostname, parts.port), 10) as plain:
            if taken:
                with context.wrap_socket(plain, server_hostname="localhost") as sealed:
                    assert sealed.version() == "TLSv1.2"
            else:
                with pytest.raises(ssl.SSLError, match=r"EOF occurred|alert protocol"):
                    context.wrap_socket(plain, server_hostname="localhost")


def test_clients_that_never_end_their_handshake_hold_up_nobody(trusted: Trusted) -> None:
    addresses = [urlsplit(url) for url in (trusted.flight, trusted.http)]
    silent = [
        socket.create_connection((parts.hostname, parts.port), 10)
        for parts in addresses
        for _ in range(40)
    ]
    try:
        for each in silent[::2]:
            each.sendall(b"\x16\x03\x01\x02\x00\x01")  # the beginning of a ClientHello
        with Client(trusted.flight, options=trusted.options(), timeout_s=5, retry=NEVER) as client:
            assert client.status()["identity"]["state"] == "ready"
        known = ssl.create_default_context(cafile=str(trusted.authority.path))
        known.load_cert_chain(*trusted.client)
        assert _get(trusted.http + "/health/live", known)[0] == 200
    finally:
        for each in silent:
            each.close()


def test_a_replaced_certificate_is_shown_while_open_calls_go_on(trusted: Trusted) -> None:
    patient = RetryPolicy(for_s=20)
    asked, stop = [0], threading.Event()

    def ask() -> None:
        while not stop.is_set():
            with Client(trusted.flight, options=trusted.options(), retry=patient) as newcomer:
                newcomer.status()
            asked[0] += 1

    asking = threading.Thread(target=ask)
    with (
        Client(trusted.flight, options=trusted.options(), retry=NEVER) as client,
        client.writer("tls", "long", ROWS.schema, exactly_once=False) as writer,
        Client(trusted.flight, options=trusted.options(), retry=patient) as onlooker,
    ):
        writer.write(ROWS).result(30)
        asking.start()
        try:
            # No signal is sent: the daemon watches the files.
            trusted.put(trusted.authority.issue("second"))
            until(
                lambda: trusted.status(onlooker)["subject"] == "CN=second", "the second certificate"
            )
            assert trusted.shown() == {"second"}
            writer.write(ROWS).result(30)

            # Unusable files change nothing and are reported.
            trusted.put(trusted.authority.issue("late", days=-1))
            trusted.daemon.process.send_signal(signal.SIGHUP)
            until(lambda: "has expired" in (trusted.status(onlooker)["problem"] or ""), "a refusal")
            assert trusted.shown() == {"second"}

            trusted.put(trusted.authority.issue("third"))
            trusted.daemon.process.send_signal(signal.SIGHUP)
            until(
                lambda: trusted.status(onlooker)["subject"] == "CN=third", "the third certificate"
            )
            assert trusted.shown() == {"third"}
            writer.write(ROWS).result(30)
        finally:
            stop.set()
            asking.join(60)
    assert asked[0] > 0
    with Client(trusted.flight, options=trusted.options()) as client:
        assert client.query("tls", "long").num_rows == 9
        assert trusted.status(client)["problem"] is None


def test_every_client_of_ours_comes_in_by_its_certificate(trusted: Trusted, tmp_path: Path) -> None:
    options = trusted.options()
    with Client(trusted.flight, options=options) as client:
        client.write("tls", "all", ROWS)
        (persisted,) = client.persist("tls", "all")
        client.write("tls", "all", ROWS)

        async def in_trio() -> int:
            async with TrioClient(trusted.flight, options=options) as waiting:
                found: pa.Table = await waiting.query("tls", "all")
                return int(found.num_rows)

        async def in_asyncio() -> int:
            async with AsyncClient(trusted.flight, options=options) as waiting:
                found: pa.Table = await waiting.query("tls", "all")
                return int(found.num_rows)

        assert trio.run(in_trio) == 6
        assert asyncio.run(in_asyncio()) == 6

        table = pa.table({"a": [7]})
        with client.copy("tls", "copied", ["a"]) as copy:
            copy.write(table)
            copy.finish("p", b"")
        assert client.query("tls", "copied").num_rows == 1

    version = persisted.manifest_version
    assert version is not None
    manifest = Manifest(open_store(f"file://{trusted.daemon.data_dir}/store"), "tls", "all")
    with connected(trusted.flight, options) as named:
        (tail,) = tails_of(manifest, version, None, TailRequest(named))
    assert tail.num_rows == 3
    daemons = RegionDaemons((trusted.flight,), options)
    assert daemons.persist("tls", "all").keys() == {1}

    disk = Disk()
    follower = Follower(
        trusted.flight,
        lambda table: MemorySink(table, disk),
        options=FollowOptions(connection=options),
    )
    follower.follow("tls", "all")
    with follower:
        follower.wait_current(30)
    assert disk.shown is not None
    assert len(disk.shown.rows) == 6

    ca, cert, key = str(trusted.authority.path), *map(str, trusted.client)

    def command(*more: str, cert: str = "") -> subprocess.CompletedProcess[bytes]:
        asked = ["query", "tls", "all", "--format", "jsonl", "--endpoint", trusted.flight]
        return run_command(*asked, *more, cwd=tmp_path, INGESTER_TLS_CA=ca, INGESTER_TLS_CERT=cert)

    done = command("--tls-key", key, cert=cert)
    assert (done.returncode, done.stdout.count(b"\n")) == (0, 6)
    check_refused(command(cert=cert), 1, "tls_cert and tls_key")
    check_refused(command(), 3, "may require a client certificate")
