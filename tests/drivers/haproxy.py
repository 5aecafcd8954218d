"""HAProxy with the shipped configuration, in front of a daemon.

    with Proxy.start(tmp_path, daemon.flight, daemon.http, FLIGHT_IDLE="1s") as proxy:
        client = pyarrow.flight.connect(proxy.flight, tls_root_certs=proxy.ca)

The program is found on ``PATH`` or where ``make haproxy`` unpacks it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.drivers.certificates import Authority, Pair
from tests.drivers.ports import HOST, free_port
from tests.drivers.waiting import until

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "deploy" / "haproxy" / "haproxy.cfg"
UNPACKED = ROOT / ".venv" / "haproxy" / "usr"
RELOAD_S = 90.0
"""Time limit for a reload on a busy machine."""


def program() -> tuple[str, dict[str, str]] | None:
    """Return the path of HAProxy and the variables it needs; ``None`` if it is not installed."""
    if found := shutil.which("haproxy", path=f"{os.environ['PATH']}:/usr/sbin"):
        return found, {}
    if (found := str(UNPACKED / "sbin" / "haproxy")) and Path(found).exists():
        folders = ":".join(map(str, (UNPACKED / "lib").glob("*-linux-gnu*")))
        return found, {"LD_LIBRARY_PATH": folders}
    return None


needs_haproxy = pytest.mark.skipif(
    program() is None, reason="no HAProxy: 'make haproxy' unpacks Debian's"
)


class Proxy:
    """A running HAProxy; made by :meth:`start`."""

    def __init__(self, folder: Path, config: str, variables: Mapping[str, str]) -> None:
        self.folder = folder
        self.authority = Authority(folder / "pki")
        self.ca = self.authority.path.read_bytes()
        self._live = Pair(folder / "tls.crt", folder / "tls.key")
        self.put(self.authority.issue("first"))
        self._flight, self._http = free_port(), free_port()
        self.flight = f"grpc+tls://{HOST}:{self._flight}"
        self.http = f"https://{HOST}:{self._http}"
        self.log_file = folder / "haproxy.log"
        self.socket = folder / "haproxy.sock"
        own = {
            "PROXY_FLIGHT": f"{HOST}:{self._flight}",
            "PROXY_HTTP": f"{HOST}:{self._http}",
            "PROXY_CERT": str(self._live.cert),
            "PROXY_CLIENT_CA": str(self.authority.path),
            "PROXY_LOG": "stdout",
            "PROXY_SOCKET": str(self.socket),
        }
        found = program()
        assert found is not None
        path, libraries = found
        config_file = folder / "haproxy.cfg"
        config_file.write_text(config)
        with self.log_file.open("wb") as log:
            self.process = subprocess.Popen(
                [path, "-W", "-f", str(config_file)],
                env={**os.environ, **libraries, **own, **variables},
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    @classmethod
    def start(
        cls, folder: Path, flight: str, http: str, config: str = "", **variables: str
    ) -> Proxy:
        """Start the proxy in front of these addresses and return when it listens.

        Args:
            folder: For its certificate, socket and log.
            config: Configuration text; the shipped one by default.
            variables: Variables of the configuration.
        """
        folder.mkdir(parents=True, exist_ok=True)
        behind = {"DAEMON_FLIGHT": urlsplit(flight).netloc, "DAEMON_HTTP": urlsplit(http).netloc}
        proxy = cls(folder, config or CONFIG.read_text(), {**behind, **variables})
        until(proxy.listens, "HAProxy to listen")
        return proxy

    def listens(self) -> bool:
        """Return whether the worker processes run."""
        assert self.process.poll() is None, self.log_file.read_text()
        return "Loading success" in self.log_file.read_text()

    def put(self, pair: Pair) -> None:
        """Replace the certificate on disk; :meth:`reload` makes it effective."""
        for source, target in zip(pair, self._live, strict=True):
            shutil.copy(source, target)

    def reload(self) -> None:
        """Reload as ``systemctl reload haproxy`` does."""
        before = self.log.count("Loading success")
        self.process.send_signal(signal.SIGUSR2)
        try:
            until(lambda: self.log.count("Loading success") > before, "a reload", RELOAD_S)
        except AssertionError as exc:
            raise AssertionError(self.log) from exc

    def address(self, url: str) -> tuple[str, int]:
        """Return the address that a URL of the proxy leads to."""
        return HOST, {self.flight: self._flight, self.http: self._http}[url]

    @property
    def log(self) -> str:
        """Return the proxy's log."""
        return self.log_file.read_text()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(30)
