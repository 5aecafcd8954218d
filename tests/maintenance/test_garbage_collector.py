"""The daemon collects garbage in the background: old versions and unlisted files, never rows."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from persist.manifest import list_versions
from persist.store import open_store
from persist.switching import switch_version
from tests.drivers.daemon import Daemon
from tests.drivers.pushing import push_some
from tests.drivers.s3_server import S3Server
from tests.drivers.waiting import until
from tests.drivers.wire import http, numbers, persist, put, rows

TABLE = ("it", "cleaned")
VERSIONS = 20
QUICK: dict[str, Any] = {"manifest__retain": "0s", "manifest__orphan_grace": "1s"}


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with Daemon.start(tmp_path / "data", **QUICK) as daemon:
        yield daemon


def _folder(daemon: Daemon) -> Path:
    return daemon.data_dir / "store" / "it" / "cleaned" / "v1"


def _versions(daemon: Daemon) -> list[int]:
    return sorted(int(path.stem) for path in (_folder(daemon) / "_manifest").glob("*.commit"))


def _write_versions(daemon: Daemon, first: int = 0) -> None:
    with fl.connect(daemon.flight) as client:
        for step in range(first, first + VERSIONS):
            put(client, TABLE, numbers(step, 1))
            persist(client, TABLE)


def _rows(daemon: Daemon) -> list[int]:
    with fl.connect(daemon.flight) as client:
        return rows(client, TABLE)


def _told(daemon: Daemon) -> tuple[dict[str, Any], dict[str, float]]:
    """What the status reports about garbage collection, and the plain metrics after it."""
    status = json.loads(http(daemon.http + "/api/status")[2])
    lines = http(daemon.http + "/metrics")[2].decode().splitlines()
    plain = [line.split() for line in lines if line[:1] != "#" and "{" not in line]
    return status["clean_up"], {name: float(value) for name, value, *_ in plain}


def test_old_versions_and_unlisted_files_go_while_rows_are_written(daemon: Daemon) -> None:
    _write_versions(daemon)
    orphan = _folder(daemon) / "data" / "orphan.parquet"
    orphan.write_bytes(b"not listed")
    os.utime(orphan, (0, 0))
    _write_versions(daemon, VERSIONS)
    until(lambda: not orphan.exists(), "the orphan to go")
    until(lambda: len(_versions(daemon)) == 10, "the old versions to go")
    assert _rows(daemon) == list(range(2 * VERSIONS))
    told, metrics = _told(daemon)
    assert told["deleted_objects"] > VERSIONS
    assert told["deleted_bytes"] > len(b"not listed")
    assert (told["failed_runs"], told["last_run_at"] is None) == (0, False)
    assert metrics["ingester_clean_up_deleted_objects_total"] >= told["deleted_objects"]
    assert metrics["ingester_clean_up_seconds_count"] >= told["runs"] > 0
    assert metrics["ingester_clean_up_last_timestamp_seconds"] > 1.7e9
    daemon.kill()
    with daemon.again() as after:
        assert _rows(after) == list(range(2 * VERSIONS))
        assert after.terminate() == 0
    assert b"internal-error" not in daemon.stderr_file.read_bytes()


def test_rows_that_are_not_persisted_yet_outlive_a_horizon(daemon: Daemon) -> None:
    _write_versions(daemon)
    with fl.connect(daemon.flight) as client:
        put(client, TABLE, numbers(VERSIONS, 5))
        orphan = _folder(daemon) / "data" / "orphan.parquet"
        orphan.write_bytes(b"not listed")
        os.utime(orphan, (0, 0))
        until(lambda: not orphan.exists(), "the orphan to go")
        persist(client, TABLE)
        assert rows(client, TABLE) == list(range(VERSIONS + 5))
    assert daemon.terminate() == 0


def test_a_manifest_that_cannot_be_read_is_told_and_nothing_is_deleted(daemon: Daemon) -> None:
    _write_versions(daemon)
    newest = max((_folder(daemon) / "_manifest").glob("*.changelog"))
    whole = newest.read_bytes()
    newest.write_bytes(b"damaged")
    until(lambda: b"clean-up-failed" in daemon.stderr_file.read_bytes(), "a warning")
    told, metrics = _told(daemon)
    assert told["failed_runs"] > 0
    assert metrics["ingester_clean_up_failed_runs_total"] >= told["failed_runs"]
    newest.write_bytes(whole)
    until(lambda: len(_versions(daemon)) == 10, "the old versions to go")
    assert _rows(daemon) == list(range(VERSIONS))


@pytest.mark.s3
def test_a_daemon_on_s3_cleans_too(tmp_path: Path) -> None:
    with S3Server.start() as server:
        server.make_bucket("lake")
        environment = server.environment
        where = {"store": "s3://lake/cleaned", **QUICK}
        with Daemon.start(tmp_path / "data", environment=environment, **where) as daemon:
            _write_versions(daemon)
            until(lambda: b"table cleaned" in daemon.stderr_file.read_bytes(), "a clean-up")
            assert _rows(daemon) == list(range(VERSIONS))
            assert daemon.terminate() == 0


def test_versions_of_a_table_that_will_not_count_again_go(tmp_path: Path) -> None:
    with (
        Daemon.start(tmp_path / "data", versions__keep="1", **QUICK) as daemon,
        fl.connect(daemon.flight) as client,
    ):
        put(client, TABLE, numbers(0, 10))
        persist(client, TABLE)
        store = open_store(f"file://{daemon.data_dir / 'store'}")
        for number in (2, 3):
            switch_version(store, *TABLE, push_some(store, TABLE, f"push-{number}"))
        assert rows(client, TABLE) == list(range(10))
        until(lambda: not list(store.list("it/cleaned/v1/")), "version 1 to go")
        kept = [each.version for each in list_versions(store, *TABLE) if each.kept]
        assert kept == [2, 3]
        assert rows(client, TABLE) == rows(client, TABLE, table_version=2) == list(range(10))
        with pytest.raises(pa.ArrowInvalid, match="no table version 1; existing versions: 2, 3"):
            rows(client, TABLE, table_version=1)
