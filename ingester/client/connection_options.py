"""The options of a connection besides its address: TLS trust, client certificate and token.

    ConnectionOptions(tls_ca="ca.pem", token_file="/run/secrets/ingester")

:mod:`.credentials` reads the files. The token is never shown.
"""

from __future__ import annotations

import os
import re

import msgspec

from .errors import InvalidRequest


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
