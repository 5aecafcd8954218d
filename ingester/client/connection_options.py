"""Options of a connection beside its address: whom the client trusts, and who it says it is.

    ConnectionOptions(tls_ca="ca.pem", token_file="/run/secrets/ingester")

Law of this file: values only; files are read by :mod:`.credentials`. A token is never shown.
"""

from __future__ import annotations

import os
import re

import msgspec

from .errors import InvalidRequest


class ConnectionOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a client needs beside the address of a daemon that speaks TLS or asks for tokens."""

    tls_ca: str | None = None
    """Path of the certificates (PEM) that may sign the daemon's; by default those of the system."""
    tls_cert: str | None = None
    """Path of the certificate (PEM) by which the client says who it is, where the daemon asks."""
    tls_key: str | None = None
    """Path of the key of ``tls_cert``."""
    token: str | None = None
    """The token. Better in a file: it can be replaced while the client runs."""
    token_file: str | None = None
    """Path of a file with the token; it is read again when it has changed."""
    insecure: bool = False
    """Let the token go to another machine over a connection without TLS."""

    def __post_init__(self) -> None:
        """Raises :class:`InvalidRequest`: an option without the one that it needs."""
        for name in ("tls_ca", "tls_cert", "tls_key", "token_file"):
            value = getattr(self, name)
            if isinstance(value, os.PathLike):
                value = os.fspath(value)
                msgspec.structs.force_setattr(self, name, value)
            if value is not None and (not isinstance(value, str) or not value):
                raise InvalidRequest(f"{name}={value!r}: expected a path")
        if self.token is not None and not is_token(self.token):
            raise InvalidRequest("token: expected one word of ASCII, as the daemon gave it")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise InvalidRequest("tls_cert and tls_key: both, or neither")
        if self.token is not None and self.token_file is not None:
            raise InvalidRequest("token and token_file: one of them")

    @property
    def has_tls(self) -> bool:
        """Whether an option is there that only TLS knows."""
        return self.tls_ca is not None or self.tls_cert is not None

    @property
    def scheme(self) -> str:
        """The scheme of an address that has none."""
        return "grpc+tls" if self.has_tls else "grpc"

    @property
    def has_token(self) -> bool:
        """Whether calls have a token."""
        return self.token is not None or self.token_file is not None

    def __repr__(self) -> str:
        """Shows all but the token."""
        shown = {name: getattr(self, name) for name in self.__struct_fields__}
        shown["token"] = None if self.token is None else "***"
        told = ", ".join(f"{name}={value!r}" for name, value in shown.items() if value)
        return f"ConnectionOptions({told})"

    __str__ = __repr__


def is_token(value: object) -> bool:
    """Whether this can be a token: it goes into a header as it is."""
    return isinstance(value, str) and re.fullmatch(r"[!-~]+", value) is not None
