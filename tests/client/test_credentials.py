"""A client validates certificates and tokens first and reads them again after a change."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from ingester.client import (
    NEVER,
    Client,
    ConnectionOptions,
    InvalidRequest,
    RetryPolicy,
    Unauthenticated,
)
from ingester.client.credentials import Credentials
from ingester.config.sources import connection_values
from tests.client.small_daemon import SmallDaemon
from tests.drivers.certificates import Authority
from tests.drivers.names import leads_to

BATCH = pa.record_batch({"a": [1]})


class Guarded(SmallDaemon):
    """A daemon that accepts one token and collects the callers' tokens in ``shown``."""

    def __init__(self, **tls: Any) -> None:
        self.valid = "one"
        self.shown: list[str] = []
        scheme = "grpc+tls" if tls else "grpc"
        super().__init__(f"{scheme}://127.0.0.1:0", middleware={"token": _Asks(self)}, **tls)
        self.endpoint = f"{scheme}://127.0.0.1:{self.port}"

    def check(self, token: str) -> None:
        """Refuse every token but the valid one."""
        if token != f"Bearer {self.valid}":
            raise flight.FlightUnauthenticatedError("no")


class _Asks(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    def __init__(self, guarded: Guarded) -> None:
        super().__init__()
        self._guarded = guarded

    def start_call(self, info: Any, headers: dict[str, list[str]]) -> None:
        (token,) = headers.get("authorization", [""])
        self._guarded.shown.append(token)
        self._guarded.check(token)


@pytest.fixture
def guarded() -> Iterator[Guarded]:
    with Guarded() as found:
        yield found


def test_conflicting_options_are_refused_before_anything_is_sent(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path)
    ca, pair, other = str(authority.path), authority.issue("a"), authority.issue("b")
    empty = tmp_path / "empty"
    empty.touch()
    remote, local = "grpc://ingester.example:8082", "grpc+tls://127.0.0.1:8082"
    cases: list[tuple[str, str, dict[str, Any]]] = [
        ("tls_cert and tls_key", local, {"tls_cert": str(pair.cert)}),
        ("token and token_file", local, {"token": "a", "token_file": "b"}),
        ("printable ASCII", local, {"token": "a\r\nauthorization: b"}),
        ("tls_ca=b'x': expected a path", local, {"tls_ca": b"x"}),
        ("does not use TLS", "grpc://127.0.0.1:8082", {"tls_ca": ca}),
        ("in clear text", remote, {"token": "secret"}),
        ("in clear text", remote, {"token_file": str(empty)}),
        ("has no certificate in PEM", local, {"tls_ca": str(pair.key)}),
        ("No such file", local, {"tls_ca": str(tmp_path / "none")}),
        ("and its key", local, {"tls_cert": str(pair.cert), "tls_key": str(other.key)}),
    ]
    for expected, endpoint, given in cases:
        with pytest.raises(InvalidRequest, match=expected) as caught:
            Client(endpoint, options=ConnectionOptions(**given))
        assert "secret" not in str(caught.value)
    with pytest.raises(InvalidRequest, match="expected ConnectionOptions"):
        Client(local, options={"tls_ca": ca})  # type: ignore[arg-type]
    # Allowed: something else encrypts the connection.
    Credentials(remote, ConnectionOptions(token="secret", insecure=True))


def test_a_token_is_not_sent_to_a_localhost_name_that_resolves_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = ConnectionOptions(token="secret")
    leads_to(monkeypatch, "x.localhost", ["127.0.0.1", "::1"])
    Credentials("grpc://x.localhost:8082", options)
    leads_to(monkeypatch, "x.localhost", ["127.0.0.1", "192.0.2.1"])
    with pytest.raises(InvalidRequest, match="in clear text"):
        Credentials("grpc://x.localhost:8082", options)


def test_a_token_is_never_shown() -> None:
    options = ConnectionOptions(token="s3cret", tls_ca="ca.pem")
    assert "s3cret" not in f"{options} {options!r}"
    assert "ca.pem" in repr(options)


def test_each_call_sends_the_current_token_of_the_file(guarded: Guarded, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("one\n")
    options = ConnectionOptions(token_file=str(file))
    with (
        Client(guarded.endpoint, options=options, retry=RetryPolicy(for_s=10)) as client,
        client.writer("n", "t", BATCH.schema, exactly_once=False) as writer,
    ):
        client.write("n", "t", BATCH, exactly_once=False)
        writer.write(BATCH).result(10)
        guarded.valid = "two"
        with pytest.raises(Unauthenticated):
            client.action("origins", {})
        _replace(file, "two\n")
        client.action("origins", {})
        _replace(file, "two words\n")
        with pytest.raises(InvalidRequest, match="exactly one token") as caught:
            client.action("origins", {})
        assert "words" not in str(caught.value)
        _replace(file, "two\n")
        writer.write(BATCH).result(10)
    assert set(guarded.shown) == {"Bearer one", "Bearer two"}
    assert len(guarded.rows["n", "t"]) == 3


def test_a_call_refused_during_a_token_rotation_is_retried(
    guarded: Guarded, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text("one")

    def rotate(body: dict[str, Any]) -> list[dict[str, Any]]:
        if guarded.valid == "one":
            guarded.valid = "two"
            _replace(file, "two")
            raise flight.FlightUnauthenticatedError("revoked")
        return []

    guarded.actions["origins"] = rotate
    options = ConnectionOptions(token_file=str(file))
    with Client(guarded.endpoint, options=options, retry=NEVER) as client:
        assert client.action("origins", {}) == []
    assert guarded.shown == ["Bearer one", "Bearer two"]


def test_a_writer_with_a_revoked_token_continues_with_the_new_one(
    guarded: Guarded, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text("one")

    def revoke(number: int) -> None:
        if number == 2 and guarded.valid == "one":
            guarded.valid = "two"
            _replace(file, "two")
            raise flight.FlightUnauthenticatedError("revoked")

    guarded.before = revoke
    options = ConnectionOptions(token_file=str(file))
    with (
        Client(guarded.endpoint, options=options, retry=RetryPolicy(for_s=10)) as client,
        client.writer("n", "t", BATCH.schema, origin="o", first_sequence=1) as writer,
    ):
        for _ in range(3):
            writer.write(BATCH).result(10)
    assert len(guarded.rows["n", "t"]) == 3


def test_the_next_call_uses_replaced_certificates(tmp_path: Path) -> None:
    authority, later = Authority(tmp_path / "a"), Authority(tmp_path / "b", "later")
    server = later.issue("server")
    trusted = tmp_path / "ca.pem"
    trusted.write_bytes(authority.path.read_bytes())
    pair = [(server.cert.read_bytes(), server.key.read_bytes())]
    with Guarded(tls_certificates=pair) as guarded:
        options = ConnectionOptions(tls_ca=str(trusted), token="one")
        with Client(guarded.endpoint, options=options, retry=NEVER) as client:
            with pytest.raises(InvalidRequest, match="does not trust the signer") as caught:
                client.action("origins", {})
            assert caught.value.code == "tls"
            assert guarded.shown == []
            _replace(trusted, later.path.read_text())
            assert client.action("origins", {}) == []

            # An open stream keeps the certificates that it was opened with.
            with client.writer("n", "t", BATCH.schema, exactly_once=False) as writer:
                writer.write(BATCH).result(10)
                _replace(trusted, authority.path.read_text())
                with pytest.raises(InvalidRequest, match="does not trust the signer"):
                    client.action("origins", {})
                gc.collect()
                writer.write(BATCH).result(10)
            assert len(guarded.rows["n", "t"]) == 2


def test_a_half_replaced_key_pair_breaks_no_call(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path)
    server, first, second = (authority.issue(name) for name in ("server", "first", "second"))
    live = [tmp_path / "live.pem", tmp_path / "live.key"]
    for source, target in zip(first, live, strict=True):
        target.write_bytes(source.read_bytes())
    pair = [(server.cert.read_bytes(), server.key.read_bytes())]
    options = ConnectionOptions(
        tls_ca=str(authority.path), tls_cert=str(live[0]), tls_key=str(live[1]), token="one"
    )
    guarded = Guarded(
        tls_certificates=pair, verify_client=True, root_certificates=authority.path.read_bytes()
    )
    with guarded, Client(guarded.endpoint, options=options, retry=NEVER) as client:
        for source, target in zip(second, live, strict=True):
            _replace(target, source.read_text())
            assert client.action("origins", {}) == []
    (warning,) = caplog.records
    assert "changed certificates are not used" in warning.getMessage()
    assert first.key.read_text().splitlines()[1] not in warning.getMessage()


def test_a_daemon_with_a_wrong_or_expired_certificate_is_refused(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cases = {
        "for another host name": authority.issue("elsewhere", names=["elsewhere.example"]),
        "has expired": authority.issue("late", days=-1),
    }
    options = ConnectionOptions(tls_ca=str(authority.path), token="one")
    for expected, server in cases.items():
        pair = [(server.cert.read_bytes(), server.key.read_bytes())]
        with (
            Guarded(tls_certificates=pair) as guarded,
            Client(guarded.endpoint, options=options) as client,
        ):
            with pytest.raises(InvalidRequest, match=expected):
                client.action("origins", {})
            # The error comes at once: a retry would not help.
            with pytest.raises(InvalidRequest, match=expected):
                client.write("n", "t", BATCH, exactly_once=False)
            assert guarded.shown == []


def test_options_override_the_environment_and_a_file_overrides_a_token() -> None:
    environ = {"INGESTER_TOKEN": "one", "INGESTER_TLS_CA": "ca", "INGESTER_INSECURE": "true"}
    assert connection_values({"tls_ca": None}, environ) == {
        "tls_ca": "ca",
        "token": "one",
        "insecure": True,
    }
    assert connection_values({"token_file": "f", "tls_ca": "other"}, environ) == {
        "tls_ca": "other",
        "token_file": "f",
        "insecure": True,
    }


def _replace(file: Path, text: str) -> None:
    new = file.with_suffix(".new")
    new.write_text(text)
    new.replace(file)
