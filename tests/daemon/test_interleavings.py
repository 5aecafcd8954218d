"""Regression tests of races between two parts; each is named after the property that must hold."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from tests.drivers.daemon import Daemon, DaemonEnded
from tests.drivers.wire import Table, describe, events, http, numbers, persist, put, query, rows

TINY: dict[str, Any] = {
    "persist__max_partition_bytes": "1KiB",
    "persist__workers": 1,
    "memory__limit": "1MiB",
    "memory__low": "20kB",
    "memory__high": "30kB",
}


def test_a_replay_that_persists_everything_on_its_way_keeps_what_it_has_not_read(
    tmp_path: Path,
) -> None:
    quiet: dict[str, Any] = {"wal__segment_bytes": "64KiB", "persist__max_age": "1h"}
    daemon = Daemon.start(tmp_path / "data", **quiet)
    with fl.connect(daemon.flight) as client:
        put(client, ("n", "t"), *(events(2000 * n, 2000) for n in range(30)))
    daemon.kill()
    for settings in (TINY, {}):
        # Twice: rows lost by one replay are missed only in the next.
        daemon = Daemon.start(tmp_path / "data", **quiet, **settings)
        daemon.kill()
    with Daemon.start(tmp_path / "data") as daemon, fl.connect(daemon.flight) as client:
        assert sorted(rows(client, ("n", "t"))) == list(range(60_000))


def test_a_replay_larger_than_memory_persists_as_it_goes(tmp_path: Path) -> None:
    daemon = Daemon.start(tmp_path / "data", persist__max_age="1h")
    with fl.connect(daemon.flight) as client:
        put(client, ("n", "t"), *(events(20_000 * n, 20_000, days=20) for n in range(20)))
    daemon.kill()
    # Without flushing, the daemon would not be ready: nothing else freezes these buffers.
    with daemon.again(memory__limit="2MiB") as daemon, fl.connect(daemon.flight) as client:
        assert query(client, ("n", "t"), columns=["i"]).num_rows == 400_000


def test_rows_without_any_column_of_the_table_are_rows(
    client: fl.FlightClient, table: Table
) -> None:
    put(client, table, numbers(0, 2))
    put(client, table, pa.record_batch({"unknown": pa.nulls(3)}))
    assert rows(client, table) == [0, 1, None, None, None]
    persist(client, table)
    assert sorted(rows(client, table), key=str) == [0, 1, None, None, None]
    assert describe(client, table)["buffered"] == {"rows": 0, "bytes": 0, "partitions": 0}


def test_a_batch_without_the_partition_column_goes_to_the_null_partition(
    client: fl.FlightClient, table: Table
) -> None:
    put(client, table, events(0, 2))
    put(client, table, pa.record_batch({"v": pa.array([0.5])}))
    persist(client, table)
    assert query(client, table, filter=[[["time", "is null"]]])["v"].to_pylist() == [0.5]


def test_a_refused_first_write_leaves_no_table_behind(
    client: fl.FlightClient, table: Table
) -> None:
    odd = pa.record_batch({"time": pa.array([1], pa.timestamp("ns"))})
    with pytest.raises(pa.ArrowInvalid, match="timestamp_unit"):
        put(client, table, odd)
    with pytest.raises(pa.ArrowKeyError):
        query(client, table)


def test_a_refused_new_column_leaves_the_table_as_it_was(
    client: fl.FlightClient, table: Table
) -> None:
    put(client, table, numbers(0, 1))
    with pytest.raises(pa.ArrowInvalid):
        put(client, table, numbers(1, 1, t=pa.array([1], pa.timestamp("ns"))))
    assert [column["name"] for column in describe(client, table)["schema"]] == ["i"]


def test_a_batch_that_needs_all_memory_passes_once_the_rest_is_persisted(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"memory__limit": "12MiB", "persist__max_age": "1h"}
    with Daemon.start(tmp_path / "data", **settings) as daemon, fl.connect(daemon.flight) as client:
        put(client, ("n", "small"), numbers(0, 500_000))
        deadline = time.monotonic() + 30
        while True:
            try:
                put(client, ("n", "large"), numbers(0, 900_000))
                break
            except fl.FlightUnavailableError:
                assert time.monotonic() < deadline, "the batch never passed"
        assert query(client, ("n", "large"), columns=["i"]).num_rows == 900_000


def test_answers_that_their_clients_drop_are_forgotten(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"query__client_timeout": "400ms"}
    with Daemon.start(tmp_path / "data", **settings) as daemon, fl.connect(daemon.flight) as client:
        put(client, ("n", "t"), numbers(0, 500_000))
        ticket = fl.Ticket(json.dumps({"namespace": "n", "table": "t"}).encode())
        for _ in range(10):
            reader = client.do_get(ticket)
            reader.read_chunk()
            reader.cancel()
        deadline = time.monotonic() + 20
        while (status := json.loads(http(f"{daemon.http}/api/status")[2]))["streams"]["open"]:
            assert time.monotonic() < deadline, status["streams"]
        assert status["admission"]["memory"]["by_kind"]["answers"] == 0


def test_a_daemon_whose_identity_was_taken_over_stops_at_its_next_commit(tmp_path: Path) -> None:
    shared: dict[str, Any] = {
        "id": "one",
        "store": f"file://{tmp_path / 'store'}",
        "persist__max_age": "1h",
        "recovery__accept_lost_log": "true",
    }
    first = Daemon.start(tmp_path / "first", **shared)
    with Daemon.start(tmp_path / "second", **shared) as second:
        with fl.connect(second.flight) as client:
            put(client, ("n", "t"), numbers(0, 1))
        with fl.connect(first.flight) as client, pytest.raises(fl.FlightUnavailableError):
            put(client, ("n", "t"), numbers(1, 1))
        assert first.wait() == 6


def test_a_stop_before_the_start_is_over_is_obeyed(tmp_path: Path) -> None:
    # Nothing listens at this address, so the daemon waits for its store forever.
    store = {"ENDPOINT_URL": "http://127.0.0.1:9", "KEY": "k", "SECRET": "s"}
    environment = {f"INGESTER_STORE_OPTIONS__{name}": value for name, value in store.items()}
    addresses = ["--flight", "127.0.0.1:0", "--http", "127.0.0.1:0", "--store", "s3://no/where"]
    command = [sys.executable, "-m", "ingester", "serve", "--data-dir", str(tmp_path / "data")]
    with subprocess.Popen(
        [*command, *addresses],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env={**os.environ, **environment, "INGESTER_LOG__FORMAT": "json"},
    ) as process:
        assert process.stderr is not None
        waiting = any(b"store not reached" in line for line in process.stderr)
        process.send_signal(signal.SIGTERM)
        process.stderr.read()
    assert waiting
    assert process.returncode == 0


def test_a_daemon_that_cannot_start_says_so(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("not a folder")
    with pytest.raises(DaemonEnded) as ended:
        Daemon.start(tmp_path / "data")
    assert ended.value.code in (1, 2)
