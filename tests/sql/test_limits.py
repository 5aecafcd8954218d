"""Limits of one query, its end by its client, and what a lost worker means."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from tests.drivers.daemon import Daemon
from tests.drivers.s3_server import S3Server
from tests.drivers.sql import ask, rows, sql_ticket, workers_of
from tests.drivers.waiting import until
from tests.drivers.wire import act, extra, persist, put

ENDLESS = "SELECT count(*) FROM range(9999) a(i), range(9999999999999) b(j) WHERE hash(i + j) = 1"


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("limited")
    settings: dict[str, Any] = {
        "sql__max_rows": 1000,
        "sql__memory": "128MiB",
        "sql__spill": "16MiB",
        "sql__workers": 2,
        "sql__max_per_namespace": 1,
        "query__client_timeout": "1s",
    }
    config = folder / "ingester.toml"
    config.write_text('[quotas."calls"]\nrequests_per_s = 5\n')
    arguments = ("--config", str(config))
    with (
        Daemon.start(folder / "data", arguments=arguments, **settings) as daemon,
        fl.connect(daemon.flight) as client,
    ):
        put(client, ("a", "t"), pa.record_batch({"n": [1]}))
        put(client, ("calls", "t"), pa.record_batch({"n": [1]}))
        yield daemon


@pytest.fixture
def asker(limited: Daemon) -> Iterator[fl.FlightClient]:
    with fl.connect(limited.flight) as client:
        yield client


def running(client: fl.FlightClient) -> int:
    (status,) = act(client, "status")
    found: int = status["sql"]["running"]
    return found


def held_bytes(client: fl.FlightClient) -> int:
    """Return the memory of SQL answers that the daemon counts."""
    (status,) = act(client, "status")
    found: int = status["admission"]["memory"]["by_kind"]["sql"]
    return found


def test_a_query_ends_at_max_time(tmp_path: Path) -> None:
    with (
        Daemon.start(tmp_path / "data", sql__max_time="1s") as daemon,
        fl.connect(daemon.flight) as client,
    ):
        began = time.monotonic()
        with pytest.raises(fl.FlightTimedOutError, match=r"longer than 1 s.*sql\.max_time"):
            ask(client, ENDLESS)
        assert time.monotonic() - began < 5


def test_a_query_counts_in_the_quotas_of_the_namespaces_that_it_reads(
    asker: fl.FlightClient,
) -> None:
    refused = None
    for _ in range(200):
        refused = failure(asker, "SELECT n FROM calls.t")
        if refused is not None:
            break
    assert refused is not None
    assert "requests_per_s is 5" in str(refused)
    assert extra(refused)["code"] == "limit"
    assert rows(asker, "SELECT n FROM a.t") == [(1,)]


def test_an_answer_ends_at_max_rows(asker: fl.FlightClient) -> None:
    assert ask(asker, "FROM range(1000)").num_rows == 1000
    with pytest.raises(pa.ArrowInvalid, match=r"more than 1000 rows.*sql\.max_rows.*LIMIT"):
        ask(asker, "FROM range(1001)")


@pytest.mark.parametrize(
    "text",
    [
        "SELECT list(i) FROM range(100000000) t(i)",
        "SELECT * FROM range(50000000) t(i) ORDER BY hash(i) LIMIT 1 OFFSET 40000000",
        "SELECT repeat('x', 1000000000)",
        "SELECT string_agg(repeat('x', 1000000), '') FROM range(1000)",
        # Fails while rows are handed over.
        "SELECT repeat('x', 12000000) FROM range(80)",
    ],
)
def test_a_query_that_needs_more_memory_or_disk_than_allowed_is_refused(
    asker: fl.FlightClient, limited: Daemon, text: str
) -> None:
    with pytest.raises(pa.ArrowInvalid, match=r"sql\.memory or sql\.spill") as caught:
        ask(asker, text)
    assert "SET " not in str(caught.value), "DuckDB's advice is to change settings"
    assert rows(asker, "SELECT 1") == [(1,)]
    spilled = [path for path in (limited.data_dir / "sql").glob("*/*") if path.is_file()]
    assert not spilled


def test_a_large_query_does_not_depend_on_those_before_it(asker: fl.FlightClient) -> None:
    large = "SELECT list(i) FROM range(4000000) t(i)"
    assert ask(asker, large).num_rows == 1
    for text in (
        "SELECT count(*) FROM (SELECT DISTINCT i, hash(i) FROM range(1000000) t(i))",
        "SELECT repeat('x', 20000000) FROM range(3)",
        "SELECT repeat('x', 40000000) FROM range(1)",
    ):
        for _ in range(3):
            assert ask(asker, text).num_rows
    assert ask(asker, large).num_rows == 1


def test_a_query_whose_client_leaves_ends_within_a_second(
    asker: fl.FlightClient, limited: Daemon
) -> None:
    with fl.connect(limited.flight) as leaving, pytest.raises(fl.FlightTimedOutError):
        ask(leaving, ENDLESS, options=fl.FlightCallOptions(timeout=0.5))
    began = time.monotonic()
    until(lambda: running(asker) == 0, "the end of the query")
    assert time.monotonic() - began < 1.5


def test_an_answer_that_its_client_drops_counts_as_cancelled(asker: fl.FlightClient) -> None:
    (before,) = act(asker, "status")
    reader = asker.do_get(sql_ticket("SELECT repeat('x', 100000) FROM range(1000)"))
    reader.read_chunk()
    reader.cancel()
    until(lambda: running(asker) == 0, "the end of the query")
    (after,) = act(asker, "status")
    assert after["sql"]["cancelled"] == before["sql"]["cancelled"] + 1
    assert after["sql"]["done"] == before["sql"]["done"]


def test_a_query_whose_client_stops_reading_loses_its_worker(
    asker: fl.FlightClient, limited: Daemon
) -> None:
    text = "SELECT repeat('x', 100000) FROM range(1000)"
    reader = asker.do_get(sql_ticket(text))
    reader.read_chunk()
    until(lambda: held_bytes(asker) > 0, "a batch that waits for the client")
    until(lambda: running(asker) == 0, "the end of the query")
    assert held_bytes(asker) == 0
    with pytest.raises(fl.FlightTimedOutError, match=r"query\.client_timeout"):
        reader.read_all()


def test_a_query_whose_worker_reads_nothing_ends_with_its_client(
    asker: fl.FlightClient, limited: Daemon
) -> None:
    assert rows(asker, "SELECT 1") == [(1,)]
    for pid in workers_of(limited.pid):
        os.kill(pid, signal.SIGSTOP)
    more_than_a_socket_takes = pa.record_batch({"p": ["x" * 4_000_000]})
    options = fl.FlightCallOptions(timeout=0.5)
    with fl.connect(limited.flight) as leaving, pytest.raises(fl.FlightTimedOutError):
        ask(leaving, "SELECT length($1)", None, more_than_a_socket_takes, options)
    until(lambda: running(asker) == 0, "the end of the query")
    assert ask(asker, "SELECT length($1)", None, more_than_a_socket_takes).num_rows == 1


def test_a_query_takes_a_place_of_the_namespaces_that_it_reads_and_of_no_other(
    tmp_path: Path,
) -> None:
    settings: dict[str, Any] = {"quotas__streams": 1, "sql__workers": 3}
    with (
        Daemon.start(tmp_path / "data", **settings) as daemon,
        fl.connect(daemon.flight) as client,
        fl.connect(daemon.flight) as other,
    ):
        for namespace in "ab":
            put(client, (namespace, "t"), pa.record_batch({"n": list(range(9999))}))
        slow = client.do_get(sql_ticket("SELECT x.n FROM a.t x, a.t y", "b"))
        slow.read_chunk()
        with pytest.raises(fl.FlightUnavailableError, match=r"'a': 1 streams are open, quotas"):
            ask(other, "SELECT n FROM a.t")
        assert rows(other, "SELECT count(*) FROM b.t", "b") == [(9999,)]
        assert rows(other, "SELECT 1", "a") == [(1,)]
        slow.cancel()


def test_a_namespace_has_its_own_limit_and_further_queries_wait_for_a_worker(
    asker: fl.FlightClient, limited: Daemon
) -> None:
    slow = f"SELECT (SELECT max(n) FROM a.t), ({ENDLESS})"
    with fl.connect(limited.flight) as first, ThreadPoolExecutor(1) as threads:
        failed = threads.submit(failure, first, slow)
        until(lambda: running(asker) == 1, "its start")
        until(lambda: refused(asker), "the refusal")
        assert rows(asker, "SELECT 1") == [(1,)]
        for pid in workers_of(limited.pid):
            os.kill(pid, signal.SIGKILL)
        assert failed.result() is not None


def refused(client: fl.FlightClient) -> bool:
    """Return whether a query of namespace ``a`` is refused for its limit."""
    error = failure(client, "SELECT n FROM a.t")
    return error is not None and "sql.max_per_namespace" in str(error)


def failure(client: fl.FlightClient, text: str, timeout_s: float = 30.0) -> Exception | None:
    """Return what a query fails with."""
    try:
        ask(client, text, options=fl.FlightCallOptions(timeout=timeout_s))
    except fl.FlightError as exc:
        found: Exception = exc
        return found
    return None


def test_a_worker_that_dies_fails_its_query_and_nothing_else(
    asker: fl.FlightClient, limited: Daemon
) -> None:
    with fl.connect(limited.flight) as own, ThreadPoolExecutor(1) as threads:
        failed = threads.submit(failure, own, ENDLESS)
        until(lambda: running(asker) == 1, "its start")
        for pid in workers_of(limited.pid):
            os.kill(pid, signal.SIGSEGV)
        error = failed.result()
    assert error is not None
    assert "ended by itself" in str(error)
    assert extra(error)["code"] == "internal"
    put(asker, ("a", "t"), pa.record_batch({"n": [2]}))
    assert rows(asker, "SELECT max(n) FROM a.t") == [(2,)]


def test_workers_end_with_a_daemon_that_is_killed_and_leave_no_files(tmp_path: Path) -> None:
    daemon = Daemon.start(tmp_path / "data")
    with fl.connect(daemon.flight) as client:
        assert rows(client, "SELECT 1") == [(1,)]
    (worker,) = workers_of(daemon.pid)
    daemon.kill()
    until(lambda: _has_ended(worker), "the end of the worker")
    with daemon.again() as again, fl.connect(again.flight) as client:
        assert not list((again.data_dir / "sql").glob("*"))
        assert rows(client, "SELECT 1") == [(1,)]
        (worker,) = workers_of(again.pid)
        assert again.terminate() == 0
    until(lambda: _has_ended(worker), "the end of the worker")


def _has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.s3
def test_a_query_ends_while_it_waits_for_a_silent_store(tmp_path: Path) -> None:
    with S3Server.start() as store:
        store.make_bucket("lake")
        with (
            Daemon.start(
                tmp_path / "d", environment=store.environment, store="s3://lake/x"
            ) as daemon,
            fl.connect(daemon.flight) as client,
        ):
            put(client, ("a", "t"), pa.record_batch({"n": [1]}))
            persist(client, ("a", "t"))
            store.fault("hang", method="GET", contains=".parquet", times=1000)
            with pytest.raises(fl.FlightTimedOutError):
                ask(client, "SELECT n FROM a.t", options=fl.FlightCallOptions(timeout=2))
            until(lambda: running(client) == 0, "the end of the query", 2)
            until(lambda: workers_of(daemon.pid) == [], "the end of its process", 2)
            store.clear_faults()
            assert rows(client, "SELECT n FROM a.t") == [(1,)]
