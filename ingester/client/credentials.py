"""TLS trust, client certificate and token of a connection: the options, and what they name.

    ConnectionOptions(tls_ca="ca.pem", token_file="/run/secrets/ingester")

The files may be replaced while the connection is open:

    tls_ca, tls_cert, tls_key   after a change the next call opens a new connection
    token_file                  each call uses its present content

Secrets are passed to pyarrow only and appear in no error (``tests/client/test_credentials.py``).
"""

from __future__ import annotations

import os
import re
import ssl
import threading
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pyarrow as pa
from pyarrow import flight

from ingester.config.addresses import is_loopback
from ingester.config.watched_files import WatchedFiles

from .errors import ClientError, InvalidRequest, Unauthenticated, Unreachable

TLS = "grpc+tls"
_HUNG_UP = re.compile(
    r"^cannot connect to \S+: (Socket closed|.*(certificate required|alert))", re.I
)


class ConnectionOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options for daemons that use TLS or require tokens."""

    tls_ca: str | None = None
    """Path of the trusted certificates (PEM); by default those of the system."""
    tls_cert: str | None = None
    """Path of the client certificate (PEM) for mutual TLS."""
    tls_key: str | None = None
    """Path of the key of ``tls_cert``."""
    token: str | None = None
    """The token. A file is better: it can be replaced while the client runs."""
    token_file: str | None = None
    """Path of a file with the token; it is read again after a change."""
    insecure: bool = False
    """Allow the token on a connection to another machine without TLS."""

    def __post_init__(self) -> None:
        """Raises :class:`InvalidRequest` for an option without the one that it needs."""
        for name in ("tls_ca", "tls_cert", "tls_key", "token_file"):
            value = getattr(self, name)
            if isinstance(value, os.PathLike):
                value = os.fspath(value)
                msgspec.structs.force_setattr(self, name, value)
            if value is not None and (not isinstance(value, str) or not value):
                raise InvalidRequest(f"{name}={value!r}: expected a path")
        if self.token is not None and not is_token(self.token):
            raise InvalidRequest("token: expected printable ASCII without spaces")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise InvalidRequest("tls_cert and tls_key: pass both or neither")
        if self.token is not None and self.token_file is not None:
            raise InvalidRequest("token and token_file: pass only one of them")

    @property
    def has_tls(self) -> bool:
        """Whether an option of TLS is set."""
        return self.tls_ca is not None or self.tls_cert is not None

    @property
    def scheme(self) -> str:
        """The default scheme of addresses."""
        return "grpc+tls" if self.has_tls else "grpc"

    @property
    def has_token(self) -> bool:
        """Whether calls carry a token."""
        return self.token is not None or self.token_file is not None

    def __repr__(self) -> str:
        """All options except the token."""
        shown = {name: getattr(self, name) for name in self.__struct_fields__}
        shown["token"] = None if self.token is None else "***"
        told = ", ".join(f"{name}={value!r}" for name, value in shown.items() if value)
        return f"ConnectionOptions({told})"

    __str__ = __repr__


def is_token(value: object) -> bool:
    """Whether a value can be sent as a token in a header."""
    return isinstance(value, str) and re.fullmatch(r"[!-~]+", value) is not None


class Credentials:
    """The credentials of the calls on one daemon. Threads may share it."""

    def __init__(self, endpoint: str, options: ConnectionOptions) -> None:
        """Raises :class:`InvalidRequest` if TLS options or the token do not fit the endpoint."""
        self._options = options
        scheme, _, rest = endpoint.partition("://")
        host = urlsplit(f"//{rest}").hostname or ""
        if options.has_tls and scheme != TLS:
            raise InvalidRequest(
                f"endpoint {endpoint!r} does not use TLS, but tls_ca or tls_cert is given:"
                f" write {TLS}://{rest}"
            )
        has_clear_token = options.has_token and not options.insecure
        if has_clear_token and scheme not in (TLS, "grpc+unix") and not is_loopback(host):
            raise InvalidRequest(
                f"endpoint {endpoint!r}: the token would cross the network in clear text: write"
                f" {TLS}://{rest}, or set insecure if something else encrypts the connection"
            )
        self._speaks_tls = scheme == TLS
        self._lock = threading.Lock()
        named = {name: getattr(options, name) for name in ("tls_ca", "tls_cert", "tls_key")}
        self._tls_paths = {name: path for name, path in named.items() if path is not None}
        self._tls = WatchedFiles(list(self._tls_paths.values()))
        self._token_file = (
            None if options.token_file is None else WatchedFiles([options.token_file])
        )
        self._token = options.token
        self._number = 0

    def tls_arguments(self) -> dict[str, Any]:
        """The TLS arguments of pyarrow's client.

        Raises:
            InvalidRequest: A file cannot be read or is not PEM.
        """
        with self._lock:
            try:
                found = dict(zip(self._tls_paths, self._tls.read(), strict=True))
            except OSError as exc:
                raise InvalidRequest(f"tls_ca, tls_cert, tls_key: {exc}") from exc
        self._check(found)
        arguments = {"tls_ca": "tls_root_certs", "tls_cert": "cert_chain", "tls_key": "private_key"}
        return {arguments[name]: content for name, content in found.items()}

    def _check(self, found: dict[str, bytes]) -> None:
        """Refuse files that gRPC would refuse later without a reason."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if "tls_ca" in found:
            path = self._tls_paths["tls_ca"]
            try:
                context.load_verify_locations(cadata=found["tls_ca"].decode("ascii", "replace"))
            except (ssl.SSLError, ValueError) as exc:
                raise InvalidRequest(f"tls_ca: {path} has no certificate in PEM ({exc})") from exc
        if "tls_cert" in found:
            pair = self._tls_paths["tls_cert"], self._tls_paths["tls_key"]
            try:
                context.load_cert_chain(*pair, password="")
            except (OSError, ValueError) as exc:
                raise InvalidRequest(
                    f"tls_cert, tls_key: {' and '.join(pair)} are not a certificate and its key in"
                    f" PEM without a passphrase ({exc})"
                ) from exc

    def explained(self, error: ClientError) -> ClientError:
        """The error, with a hint if the daemon closed the connection or requires a token."""
        if isinstance(error, Unauthenticated) and not self._options.has_token:
            told = f"{error}; pass a token with token_file (--token-file)"
            lacking = Unauthenticated(told, code=error.code, details=error.details)
            lacking.__cause__ = error.__cause__
            return lacking
        if not isinstance(error, Unreachable) or not _HUNG_UP.search(str(error)):
            return error
        hint = (
            "the daemon may require a client certificate signed by its client_ca:"
            " tls_cert and tls_key (--tls-cert, --tls-key)"
            if self._speaks_tls
            else "the daemon may speak TLS: then use grpc+tls:// and tls_ca (--tls-ca)"
        )
        explained = Unreachable(f"{error}; {hint}", details=error.details)
        explained.__cause__ = error.__cause__
        return explained

    def tls_changed(self) -> bool:
        """Whether a file has changed since :meth:`tls_arguments`."""
        with self._lock:
            return bool(self._tls_paths) and self._tls.changed()

    def call_options(
        self,
        timeout_s: float | None = None,
        headers: Sequence[tuple[bytes, bytes]] = (),
        reading: pa.ipc.IpcReadOptions | None = None,
    ) -> flight.FlightCallOptions:
        """The options of one call, with the present token and these headers.

        Args:
            reading: How rows of the answer are read.

        Raises:
            InvalidRequest: The token file cannot be read or has no token.
        """
        token = self._refreshed()
        if token is not None:
            headers = [(b"authorization", b"Bearer " + token.encode()), *headers]
        return flight.FlightCallOptions(
            timeout=timeout_s, headers=list(headers) or None, read_options=reading
        )

    def token_number(self) -> int:
        """The number of the present token, incremented with each replacement.

        Raises:
            InvalidRequest: As for :meth:`call_options`.
        """
        self._refreshed()
        return self._number

    def _refreshed(self) -> str | None:
        if self._token_file is None:
            return self._token
        with self._lock:
            if self._token is None or self._token_file.changed():
                token = self._read_token(self._token_file)
                self._number += token != self._token
                self._token = token
            return self._token

    def _read_token(self, file: WatchedFiles) -> str:
        try:
            (content,) = file.read()
        except OSError as exc:
            raise InvalidRequest(f"token_file: {exc}") from exc
        token = content.decode("ascii", "replace").strip()
        if not is_token(token):
            path = self._options.token_file
            raise InvalidRequest(f"token_file: {path} must contain exactly one token")
        return token
