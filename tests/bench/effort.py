"""How much a run does, and what every table is given to do it.

Law of this file: the forms differ in amounts only; what is measured is the same in each.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from shutil import rmtree

from tests.daemon import Daemon, Launch


@dataclass(frozen=True, slots=True)
class Effort:
    """Amounts of one form of the program."""

    repeats: int
    cell_s: float
    """How long writers write for one number."""
    cell_bytes: int
    """They stop earlier when all of them together have sent this much: servers keep it."""
    batch_rows: tuple[int, ...]
    writers: tuple[int, ...]
    append_file_bytes: int
    """The preallocated file of the plain append loop."""
    scan_rows: int
    persist_rows: int
    replay_rows: int
    round_trips: int


FORMS = {
    "smoke": Effort(1, 0.05, 4 << 20, (1, 1_000), (1, 2), 8 << 20, 20_000, 20_000, 20_000, 10),
    "quick": Effort(
        3,
        0.7,
        768 << 20,
        (1, 100, 1_000, 10_000),
        (1, 8),
        256 << 20,
        4_000_000,
        2_000_000,
        8_000_000,
        400,
    ),
    "full": Effort(
        7,
        3.0,
        3 << 30,
        (1, 100, 1_000, 10_000),
        (1, 8),
        1 << 30,
        20_000_000,
        2_500_000,
        40_000_000,
        3_000,
    ),
}

BURST = {
    "persist__max_age": "1d",
    "persist__max_partition_bytes": "1TiB",
    "memory__limit": "15GiB",
    "memory__low": "13GiB",
    "memory__high": "14GiB",
    "wal__segment_age": "1d",
    "log__format": "json",
}
"""Settings under which nothing is persisted unless it is asked for."""


class Bench:
    """One run: its amounts, its folder on the disk, and where it tells what it does."""

    def __init__(self, effort: Effort, folder: Path, say: Callable[[str], None]) -> None:
        self.effort = effort
        self.folder = folder
        folder.mkdir(parents=True)
        self.say = say
        self._numbers = count(1)

    def new_folder(self) -> Path:
        """A folder that nobody has used."""
        folder = self.folder / f"data-{next(self._numbers)}"
        folder.mkdir(parents=True)
        return folder

    @contextmanager
    def daemon(self, **settings: object) -> Iterator[Daemon]:
        """A fresh daemon for bursts; its data is deleted afterwards.

        Restarts with ``again`` are the caller's to end.
        """
        folder = self.new_folder()
        try:
            with Launch(folder / "daemon", {}, (), {**BURST, **settings}).start() as daemon:
                yield daemon
        finally:
            rmtree(folder, ignore_errors=True)


def cpu_seconds(pid: int) -> float:
    """Processor time of a process so far, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
