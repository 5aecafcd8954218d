"""Drivers with credentials call Handshake first, with a token, or with a name and a password."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import adbc_driver_flightsql.dbapi as flight_sql
import pyarrow.flight as fl
import pytest

from tests.drivers.daemon import Daemon
from tests.server.auth.secured import Secured, Shows

Header = tuple[bytes, bytes]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    secured = Secured.start(tmp_path_factory.mktemp("handshake"))
    yield secured
    secured.daemon.kill()


def listed(client: fl.FlightClient, header: Header) -> list[str]:
    options = fl.FlightCallOptions(headers=[header])
    return [action.type for action in client.list_actions(options)]


def test_a_name_with_the_token_as_password_is_answered_with_the_header_to_send(
    secured: Secured,
) -> None:
    secret = secured.tokens.secret["rw"]
    with fl.connect(secured.daemon.flight) as client:
        header = client.authenticate_basic_token("anyone", secret)
        assert header == (b"authorization", f"Bearer {secret}".encode())
        assert "create_table" in listed(client, header)


def test_a_wrong_password_is_refused_by_the_handshake(secured: Secured) -> None:
    with (
        fl.connect(secured.daemon.flight) as client,
        pytest.raises(fl.FlightUnauthenticatedError, match="token"),
    ):
        client.authenticate_basic_token("anyone", "wrong")
    assert secured.audited()[-1]["action"] == "handshake"


@pytest.mark.parametrize("value", ["Basic", "Basic !", "Basic w6k=", "Bearer", "Digest x"])
def test_a_malformed_header_is_refused_by_the_handshake(secured: Secured, value: str) -> None:
    with (
        fl.connect(secured.daemon.flight, middleware=[Shows([value])]) as client,
        pytest.raises(fl.FlightUnauthenticatedError),
    ):
        client.authenticate_basic_token("", "")


def test_basic_credentials_are_taken_by_the_handshake_only(secured: Secured) -> None:
    pair = base64.b64encode(f"anyone:{secured.tokens.secret['rw']}".encode())
    with (
        fl.connect(secured.daemon.flight) as client,
        pytest.raises(fl.FlightUnauthenticatedError, match="Bearer TOKEN"),
    ):
        listed(client, (b"authorization", b"Basic " + pair))


def test_a_daemon_without_tokens_accepts_a_handshake(tmp_path: Path) -> None:
    with Daemon.start(tmp_path / "data") as daemon:
        with fl.connect(daemon.flight) as client:
            client.authenticate(_Silent())
            assert "create_table" in [action.type for action in client.list_actions()]
        with fl.connect(daemon.flight) as client:
            header = client.authenticate_basic_token("anyone", "pässword\n")
            assert "create_table" in listed(client, header)
        options = {"username": "anyone", "password": "any"}
        with (
            flight_sql.connect(daemon.flight, options, autocommit=True) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute("SELECT 1")
            assert cursor.fetchone() == (1,)


class _Silent(fl.ClientAuthHandler):  # type: ignore[misc]
    """Does what JDBC's driver does with a token: nothing but to open and close the stream."""

    def authenticate(self, outgoing: object, incoming: object) -> None:
        pass

    def get_token(self) -> bytes:
        return b""
