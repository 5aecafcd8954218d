"""The settings of a daemon with TLS and tokens.

secured = Secured(folder, {"alice": "alice:read,write"}) with Daemon.start(folder / "d",
**secured.settings) as daemon:
    client = Client(daemon.flight, options=secured.options("alice"))
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ingester.client import ConnectionOptions
from tests.drivers.certificates import Authority
from tests.drivers.tokens import Tokens


class Secured:
    """A certificate, and a token for each given name.

    Args:
        grants: Permissions of each name, as ``ingester tokens add --grant`` takes them.
    """

    def __init__(self, folder: Path, grants: Mapping[str, str]) -> None:
        self.authority = Authority(folder / "authority")
        self.ca = self.authority.path
        self.pair = self.authority.issue("daemon")
        kept = Tokens(folder / "tokens.json")
        for name, grant in grants.items():
            kept.add(name, grant)
        self.tokens = kept.secret
        self.settings: dict[str, object] = {
            "tls__cert": self.pair.cert,
            "tls__key": self.pair.key,
            "auth__tokens": kept.path,
        }

    def options(self, name: str) -> ConnectionOptions:
        """Return the connection options of a client with this name."""
        return ConnectionOptions(tls_ca=str(self.ca), token=self.tokens[name])
