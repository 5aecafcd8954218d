"""The machine on which a fault is caused: its folders, certificate and tokens.

    /var/lib/ingester   its data directory         /srv/lake      its store
    /etc/ingester       certificate and tokens     127.0.0.1:8082 and :8080   its listeners

A daemon with TLS and tokens and one without get the same faults. The runbook's names, as above,
are replaced by the corresponding places of the test.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.flight as fl

from tests.drivers.daemon import Daemon
from tests.drivers.ports import free_port
from tests.drivers.secured import Secured
from tests.server.auth.secured import Shows

WHO = "operator"


class Site:
    """Folders, secrets, and the affected daemon: the first one that is started.

    Attributes:
        places: Replacements for the folders that the runbook names, in addition to those of every
            site.
    """

    def __init__(self, folder: Path, *, secure: bool = False) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.lake = folder / "lake"
        self.secrets = folder / "etc"
        self.secrets.mkdir()
        self.secured = Secured(self.secrets, {WHO: "*:read,write,admin"}) if secure else None
        self.places: dict[str, Path] = {}
        self._daemon: Daemon | None = None

    @property
    def etc(self) -> dict[str, Path]:
        """Replacements for the files below ``/etc/ingester``; the longest name comes first."""
        if self.secured is None:
            return {"/etc/ingester": self.secrets}
        pair = self.secured.pair
        return {
            "/etc/ingester/tls/tls.crt": pair.cert,
            "/etc/ingester/tls/tls.key": pair.key,
            "/etc/ingester/tls/ca.crt": self.secured.ca,
            "/etc/ingester/tls": pair.cert.parent,
            "/etc/ingester": self.secrets,
        }

    @property
    def daemon(self) -> Daemon:
        """The affected daemon."""
        assert self._daemon is not None
        return self._daemon

    def start(self, name: str = "d", arguments: tuple[str, ...] = (), **settings: Any) -> Daemon:
        """Start a daemon with a data directory of a name, or of a path below the site's folder."""
        ways: dict[str, Any] = {"store": f"file://{self.lake}"}
        if self.secured is not None:
            ways |= {**self.secured.settings, "auth__open": '["metrics"]'}
        ports = ("--flight", f"127.0.0.1:{free_port()}", "--http", f"127.0.0.1:{free_port()}")
        started = Daemon.start(
            self.folder / name, arguments=(*ports, *arguments), **{**ways, **settings}
        )
        self._daemon = self._daemon or started
        return started

    def connect(self, daemon: Daemon) -> fl.FlightClient:
        """A connection to a daemon of this site, with all rights."""
        if self.secured is None:
            return fl.connect(daemon.flight)
        return fl.connect(
            daemon.flight,
            tls_root_certs=self.secured.ca.read_bytes(),
            middleware=[Shows([f"Bearer {self.secured.tokens[WHO]}"])],
        )
