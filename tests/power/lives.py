"""One life of a daemon after another, each ended by a power cut at a random moment.

    start ─▶ check ─▶ write, persist, read ─▶ power cut ─▶ kill ─▶ mount the survivors ─▶ start …

A row counts as acknowledged when its answer has arrived, and as read when an answered query
contained it. After the cut both must exist once, and no unsent row. Each writer has an origin and
sends again what is unanswered, whether or not that has survived.
"""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.flight as fl

from tests.drivers.daemon import ROOT, Daemon, DaemonEnded, Launch
from tests.power.rows import (
    ERRORS,
    by_writer,
    create_table,
    not_once,
    query_all,
    state_of,
)
from tests.power.source import Source

WRITERS = 3
STATED = (1, 2)
"""Writers whose batches carry a state; small batches of others share records of the log."""
SETTINGS: dict[str, object] = {
    "wal__segment_bytes": "128KiB",
    "persist__max_age": "300ms",
    "memory__limit": "256MiB",
}


@dataclass(slots=True)
class Tally:
    """The counts and findings of a campaign."""

    lives: int = 0
    cuts_at_start: int = 0
    acknowledged: int = 0
    read: int = 0
    operations: int = 0
    faults: list[str] = field(default_factory=list)


class PoweredLaunch(Launch):
    """The daemon's log of messages is not on the file system that loses data."""

    def __init__(self, mount_point: Path, folder: Path, root: Path) -> None:
        super().__init__(mount_point / "data", {}, (), SETTINGS)
        self.root = root
        self._folder = folder

    @property
    def stderr_file(self) -> Path:
        """See `Launch.stderr_file`."""
        return self._folder / "stderr"


class Campaign:
    """Lives on one mounted file system."""

    def __init__(self, folder: Path, seed: int, root: Path = ROOT) -> None:
        self.tally = Tally()
        self._dice = random.Random(seed)
        self._mount_point = folder / "mount"
        self._mount_point.mkdir(parents=True)
        self._launch = PoweredLaunch(self._mount_point, folder, root)
        self._sources = [Source(w, seed, stated=w in STATED) for w in range(WRITERS)]
        self._read = [0] * WRITERS

    def run(self, lives: int) -> Tally:
        """Run lives until their number is reached or one ends with a fault."""
        with _file_system(self._mount_point) as files:
            for _ in range(lives):
                self._live(files)
                if self.tally.faults:
                    break
        return self.tally

    def _live(self, files: _Files) -> None:
        self.tally.lives += 1
        if self._dice.random() < 0.2:
            self._cut_at_start(files)
            return
        try:
            daemon = self._launch.start()
        except DaemonEnded as exc:
            self.tally.faults.append(f"no start after the cut: {exc}: {exc.stderr[-1500:]}")
            return
        try:
            self._check(daemon)
            if not self.tally.faults:
                self._work(daemon, files)
        finally:
            daemon.kill()
        files.mount()

    def _cut_at_start(self, files: _Files) -> None:
        self.tally.cuts_at_start += 1
        process = self._launch.spawn()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(self._dice.uniform(0.5, 1.3))
        files.cut(self._dice.getrandbits(32))
        process.kill()
        process.communicate()
        files.mount()

    def _work(self, daemon: Daemon, files: _Files) -> None:
        ended = threading.Event()
        work: list[Any] = [lambda s=s: self._write(daemon, s, ended) for s in self._sources]
        work += [lambda: self._persist(daemon, ended), lambda: self._query(daemon, ended)]
        threads = [threading.Thread(target=each) for each in work]
        for thread in threads:
            thread.start()
        ended.wait(self._dice.uniform(0.05, 1.5))
        files.cut(self._dice.getrandbits(32))
        ended.set()
        daemon.kill()
        for thread in threads:
            thread.join()
        self.tally.acknowledged = sum(source.acknowledged for source in self._sources)
        self.tally.operations = sum(source.operations for source in self._sources)
        self.tally.read = sum(self._read)

    def _write(self, daemon: Daemon, source: Source, ended: threading.Event) -> None:
        with contextlib.suppress(*ERRORS), fl.connect(daemon.flight) as client:
            source.write(client, ended)

    def _persist(self, daemon: Daemon, ended: threading.Event) -> None:
        with contextlib.suppress(*ERRORS), fl.connect(daemon.flight) as client:
            while not ended.wait(0.1):
                list(client.do_action(fl.Action("persist", b"{}")))

    def _query(self, daemon: Daemon, ended: threading.Event) -> None:
        with contextlib.suppress(*ERRORS), fl.connect(daemon.flight) as client:
            while not ended.wait(0.05):
                found = Counter(query_all(client)["w"].to_pylist())
                for writer in range(WRITERS):
                    self._read[writer] = max(self._read[writer], found[writer])

    def _check(self, daemon: Daemon) -> None:
        """Check that every promised row exists once, and no unsent row."""
        try:
            with fl.connect(daemon.flight) as client:
                create_table(client)
                table = query_all(client)
                states = [state_of(client, writer) for writer in range(WRITERS)]
        except ERRORS as exc:
            self.tally.faults.append(f"what survived cannot be read: {exc}")
            return
        faults = self.tally.faults
        for writer, numbers in enumerate(by_writer(table, WRITERS)):
            rows, source = len(numbers), self._sources[writer]
            faults += not_once(writer, numbers)
            for what, least in (
                ("acknowledged", source.acknowledged),
                ("read by a query", self._read[writer]),
            ):
                if rows < least:
                    faults.append(f"writer {writer}: {least} rows were {what}, {rows} are there")
            if (states[writer] or 0) != (rows if writer in STATED else 0):
                faults.append(f"writer {writer}: state {states[writer]}, {rows} rows are there")
            if rows > source.sent:
                faults.append(f"writer {writer}: {rows} rows, {source.sent} were sent")
            self._read[writer] = rows


class _Files:
    """The process of the file system."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._off = False
        self._heard("ready")

    def cut(self, seed: int) -> None:
        """Cut the power: every call fails until the next mount."""
        self._tell(f"cut {seed}")
        self._heard("cut")
        self._off = True

    def mount(self) -> None:
        """Restore the power, if it is cut."""
        if self._off:
            self._tell("mount")
            self._heard("ready")
            self._off = False

    def _tell(self, order: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(order + "\n")
        self._process.stdin.flush()

    def _heard(self, expected: str) -> None:
        assert self._process.stdout is not None
        said = self._process.stdout.readline().strip()
        if said != expected:
            raise RuntimeError(f"the file system said {said!r}, not {expected!r}")


@contextlib.contextmanager
def _file_system(mount_point: Path) -> Iterator[_Files]:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.power.mounted", str(mount_point)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as process:
        yield _Files(process)
