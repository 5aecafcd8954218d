"""Stops, kills and exit codes of a daemon, and the state that the next start finds."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from tests.drivers.daemon import Daemon, DaemonEnded
from tests.drivers.waiting import until
from tests.drivers.wire import (
    ARROW_AND_FLIGHT,
    Stream,
    Table,
    describe,
    events,
    extra,
    http,
    numbers,
    path,
    persist,
    put,
    query,
    rows,
    ticket,
)


class _Writers:
    """Four threads that write until their daemon ends, and the batches acknowledged and sent."""

    def __init__(self, daemon: Daemon, table: Table, first: int) -> None:
        self.acknowledged: list[int] = []
        self.sent: list[int] = []
        self.codes: set[str] = set()
        self.enough = threading.Event()
        self._daemon, self._table, self._first = daemon, table, first
        self._threads = [threading.Thread(target=self._write, args=(n,)) for n in range(4)]
        for thread in self._threads:
            thread.start()

    def _write(self, writer: int) -> None:
        batch = events(0, 1)
        try:
            with (
                fl.connect(self._daemon.flight) as client,
                Stream(client, path(self._table), batch.schema) as stream,
            ):
                for n in range(10_000):
                    first = self._first + (writer * 10_000 + n) * 6
                    self.sent.append(first)
                    stream.write(events(first, 6, days=3))
                    self.acknowledged.append(first)
                    if len(self.acknowledged) > 200:
                        self.enough.set()
        except ARROW_AND_FLIGHT as error:
            info = getattr(error, "extra_info", None)
            self.codes.add(extra(error)["code"] if info else "gone")

    def join(self) -> None:
        for thread in self._threads:
            thread.join()


def _check(found: list[int], writers: list[_Writers]) -> None:
    """Every acknowledged batch is stored once, and no other batch is stored in part."""
    assert len(found) == len(set(found)), "rows stand twice"
    there = set(found)
    for each in writers:
        for first in each.acknowledged:
            assert there.issuperset(range(first, first + 6)), f"acknowledged batch {first} is lost"
    sent = {i for each in writers for first in each.sent for i in range(first, first + 6)}
    assert there <= sent
    assert len(found) % 6 == 0


def test_a_start_lets_go_of_segments_whose_rows_are_all_in_files(
    tmp_path: Path, table: Table
) -> None:
    with Daemon.start(tmp_path) as daemon, fl.connect(daemon.flight) as client:
        put(client, table, events(0, 6, days=3))
        persist(client, table)
        daemon.kill()
    # None of their rows enters a buffer again, so no release of a buffer would delete the segments.
    with Daemon.start(tmp_path) as daemon, fl.connect(daemon.flight) as client:
        (segment,) = (tmp_path / "wal").glob("*.wal")
        assert int(segment.stem) > 1
        assert rows(client, table) == list(range(6))


def test_a_stop_under_writers_loses_nothing_and_leaves_an_empty_log(
    tmp_path: Path, table: Table
) -> None:
    daemon = Daemon.start(tmp_path / "data")
    writers = _Writers(daemon, table, 0)
    writers.enough.wait(60)
    assert daemon.terminate() == 0
    writers.join()
    assert writers.codes <= {"stopping", "gone"}
    with daemon.again() as restarted, fl.connect(restarted.flight) as client:
        _check(rows(client, table), [writers])
        # All rows are in files: nothing had to be replayed.
        assert query(client, table, scope="buffered").num_rows == 0


def test_kills_under_writers_lose_nothing(tmp_path: Path, table: Table) -> None:
    daemon = Daemon.start(tmp_path / "data", persist__max_age="100ms")
    done: list[_Writers] = []
    for turn in range(3):
        writers = _Writers(daemon, table, turn * 1_000_000)
        writers.enough.wait(60)
        daemon.kill()
        writers.join()
        done.append(writers)
        daemon = daemon.again()
        with fl.connect(daemon.flight) as client:
            _check(rows(client, table), done)
    with daemon, fl.connect(daemon.flight) as client:
        version = persist(client, table)
        _check(rows(client, table, scope="version", version=version), done)


def test_a_daemon_that_is_killed_while_it_replays_still_has_everything(
    tmp_path: Path, table: Table
) -> None:
    with Daemon.start(tmp_path / "data") as daemon:
        with fl.connect(daemon.flight) as client:
            for first in range(0, 20_000, 1000):
                put(client, table, events(first, 1000, days=5))
        daemon.kill()
        for _ in range(3):
            process = daemon.launch.spawn()
            with suppress(OSError):  # the daemon has claimed its epoch and is replaying
                while b"epoch claimed" not in daemon.stderr_file.read_bytes().split(b"\n")[-2]:
                    assert process.poll() is None
            process.kill()
            process.communicate()
        with daemon.again() as restarted, fl.connect(restarted.flight) as client:
            assert rows(client, table) == list(range(20_000))


def test_epochs_rise_and_incarnations_differ(tmp_path: Path) -> None:
    with Daemon.start(tmp_path / "data") as first:
        assert first.terminate() == 0
        with first.again() as second:
            second.kill()
            with second.again() as third:
                epochs = [d.ready["epoch"] for d in (first, second, third)]
                assert epochs == sorted(set(epochs))
                assert len({d.ready["incarnation"] for d in (first, second, third)}) == 3
                assert third.ready["ingester_id"] == "tested"


def test_a_stop_waits_for_a_query_and_refuses_writes_meanwhile(
    tmp_path: Path, table: Table
) -> None:
    with Daemon.start(tmp_path / "data") as daemon, fl.connect(daemon.flight) as client:
        wide = numbers(0, 2000, s=pa.array(["x" * 20_000] * 2000))
        for _ in range(3):
            put(client, table, wide)
        reader = client.do_get(ticket(table))
        found = reader.read_chunk().data.num_rows
        daemon.process.terminate()
        # The daemon refuses writes as soon as it stops.
        while True:
            try:
                put(client, table, numbers(0, 1))
            except fl.FlightUnavailableError as error:
                assert extra(error)["code"] == "stopping"  # noqa: PT017
                break
        found += sum(chunk.data.num_rows for chunk in reader)
        assert found >= 6000
        assert daemon.wait() == 0


def _streams(daemon: Daemon) -> int:
    found: int = json.loads(http(f"{daemon.http}/api/status")[2])["streams"]["open"]
    return found


def test_a_stop_ends_also_if_there_is_a_query_at_all_times(tmp_path: Path, table: Table) -> None:
    """Clients query in a loop, each starting before the others' answers end."""
    ended: list[str] = []

    def ask(flight: str) -> None:
        with fl.connect(flight) as client:
            while True:
                try:
                    client.do_get(ticket(table)).read_all()
                except fl.FlightUnavailableError as error:
                    ended.append(json.loads(error.extra_info or b"{}").get("code", "gone"))
                    return

    with Daemon.start(tmp_path / "data", stop_deadline="20s") as daemon:
        with fl.connect(daemon.flight) as client:
            for n in range(4):
                put(client, table, numbers(n, 2000, s=pa.array(["x" * 5_000] * 2000)))
        with ThreadPoolExecutor(4) as clients:
            asking = [clients.submit(ask, daemon.flight) for _ in range(4)]
            until(lambda: _streams(daemon) > 1, "answers under way")
            assert daemon.terminate() == 0
            for one in asking:
                one.result()
    assert set(ended) <= {"stopping", "gone"}
    assert "stopping" in ended
    with Daemon.start(tmp_path / "data") as daemon, fl.connect(daemon.flight) as client:
        assert describe(client, table)["persisted"]["rows"] == 8000


def test_past_its_deadline_a_stop_exits_with_7_and_the_log_keeps_the_rest(
    tmp_path: Path, table: Table
) -> None:
    with Daemon.start(tmp_path / "data", stop_deadline="0s") as daemon:
        with fl.connect(daemon.flight) as client:
            put(client, table, events(0, 1000, days=7))
        assert daemon.terminate() == 7
        with daemon.again(stop_deadline="60s") as restarted, fl.connect(restarted.flight) as client:
            assert rows(client, table) == list(range(1000))


def test_a_client_that_reads_no_further_keeps_no_stop_from_being_clean(
    tmp_path: Path, table: Table
) -> None:
    with Daemon.start(tmp_path / "data", stop_deadline="2s") as daemon:
        with fl.connect(daemon.flight) as client:
            # The first flush may import pandas, which takes a second that the stop does not have.
            put(client, ("n", "t"), numbers(0, 1))
            persist(client, ("n", "t"))
            wide = numbers(0, 2000, s=pa.array(["x" * 20_000] * 2000))
            for _ in range(3):
                put(client, table, wide)
            reader = client.do_get(ticket(table))
            reader.read_chunk()
            assert daemon.terminate() == 0
        told = [json.loads(line) for line in daemon.stderr_file.read_text().splitlines()]
        assert [line["answers_cut"] for line in told if "answers_cut" in line] == [1]
        with daemon.again() as again, fl.connect(again.flight) as client:
            assert query(client, table, scope="buffered").num_rows == 0


def test_a_second_daemon_in_the_same_folder_exits_with_1(tmp_path: Path) -> None:
    with Daemon.start(tmp_path / "data") as daemon:
        with pytest.raises(DaemonEnded) as error:
            daemon.again()
        assert error.value.code == 1
        assert str(daemon.pid) in error.value.stderr or "lock" in error.value.stderr
        with fl.connect(daemon.flight) as client:
            put(client, ("n", "t"), numbers(0, 1))


def test_an_unknown_setting_exits_with_2_and_names_it(tmp_path: Path) -> None:
    with pytest.raises(DaemonEnded) as error:
        Daemon.start(tmp_path / "data", persist__max_agee="2s")
    assert error.value.code == 2
    assert "INGESTER_PERSIST__MAX_AGEE" in error.value.stderr


@pytest.mark.parametrize(
    ("setting", "value"),
    [("persist__max_age", "soon"), ("memory__limit", "-1"), ("wal__fsync", "never")],
)
def test_a_value_that_cannot_be_exits_with_2_and_shows_it(
    tmp_path: Path, setting: str, value: str
) -> None:
    settings: dict[str, Any] = {setting: value}
    with pytest.raises(DaemonEnded) as error:
        Daemon.start(tmp_path / "data", **settings)
    assert error.value.code == 2
    assert value in error.value.stderr


def test_an_unknown_option_exits_with_2(tmp_path: Path) -> None:
    with pytest.raises(DaemonEnded) as error:
        Daemon.start(tmp_path / "data", arguments=["--nope"])
    assert error.value.code == 2


def test_a_damaged_log_exits_with_5_and_names_file_and_offset(tmp_path: Path, table: Table) -> None:
    daemon = Daemon.start(tmp_path / "data")
    with fl.connect(daemon.flight) as client:
        for i in range(50):
            put(client, table, numbers(i, 1))
    daemon.kill()
    (segment,) = (daemon.data_dir / "wal").glob("*.wal")
    content = bytearray(segment.read_bytes())
    end = len(content.rstrip(b"\0"))
    content[end // 2] ^= 0xFF  # well before the last group, so in an acknowledged record
    segment.write_bytes(content)
    with pytest.raises(DaemonEnded) as error:
        daemon.again()
    assert error.value.code == 5
    for part in (segment.name, "offset", "repair"):
        assert part in error.value.stderr
    assert segment.read_bytes() == content  # nothing was changed


def test_a_torn_tail_is_cut_and_everything_acknowledged_is_there(
    tmp_path: Path, table: Table
) -> None:
    daemon = Daemon.start(tmp_path / "data")
    with fl.connect(daemon.flight) as client:
        for i in range(50):
            put(client, table, numbers(i, 1))
    daemon.kill()
    (segment,) = (daemon.data_dir / "wal").glob("*.wal")
    content = bytearray(segment.read_bytes())
    end = (len(content.rstrip(b"\0")) + 7) // 8 * 8
    content[end : end + 100] = b"\x5a" * 100  # an incomplete record
    segment.write_bytes(content)
    with daemon.again() as restarted, fl.connect(restarted.flight) as client:
        assert rows(client, table) == list(range(50))
    assert list((daemon.data_dir / "wal").glob("*.torn"))


def test_a_store_without_the_logs_tables_is_not_served(tmp_path: Path, table: Table) -> None:
    daemon = Daemon.start(tmp_path / "data")
    with fl.connect(daemon.flight) as client:
        put(client, table, numbers(0, 1))
    daemon.kill()
    meant = {"store": f"file://{tmp_path}/elsewhere", "recovery__accept_other_store": "true"}
    with pytest.raises(DaemonEnded) as error:
        daemon.again(**meant)
    assert error.value.code == 5
    assert f"{table[0]}/{table[1]}" in error.value.stderr
    with daemon.again() as restarted, fl.connect(restarted.flight) as client:
        assert rows(client, table) == [0]
        restarted.kill()
    # Follow the advice in the message.
    with Daemon.start(tmp_path / "maker", id="maker", store=meant["store"]) as maker:
        with fl.connect(maker.flight) as client:
            put(client, table, numbers(0, 0))
        assert maker.terminate() == 0
    with daemon.again(**meant) as moved, fl.connect(moved.flight) as client:
        assert rows(client, table) == [0]


def test_a_port_that_is_taken_exits_with_1(tmp_path: Path) -> None:
    with Daemon.start(tmp_path / "one") as daemon:
        for option, url in (("--flight", daemon.flight), ("--http", daemon.http)):
            with pytest.raises(DaemonEnded) as error:
                Daemon.start(tmp_path / "two", arguments=[option, url.split("//")[1]])
            assert error.value.code == 1


def test_a_daemon_that_was_replaced_is_fenced_and_its_rows_stay_in_its_log(
    tmp_path: Path, table: Table
) -> None:
    store = f"file://{tmp_path}/store"
    with (
        Daemon.start(tmp_path / "old", recovery__accept_lost_log="true", store=store) as old,
        fl.connect(old.flight) as client,
    ):
        put(client, table, numbers(0, 5))
        with (
            Daemon.start(tmp_path / "new", recovery__accept_lost_log="true", store=store) as new,
            fl.connect(new.flight) as other,
        ):
            put(other, table, numbers(100, 5))
            with suppress(*ARROW_AND_FLIGHT):
                persist(client, table, timeout_s=20)
            assert old.wait() == 6
            persist(other, table)
            assert rows(other, table) == list(range(100, 105))


@pytest.mark.parametrize("fsync", ["interval", "off"])
def test_other_fsync_modes_survive_a_kill_of_the_process_too(
    tmp_path: Path, table: Table, fsync: str
) -> None:
    daemon = Daemon.start(tmp_path / "data", wal__fsync=fsync)
    with fl.connect(daemon.flight) as client:
        for i in range(20):
            put(client, table, numbers(i, 1))
    daemon.kill()
    with daemon.again() as restarted, fl.connect(restarted.flight) as client:
        assert rows(client, table) == list(range(20))
