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
    manifest_files: tuple[int, ...]
    manifest_versions: tuple[int, ...]
    manifest_partitions: int


FORMS = {
    "smoke": Effort(
        repeats=1,
        cell_s=0.05,
        cell_bytes=4 << 20,
        batch_rows=(1, 1_000),
        writers=(1, 2),
        append_file_bytes=8 << 20,
        scan_rows=20_000,
        persist_rows=20_000,
        replay_rows=20_000,
        round_trips=10,
        manifest_files=(10, 100),
        manifest_versions=(10, 200),
        manifest_partitions=40,
    ),
    "quick": Effort(
        repeats=3,
        cell_s=0.5,
        cell_bytes=512 << 20,
        batch_rows=(1, 100, 1_000, 10_000),
        writers=(1, 8),
        append_file_bytes=256 << 20,
        scan_rows=4_000_000,
        persist_rows=2_000_000,
        replay_rows=8_000_000,
        round_trips=400,
        manifest_files=(10, 1_000, 100_000),
        manifest_versions=(10, 100_000),
        manifest_partitions=2_000,
    ),
    "full": Effort(
        repeats=7,
        cell_s=3.0,
        cell_bytes=3 << 30,
        batch_rows=(1, 100, 1_000, 10_000),
        writers=(1, 8),
        append_file_bytes=1 << 30,
        scan_rows=20_000_000,
        persist_rows=2_500_000,
        replay_rows=40_000_000,
        round_trips=3_000,
        manifest_files=(10, 1_000, 100_000),
        manifest_versions=(10, 100_000),
        manifest_partitions=10_000,
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
