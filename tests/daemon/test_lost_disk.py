"""A daemon whose disk is lost, or that has none: the store has what was acknowledged there."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from tests.drivers.daemon import Daemon, DaemonEnded
from tests.drivers.waiting import until
from tests.drivers.wire import (
    Stream,
    Table,
    act,
    command,
    create,
    describe,
    numbers,
    persist,
    put,
    rows,
)

TABLE: Table = ("ns", "t")


def started(tmp_path: Path, **settings: Any) -> Daemon:
    """A daemon that flushes nothing by itself, with its store outside of its data directory."""
    return Daemon.start(
        tmp_path / "data",
        store=f"file://{tmp_path}/lake",
        id="pod-0",
        persist__max_age="1h",
        **settings,
    )


def lose(daemon: Daemon) -> None:
    """Kill the daemon, and lose its data directory."""
    daemon.kill()
    shutil.rmtree(daemon.data_dir)


def all_rows(daemon: Daemon, table: Table = TABLE) -> list[int]:
    with fl.connect(daemon.flight) as client:
        return sorted(rows(client, table))


def write(daemon: Daemon, first: int, count: int = 10, table: Table = TABLE) -> list[Any]:
    with fl.connect(daemon.flight) as client:
        return put(client, table, numbers(first, count))


def status(daemon: Daemon) -> dict[str, Any]:
    with fl.connect(daemon.flight) as client:
        return act(client, "status")[0]


def log_objects(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "lake" / "_log").rglob("*.wal"))


@pytest.mark.parametrize("settings", [{"wal__disk": "off"}, {"ack": "store"}], ids=str)
def test_rows_at_the_store_are_back_once_after_each_loss_of_the_disk(
    tmp_path: Path, settings: dict[str, object]
) -> None:
    daemon = started(tmp_path, **settings)
    try:
        expected: list[int] = []
        for life in range(4):
            (answer,) = write(daemon, 10 * life)
            assert answer["ack"] == "store"
            expected += range(10 * life, 10 * life + 10)
            assert all_rows(daemon) == expected, life
            if life == 2:
                with fl.connect(daemon.flight) as client:
                    persist(client, TABLE)
            lose(daemon)
            daemon = daemon.again()
            assert all_rows(daemon) == expected, life
        assert status(daemon)["store_log"]["lost"] == []
        assert daemon.terminate() == 0
        assert len(log_objects(tmp_path)) == 4, "fences only"
        shutil.rmtree(daemon.data_dir)
        daemon = daemon.again()
        assert all_rows(daemon) == expected
    finally:
        daemon.kill()


def test_a_restart_with_its_disk_applies_each_row_once_and_keeps_its_log_objects(
    tmp_path: Path,
) -> None:
    """The objects are deleted with the log's segments: the disk may be lost after the restart."""
    with started(tmp_path, ack="store") as first:
        write(first, 0)
        first.kill()
        with first.again() as second:
            assert all_rows(second) == list(range(10))
            # Of another table: the first one's rows stay in the buffer.
            write(second, 10, table=("ns", "other"))
            lose(second)
            with second.again() as third:
                assert all_rows(third) == list(range(10))
                assert all_rows(third, ("ns", "other")) == list(range(10, 20))


def test_a_restart_without_synced_groups_keeps_its_log_objects(tmp_path: Path) -> None:
    with started(tmp_path, ack="store", wal__fsync="off") as first:
        write(first, 0)
        first.kill()
        with first.again() as second:
            assert all_rows(second) == list(range(10))
            # Of another table: the first one's rows stay in the buffer.
            write(second, 10, table=("ns", "other"))
            lose(second)
            with second.again() as third:
                assert all_rows(third) == list(range(10))
                assert all_rows(third, ("ns", "other")) == list(range(10, 20))


def test_operations_on_a_lost_disk_only_are_reported_and_others_are_back(tmp_path: Path) -> None:
    disk, store = ("ns", "on_disk"), ("ns", "at_store")
    with started(tmp_path) as first:
        write(first, 0, table=disk)
        write(first, 10, table=disk)
        with fl.connect(first.flight) as client:
            create(client, store, numbers(0, 1).schema, ack="store")
        assert write(first, 0, table=store)[0]["ack"] == "store"
        lose(first)
        with first.again() as second:
            assert all_rows(second, store) == list(range(10))
            assert all_rows(second, disk) == []
            (lost,) = status(second)["store_log"]["lost"]
            assert lost == {"namespace": "ns", "table": "on_disk", "epoch": 1, "operations": 2}
            warned = [
                json.loads(line)
                for line in second.stderr_file.read_text().splitlines()
                if "operations lost with the disk" in line
            ]
            assert [(each["table"], each["operations"]) for each in warned] == [("ns/on_disk", 2)]


def test_what_only_the_disk_brings_back_at_level_store_is_flushed_at_once(tmp_path: Path) -> None:
    """The store may lack what was replayed, and it is readable: it may not wait for its age."""
    with started(tmp_path, ack="store") as first:
        write(first, 0)
        first.kill()
        with first.again() as second, fl.connect(second.flight) as client:
            until(lambda: describe(client, TABLE)["persisted"]["rows"] == 10, "the flush")
            assert all_rows(second) == list(range(10))
            (answer,) = write(second, 10)
            assert answer["ack"] == "store"


def test_operations_of_a_disk_that_came_back_are_not_reported(tmp_path: Path) -> None:
    """The segments of an epoch are gone before its log objects, if a start dies in between."""
    with started(tmp_path) as first:
        write(first, 0)
        with fl.connect(first.flight) as client:
            create(client, ("ns", "at_store"), numbers(0, 1).schema, ack="store")
        write(first, 0, table=("ns", "at_store"))
        first.kill()
        left = {path: path.read_bytes() for path in log_objects(tmp_path)}
        with first.again() as second:
            with fl.connect(second.flight) as client:
                act(client, "persist")
            assert second.terminate() == 0
        for path, data in left.items():
            path.write_bytes(data)
        with first.again() as third:
            assert status(third)["store_log"]["lost"] == []
            assert all_rows(third) == list(range(10))


def test_a_daemon_without_a_disk_refuses_to_leave_a_log_behind(tmp_path: Path) -> None:
    with started(tmp_path) as daemon:
        write(daemon, 0)
        daemon.kill()
        with pytest.raises(DaemonEnded) as error:
            daemon.again(wal__disk="off").kill()
        assert error.value.code == 1
        assert "wal.disk" in error.value.stderr
        assert f"{daemon.data_dir / 'wal'} has a log with" in error.value.stderr
        # The advice of the message: start with a log on disk, and stop cleanly.
        with daemon.again() as again:
            assert all_rows(again) == list(range(10))
            assert again.terminate() == 0
        with daemon.again(wal__disk="off") as diskless:
            (answer,) = write(diskless, 10)
            assert answer["ack"] == "store"
            diskless.kill()
            with daemon.again() as again:  # and back
                assert all_rows(again) == list(range(20))


def test_a_lost_log_without_log_objects_is_refused_and_nothing_else(tmp_path: Path) -> None:
    with started(tmp_path) as daemon:
        write(daemon, 0)
        lose(daemon)
        with pytest.raises(DaemonEnded) as error:
            daemon.again().kill()
        assert error.value.code == 5
        assert "--accept-lost-log" in error.value.stderr
        with pytest.raises(DaemonEnded):
            daemon.again(wal__disk="off").kill()
        with daemon.again(recovery__accept_lost_log="true", wal__disk="off") as accepted:
            (answer,) = write(accepted, 50)
            assert answer["ack"] == "store"
            lose(accepted)
            # This epoch had no disk to lose.
            with daemon.again() as with_disk:
                assert all_rows(with_disk) == list(range(50, 60))


def test_a_table_is_flushed_before_its_first_operation_is_shipped(tmp_path: Path) -> None:
    with started(tmp_path) as daemon:
        write(daemon, 0)
        with fl.connect(daemon.flight) as client:
            low = put_at(client, numbers(10, 5), "store")
            assert low["ack"] == "store"
            # From then on, what asks for less is at the store, too.
            put_at(client, numbers(20, 5), "disk")
        lose(daemon)
        with daemon.again() as again:
            assert all_rows(again) == [*range(15), *range(20, 25)]
            assert status(again)["store_log"]["lost"] == []


def put_at(client: fl.FlightClient, batch: pa.RecordBatch, ack: str) -> dict[str, Any]:
    """Write a batch at a level."""
    descriptor = command(type="write", namespace=TABLE[0], table=TABLE[1], ack=ack)
    with Stream(client, descriptor, batch.schema) as stream:
        return stream.write(batch)
