"""Three real daemons on one store that keep their ports across restarts."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from tests.drivers.daemon import Daemon
from tests.drivers.ports import steady_flight


class Three:
    """Daemons ``d0``, ``d1`` and ``d2``."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.daemons: list[Daemon] = []
        stack.callback(self.kill)
        with ThreadPoolExecutor(3) as pool:
            self.daemons = [*pool.map(self._started, range(3))]

    def _started(self, number: int) -> Daemon:
        return Daemon.start(
            self.folder / f"d{number}",
            arguments=steady_flight(),
            id=f"d{number}",
            store=f"file://{self.folder}/store",
            wal__fsync="off",
            manifest__refresh="200ms",
        )

    @property
    def endpoints(self) -> list[str]:
        """The daemons' endpoints, by number."""
        return [daemon.flight for daemon in self.daemons]

    def number(self, endpoint: str) -> int:
        """Return the number of the daemon at an endpoint."""
        return self.endpoints.index(endpoint)

    def again(self, number: int, *arguments: str) -> None:
        """Restart a daemon on its old port with additional ``arguments``."""
        daemon = self.daemons[number]
        daemon.launch.arguments = (*daemon.launch.arguments, *arguments)
        self.daemons[number] = daemon.again()

    def kill(self) -> None:
        """Kill all daemons."""
        for daemon in self.daemons:
            daemon.kill()


def three(folder: Path) -> Iterator[Three]:
    """Yield three running daemons and stop them afterwards."""
    with ExitStack() as stack:
        yield Three(folder, stack)
