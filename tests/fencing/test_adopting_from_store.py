"""A machine is lost; its log in the store is adopted beside a successor, and its disk is found."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pyarrow.flight as fl
import pytest

from ingester.recovery.adopt import adopt
from ingester.recovery.adopt_store import adopt_from_store
from tests.drivers.daemon import Daemon, DaemonEnded
from tests.drivers.wire import create, events, persist, rows
from tests.fencing.pairs import Place, place_of, rows_in_files, start, write
from tests.fencing.test_adopting import KEYED, SCHEMA, keyed_rows

STORED, ON_DISK = ("ns", "stored"), ("ns", "on_disk")
ID = "lost"


def make_tables(daemon: Daemon) -> None:
    with fl.connect(daemon.flight) as client:
        create(client, STORED, events(0, 1).schema, ack="store")
        create(client, KEYED, SCHEMA, primary_key=["i"], ack="store")
        create(client, ON_DISK, events(0, 1).schema)


def test_the_store_has_what_was_acknowledged_there_and_the_disk_brings_the_rest(
    place: Place,
) -> None:
    with start(place, "disk", id=ID) as daemon:
        make_tables(daemon)
        write(daemon, ON_DISK, events(0, 10), events(10, 10))
        write(daemon, STORED, events(0, 10), events(10, 10))
        write(daemon, KEYED, keyed_rows(0, 10, 1), keyed_rows(5, 10, 2))
        daemon.kill()
    store = place.store()
    done = adopt_from_store(ID, store)
    assert {(one.table, one.rows) for one in done.tables} == {("stored", 20), ("keyed", 20)}
    assert [(one.table, one.operations) for one in done.lost] == [("on_disk", 2)]
    assert not adopt_from_store(ID, store).tables
    # Another daemon of the id runs meanwhile, without the disk.
    with start(place, "other", id=ID) as successor:
        write(successor, STORED, events(20, 5))
        write(successor, KEYED, keyed_rows(14, 2, 3))
        found = [adopt(place.folder / "disk", store) for _ in range(2)]
        assert not any(each.refused for each in found)
        assert [sum(each.rows for each in one.tables) for one in found] == [20, 0]
        with fl.connect(successor.flight) as client:
            for table in (STORED, KEYED, ON_DISK):
                persist(client, table)
            assert rows(client, STORED) == list(range(25))
            assert rows(client, KEYED) == list(range(16))
            assert rows(client, ON_DISK) == list(range(20))
    assert rows_in_files(place, STORED) == list(range(25))
    assert rows_in_files(place, ON_DISK) == list(range(20))
    assert sorted(rows_in_files(place, KEYED, "v")) == [1] * 5 + [2] * 9 + [3] * 2


@pytest.mark.parametrize("disk", ["on", "off"])
def test_an_adoption_beside_a_start_of_its_id_leaves_each_row_once(place: Place, disk: str) -> None:
    """Whoever claims its epoch first is fenced by the other; the next start has all rows."""
    settings: dict[str, Any] = {"id": ID, "wal__disk": disk}
    with start(place, "a", **settings) as daemon:
        make_tables_of(daemon, disk)
        for first in range(0, 50, 10):
            write(daemon, STORED, events(first, 10))
            write(daemon, KEYED, keyed_rows(first, 15, first))
        daemon.kill()
    shutil.rmtree(place.folder / "a")
    with ThreadPoolExecutor(1) as threads:
        adopting = threads.submit(adopt_from_store, ID, place_of(place).store())
        with suppress(DaemonEnded), start(place, "b", **settings) as beside:
            adopting.result()  # it leaves a keyed table to a daemon that has opened it
            beside.kill()
    shutil.rmtree(place.folder / "b", ignore_errors=True)
    with start(place, "c", **settings) as last:
        with fl.connect(last.flight) as client:
            assert rows(client, STORED) == list(range(50))
            assert rows(client, KEYED) == list(range(55))
        assert last.terminate() == 0
    assert rows_in_files(place, STORED) == list(range(50))
    wins = [each // 10 * 10 for each in range(50)] + [40] * 5
    assert sorted(rows_in_files(place, KEYED, "v")) == sorted(wins)


def make_tables_of(daemon: Daemon, disk: str) -> None:
    with fl.connect(daemon.flight) as client:
        ack = {} if disk == "off" else {"ack": "store"}
        create(client, STORED, events(0, 1).schema, **ack)
        create(client, KEYED, SCHEMA, primary_key=["i"], **ack)
