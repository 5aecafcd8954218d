"""Loading a provider's keys: whatever its server does, it ends soon, and it is told."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from ingester.server.auth.jwks import JwksAway, JwksPlace
from tests.drivers.ports import HOST, free_port

DRIPS_FOR_S = 4.0


class Dripping:
    """A server that begins with some bytes and then sends one now and then."""

    def __init__(self) -> None:
        self.head, self.drop = b"", b" "
        self._end = threading.Event()
        self.port = free_port()
        self._listener = socket.create_server((HOST, self.port))
        self.cut = threading.Event()
        """Somebody has hung up before the end."""
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while not self._end.is_set():
            connection, _ = self._listener.accept()
            with connection, suppress(OSError):
                self._drip(connection)

    def _drip(self, connection: socket.socket) -> None:
        end = time.monotonic() + DRIPS_FOR_S
        try:
            connection.sendall(self.head)
            while time.monotonic() < end and not self._end.wait(0.02):
                connection.sendall(self.drop)
        except OSError:
            self.cut.set()

    def close(self) -> None:
        """Answer nobody any more."""
        self._end.set()
        socket.create_connection((HOST, self.port)).close()
        self._thread.join()
        self._listener.close()


@pytest.fixture
def server() -> Iterator[Dripping]:
    made = Dripping()
    yield made
    made.close()


@pytest.mark.parametrize(
    ("scheme", "head", "drop"),
    [
        ("http", b"HTTP/1.1 200 OK\r\nx: ", b"y"),
        ("http", b"HTTP/1.1 200 OK\r\n\r\n", b" "),
        ("http", b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        # The beginning of a TLS handshake of 16 KiB.
        ("https", b"\x16\x03\x03\x40\x00\x02\x00\x3f\xfc", b"\x00"),
    ],
)
def test_a_server_that_does_not_come_to_an_end_is_cut(
    server: Dripping, scheme: str, head: bytes, drop: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ingester.server.auth.jwks.LIMIT_S", 0.2)
    server.head, server.drop = head, drop
    place = JwksPlace(f"{scheme}://127.0.0.1:{server.port}/keys")
    began = time.monotonic()
    with pytest.raises(JwksAway, match=r"whole within 0\.2 s|timed out"):
        place.load()
    assert time.monotonic() - began < DRIPS_FOR_S / 2
    assert server.cut.wait(DRIPS_FOR_S / 2), "the connection is not left open"


@pytest.mark.parametrize(
    ("head", "drop", "told"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", b" " * (1 << 18), "larger than"),
        (b"* OK IMAP4 ready\r\n", b"", "IMAP4"),
    ],
)
def test_an_answer_without_end_or_of_something_else_is_told(
    server: Dripping, head: bytes, drop: bytes, told: str
) -> None:
    server.head, server.drop = head, drop
    with pytest.raises(JwksAway, match=told):
        JwksPlace(f"http://127.0.0.1:{server.port}/keys").load()
