"""Where the Flight server listens, and with which certificates.

Law of this file: values only; gRPC asks for TLS 1.2 at least by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ingester.server.tls.certificates import Certificates


@dataclass(frozen=True, slots=True)
class Door:
    """An address with what is shown and asked for there."""

    host: str
    """A name or an address, without brackets."""
    port: int
    certificates: Certificates | None = None

    @property
    def location(self) -> str:
        """The address as gRPC takes it: ``grpc+tls://host:port``, or ``grpc://`` without TLS."""
        return f"{self.scheme}://{self.shown_host}:{self.port}"

    @property
    def scheme(self) -> str:
        """The scheme of the address."""
        return "grpc" if self.certificates is None else "grpc+tls"

    @property
    def shown_host(self) -> str:
        """The host as it stands in an address: an IPv6 one in brackets."""
        return f"[{self.host}]" if ":" in self.host else self.host

    def tls_arguments(self) -> dict[str, Any]:
        """The arguments of pyarrow's server for them."""
        if self.certificates is None:
            return {}
        arguments: dict[str, Any] = {
            "tls_certificates": [(self.certificates.cert, self.certificates.key)]
        }
        if self.certificates.client_ca is not None:
            arguments |= {
                "verify_client": True,
                "root_certificates": self.certificates.client_ca,
            }
        return arguments
