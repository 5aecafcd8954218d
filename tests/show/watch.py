"""Samples each second: memory of each daemon, files of the logs, and rows."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime

from tests.show.load import Load
from tests.show.realm import Realm

LISTS_EVERY_S = 5.0


@dataclass
class Watch:
    """Samples by time since the start, and the faults with their times."""

    began: float = field(default_factory=time.monotonic)
    memory: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    log_files: list[tuple[float, float]] = field(default_factory=list)
    store_files: list[tuple[float, int, int]] = field(default_factory=list)
    """The numbers of data files and of all objects."""
    rows: list[tuple[float, float]] = field(default_factory=list)
    faults: list[tuple[float, str]] = field(default_factory=list)
    wrong_at: datetime | None = None
    """When a client first saw a fault, to a second."""

    def now(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.began

    def sample(self, realm: Realm, load: Load) -> None:
        """Take one sample."""
        if load.wrong and self.wrong_at is None:
            self.wrong_at = datetime.now(UTC)
        now, files = self.now(), 0
        for member in realm.running():
            if member.running.process.poll() is None:
                try:
                    mib = member.running.resident_bytes / (1 << 20)
                except OSError:
                    continue  # it has just been killed
                self.memory.setdefault(member.name, []).append((now, mib))
            files += sum(1 for _ in member.disk.data_dir.glob("wal/*"))
        self.log_files.append((now, files))
        self.rows.append((now, load.acknowledged))
        if not self.store_files or now > self.store_files[-1][0] + LISTS_EVERY_S:
            self.store_files.append((now, *realm.store_files()))


class Watching:
    """A thread that samples once a second during the ``with`` block."""

    def __init__(self, watch: Watch, realm: Realm, load: Load) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(watch, realm, load))

    def _run(self, watch: Watch, realm: Realm, load: Load) -> None:
        while not self._over.wait(1.0):
            watch.sample(realm, load)

    def __enter__(self) -> Watching:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
