"""``ingester replicate postgres`` in its own process, and a daemon that keeps its address.

    with replicating(cluster.dsn, daemon.flight, "shop", folder, "--slot", "mine") as replicator:
        replicator.kill()
        replicator.start()                 # resumes
        facts = replicator.stop()          # SIGTERM; returns what it printed

``said`` is its standard error over all starts.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.drivers.daemon import ROOT, Daemon, Launch
from tests.drivers.ports import steady_flight
from tests.drivers.warm import Process, warm


class Replicating:
    """A replicator that is started and ended as often as one likes."""

    def __init__(self, log: Path, arguments: tuple[str, ...]) -> None:
        self._log = log
        self._arguments = ("ingester", "replicate", "postgres", *arguments)
        self._process: Process | None = None

    @property
    def process(self) -> Process:
        """The newest process."""
        assert self._process is not None
        return self._process

    @property
    def said(self) -> str:
        """On standard error, by all processes."""
        return self._log.read_text(errors="replace")

    def start(self, *more: str) -> None:
        """Start a process; ``more`` are further arguments for this one."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith("INGESTER_")}
        with self._log.open("ab") as stderr:
            self._process = warm().popen([*self._arguments, *more], kept, ROOT, stderr)

    def stop(self, timeout_s: float = 60.0) -> dict[str, Any]:
        """SIGTERM, and the facts that it prints."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(timeout_s) == 0, self.said[-4000:]
        out, _ = self.process.communicate()
        facts: dict[str, Any] = json.loads(out)
        return facts

    def ended(self, timeout_s: float = 60.0) -> int:
        """The exit code, when it has ended by itself."""
        return self.process.wait(timeout_s)

    def kill(self) -> None:
        """``kill -9``; twice is fine."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            if self._process.stdout is not None:
                self._process.stdout.close()


@contextmanager
def replicating(
    dsn: str, endpoint: str, namespace: str, folder: Path, *options: str
) -> Iterator[Replicating]:
    """A started replicator; it is killed at the end."""
    arguments = (dsn, namespace, "--json", "--endpoint", endpoint, *options)
    found = Replicating(folder / f"replicator-{namespace}.stderr", arguments)
    found.start()
    try:
        yield found
    finally:
        found.kill()


def steady_daemon(data_dir: Path, **settings: str) -> Daemon:
    """A daemon whose ``again()`` listens where it did before."""
    return Launch(data_dir, {}, steady_flight(), dict(settings)).start()
