"""Table "replay": how fast a killed daemon recovers its buffers.

The daemon is killed with SIGKILL while all rows are in the log and none in files, and is started
again; the rows are counted afterwards. The baseline reads the log's bytes and verifies their
checksums into memory that is as cold as that of a started daemon. It runs in a new process each
time and uses small pages, because a huge page is tenfold faster or slower depending on its
previous user.
"""

from __future__ import annotations

import ctypes
import json
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from shutil import disk_usage

import crc32c
import pyarrow as pa

from ingester.memory.machine import usable_bytes
from tests.bench.clients import Clients
from tests.bench.effort import Bench
from tests.bench.report import Table, Target
from tests.bench.requests import fill, ticket
from tests.bench.rows import ROW_BYTES
from tests.bench.samples import Samples
from tests.bench.scans import ScanJob
from tests.drivers.daemon import Daemon

NAME = "replay"
_BATCH_ROWS = 10_000
_PART_ROWS = 24_000_000
_TICKET = ticket("log")
_PR_SET_THP_DISABLE = 41
"""prctl(2)"""


def run(bench: Bench) -> list[Table]:
    """Measure the logged replay rate and the rate of the whole start, by log size."""
    table = Table(
        NAME,
        "Replay: rows in the log and nothing in files, kill -9, start",
        ["rows", "log", "what", "seconds", "rows/s", "of reading"],
        notes=["the log is in the page cache, as after a crash of the process alone, if it fits"],
    )
    room = _room(bench.folder)
    asked = bench.effort.replay_rows
    if asked[-1] > room:
        table.notes.append(
            f"{asked[-1]:,} rows: scaled to a third of the memory or of the free disk"
        )
    with Clients(1) as clients:
        for rows in sorted({min(rows, room) for rows in asked}):
            _add(bench, table, clients, rows)
    return [table]


def _room(folder: Path) -> int:
    """The number of rows whose buffers, log and page cache fit in memory together."""
    least = min(usable_bytes(), disk_usage(folder).free)
    return least // 3 // ROW_BYTES // _BATCH_ROWS * _BATCH_ROWS


def _add(bench: Bench, table: Table, clients: Clients, rows: int) -> None:
    repeats = range(bench.effort.replay_repeats)
    found = _Found()
    with bench.daemon(memory__limit="20GiB", memory__low="18GiB", memory__high="19GiB") as first:
        first.kill()
        for _ in repeats:
            found.start_empty.append(_start(first)[1])
        with first.again() as filled:
            bench.say(f"writing {rows:,} rows")
            # In parts: this process also holds the rows that it sends.
            parts = [min(_PART_ROWS, rows - sent) for sent in range(0, rows, _PART_ROWS)]
            total = sum(fill(filled, "log", part, _BATCH_ROWS) for part in parts)
        log_bytes = sum(path.stat().st_size for path in (first.data_dir / "wal").glob("*.wal"))
        _read_afresh(first)  # The log was written around the page cache.
        for repeat in repeats:
            bench.say(f"{rows:,} rows, repeat {repeat + 1} of {bench.effort.replay_repeats}")
            # In turns: a party that fills memory may leave pages for the next one.
            if repeat % 2 == 0:
                found.read.append(_read_afresh(first))
            replay_s, ready_s = _start(first, clients, total)
            found.replay.append(replay_s)
            found.start.append(ready_s)
            if repeat % 2:
                found.read.append(_read_afresh(first))
    _fill_in(table, total, log_bytes, found)


@dataclass(slots=True)
class _Found:
    """Seconds, one per repeat."""

    start_empty: list[float] = field(default_factory=list)
    read: list[float] = field(default_factory=list)
    replay: list[float] = field(default_factory=list)
    start: list[float] = field(default_factory=list)


def _fill_in(table: Table, rows: int, log_bytes: int, found: _Found) -> None:
    reading = _rate(rows, found.read)
    replaying = _rate(rows, found.replay)
    log = Samples((float(log_bytes),), "B")
    table.add(
        rows=rows,
        log=log,
        what="read, check and copy the log's bytes",
        seconds=_s(found.read),
        rows__s=reading,
    )
    table.add(
        what="replay, as the daemon logs it",
        seconds=_s(found.replay),
        rows__s=replaying,
        of_reading=replaying.over(reading),
    )
    table.add(what="start to ready", seconds=_s(found.start), rows__s=_rate(rows, found.start))
    table.add(what="start to ready, empty log", seconds=_s(found.start_empty))
    what = f"replay of {rows:,} rows, of reading, checking and copying"
    table.targets += [
        Target(what, 0.9, replaying.over(reading)),
        Target(f"replay of {rows:,} rows, rows/s", 5e6, replaying),
    ]


def _s(seconds: list[float]) -> Samples:
    return Samples(tuple(seconds), "s")


def _rate(rows: int, seconds: list[float]) -> Samples:
    return Samples(tuple(rows / each for each in seconds), "/s")


def _start(daemon: Daemon, clients: Clients | None = None, total: int = 0) -> tuple[float, float]:
    """Return the replay's duration as logged and the time from the start to the ready line."""
    began = time.monotonic()
    with daemon.again() as again:
        ready_s = time.monotonic() - began
        if clients is not None:
            found = clients.scan(ScanJob(again.flight, _TICKET)).rows
            if found != total:
                raise AssertionError(f"{found} rows after the replay, {total} before")
        return _logged(again.stderr_file), ready_s


def _logged(stderr_file: Path) -> float:
    """Return the seconds of the newest "log replayed" event."""
    lines = [json.loads(line) for line in stderr_file.read_text().splitlines() if line[:1] == "{"]
    replays = [line for line in lines if line.get("event") == "log replayed"]
    # Logged in milliseconds: the replay of a tiny log takes 0.
    return max(0.001, float(replays[-1]["seconds"]))


def _read_afresh(daemon: Daemon) -> float:
    with ProcessPoolExecutor(1, get_context("spawn")) as fresh:
        return fresh.submit(_read_log, daemon.data_dir / "wal").result()


def _read_log(folder: Path) -> float:
    """Return one thread's seconds to read and verify all segments into new Arrow buffers."""
    ctypes.CDLL(None).prctl(_PR_SET_THP_DISABLE, 1, 0, 0, 0)
    began = time.perf_counter()
    held = []
    for path in sorted(folder.glob("*.wal")):
        with path.open("rb", buffering=0) as file:
            buffer = pa.allocate_buffer(path.stat().st_size)
            file.readinto(memoryview(buffer))
            crc32c.crc32c(memoryview(buffer))
            held.append(buffer)
    return time.perf_counter() - began
