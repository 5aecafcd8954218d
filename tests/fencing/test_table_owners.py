"""A daemon owns a keyed table's writes until it has stopped or its log is adopted."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from ingester.flush.file_writer import FileWriter
from tests.drivers.daemon import Daemon, DaemonEnded
from tests.drivers.wire import create, delete, extra, persist, put, query
from tests.fencing import pairs
from tests.fencing.pairs import adopted_rows, pause, resume, store_url, wal_command

TABLE = ("ns", "keyed")
PLAIN = ("ns", "plain")
SCHEMA = pa.schema([pa.field("i", pa.int64(), nullable=False), pa.field("v", pa.int64())])


def start(folder: Path, name: str, **settings: Any) -> Daemon:
    """Start a daemon under its own name."""
    return pairs.start(folder, name, id=name, **settings)


def batch(first: int, count: int, v: int) -> pa.RecordBatch:
    return pa.record_batch({"i": range(first, first + count), "v": [v] * count}, schema=SCHEMA)


def state(daemon: Daemon) -> dict[int, int]:
    with fl.connect(daemon.flight) as client:
        found = query(client, TABLE)
    return dict(zip(found["i"].to_pylist(), found["v"].to_pylist(), strict=True))


def write(daemon: Daemon, *batches: pa.RecordBatch) -> None:
    with fl.connect(daemon.flight) as client:
        put(client, TABLE, *batches)


def make(daemon: Daemon) -> None:
    with fl.connect(daemon.flight) as client:
        create(client, TABLE, SCHEMA, primary_key=["i"])


def refusal(call: Callable[[], object]) -> dict[str, Any]:
    with pytest.raises(fl.FlightUnavailableError) as error:
        call()
    return extra(error.value)


def test_another_daemon_is_refused_with_the_owners_name_and_endpoint(tmp_path: Path) -> None:
    with start(tmp_path, "first") as first, start(tmp_path, "second") as second:
        # The creator of a table has written nothing yet.
        make(second)
        write(first, batch(0, 5, 1))
        with fl.connect(second.flight) as client:
            for call in (
                lambda: put(client, TABLE, batch(0, 5, 2)),
                lambda: delete(client, TABLE, batch(0, 1, 0).select(["i"])),
            ):
                info = refusal(call)
                assert info["code"] == "owner"
                assert (info["owner"], info["endpoint"]) == ("first", first.flight)
                assert first.flight in info["message"]
                assert info["retry_after_s"] > 0
            # It answers from files, and accepts writes to tables without a key.
            with fl.connect(first.flight) as owner:
                version = persist(owner, TABLE)
            assert query(client, TABLE, scope="version", version=version).num_rows == 5
            put(client, PLAIN, batch(0, 5, 2))
        assert state(first) == dict.fromkeys(range(5), 1)


def test_a_daemon_that_has_stopped_owns_nothing(tmp_path: Path) -> None:
    with start(tmp_path, "first") as first, start(tmp_path, "second") as second:
        make(first)
        write(first, batch(0, 5, 1))
        assert first.terminate() == 0
        write(second, batch(3, 5, 2))
        expected = dict.fromkeys(range(3), 1) | dict.fromkeys(range(3, 8), 2)
        assert state(second) == expected
        with first.again() as first:
            assert refusal(lambda: write(first, batch(0, 1, 3)))["owner"] == "second"
            assert second.terminate() == 0
            write(first, batch(0, 1, 3))
            assert state(first) == expected | {0: 3}


def test_a_dead_daemons_table_stays_its_own_until_its_log_is_adopted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uploading = FileWriter.upload

    def upload(*given: Any) -> Any:
        # The adoption holds the table until it is done; otherwise a waiting daemon's rows would be
        # newer.
        assert refusal(lambda: write(second, batch(2, 6, 2)))["owner"] == "first"
        if next(interrupted, False):
            raise KeyboardInterrupt
        return uploading(*given)

    interrupted = iter([True])

    with start(tmp_path, "first") as first, start(tmp_path, "second") as second:
        make(first)
        write(first, batch(0, 5, 1))
        first.kill()
        assert refusal(lambda: write(second, batch(3, 5, 2)))["owner"] == "first"
        with first.again() as first:
            write(first, batch(1, 1, 3))
            assert refusal(lambda: write(second, batch(3, 5, 2)))["endpoint"] == first.flight
            with fl.connect(first.flight) as client:
                persist(client, TABLE)
            write(first, batch(2, 1, 4))
            first.kill()
        monkeypatch.setattr(FileWriter, "upload", upload)
        with pytest.raises(KeyboardInterrupt):
            adopted_rows(tmp_path, "first")
        assert adopted_rows(tmp_path, "first") == 1
        write(second, batch(3, 5, 2))
        expected = {0: 1, 1: 3, 2: 4} | dict.fromkeys(range(3, 8), 2)
        assert state(second) == expected
        with first.again() as first:
            assert refusal(lambda: write(first, batch(0, 1, 9)))["owner"] == "second"
            assert first.terminate() == 0
        assert state(second) == expected


def test_the_table_of_a_daemon_whose_disk_is_lost_is_freed_under_its_name(tmp_path: Path) -> None:
    with start(tmp_path, "first") as first, start(tmp_path, "second") as second:
        make(first)
        write(first, batch(0, 5, 1))
        with fl.connect(first.flight) as client:
            persist(client, TABLE)
        write(first, batch(5, 5, 1))
        first.kill()
        shutil.rmtree(first.data_dir)
        with first.again() as first:
            # Its log has no rows of the table, and yet it is the owner.
            assert refusal(lambda: write(second, batch(0, 1, 2)))["owner"] == "first"
            write(first, batch(0, 0, 0))
            assert first.terminate() == 0
        write(second, batch(0, 1, 2))
        assert state(second) == {0: 2, 1: 1, 2: 1, 3: 1, 4: 1}


def test_a_paused_owner_is_still_the_owner_when_it_resumes(tmp_path: Path) -> None:
    with start(tmp_path, "first") as first, start(tmp_path, "second") as second:
        make(first)
        write(first, batch(0, 5, 1))
        pause(first)
        assert refusal(lambda: write(second, batch(0, 5, 2)))["owner"] == "first"
        resume(first)
        write(first, batch(0, 1, 5))
        assert state(first) == {0: 5, 1: 1, 2: 1, 3: 1, 4: 1}


def test_many_daemons_that_want_a_table_at_once_agree_on_one(tmp_path: Path) -> None:
    daemons = [start(tmp_path, f"d{number}") for number in range(4)]
    try:
        make(daemons[0])
        taken: list[str] = []
        owners: list[str] = []
        at_once = threading.Barrier(len(daemons))

        def claim(number: int) -> None:
            at_once.wait(20)
            try:
                write(daemons[number], batch(number, 1, number))
                taken.append(f"d{number}")
            except fl.FlightUnavailableError as error:
                owners.append(extra(error)["owner"])

        threads = [threading.Thread(target=claim, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(taken) == 1
        assert owners == taken * 3
        number = int(taken[0][1:])
        assert state(daemons[number]) == {number: number}
    finally:
        for daemon in daemons:
            daemon.kill()


def test_the_reported_endpoint_can_be_set(tmp_path: Path) -> None:
    advertised = "grpc://pod-0.ingester:8082"
    with (
        start(tmp_path, "first", flight__advertise=advertised) as first,
        start(tmp_path, "second") as second,
    ):
        make(first)
        write(first, batch(0, 1, 1))
        assert refusal(lambda: write(second, batch(0, 1, 2)))["endpoint"] == advertised


def test_rows_of_a_recovered_disk_do_not_replace_newer_ones(tmp_path: Path) -> None:
    with start(tmp_path, "first") as first, start(tmp_path, "second") as second:
        make(first)
        write(first, batch(0, 3, 1))
        first.kill()
        kept = tmp_path / "kept"
        shutil.move(first.data_dir, kept)
        with first.again() as first:
            write(first, batch(0, 0, 0))
            assert first.terminate() == 0
        write(second, batch(0, 3, 99))
        with fl.connect(second.flight) as client:
            persist(client, TABLE)
        # The old disk is found again.
        shutil.rmtree(first.data_dir)
        shutil.move(kept, first.data_dir)
        with pytest.raises(DaemonEnded, match="'second' takes by now") as ended:
            first.again()
        assert ended.value.code == 5
        options = ("--store", store_url(tmp_path))
        done = wal_command("adopt", first.data_dir, *options)
        assert done.returncode == 1
        assert "'second' owns its writes now" in done.stderr
        assert state(second) == dict.fromkeys(range(3), 99)
