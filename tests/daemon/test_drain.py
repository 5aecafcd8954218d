"""A drained daemon answers queries, refuses writes, and holds no data that could be lost."""

from __future__ import annotations

import json
import shutil
import urllib.error
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from tests.cli.conftest import run_command
from tests.daemon.test_shutdown import _check, _Writers
from tests.drivers.daemon import Daemon
from tests.drivers.wire import (
    Stream,
    Table,
    act,
    create,
    events,
    extra,
    http,
    numbers,
    path,
    put,
    put_sequences,
    query,
    rows,
)
from tests.fencing import pairs
from wal.inspection import inspect

KEYED: Table = ("ns", "keyed")
PLAIN: Table = ("ns", "plain")
SCHEMA = pa.schema([pa.field("i", pa.int64(), nullable=False), pa.field("v", pa.int64())])
NEVER: dict[str, Any] = {"persist__max_age": "1h"}


def _keyed(first: int, count: int) -> pa.RecordBatch:
    return pa.record_batch({"i": range(first, first + count), "v": [1] * count}, schema=SCHEMA)


def _start(folder: Path, name: str) -> Daemon:
    return pairs.start(folder, name, id=name, **NEVER)


def _drain(daemon: Daemon, *options: str) -> dict[str, Any]:
    done = run_command("drain", "--json", *options, cwd=daemon.data_dir, endpoint=daemon.flight)
    assert done.returncode == 0, done.stderr.decode()
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _refusal(client: fl.FlightClient, table: Table, batch: pa.RecordBatch) -> dict[str, Any]:
    with pytest.raises(fl.FlightUnavailableError) as refused:
        put(client, table, batch)
    return extra(refused.value)


def _get(url: str) -> tuple[int, dict[str, Any]]:
    try:
        status, _, body = http(url)
    except urllib.error.HTTPError as error:
        status, body = error.code, error.read()
    return status, json.loads(body)


def _many_at_once(daemon: Daemon) -> None:
    """Drain and undo concurrently."""

    def ask(number: int) -> str:
        with fl.connect(daemon.flight) as client:
            return str(act(client, "drain", undo=bool(number % 2), wait_s=5)[0]["state"])

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(ask, range(16))) <= {"none", "drained"}


def test_what_a_drained_daemon_had_is_in_files_and_free_for_others(tmp_path: Path) -> None:
    with _start(tmp_path, "first") as first, _start(tmp_path, "second") as second:
        with fl.connect(first.flight) as client, fl.connect(second.flight) as other:
            create(client, KEYED, SCHEMA, primary_key=["i"])
            put(client, KEYED, _keyed(0, 5))
            put_sequences(client, PLAIN, "source", 1, 3)
            before = rows(client, PLAIN)
            assert len(before) == 30
            assert _refusal(other, KEYED, _keyed(5, 1))["code"] == "owner"

            told = _drain(first, "--wait")
            assert (told["state"], told["buffers"], told["bytes"], told["tables"]) == (
                "drained", 0, 0, 0,
            )  # fmt: skip
            # Every interface reports the drain, queries are answered, and writers are turned away.
            assert _get(f"{first.http}/health/ready")[0] == 503
            assert _get(f"{first.http}/health/ready")[1]["reasons"] == ["drained"]
            assert _get(f"{first.http}/health/live")[0] == 200
            status = _get(f"{first.http}/api/status")[1]
            assert (status["identity"]["state"], status["drain"]["state"]) == ("drained",) * 2
            assert not status["admission"]["accepts_writes"]
            said = run_command("status", cwd=tmp_path, endpoint=first.flight).stdout.decode()
            assert "0 buffers with 0 B unflushed, 0 tables claimed" in said
            assert b"\ningester_drained 1.0\n" in http(f"{first.http}/metrics")[2]
            assert rows(client, PLAIN) == before
            refused = _refusal(client, PLAIN, events(0, 1))
            assert (refused["code"], refused["leaving"]) == ("stopping", True)
            # The second daemon can write the keyed table and the origin at once.
            put(other, KEYED, _keyed(5, 1))
            put_sequences(other, PLAIN, "source", 3, 4)
        first.kill()
        assert sum(segment.operations for segment in inspect(first.data_dir / "wal")) == 0
        shutil.rmtree(first.data_dir)
        with fl.connect(second.flight) as other:
            assert rows(other, KEYED) == list(range(6))
            assert rows(other, PLAIN) == list(range(10, 50))


def test_a_drain_under_writers_loses_nothing(tmp_path: Path, table: Table) -> None:
    with Daemon.start(tmp_path / "data", **NEVER) as daemon:
        writers = _Writers(daemon, table, 0)
        assert writers.enough.wait(60)
        assert _drain(daemon, "--wait")["state"] == "drained"
        writers.join()
        assert writers.codes == {"stopping"}
        with fl.connect(daemon.flight) as client:
            _check(rows(client, table), [writers])
        daemon.kill()
        with daemon.again() as restarted, fl.connect(restarted.flight) as client:
            _check(rows(client, table), [writers])
            assert query(client, table, scope="buffered").num_rows == 0


def test_after_an_undo_streams_and_tables_are_opened_anew(tmp_path: Path) -> None:
    with _start(tmp_path, "first") as first, _start(tmp_path, "second") as second:
        with fl.connect(first.flight) as client, fl.connect(second.flight) as other:
            create(client, KEYED, SCHEMA, primary_key=["i"])
            put(client, KEYED, _keyed(0, 5))
            stream = Stream(client, path(PLAIN), numbers(0, 1).schema)
            stream.write(numbers(0, 1))
            _drain(first, "--wait")
            put(other, KEYED, _keyed(5, 1))
            assert _drain(first, "--undo")["state"] == "none"
            assert _get(f"{first.http}/health/ready?for=write")[0] == 200
            # The manifest records that the writer of this stream was closed by the drain.
            with pytest.raises(fl.FlightUnavailableError) as refused:
                stream.write(numbers(1, 1))
            assert extra(refused.value)["code"] == "stopping"
            assert "reopen the stream" in extra(refused.value)["message"]
            assert _refusal(client, KEYED, _keyed(6, 1))["code"] == "owner"
            put(client, PLAIN, numbers(1, 1))
            assert act(client, "drain", undo=True)[0]["state"] == "none"
            _many_at_once(first)
            assert act(client, "drain", undo=True)[0]["state"] == "none"
            assert _refusal(client, KEYED, _keyed(6, 1))["code"] == "owner"
            put(client, PLAIN, numbers(2, 1))
        first.kill()
        with first.again() as first, fl.connect(first.flight) as client:
            assert rows(client, PLAIN) == [0, 1, 2]
            # A stop during a drain is a normal stop: all rows are in files, and the exit code is 0.
            put(client, PLAIN, numbers(3, 1))
            act(client, "drain")
            assert first.terminate() == 0
        with fl.connect(second.flight) as other:
            assert rows(other, PLAIN) == [0, 1, 2, 3]
