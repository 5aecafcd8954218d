"""A daemon that is replaced while it is paused is fenced, and its rows are adopted once."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow.flight as fl

from tests.drivers.waiting import until
from tests.drivers.wire import describe, events, persist, rows
from tests.fencing.pairs import (
    Place,
    adopt,
    adopted_rows,
    ask_to_persist,
    fenced,
    on_day,
    operations_in_log,
    pause,
    resume,
    rows_in_files,
    start,
    write,
)

TOUCHED = ("ns", "touched")
"""A table that both daemons write to."""
ALONE = ("ns", "alone")
"""A table that only the first daemon writes to."""


def test_what_a_fenced_daemon_had_acknowledged_is_adopted_once(place: Place) -> None:
    with start(place, "first") as first:
        write(first, TOUCHED, events(0, 30, days=3))
        ask_to_persist(first, TOUCHED)
        write(first, TOUCHED, events(30, 30, days=3), events(60, 30, days=2))
        write(first, ALONE, events(0, 20, days=2))
        pause(first)
        with start(place, "second") as second:
            write(second, TOUCHED, events(90, 30, days=4))
            with fenced(first):
                resume(first)
                ask_to_persist(first, TOUCHED)
            assert operations_in_log(first.data_dir) == 4
            adopted = adopt(place, "first")
            assert adopted[TOUCHED]["rows"] == 60
            assert adopted[TOUCHED]["skipped_rows"] == 30
            assert adopted[TOUCHED]["files"] == 3
            assert adopted[ALONE]["rows"] == 20
            assert adopted_rows(place, "first") == 0
            assert operations_in_log(first.data_dir) == 4
            write(second, TOUCHED, events(120, 10))
            write(second, ALONE, events(20, 10))
            with fl.connect(second.flight) as client:
                for table, count in ((TOUCHED, 130), (ALONE, 30)):
                    persist(client, table)
                    assert rows(client, table) == list(range(count))
            assert second.terminate() == 0
    assert adopted_rows(place, "first") == 0
    assert rows_in_files(place, TOUCHED) == list(range(130))
    assert rows_in_files(place, ALONE) == list(range(30))


def test_both_started_from_copies_of_one_data_directory(place: Place) -> None:
    """The second daemon holds rows in memory that are in the first one's log as well."""
    with start(place, "first") as common:
        write(common, TOUCHED, events(0, 30, days=3), events(30, 30, days=2))
        common.kill()
    shutil.copytree(place.folder / "first", place.folder / "second")
    with start(place, "first") as first:
        write(first, TOUCHED, on_day(7, 60, 30))
        write(first, ALONE, events(0, 20))
        pause(first)
        with start(place, "second") as second, fl.connect(second.flight) as client:
            write(second, TOUCHED, on_day(7, 90, 30))
            with fenced(first):
                resume(first)
                ask_to_persist(first, TOUCHED)
            assert rows(client, TOUCHED) == [*range(60), *range(90, 120)]
            assert adopted_rows(place, "first") == 110
            seen = rows(client, TOUCHED)
            assert seen in ([*range(60), *range(90, 120)], list(range(120)))
            until(lambda: rows(client, TOUCHED) == list(range(120)), "the adopted rows")
            write(second, TOUCHED, events(120, 10, days=2))
            persist(client, TOUCHED)
            assert rows(client, TOUCHED) == list(range(130))
            assert adopted_rows(place, "first") == 0
            assert second.terminate() == 0
    assert adopted_rows(place, "first") == 0
    assert rows_in_files(place, TOUCHED) == list(range(130))
    assert rows_in_files(place, ALONE) == list(range(20))


def test_rows_are_never_seen_twice_while_a_copy_is_adopted(tmp_path: Path) -> None:
    """Buffers filled by replay are released only when the adopted files become visible."""
    with start(tmp_path, "first") as common:
        for n in range(40):
            write(common, TOUCHED, events(n * 10, 10, days=5))
        common.kill()
    shutil.copytree(tmp_path / "first", tmp_path / "second")
    with (
        start(tmp_path, "second", manifest__refresh="10ms") as second,
        fl.connect(second.flight) as client,
        ThreadPoolExecutor(1) as threads,
    ):
        adopting = threads.submit(adopted_rows, tmp_path, "first")
        while not adopting.done():
            assert rows(client, TOUCHED) == list(range(400))
        assert adopting.result() == 400

        def released() -> bool:
            assert rows(client, TOUCHED) == list(range(400))
            sizes = describe(client, TOUCHED)
            assert sizes["buffered"]["rows"] + sizes["persisted"]["rows"] == 400
            return bool(sizes["buffered"]["rows"] == 0)

        until(released, "the release of the adopted rows")
        assert rows(client, TOUCHED) == list(range(400))
    assert rows_in_files(tmp_path, TOUCHED) == list(range(400))


def test_a_copy_that_ends_earlier_is_adopted_while_a_buffer_continues(tmp_path: Path) -> None:
    """The second daemon's buffer has more rows than the adopted log: it encodes the rest."""
    with start(tmp_path, "second") as second:
        write(second, TOUCHED, events(0, 30, days=2))
        shutil.copytree(tmp_path / "second", tmp_path / "first")
        write(second, TOUCHED, events(30, 30, days=3))
        second.kill()
        with second.again() as second, fl.connect(second.flight) as client:
            write(second, TOUCHED, on_day(9, 60, 10))
            assert adopted_rows(tmp_path, "first") == 30
            assert rows(client, TOUCHED) == list(range(70))
            until(lambda: describe(client, TOUCHED)["buffered"]["rows"] == 20, "release")
            assert rows(client, TOUCHED) == list(range(70))
            persist(client, TOUCHED)
            assert rows(client, TOUCHED) == list(range(70))
            assert second.terminate() == 0
    assert adopted_rows(tmp_path, "first") == 0
    assert rows_in_files(tmp_path, TOUCHED) == list(range(70))
