"""``ingester replicate postgres`` in its own process, and a daemon that keeps its address.

    with replicating(cluster.dsn, daemon.flight, "shop", folder, "--slot", "mine") as replicator:
        replicator.kill()
        replicator.start()                 # resumes
        facts = replicator.stop()          # SIGTERM; returns what it printed

``said`` is the standard error of all its processes.
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
from tests.drivers.waiting import until
from tests.drivers.warm import Process, warm


class Replicating:
    """A replicator that can be started and stopped repeatedly."""

    def __init__(self, log: Path, arguments: tuple[str, ...]) -> None:
        self._log = log
        self._arguments = ("ingester", "replicate", "postgres", *arguments)
        self._process: Process | None = None

    @property
    def process(self) -> Process:
        """The process of the last start."""
        assert self._process is not None
        return self._process

    @property
    def said(self) -> str:
        """The standard error of all processes so far."""
        return self._log.read_text(errors="replace")

    def start(self, *more: str) -> None:
        """Start a process with these additional arguments."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith("INGESTER_")}
        with self._log.open("ab") as stderr:
            self._process = warm().popen([*self._arguments, *more], kept, ROOT, stderr)

    def stop(self, timeout_s: float = 60.0) -> dict[str, Any]:
        """Stop the replicator by SIGTERM and return the facts that it prints."""
        until(
            self._catches_sigterm, "its handler of SIGTERM", timeout_s
        )  # Not while the interpreter still starts.
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(timeout_s) == 0, self.said[-4000:]
        out, _ = self.process.communicate()
        facts: dict[str, Any] = json.loads(out)
        return facts

    def _catches_sigterm(self) -> bool:
        """Whether it has ended, or is past the interpreter's start, where SIGTERM kills it."""
        if self.process.poll() is not None:
            return True
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        caught = int(status.partition("SigCgt:")[2].split()[0], 16)
        return bool(caught >> signal.SIGTERM - 1 & 1)

    def ended(self, timeout_s: float = 60.0) -> int:
        """Wait until the process ends without a signal and return its exit code."""
        return self.process.wait(timeout_s)

    def kill(self) -> None:
        """Kill the process by SIGKILL; a second call has no effect."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            if self._process.stdout is not None:
                self._process.stdout.close()


@contextmanager
def replicating(
    dsn: str, endpoint: str, namespace: str, folder: Path, *options: str
) -> Iterator[Replicating]:
    """A started replicator, killed at the end of the block."""
    arguments = (dsn, namespace, "--json", "--endpoint", endpoint, *options)
    found = Replicating(folder / f"replicator-{namespace}.stderr", arguments)
    found.start()
    try:
        yield found
    finally:
        found.kill()


def steady_daemon(data_dir: Path, **settings: str) -> Daemon:
    """Start a daemon whose ``again()`` listens at the same address."""
    return Launch(data_dir, {}, steady_flight(), dict(settings)).start()
