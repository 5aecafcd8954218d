"""Adoptions that race with the successor's writes and flushes, and with each other."""

from __future__ import annotations

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pyarrow.flight as fl

from tests.drivers.daemon import Daemon
from tests.drivers.wire import events, persist, put, rows
from tests.fencing.pairs import (
    adopt,
    adopted_rows,
    ask_to_persist,
    fenced,
    on_day,
    pause,
    resume,
    rows_in_files,
    start,
    write,
)

TABLE = ("ns", "t")
OLD_ROWS = 300
NEW_FROM = 10_000


def write_until(stop: threading.Event, daemon: Daemon) -> int:
    """Keep writing to the daemon until told to stop; returns the number of the next row."""
    number = NEW_FROM
    with fl.connect(daemon.flight) as client:
        while not stop.is_set():
            put(client, TABLE, events(number, 20, days=4))
            number += 20
    return number


def test_adoptions_of_three_copies_at_once_beside_a_busy_successor(tmp_path: Path) -> None:
    with start(tmp_path, "first") as first:
        for n in range(0, OLD_ROWS, 10):
            write(first, TABLE, on_day(n // 10 % 6, n, 10))
        pause(first)
        names = ["first", "copy-1", "copy-2"]
        for name in names[1:]:
            shutil.copytree(first.data_dir, tmp_path / name)
        second = start(tmp_path, "second", persist__max_age="50ms", manifest__refresh="10ms")
        with second, ThreadPoolExecutor(4) as threads, ExitStack() as ending:
            stop = threading.Event()
            ending.callback(stop.set)
            writing = threads.submit(write_until, stop, second)
            write(second, TABLE, events(NEW_FROM - 20, 20))
            with fenced(first):
                resume(first)
                ask_to_persist(first, TABLE)
            adopted = threads.map(lambda name: adopt(tmp_path, name)[TABLE]["rows"], names)
            added = sum(adopted)
            stop.set()
            end = writing.result()
            assert added == OLD_ROWS
            everything = [*range(OLD_ROWS), *range(NEW_FROM - 20, end)]
            with fl.connect(second.flight) as client:
                persist(client, TABLE)
                assert rows(client, TABLE) == everything
            assert second.terminate() == 0
        for name in names:
            assert adopted_rows(tmp_path, name) == 0
    assert rows_in_files(tmp_path, TABLE) == everything
