"""``ingester wal adopt``: the logs that it adopts and refuses, and tables with a primary key."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from persist.manifest import Manifest
from tests.drivers.daemon import DaemonEnded
from tests.drivers.wire import Stream, create, delete, events, path, persist, rows, writing
from tests.fencing.pairs import (
    adopt,
    adopted_rows,
    ask_to_persist,
    fenced,
    files_of,
    operations_in_log,
    pause,
    place_of,
    resume,
    rows_in_files,
    start,
    store_url,
    wal_command,
    write,
)

TABLE = ("ns", "t")
KEYED = ("ns", "keyed")
SCHEMA = pa.schema([pa.field("i", pa.int64(), nullable=False), pa.field("v", pa.int64())])


def keyed_rows(first: int, count: int, v: int) -> pa.RecordBatch:
    """Rows with the keys ``i`` from ``first``."""
    return pa.record_batch({"i": range(first, first + count), "v": [v] * count}, schema=SCHEMA)


def make_keyed(daemon_url: str) -> None:
    """Create the table with the primary key ``i``."""
    with fl.connect(daemon_url) as client:
        create(client, KEYED, SCHEMA, primary_key=["i"])


def test_the_log_of_a_running_daemon_is_refused(tmp_path: Path) -> None:
    with start(tmp_path, "first") as first:
        write(first, TABLE, events(0, 5))
        for state in ("running", "paused"):
            if state == "paused":
                pause(first)
            done = wal_command("adopt", first.data_dir, "--store", store_url(tmp_path))
            assert done.returncode == 1
            assert f"is locked by process {first.pid}; stop it first" in done.stderr
        first.kill()
        assert adopted_rows(tmp_path, "first") == 5


def test_a_dead_daemons_log_is_adopted_and_replays_nothing_afterwards(tmp_path: Path) -> None:
    with start(tmp_path, "first") as first:
        write(first, TABLE, events(0, 30, days=3))
        persist_one(first.flight)
        write(first, TABLE, events(30, 30, days=4))
        first.kill()
        assert adopt(tmp_path, "first")[TABLE]["rows"] == 30
        assert rows_in_files(tmp_path, TABLE) == list(range(60))
        with first.again() as first, fl.connect(first.flight) as client:
            assert first.ready["epoch"] == 3  # the adoption has taken the second
            assert rows(client, TABLE) == list(range(60))
            write(first, TABLE, events(60, 10))
            assert first.terminate() == 0
    assert adopted_rows(tmp_path, "first") == 0
    assert rows_in_files(tmp_path, TABLE) == list(range(70))


def test_the_last_of_a_run_of_small_batches_is_what_an_adoption_says_is_applied(
    tmp_path: Path,
) -> None:
    """The commit reports what the daemon would have: a copy of the log relies on that number."""
    day_us = 86_400_000_000
    schema = pa.schema({"i": pa.int64(), "time": pa.timestamp("us", "UTC")})
    last: dict[int, int] = {}
    with start(tmp_path, "first") as first, fl.connect(first.flight) as client:
        with Stream(client, path(TABLE), schema) as stream:
            for number in range(300):
                times = pa.array([number % 3 * day_us], schema.field("time").type)
                stream.send(pa.record_batch([pa.array([number]), times], schema=schema))
            for number, answer in enumerate(stream.rest()):
                last[number % 3] = answer["sequence"]
        first.kill()
    done = wal_command("inspect", tmp_path / "first", "--json")
    assert sum(one["records"] for one in json.loads(done.stdout)) < 150, "the log holds runs"
    assert adopted_rows(tmp_path, "first") == 300
    state = Manifest(place_of(tmp_path).store(), *TABLE).load()
    applied = {values: seq for (_, _, _, values), seq in state.applied.items()}
    assert applied == {(f"1970-01-0{day + 1}",): last[day] for day in range(3)}
    assert rows_in_files(tmp_path, TABLE) == list(range(300))


def persist_one(flight: str) -> None:
    with fl.connect(flight) as client:
        persist(client, TABLE)


def test_a_daemon_that_runs_on_a_copy_is_fenced_by_the_adoption(tmp_path: Path) -> None:
    """Otherwise both would commit under one identity, as no daemon has replaced it."""
    with start(tmp_path, "first") as first:
        with (
            fl.connect(first.flight) as client,
            Stream(client, writing(TABLE, "source"), events(0, 10).schema) as stream,
        ):
            stream.write(events(0, 10), {"sequence": 0})
            shutil.copytree(first.data_dir, tmp_path / "copy")
            assert adopted_rows(tmp_path, "copy") == 10
            stream.write(events(10, 10), {"sequence": 1})
        with fenced(first):
            ask_to_persist(first, TABLE)
        assert adopt(tmp_path, "first")[TABLE]["rows"] == 10
    assert rows_in_files(tmp_path, TABLE) == list(range(20))


MANY = 100


def three_epochs_in_one_log(folder: Path) -> Path:
    """A folder with a log of three daemons' operations, one each.

    A write freezes the replayed rows. Their flush, of a file for each of many days, and the
    deletion of their segment may finish before the kill; the whole is then tried again.
    """
    for number in range(5):
        place = folder / str(number)
        place.mkdir()
        daemon = start(place, "first")
        for epoch in range(1, 4):
            write(daemon, TABLE, events(epoch * MANY, MANY, days=MANY))
            daemon.kill()
            if epoch < 3:
                daemon = daemon.again()
        if operations_in_log(place / "first") == 3:
            return place
    raise AssertionError("each time a daemon persisted before it was killed")


def test_several_epochs_of_one_log_are_adopted_each_under_its_own(tmp_path: Path) -> None:
    place = three_epochs_in_one_log(tmp_path)
    adopt(place, "first")  # the second and third daemon may have flushed some of it
    assert rows_in_files(place, TABLE) == list(range(MANY, 4 * MANY))
    assert adopted_rows(place, "first") == 0


def test_another_store_is_refused_even_with_a_table_of_the_same_name(tmp_path: Path) -> None:
    with start(tmp_path, "first") as first:
        write(first, TABLE, events(0, 5))
        first.kill()
    other = f"file://{tmp_path}/other"
    with start(tmp_path, "elsewhere", store=other) as elsewhere:
        write(elsewhere, TABLE, events(0, 5))
    for store in (other, f"file://{tmp_path}/empty"):
        done = wal_command("adopt", tmp_path / "first", "--store", store, "--json")
        assert done.returncode == 1
        assert done.stdout == ""
        assert "is this the right store?" in done.stderr
    assert adopted_rows(tmp_path, "first") == 5


def test_a_store_that_does_not_answer_is_exit_four_and_the_next_run_adopts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
    with start(tmp_path, "first") as first:
        write(first, TABLE, events(0, 5))
        first.kill()
    nobody_listens = 'store_options={"endpoint_url": "http://127.0.0.1:9"}'
    away = ("--store", "s3://bucket/prefix", "--set", nobody_listens)
    done = wal_command("adopt", tmp_path / "first", *away)
    assert (done.returncode, done.stdout) == (4, "")
    assert "run the same command again: no row is added twice" in done.stderr
    assert adopted_rows(tmp_path, "first") == 5


def test_a_folder_without_a_log_is_refused(tmp_path: Path) -> None:
    done = wal_command("adopt", tmp_path)
    assert done.returncode == 1
    assert "holds no log segment" in done.stderr
    assert wal_command("adopt", tmp_path / "nowhere").returncode == 1


def test_an_empty_log_is_fine_and_a_damaged_one_is_refused(tmp_path: Path) -> None:
    with start(tmp_path, "first") as first:
        write(first, TABLE, events(0, 5))
        assert first.terminate() == 0
        done = wal_command("adopt", first.data_dir, "--store", store_url(tmp_path))
        assert (done.returncode, done.stdout) == (
            0,
            "nothing to adopt: the log holds no operations\n",
        )
        with first.again() as first:
            write(first, TABLE, events(5, 5), events(10, 5))
            first.kill()
    segment = max((tmp_path / "first" / "wal").glob("*.wal"))
    data = bytearray(segment.read_bytes())
    data[600] ^= 1
    segment.write_bytes(data)
    done = wal_command("adopt", tmp_path / "first", "--store", store_url(tmp_path))
    assert done.returncode == 1
    assert "ingester wal repair" in done.stderr
    with pytest.raises(DaemonEnded):
        start(tmp_path, "first").kill()


def test_deletes_in_an_adopted_log_take_rows_out_of_files(tmp_path: Path) -> None:
    with start(tmp_path, "first") as first:
        make_keyed(first.flight)
        write(first, KEYED, keyed_rows(0, 20, 1))
        ask_to_persist(first, KEYED)
        with fl.connect(first.flight) as client:
            delete(client, KEYED, pa.record_batch({"i": range(5)}))
        write(first, KEYED, keyed_rows(3, 1, 2))
        first.kill()
    assert adopt(tmp_path, "first")[KEYED]["rows"] == 6
    assert adopted_rows(tmp_path, "first") == 0
    assert rows_in_files(tmp_path, KEYED) == [3, *range(5, 20)]
    with start(tmp_path, "first") as first, fl.connect(first.flight) as client:
        assert rows(client, KEYED) == [3, *range(5, 20)]
        delete(client, KEYED, pa.record_batch({"i": range(20)}))
        first.kill()
    # Only the table's entry remains.
    assert adopt(tmp_path, "first")[KEYED]["rows"] == 20
    assert adopt(tmp_path, "first")[KEYED]["skipped_rows"] == 20
    assert rows_in_files(tmp_path, KEYED) == []


def test_in_a_keyed_table_the_last_write_of_the_log_wins(tmp_path: Path) -> None:
    with start(tmp_path, "first") as first:
        make_keyed(first.flight)
        write(first, KEYED, keyed_rows(0, 20, 1))
        ask_to_persist(first, KEYED)
        write(first, KEYED, keyed_rows(5, 10, 2), keyed_rows(8, 20, 3))
        pause(first)
        with start(tmp_path, "second") as second:
            write(second, TABLE, events(0, 5))
            first.kill()
            adopted = adopt(tmp_path, "first")[KEYED]
            assert adopted["rows"] == 30
            assert adopted["skipped_rows"] == 20
            assert adopted_rows(tmp_path, "first") == 0
            with fl.connect(second.flight) as client:
                assert rows(client, KEYED) == list(range(28))
                write(second, KEYED, keyed_rows(27, 3, 4))
                persist(client, KEYED)
                assert rows(client, KEYED) == list(range(30))
            assert second.terminate() == 0
    assert len(files_of(tmp_path, KEYED)) >= 1
    assert rows_in_files(tmp_path, KEYED) == list(range(30))
    assert rows_in_files(tmp_path, KEYED, "v") == [1] * 5 + [2] * 3 + [3] * 19 + [4] * 3


@pytest.mark.parametrize("open_", [True, False])
def test_older_rows_of_a_keyed_table_do_not_replace_newer_ones(tmp_path: Path, open_: bool) -> None:
    with start(tmp_path, "first") as first:
        make_keyed(first.flight)
        write(first, KEYED, keyed_rows(0, 20, 1))
        write(first, TABLE, events(0, 10))
        pause(first)
        with start(tmp_path, "second") as second:
            write(second, KEYED, keyed_rows(10, 20, 2))
            with fenced(first):
                resume(first)
                ask_to_persist(first, KEYED)
            if not open_:
                assert second.terminate() == 0
            done = wal_command("adopt", first.data_dir, "--store", store_url(tmp_path), "--json")
            assert done.returncode == 1
            assert "20 rows of table ns/keyed were not adopted and remain in the log" in done.stderr
            assert "cannot be known" in done.stderr
            told = {one["table"]: one for one in json.loads(done.stdout)["tables"]}
            assert told["keyed"]["refused_rows"] == 20
            assert told["keyed"]["rows"] == 0
            assert told["t"]["rows"] == 10  # other tables are not blocked
            if open_:
                with fl.connect(second.flight) as client:
                    persist(client, KEYED)
    assert rows_in_files(tmp_path, KEYED) == list(range(10, 30))
    assert rows_in_files(tmp_path, KEYED, "v") == [2] * 20
    assert rows_in_files(tmp_path, TABLE) == list(range(10))
    assert operations_in_log(tmp_path / "first") == 2
