"""Threads take snapshots while the event loop writes and freezes.

A snapshot has an operation in all of its partitions or in none, and counts each buffer once.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from ingester.query.snapshot import snapshot_all
from tests.drivers.stage import PARTITIONED, PARTITIONS, Stage

OPERATIONS = 800
THREADS = 3


@pytest.fixture
def restless() -> Iterator[None]:
    """Make threads switch as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("restless")
def test_every_snapshot_is_the_log_up_to_its_sequence(tmp_path: Path) -> None:
    stage = Stage(tmp_path, PARTITIONED)
    trio.run(stage.create)
    table, tree = stage.table, stage.tree
    stage.on_freeze = lambda job: None
    wrong: list[object] = []
    taken = 0
    ended = threading.Event()

    def look() -> None:
        nonlocal taken
        while not ended.is_set():
            snapshot = snapshot_all(table, tree.upto)
            rows = [sum(pin.rows for pin in pins) for pins in snapshot.pins.values()]
            snapshot.close()
            taken += 1
            # Each operation has one row in each partition, and its sequence counts the rows before
            # it.
            upto = snapshot.sequence + PARTITIONS - 1 if snapshot.sequence else 0
            if sum(rows) != upto or len(set(rows)) > 1:
                wrong.append((snapshot.sequence, rows))

    threads = [threading.Thread(target=look) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for number in range(OPERATIONS):
        stage.write(PARTITIONS)
        if number % 7 == 0:
            for partition in list(table.partitions.values()):
                tree.freeze(partition)
    ended.set()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert taken > THREADS
