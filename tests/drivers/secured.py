"""The settings of a daemon with TLS and tokens, made as an operator makes them.

secured = Secured(folder, {"alice": "alice:read,write"})
with Daemon.start(folder / "d", **secured.settings) as daemon:
    client = Client(daemon.flight, options=secured.options("alice"))
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from ingester.client import ConnectionOptions
from tests.drivers.certificates import Authority


class Secured:
    """A certificate, and a token for each of some names.

    Args:
        grants: What each may do, as ``ingester tokens add --grant`` takes it.
    """

    def __init__(self, folder: Path, grants: Mapping[str, str]) -> None:
        self.authority = Authority(folder / "authority")
        self.ca = self.authority.path
        self.tokens_file = folder / "tokens.json"
        self.tokens = {name: self.add(name, grant) for name, grant in grants.items()}
        self.pair = pair = self.authority.issue("daemon")
        self.settings: dict[str, object] = {
            "tls__cert": pair.cert,
            "tls__key": pair.key,
            "auth__tokens": self.tokens_file,
        }

    def add(self, name: str, grant: str, *more: str) -> str:
        """Make a token; ``more`` arguments as of the command."""
        command = [sys.executable, "-m", "ingester", "tokens", "add", name, "--grant", grant]
        command += ["--file", str(self.tokens_file), *more]
        done = subprocess.run(command, capture_output=True, check=True, text=True)
        return done.stdout.strip().splitlines()[-1]

    def options(self, name: str) -> ConnectionOptions:
        """Return what a client of a name needs."""
        return ConnectionOptions(tls_ca=str(self.ca), token=self.tokens[name])
