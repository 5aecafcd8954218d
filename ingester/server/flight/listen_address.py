"""The address where the Flight server listens, with its certificates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ingester.server.tls.certificates import Certificates


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """A host and port, and TLS if it has certificates. gRPC requires TLS 1.2 by default."""

    host: str
    """A name or an address, without brackets."""
    port: int
    certificates: Certificates | None = None

    @property
    def location(self) -> str:
        """The address for gRPC: ``grpc+tls://host:port``, or ``grpc://`` without TLS."""
        return f"{self.scheme}://{self.shown_host}:{self.port}"

    @property
    def scheme(self) -> str:
        """The scheme of the address."""
        return "grpc" if self.certificates is None else "grpc+tls"

    @property
    def shown_host(self) -> str:
        """The host as written in an address: an IPv6 address in brackets."""
        return f"[{self.host}]" if ":" in self.host else self.host

    def tls_arguments(self) -> dict[str, Any]:
        """Return the TLS arguments of pyarrow's server."""
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
