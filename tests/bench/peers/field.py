"""All peers of one repeat, newly started, except failed ones, whose reasons are kept.

A peer's failure does not affect the others. A peer that fails at its installation, its start or
a write is ended immediately and takes no further part; the others continue.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from shutil import rmtree

from tests.bench.children import ChildFailed
from tests.bench.clients import Written
from tests.bench.peers.installing import Installation, Missing
from tests.bench.peers.peer import Peer, WriteJob
from tests.bench.peers.processes import RunningPeer, started

_FAILURES = (Missing, ChildFailed, OSError, subprocess.SubprocessError)


class Field:
    """The peers of a run: the running ones, and the reasons why others do not run."""

    def __init__(self, peers: Sequence[Peer], installation: Installation) -> None:
        self.peers = tuple(peers)
        self.versions: dict[str, str] = {}
        self.reasons: dict[str, str] = {}
        """Reasons of the missing and failed peers, by name."""
        self._installation = installation
        self._running: dict[str, tuple[RunningPeer, ExitStack]] = {}

    @contextmanager
    def started(self, folder: Path) -> Iterator[None]:
        """Start all peers that have not failed so far; their data is new and deleted afterwards."""
        folder.mkdir(parents=True, exist_ok=True)
        try:
            for peer in self.peers:
                if peer.name not in self.reasons:
                    self._start(peer, folder / peer.name)
            for name in list(self._running):
                self._wait(name)
            yield
        finally:
            for _, stack in self._running.values():
                stack.close()
            self._running.clear()
            rmtree(folder, ignore_errors=True)

    def _start(self, peer: Peer, folder: Path) -> None:
        with ExitStack() as stack:
            try:
                running = stack.enter_context(started(peer, folder, self._installation))
            except _FAILURES as exc:
                self._drop(peer.name, exc)
                return
            self._running[peer.name] = (running, stack.pop_all())

    def _wait(self, name: str) -> None:
        running, _ = self._running[name]
        try:
            running.wait()
        except _FAILURES as exc:
            self._drop(name, exc)
        else:
            self.versions[name] = running.version

    def write(self, name: str, job: WriteJob) -> Written | None:
        """Return a peer's result; ``None`` if it does not run or fails at this."""
        if name not in self._running:
            return None
        try:
            return self._running[name][0].write(job)
        except _FAILURES as exc:
            self._drop(name, exc)
            return None

    def settle(self, name: str) -> float | None:
        """Return a peer's seconds to flush its log to its files; ``None`` as with `write`."""
        if name not in self._running:
            return None
        try:
            return self._running[name][0].settle()
        except _FAILURES as exc:
            self._drop(name, exc)
            return None

    def _drop(self, name: str, exc: Exception) -> None:
        if name in self._running:
            self._running.pop(name)[1].close()
        lines = str(exc).splitlines() or [type(exc).__name__]
        self.reasons[name] = lines[0][:300]
