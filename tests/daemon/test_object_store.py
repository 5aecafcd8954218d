"""A daemon on an S3 store, from write to restart, and while the store is unreachable."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.flight as fl
import pytest

from tests.drivers.daemon import Daemon, DaemonEnded
from tests.drivers.s3_server import Fault, S3Server
from tests.drivers.waiting import until
from tests.drivers.wire import (
    ARROW_AND_FLIGHT,
    Table,
    act,
    describe,
    events,
    extra,
    numbers,
    persist,
    put,
    put_sequences,
    rows,
)

pytestmark = pytest.mark.s3


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    """An S3 server whose requests can be made to fail."""
    with S3Server.start() as server:
        server.make_bucket("lake")
        yield server


@pytest.fixture(scope="module")
def daemon(server: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon whose files are on that server."""
    folder = tmp_path_factory.mktemp("on-s3")
    with _start(folder, server, "shared") as daemon:
        yield daemon


def _start(folder: Path, server: S3Server, prefix: str, **settings: Any) -> Daemon:
    return Daemon.start(
        folder / "data", environment=server.environment, store=f"s3://lake/{prefix}", **settings
    )


def test_write_persist_restart_and_query(tmp_path: Path, server: S3Server, table: Table) -> None:
    with _start(tmp_path, server, "whole-way") as daemon:
        with fl.connect(daemon.flight) as client:
            put(client, table, events(0, 100, days=3))
            version = persist(client, table)
            put(client, table, events(100, 50, days=3))
            assert rows(client, table, scope="version", version=version) == list(range(100))
            assert rows(client, table) == list(range(150))
        daemon.kill()
        with daemon.again() as restarted:
            with fl.connect(restarted.flight) as client:
                assert rows(client, table) == list(range(150))
                put(client, table, events(150, 50, days=3))
            assert restarted.terminate() == 0
            with restarted.again() as last, fl.connect(last.flight) as client:
                assert rows(client, table) == list(range(200))
                assert describe(client, table)["persisted"]["rows"] == 200
                assert rows(client, table, scope="version", version=version) == list(range(100))


FAULTS: list[tuple[Fault, dict[str, Any]]] = [
    ("unavailable", {"method": "PUT", "times": 4}),
    ("lose_answer", {"method": "PUT", "contains": ".commit", "times": 1}),
    ("lose_answer", {"method": "PUT", "contains": ".parquet", "times": 2}),
    ("unavailable", {"method": "PUT", "contains": ".changelog", "times": 2}),
    ("unavailable", {"method": "PUT", "contains": ".commit", "times": 2}),
    ("conflict", {"method": "PUT", "contains": ".commit", "times": 1}),
    ("unavailable", {"method": "GET", "times": 3}),
]


@pytest.mark.parametrize(("kind", "where"), FAULTS, ids=lambda v: str(v).replace("'", "")[:40])
def test_a_store_that_stumbles_loses_and_doubles_nothing(
    daemon: Daemon, server: S3Server, table: Table, kind: Fault, where: dict[str, Any]
) -> None:
    with fl.connect(daemon.flight) as client:
        put(client, table, events(0, 60, days=2))
        server.fault(kind, **where)
        try:
            version = persist(client, table)
            assert rows(client, table) == list(range(60))
        finally:
            server.clear_faults()
        assert rows(client, table, scope="version", version=version) == list(range(60))


def test_while_the_store_refuses_known_tables_are_written_and_their_buffers_read(
    daemon: Daemon, server: S3Server, table: Table
) -> None:
    with fl.connect(daemon.flight) as client:
        put(client, table, events(0, 10, days=2))
        server.fault("unavailable", times=1_000_000)
        try:
            for first in range(10, 100, 10):
                put(client, table, events(first, 10, days=2))
            assert rows(client, table) == list(range(100))
            assert rows(client, table, scope="buffered") == list(range(100))
            # Requests that need the store are refused with its error.
            more = events(0, 1).append_column("more", numbers(0, 1)["i"])
            for where, batch in (((table[0], table[1] + "-new"), numbers(0, 1)), (table, more)):
                with pytest.raises(fl.FlightUnavailableError) as error:
                    put(client, where, batch)
                assert extra(error.value)["code"] == "store"
                assert extra(error.value)["retry_after_s"] > 0
            with pytest.raises(fl.FlightTimedOutError):
                persist(client, table, timeout_s=0.2)
        finally:
            server.clear_faults()
        version = persist(client, table)
        assert rows(client, table, scope="version", version=version) == list(range(100))
        assert rows(client, table) == list(range(100))


def test_a_store_that_falls_silent_stops_neither_writes_nor_reads_of_buffers(
    tmp_path: Path, table: Table
) -> None:
    with S3Server.start() as own:
        own.make_bucket("lake")
        with (
            _start(tmp_path, own, "silent", manifest__refresh="1h") as daemon,
            fl.connect(daemon.flight) as client,
        ):
            put(client, table, events(0, 10, days=2))
            os.kill(own.pid, signal.SIGSTOP)
            try:
                for first in range(10, 100, 10):
                    put(client, table, events(first, 10, days=2))
                assert rows(client, table) == list(range(100))
                with pytest.raises(fl.FlightTimedOutError):
                    persist(client, table, timeout_s=0.2)
                put(client, table, events(100, 10, days=2))
                assert rows(client, table) == list(range(110))
            finally:
                os.kill(own.pid, signal.SIGCONT)
            version = persist(client, table, timeout_s=120)
            assert rows(client, table, scope="version", version=version) == list(range(110))


def test_a_kill_while_the_store_is_away_loses_nothing(
    tmp_path: Path, server: S3Server, table: Table
) -> None:
    with _start(tmp_path, server, "killed", persist__max_age="50ms") as daemon:
        with fl.connect(daemon.flight) as client:
            put(client, table, events(0, 10, days=2))
            server.fault("unavailable", method="PUT", times=1_000_000)
            put(client, table, events(10, 90, days=2))
        daemon.kill()
        server.clear_faults()
        with daemon.again() as restarted, fl.connect(restarted.flight) as client:
            assert rows(client, table) == list(range(100))
            version = persist(client, table)
            assert rows(client, table, scope="version", version=version) == list(range(100))


def test_two_daemons_share_a_table_and_each_sees_the_others_commits(
    tmp_path: Path, server: S3Server, table: Table
) -> None:
    with (
        _start(tmp_path / "a", server, "two", id="a", manifest__refresh="10ms") as one,
        _start(tmp_path / "b", server, "two", id="b", manifest__refresh="10ms") as two,
        fl.connect(one.flight) as a,
        fl.connect(two.flight) as b,
    ):
        put(a, table, events(0, 10, days=2))
        put(b, table, events(10, 10, days=2))
        persist(a, table)
        persist(b, table)
        put(a, table, events(20, 10, days=2))
        put(b, table, events(30, 10, days=2))
        persist(a, table)
        version = persist(b, table)
        everything = list(range(40))
        assert rows(b, table) == everything
        assert rows(a, table, scope="version", version=version) == everything
        tail = rows(a, table, scope="buffered", version=version)
        assert tail == []


def test_a_store_that_refuses_our_keys_exits_with_1_and_names_no_secret(
    tmp_path: Path, server: S3Server
) -> None:
    server.fault("denied", times=1_000_000)
    try:
        with pytest.raises(DaemonEnded) as error:
            _start(tmp_path, server, "denied")
    finally:
        server.clear_faults()
    assert error.value.code == 1
    assert server.secret_key not in error.value.stderr


def test_a_store_of_an_unknown_kind_exits_with_1(tmp_path: Path) -> None:
    with pytest.raises(DaemonEnded) as error:
        Daemon.start(tmp_path / "data", store="nope://x/y")
    assert error.value.code == 1
    assert "nope" in error.value.stderr


def test_errors_of_the_store_show_no_secret(daemon: Daemon, server: S3Server, table: Table) -> None:
    with fl.connect(daemon.flight) as client:
        server.fault("denied", times=1_000_000)
        try:
            with pytest.raises(ARROW_AND_FLIGHT) as error:
                put(client, table, numbers(0, 1))
        finally:
            server.clear_faults()
        assert server.secret_key not in str(error.value)
        put(client, table, numbers(0, 1))
    assert server.secret_key not in daemon.stderr_file.read_text()


def test_an_origin_outlives_the_disk_and_moves_to_another_daemon(
    tmp_path: Path, server: S3Server, table: Table
) -> None:
    """An origin's position is in the manifest, on S3 as on local files."""
    for life, (folder, sequences) in enumerate(
        [("first", range(1, 6)), ("first", range(3, 9)), ("second", range(1, 12))]
    ):
        shutil.rmtree(tmp_path / folder, ignore_errors=True)
        # The answer to a commit is lost; the commit must not be repeated.
        server.fault("lose_answer", method="PUT", contains=".commit", times=life)
        settings = {"id": folder, "recovery__accept_lost_log": "true"}
        with (
            _start(tmp_path / folder, server, "origins", **settings) as daemon,
            fl.connect(daemon.flight) as client,
        ):
            answers = put_sequences(client, table, "o", sequences.start, sequences.stop - 1)
            already = len([answer for answer in answers if answer["duplicate"]])
            assert already == (0, 3, 8)[life]
            persist(client, table)
            assert rows(client, table) == list(range(10, sequences.stop * 10))
            daemon.kill()
        server.clear_faults()


def test_a_store_that_is_away_for_the_claim_of_an_epoch_costs_no_start(
    tmp_path: Path, server: S3Server, table: Table
) -> None:
    server.fault("unavailable", method="PUT", contains=".claim", times=2)
    with (
        _start(tmp_path, server, "claims") as daemon,
        fl.connect(daemon.flight) as client,
    ):
        assert daemon.stderr_file.read_text().count("store not reached, trying again") == 2
        put(client, table, events(0, 10))
        assert rows(client, table) == list(range(10))


def test_who_asks_twice_at_a_terminal_does_not_wait_for_the_store(
    tmp_path: Path, server: S3Server, table: Table
) -> None:
    with _start(tmp_path, server, "twice", persist__max_age="1h") as daemon:
        with fl.connect(daemon.flight) as client:
            put(client, table, numbers(0, 5))
        server.fault("unavailable", method="PUT", contains="twice", times=10_000)
        daemon.process.send_signal(signal.SIGINT)
        asked_at = time.monotonic()
        # One key press may send the signal twice, which does not count as a second request.
        while daemon.process.poll() is None:
            daemon.process.send_signal(signal.SIGINT)
            time.sleep(0.05)
        assert daemon.wait() == 7
        assert 0.5 < time.monotonic() - asked_at < 30
        server.clear_faults()
        with daemon.again() as again, fl.connect(again.flight) as client:
            assert rows(client, table) == list(range(5))


def test_a_drain_waits_for_the_store_and_can_be_taken_back_meanwhile(
    tmp_path: Path, server: S3Server, table: Table
) -> None:
    with (
        _start(tmp_path, server, "drained", persist__max_age="1h") as daemon,
        fl.connect(daemon.flight) as client,
    ):
        put(client, table, numbers(0, 5))
        # No file of the buffer can be written, ...
        server.fault("unavailable", method="PUT", contains="drained", times=10_000)
        (told,) = act(client, "drain", wait_s=0.5)
        assert (told["state"], told["buffers"], told["tables"]) == ("draining", 1, 1)
        until(lambda: "503" in str(act(client, "drain")[0]["problem"]), "the reason")
        assert act(client, "drain", undo=True)[0]["state"] == "none"
        put(client, table, numbers(5, 5))
        server.clear_faults()
        persist(client, table)
        # ... or the last commit fails.
        server.fault("unavailable", method="PUT", contains=".commit", times=10_000)
        (told,) = act(client, "drain", wait_s=1.0)
        assert (told["state"], told["buffers"], told["tables"]) == ("draining", 0, 1)
        (told,) = act(client, "drain", undo=True)
        assert told["state"] == "none"
        server.clear_faults()
        put(client, table, numbers(10, 5))
        assert act(client, "drain", wait_s=30)[0]["state"] == "drained"
        assert rows(client, table) == list(range(15))
