"""Where a provider shows its keys (JWKS): a file, or an ``https://`` URL.

Law of this file: one load ends within ``LIMIT_S``, from the name's look-up to the last byte, and
takes ``MOST_BYTES`` at most. A server that sends a byte now and then is cut. What cannot be cut, as
a look-up of a name, is left behind, and no second load begins beside it.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
import urllib.parse
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

from ingester.config.addresses import is_loopback
from ingester.config.settings import ConfigError
from ingester.config.watched_files import read_regular

LIMIT_S = 5.0
"""A load takes so many seconds at most, all in all."""
MOST_BYTES = 1 << 20


class JwksAway(Exception):
    """The set of keys cannot be loaded, or is none; the message says why."""


class JwksPlace:
    """Loads the set from where it is. Not thread-safe: its owner locks.

    Raises:
        ConfigError: the place is neither a file nor a URL whose keys can be believed.
    """

    def __init__(self, place: str) -> None:
        parts = urllib.parse.urlsplit(place)
        if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
            raise ConfigError("auth.jwks", f"{place!r}: keys that come by plain HTTP are anybody's")
        if parts.scheme not in ("", "file", "http", "https"):
            raise ConfigError("auth.jwks", f"{place!r} is neither a file nor an https:// URL")
        self._place = place
        self._file = Path(parts.path) if parts.scheme in ("", "file") else None
        self._last: threading.Thread | None = None

    def load(self) -> bytes:
        """Return the bytes that are there now. Blocks for ``LIMIT_S`` at most.

        Raises:
            JwksAway: they cannot be loaded, or not within the limits.
        """
        try:
            data = self._asked() if self._file is None else read_regular(self._file, MOST_BYTES)[0]
        except (OSError, http.client.HTTPException, ValueError) as exc:
            raise JwksAway(f"{self._place}: cannot be loaded ({exc})") from exc
        if len(data) > MOST_BYTES:
            raise JwksAway(f"{self._place}: larger than {MOST_BYTES} B")
        return data

    def _asked(self) -> bytes:
        if self._last is not None and self._last.is_alive():
            raise TimeoutError("the load before has not ended yet")
        request = _Request(self._place)
        self._last = threading.Thread(target=request.run, name="jwks", daemon=True)
        self._last.start()
        self._last.join(LIMIT_S)
        if self._last.is_alive():
            request.cut()
            raise TimeoutError(f"it did not come whole within {LIMIT_S:g} s")
        if request.data is None:
            raise request.error or OSError("no answer")
        return request.data


class _Request:
    """One request, on a thread of its own, which another one can cut."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._over = False
        self.data: bytes | None = None
        self.error: Exception | None = None

    def run(self) -> None:
        """Ask, and keep what came of it."""
        try:
            opener = urllib.request.build_opener(_NoRedirects, _Http(self), _Https(self))
            with opener.open(self._place, timeout=LIMIT_S) as answer:
                self.data = answer.read(MOST_BYTES + 1)
        except (OSError, http.client.HTTPException, ValueError) as exc:
            self.error = exc

    def opened(self, connection: socket.socket) -> None:
        """Note a connection."""
        with self._lock:
            self._sockets.append(connection)
            if self._over:
                _shut(connection)

    def cut(self) -> None:
        """End what is open, and what will be opened."""
        with self._lock:
            self._over = True
            for connection in self._sockets:
                _shut(connection)


def _shut(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class _Http(urllib.request.HTTPHandler):
    def __init__(self, request: _Request) -> None:
        super().__init__()
        self._request = request

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(self._connection, req)

    def _connection(self, host: str, **more: Any) -> http.client.HTTPConnection:
        made = _HttpConnection(host, **more)
        made.asked_for = self._request
        return made


class _Https(urllib.request.HTTPSHandler):
    def __init__(self, request: _Request) -> None:
        super().__init__()
        self._request = request

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(self._connection, req)

    def _connection(self, host: str, **more: Any) -> http.client.HTTPConnection:
        made = _HttpsConnection(host, context=ssl.create_default_context(), **more)
        made.asked_for = self._request
        return made


class _HttpConnection(http.client.HTTPConnection):
    asked_for: _Request

    def connect(self) -> None:
        super().connect()
        self.asked_for.opened(self.sock)


class _HttpsConnection(http.client.HTTPSConnection):
    asked_for: _Request

    def connect(self) -> None:
        super().connect()
        self.asked_for.opened(self.sock)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Keys come from where the settings say, and from nowhere that somebody there names."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None
