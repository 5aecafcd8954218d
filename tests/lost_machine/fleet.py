"""Three daemons with one store. Each process has its own data directory, as on its own machine.

A process that takes the place of another starts with the same id and an empty data directory.
Whether that is refused, because rows may be missing, is counted: then a human would have to decide.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.crash.checking import Findings
from tests.drivers.daemon import Daemon, DaemonEnded, Launch
from tests.fencing.pairs import Place, pause, resume
from tests.lost_machine.homes import Homes

ENDED_WITHIN_S = 30.0
FENCED = 6


@dataclass(slots=True)
class Sleeper:
    """A paused process, and when it was woken."""

    daemon: Daemon
    home: int
    found: bool
    """Whether its disk is found again after its end."""
    woken_at: float | None = None


@dataclass(frozen=True, slots=True)
class FoundDisk:
    """The data directory of a process that was lost, and the address that this had."""

    home: int
    data_dir: Path
    endpoint: str


class Fleet:
    """The daemons of a campaign; ``counts`` is for its report."""

    def __init__(self, place: Place, homes: Homes, findings: Findings) -> None:
        self.place = place
        self.counts: Counter[str] = Counter()
        self.restarts_s: list[float] = []
        self.daemons: dict[int, Daemon] = {}
        self.sleepers: list[Sleeper] = []
        self.disks: list[FoundDisk] = []
        self.crashed: set[int] = set()
        """Daemons that have started again with their disk."""
        self._homes = homes
        self._findings = findings
        self._machines: Counter[int] = Counter()

    def start(
        self, home: int, settings: Mapping[str, object], data_dir: Path | None = None
    ) -> Daemon:
        """Start a process with an empty data directory, or with this one, and move its clients."""
        began = time.monotonic()
        launch = self.launch(home, settings, data_dir)
        try:
            daemon = launch.start()
        except DaemonEnded as exc:
            if exc.code == FENCED:
                self.counts["starts that an adoption fenced"] += 1
                daemon = launch.start()
            elif "lost log" in exc.stderr or "accept-lost-log" in exc.stderr:
                self.counts["starts that a human had to accept"] += 1
                accepted = {**settings, "recovery__accept_lost_log": "true"}
                daemon = self.launch(home, accepted, launch.data_dir).start()
            else:
                raise
        self.restarts_s.append(time.monotonic() - began)
        self.daemons[home] = daemon
        self._homes.move(home, daemon.flight)
        return daemon

    def launch(
        self, home: int, settings: Mapping[str, object], data_dir: Path | None = None
    ) -> Launch:
        """How a process with this id starts."""
        if data_dir is None:
            self._machines[home] += 1
            data_dir = self.place.folder / f"{name_of(home)}-{self._machines[home]}"
        environment = {**self.place.environment, "INGESTER_ID": name_of(home)}
        named = {"store": self.place.url, **settings}
        return Launch(data_dir, environment, ("--adopt", "store:home-*"), named)

    def lose(self, home: int, *, paused: bool, found: bool) -> Sleeper | None:
        """Kill a process and take its data away, or pause it; its clients get no new address yet.

        Args:
            found: its data directory is among ``disks`` once the process has ended.
        """
        daemon = self.daemons.pop(home)
        if (code := daemon.process.poll()) is not None:
            self._findings.add(
                f"{name_of(home)} ended with {code} before its loss: {_told(daemon)}"
            )
        if paused:
            pause(daemon)
            sleeper = Sleeper(daemon, home, found)
            self.sleepers.append(sleeper)
            return sleeper
        self._homes.move(home, None)
        daemon.kill()
        self._take_disk(home, daemon, found=found)
        return None

    def crash(self, home: int, settings: Mapping[str, object]) -> None:
        """Kill a process and start it again with its data directory; its log keeps its disk."""
        daemon = self.daemons.pop(home)
        self.crashed.add(home)
        self._homes.move(home, None)
        daemon.kill()
        disk = {k: v for k, v in daemon.launch.settings.items() if k == "wal__disk"}
        kept = {k: v for k, v in settings.items() if k != "wal__disk"}
        self.start(home, kept | disk, daemon.data_dir)

    def lose_while_starting(
        self, home: int, settings: Mapping[str, object], after_s: float
    ) -> None:
        """Start a successor, and lose it and its data directory before or just after it serves."""
        launch = self.launch(home, settings)
        process = launch.spawn()
        try:
            process.wait(after_s)
        except subprocess.TimeoutExpired:
            self.counts["successors lost while they started"] += 1
        else:
            self.counts["successors that refused to start"] += 1
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
        shutil.rmtree(launch.data_dir, ignore_errors=True)

    def wake(self, sleeper: Sleeper) -> None:
        """Continue a paused process, which must find that it was replaced."""
        sleeper.woken_at = time.monotonic()
        resume(sleeper.daemon)

    def reap(self, *, wait: bool) -> None:
        """Check the ends of woken processes, all of them if told to ``wait``."""
        for sleeper in list(self.sleepers):
            if sleeper.woken_at is None:
                continue
            code = sleeper.daemon.process.poll()
            left_s = sleeper.woken_at + ENDED_WITHIN_S - time.monotonic()
            if code is None and wait and left_s > 0:
                try:
                    code = sleeper.daemon.process.wait(left_s)
                except subprocess.TimeoutExpired:
                    code = None
            if code is None and left_s > 0:
                continue
            self._end(sleeper, code)

    def _end(self, sleeper: Sleeper, code: int | None) -> None:
        self.sleepers.remove(sleeper)
        daemon = sleeper.daemon
        who = f"{daemon.data_dir.name}, woken after it was replaced"
        if code is None:
            self._findings.add(f"{who}, still runs: {_told(daemon)}")
        elif code != FENCED:
            self._findings.add(f"{who}, ended with {code}: {_told(daemon)}")
        else:
            self.counts["woken processes that were fenced"] += 1
        daemon.kill()
        self._take_disk(sleeper.home, daemon, found=sleeper.found)

    def _take_disk(self, home: int, daemon: Daemon, *, found: bool) -> None:
        """Keep the data directory of an ended process if it has a log, or delete it."""
        if found and any((daemon.data_dir / "wal").glob("*.wal")):
            self.disks.append(FoundDisk(home, daemon.data_dir, daemon.flight))
        else:
            shutil.rmtree(daemon.data_dir, ignore_errors=True)

    def close(self) -> None:
        """End all processes."""
        for daemon in [*self.daemons.values(), *(s.daemon for s in self.sleepers)]:
            daemon.kill()


def name_of(home: int) -> str:
    """The id of a daemon."""
    return f"home-{home}"


def _told(daemon: Daemon) -> str:
    """The last events of a daemon's log."""
    lines = daemon.stderr_file.read_text(errors="replace").splitlines()[-4:]
    return " | ".join(lines)[-2000:]
