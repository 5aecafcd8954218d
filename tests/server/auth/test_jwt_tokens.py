"""JWTs of a provider: valid tokens are accepted, and every kind of forged token is refused."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import jwt
import pyarrow.flight as fl
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from ingester.config.settings import AuthSettings, ConfigError
from ingester.errors import NotAuthenticated
from ingester.server.auth.jwt_tokens import JwksUnreachable, JwtTokens
from tests.drivers.waiting import until
from tests.drivers.wire import numbers, put, query
from tests.server.auth.provider import (
    AUDIENCE,
    EC,
    ISSUER,
    OTHER_RSA,
    RSA,
    public,
    signed,
    write_keys,
)
from tests.server.auth.secured import Secured, connect


def settings(jwks: str) -> AuthSettings:
    """Settings that trust this provider."""
    return AuthSettings(jwks=jwks, issuer=ISSUER, audience=AUDIENCE)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A JWKS file with an RSA and an EC key."""
    path = tmp_path / "jwks.json"
    write_keys(path, public(RSA, "r1", "RS256"), public(EC, "e1", "ES256"))
    return path


def test_a_token_of_the_provider_lets_its_subject_in(file: Path) -> None:
    known = JwtTokens(settings(str(file)), lambda: None)
    caller = known.caller(signed(ingester=["shop:read,write", "*:read"]))
    assert (caller.name, caller.may("write", "shop"), caller.may("write", "x")) == (
        *("alice", True, False),
    )
    assert caller.may("read", "x") and caller.expires is not None
    assert known.caller(signed(EC, "ES256", {"kid": "e1"}, ingester="a:read")).may("read", "a")


def unsigned() -> str:
    """A token with the algorithm ``none``."""
    return signed(None, "none")


def by_the_public_key() -> str:
    """A token signed by HMAC with the provider's public key as the secret."""
    secret = RSA.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    def part(value: object) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()

    claims = jwt.decode(signed(), options={"verify_signature": False})
    body = f"{part({'alg': 'HS256', 'typ': 'JWT', 'kid': 'r1'})}.{part(claims)}"
    digest = hmac.new(secret, body.encode(), hashlib.sha256).digest()
    return f"{body}.{base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"


def with_other_claims() -> str:
    """A token whose claims were changed after it was signed."""
    head, _, signature = signed().split(".")
    return f"{head}.{signed(sub='root').split('.')[1]}.{signature}"


FORGED: dict[str, Callable[[], str]] = {
    "no signature": unsigned,
    "a public key as secret": by_the_public_key,
    "other claims": with_other_claims,
    "another key": lambda: signed(OTHER_RSA),
    "another key, which it brings": lambda: signed(
        OTHER_RSA, headers={"jwk": public(OTHER_RSA, "r1", "RS256")}
    ),
    "an algorithm that is not the key's": lambda: signed(RSA, "PS256"),
    "a key for another kind": lambda: signed(EC, "ES256", {"kid": "r1"}),
    "an unknown key": lambda: signed(headers={"kid": "r2"}),
    "another audience": lambda: signed(aud="elsewhere"),
    "another issuer": lambda: signed(iss="https://evil.example.org/"),
    "over": lambda: signed(exp=int(time.time()) - 60),
    "not yet": lambda: signed(nbf=int(time.time()) + 600),
    "no end": lambda: signed(exp=None),
    "no audience": lambda: signed(aud=None),
    "no subject": lambda: signed(sub=None),
    "no grants": lambda: signed(ingester=None),
    "grants that are none": lambda: signed(ingester={"shop": "read"}),
    "a grant that is not known": lambda: signed(ingester=["shop:everything"]),
    "no JWT": lambda: "a.b.c",
    "a header without end": lambda: base64.urlsafe_b64encode(b"[" * 12_000).decode() + ".e30.e30",
    "an end without end": lambda: signed(exp=float("inf")),
}


@pytest.mark.parametrize("forged", FORGED)
def test_a_token_that_is_not_the_providers_lets_nobody_in(file: Path, forged: str) -> None:
    known = JwtTokens(settings(str(file)), lambda: None)
    with pytest.raises(NotAuthenticated) as refused:
        known.caller(FORGED[forged]())
    assert "Traceback" not in str(refused.value)


def test_keys_that_are_no_public_keys_are_left_out_and_a_set_of_them_is_refused(
    tmp_path: Path,
) -> None:
    path = tmp_path / "jwks.json"
    shared = base64.urlsafe_b64encode(b"secret" * 8).decode()
    write_keys(path, {"kty": "oct", "k": shared, "kid": "o1", "alg": "HS256"})
    with pytest.raises(ConfigError, match="no key with a 'kid'"):
        JwtTokens(settings(str(path)), lambda: None)
    with pytest.raises(ConfigError, match="plain HTTP"):
        JwtTokens(settings("http://login.example.org/keys"), lambda: None)
    with pytest.raises(ConfigError, match=r"auth\.audience"):
        AuthSettings(jwks=str(path), issuer=ISSUER)


def test_a_key_that_is_withdrawn_ends_its_tokens_and_a_bad_set_changes_nothing(file: Path) -> None:
    changes: list[None] = []
    known = JwtTokens(settings(str(file)), lambda: changes.append(None))
    token, other = signed(), signed(EC, "ES256", {"kid": "e1"})
    assert {known.caller(token).name, known.caller(other).name} == {"alice"}
    file.write_text("{")
    with pytest.raises(JwksUnreachable):
        known.refresh()
    assert known.caller(token).name == "alice" and known.failure
    write_keys(file, public(EC, "e1", "ES256"))
    before = len(changes)
    assert known.refresh()
    assert len(changes) > before
    with pytest.raises(
        NotAuthenticated, match=r"by a key that the set of auth\.jwks does not have"
    ):
        known.caller(token)
    assert known.caller(other).name == "alice"


def test_a_key_that_is_replaced_under_its_id_ends_the_tokens_of_the_one_before(file: Path) -> None:
    known, token = JwtTokens(settings(str(file)), lambda: None), signed()
    assert known.caller(token).name == "alice"
    write_keys(file, public(OTHER_RSA, "r1", "RS256"), public(EC, "e1", "ES256"))
    assert known.refresh()
    with pytest.raises(NotAuthenticated, match="not valid"):
        known.caller(token)
    assert known.caller(signed(OTHER_RSA)).name == "alice"
    assert not known.refresh()


def test_a_key_that_is_replaced_beside_one_for_another_use_ends_its_tokens(file: Path) -> None:
    other_use = public(EC, "r1", "ES256") | {"use": "enc"}
    write_keys(file, public(RSA, "r1", "RS256"), other_use)
    known, token = JwtTokens(settings(str(file)), lambda: None), signed()
    assert known.caller(token).name == "alice"
    write_keys(file, public(OTHER_RSA, "r1", "RS256"), other_use)
    assert known.refresh()
    with pytest.raises(NotAuthenticated, match="not valid"):
        known.caller(token)


@pytest.mark.parametrize("member", [None, "r1", {"kty": "other", "kid": ["r1"]}])
def test_what_is_no_key_in_a_set_takes_nothing_with_it(file: Path, member: object) -> None:
    known = JwtTokens(settings(str(file)), lambda: None)
    file.write_text(json.dumps({"keys": [member, public(RSA, "r1", "RS256"), member]}))
    assert known.refresh(), "the other key is not there any more"
    assert known.caller(signed()).name == "alice"
    assert not known.refresh()


class Provider:
    """A provider's HTTP server, which counts its requests."""

    def __init__(self) -> None:
        provider = self
        self.keys = [public(RSA, "r1", "RS256")]
        self.asked = 0
        self.drips = threading.Event()
        """While set, an answer never ends: one byte follows another."""
        self.over = threading.Event()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                provider.asked += 1
                self.send_response(200)
                self.end_headers()
                while provider.drips.is_set() and not provider.over.wait(0.02):
                    self.wfile.write(b" ")
                self.wfile.write(json.dumps({"keys": provider.keys}).encode())

            def log_message(self, *_: object) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/keys"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Shut the server down."""
        self.over.set()
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def provider() -> Iterator[Provider]:
    """A provider with one key."""
    made = Provider()
    yield made
    made.close()


def test_a_new_key_is_loaded_when_it_is_seen_and_unknown_ones_do_not_load_it_again_and_again(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ingester.server.auth.jwt_tokens.RELOAD_AFTER_S", 0.0)
    known = JwtTokens(settings(provider.url), lambda: None)
    provider.keys.append(public(EC, "e1", "ES256"))
    assert known.caller(signed(EC, "ES256", {"kid": "e1"})).name == "alice"
    assert provider.asked == 2
    monkeypatch.setattr("ingester.server.auth.jwt_tokens.RELOAD_AFTER_S", 3600.0)
    for number in range(20):
        with pytest.raises(NotAuthenticated):
            known.caller(signed(headers={"kid": f"made-up-{number}"}))
    assert provider.asked == 2


def test_known_keys_stay_in_use_while_the_provider_is_unreachable_and_strangers_hold_up_nobody(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: PyJWT dropped its keys (issue 1162), and refetched them for every unknown id."""
    known = JwtTokens(settings(provider.url), lambda: None)
    provider.close()
    with pytest.raises(JwksUnreachable, match="cannot be loaded"):
        known.refresh()
    assert known.failure
    assert known.caller(signed()).name == "alice"
    began = time.monotonic()
    for number in range(50):
        with pytest.raises(NotAuthenticated):
            known.caller(signed(headers={"kid": f"made-up-{number}"}))
    assert known.caller(signed(sub="bob")).name == "bob"
    assert time.monotonic() - began < 5.0, "one load at most is waited for"


def test_an_answer_that_does_not_end_is_not_waited_for_and_has_no_second_one_beside_it(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ingester.server.auth.jwt_tokens.LIMIT_S", 0.3)
    known = JwtTokens(settings(provider.url), lambda: None)
    provider.drips.set()
    with pytest.raises(JwksUnreachable, match="did not answer completely"):
        known.refresh()
    asked = provider.asked
    with pytest.raises(JwksUnreachable, match="the previous load has not ended"):
        known.refresh()
    assert provider.asked == asked
    assert known.caller(signed()).name == "alice"
    provider.drips.clear()

    def loads_again() -> bool:
        with suppress(JwksUnreachable):
            known.refresh()
        return known.failure is None

    until(loads_again, "the set to be loaded again")


def test_keys_are_not_fetched_from_where_a_redirect_points(provider: Provider) -> None:
    """An https:// URL of a provider could lead to plain HTTP, whose keys can be forged."""
    to = f"HTTP/1.1 302 Found\r\nLocation: {provider.url}\r\nContent-Length: 0\r\n\r\n"
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with listener.accept()[0] as connection:
                connection.recv(1 << 16)
                connection.sendall(to.encode())

        server = threading.Thread(target=serve)
        server.start()
        with pytest.raises(ConfigError, match=r"auth\.jwks: .*cannot be loaded"):
            JwtTokens(settings(f"http://127.0.0.1:{listener.getsockname()[1]}/"), lambda: None)
        server.join()
    assert not provider.asked


@pytest.mark.parametrize("answer", [b"* OK IMAP4 ready\r\n", b"HTTP/1.1 200 OK\r\n\r\n<html>"])
def test_an_answer_that_is_no_set_ends_the_start(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with listener.accept()[0] as connection:
                connection.recv(1 << 16)
                connection.sendall(answer)

        server = threading.Thread(target=serve)
        server.start()
        with pytest.raises(ConfigError, match=r"auth\.jwks: .*cannot be loaded"):
            JwtTokens(settings(f"http://127.0.0.1:{listener.getsockname()[1]}/"), lambda: None)
        server.join()


def test_a_daemon_takes_tokens_of_its_file_and_of_the_provider(secured: Secured) -> None:
    table = ("shop", "provided")
    with connect(secured.daemon.flight, signed()) as client:
        put(client, table, numbers(0, 2))
        assert query(client, table).num_rows == 2
        with pytest.raises(fl.FlightUnauthorizedError, match="alice"):
            put(client, ("other", "provided"), numbers(0, 1))
    secured.tokens.secret["alice"] = signed()
    assert secured.http("/api/status", "alice")[0] == 200
    secured.tokens.secret["forged"] = signed(OTHER_RSA)
    assert secured.http("/api/status", "forged")[0] == 401
    with (
        connect(secured.daemon.flight, signed(OTHER_RSA)) as client,
        pytest.raises(fl.FlightUnauthenticatedError, match="not valid"),
    ):
        query(client, table)
