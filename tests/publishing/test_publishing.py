"""A daemon publishes its tables behind the commits: started, killed, refused, and switched off."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.flight as fl
import pytest
from pyiceberg.table import StaticTable

from persist.manifest import PUBLISH
from tests.cli.conftest import run_command
from tests.drivers.daemon import Daemon
from tests.drivers.waiting import until
from tests.drivers.wire import Json, Table, create, describe, http, numbers, persist, put, rows
from tests.flush.test_own_ages import set_property

TABLE = ("it", "open")
BOTH = '["iceberg", "delta"]'
QUICK: dict[str, Any] = {
    "publish__formats": BOTH,
    "publish__interval": "20ms",
    "manifest__refresh": "50ms",
}


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with Daemon.start(tmp_path / "data", **QUICK) as daemon:
        yield daemon


@pytest.fixture
def client(daemon: Daemon) -> Iterator[fl.FlightClient]:
    with fl.connect(daemon.flight) as client:
        yield client


def published(client: fl.FlightClient, table: Table = TABLE) -> dict[str, Json]:
    """What the daemon says of each format."""
    return {each["format"]: each for each in describe(client, table)["published"]}


def until_published(
    client: fl.FlightClient, *formats: str, version: int, table: Table = TABLE
) -> None:
    """Wait until a version is published in these formats, and no other format is named."""

    def done() -> bool:
        found = published(client, table)
        return set(found) == set(formats) and all(
            each["versions_behind"] == 0 and (each["number"] or 0) >= version
            for each in found.values()
        )

    until(done, f"version {version} of {table} in {formats}")


def folder_of(daemon: Daemon, table: Table = TABLE) -> Path:
    return daemon.data_dir / "store" / table[0] / table[1]


def seen_by_others(daemon: Daemon, table: Table = TABLE) -> list[list[int]]:
    """The sorted rows as readers of Iceberg and Delta see them."""
    folder = str(folder_of(daemon, table))
    iceberg = StaticTable.from_metadata(folder).scan().to_arrow()
    delta = deltalake.DeltaTable(folder).to_pyarrow_table()
    return [sorted(found["i"].to_pylist()) for found in (iceberg, delta)]


def write(client: fl.FlightClient, first: int, versions: int, table: Table = TABLE) -> int:
    """Commit one row a version; return the last version."""
    version = 0
    for number in range(first, first + versions):
        put(client, table, numbers(number, 1))
        version = persist(client, table)
    return version


def status_of(daemon: Daemon, path: str = "/api/status") -> Json:
    found: Json = json.loads(http(daemon.http + path)[2])
    return found


def alarms(daemon: Daemon) -> set[str]:
    return {each["name"] for each in status_of(daemon)["alarms"]}


def test_each_commit_is_followed_and_told_of(daemon: Daemon, client: fl.FlightClient) -> None:
    for first in (0, 3):
        version = write(client, first, 3)
        until_published(client, "iceberg", "delta", version=version)
        assert seen_by_others(daemon) == [list(range(first + 3))] * 2
    status = status_of(daemon)
    assert status["publishing"] == {
        "tables": 1,
        "behind": 0,
        "seconds_behind": 0.0,
        "stopped": 0,
    }
    (table,) = status["tables"]
    detail = status_of(daemon, "/api/tables/it/open")
    assert table["published"] == detail["published"] == describe(client, TABLE)["published"]
    assert {each["number"] for each in detail["published"]} == {table["manifest_version"]}
    metrics = http(daemon.http + "/metrics")[2].decode()
    for name in ("versions", "seconds"):
        for kind in ("delta", "iceberg"):
            labels = f'format="{kind}",namespace="it",table="open"'
            assert f"\ningester_publish_{name}_behind{{{labels}}} 0.0\n" in metrics
    assert "\ningester_publish_failures_total 0.0\n" in metrics
    assert b"publishing stopped" not in daemon.stderr_file.read_bytes()


def test_versions_that_come_fast_are_published_together(tmp_path: Path) -> None:
    slow = {**QUICK, "publish__interval": "1s"}
    with Daemon.start(tmp_path / "data", **slow) as daemon, fl.connect(daemon.flight) as client:
        until_published(client, "iceberg", "delta", version=write(client, 0, 1))
        until_published(client, "iceberg", "delta", version=write(client, 1, 20))
        files = list((folder_of(daemon) / "metadata").glob("v*.metadata.json"))
        assert 2 <= len(files) < 10
        assert seen_by_others(daemon) == [list(range(21))] * 2


def test_a_killed_daemon_goes_on_where_it_stopped(daemon: Daemon) -> None:
    for number in range(4):
        with fl.connect(daemon.flight) as client:
            write(client, 5 * number, 5)
        daemon.kill()
        daemon = daemon.again()
    with fl.connect(daemon.flight) as client:
        until_published(client, "iceberg", "delta", version=write(client, 20, 1))
        assert seen_by_others(daemon) == [rows(client, TABLE)] * 2 == [list(range(21))] * 2
    assert daemon.terminate() == 0
    assert b"table not published" not in daemon.stderr_file.read_bytes()


def test_a_clean_stop_publishes_the_last_version(tmp_path: Path) -> None:
    slow = {**QUICK, "publish__interval": "30s"}
    with Daemon.start(tmp_path / "data", **slow) as daemon:
        with fl.connect(daemon.flight) as client:
            write(client, 0, 3)
            put(client, TABLE, numbers(3, 1))
        assert daemon.terminate() == 0
        assert seen_by_others(daemon) == [list(range(4))] * 2


def test_commits_of_another_daemon_are_published(daemon: Daemon, client: fl.FlightClient) -> None:
    write(client, 0, 1)
    store = f"file://{daemon.data_dir / 'store'}"
    with (
        Daemon.start(daemon.data_dir.with_name("b"), id="b", store=store) as other,
        fl.connect(other.flight) as there,
    ):
        version = write(there, 1, 3)
        assert describe(there, TABLE)["published"] == []
        until_published(client, "iceberg", "delta", version=version)
        assert seen_by_others(daemon) == [list(range(4))] * 2


def test_a_table_is_switched_off_and_on_while_the_daemon_runs(
    daemon: Daemon, client: fl.FlightClient
) -> None:
    version = write(client, 0, 1)
    until_published(client, "iceberg", "delta", version=version)
    set_property(daemon, TABLE, PUBLISH, ["delta"])
    until_published(client, "delta", version=write(client, 1, 1))
    set_property(daemon, TABLE, PUBLISH, [])
    until(lambda: not published(client), "publishing to be switched off")
    write(client, 2, 1)
    set_property(daemon, TABLE, PUBLISH, ["delta", "iceberg"])
    until_published(client, "iceberg", "delta", version=write(client, 3, 1))
    assert seen_by_others(daemon) == [list(range(4))] * 2


def test_a_column_that_one_format_cannot_express_stops_that_format_alone(
    daemon: Daemon, client: fl.FlightClient, tmp_path: Path
) -> None:
    create(client, TABLE, numbers(0, 1).schema, publish=["iceberg", "delta"])
    until_published(client, "iceberg", "delta", version=write(client, 0, 1))
    wider = numbers(1, 1, u=pa.array([2**64 - 1], pa.uint64()))
    put(client, TABLE, wider)
    version = persist(client, TABLE)
    until(lambda: "publish-stopped" in alarms(daemon), "the alarm")
    until(lambda: published(client)["iceberg"]["refused"] is not None, "the reason")
    assert "uint64" in published(client)["iceberg"]["refused"]
    assert status_of(daemon)["publishing"]["stopped"] == 1
    told = run_command("status", cwd=tmp_path, endpoint=daemon.flight).stdout.decode().splitlines()
    (row,) = (line for line in told if line.startswith("it ") and "stopped" in line)
    assert len(row) < 100
    (reason,) = (line for line in told if line.startswith("it/open ") and "Iceberg" in line)
    assert "uint64" in reason
    assert write(client, 2, 1) > version
    assert rows(client, TABLE) == [0, 1, 2]
    assert b"publishing stopped" in daemon.stderr_file.read_bytes()


def test_a_version_that_is_not_ours_stops_publishing_until_it_is_gone(
    daemon: Daemon, client: fl.FlightClient
) -> None:
    version = write(client, 0, 1)
    until_published(client, "iceberg", "delta", version=version)
    foreign = folder_of(daemon) / "_delta_log" / f"{version + 1:020d}.json"
    foreign.write_text('{"commitInfo": {"operation": "WRITE", "engineInfo": "another"}}\n')
    version = write(client, 1, 3)
    until(lambda: "publish-stopped" in alarms(daemon), "the alarm")
    assert foreign.name in published(client)["delta"]["refused"]
    assert "another" in foreign.read_text()
    until(lambda: published(client)["iceberg"]["versions_behind"] == 0, "Iceberg to follow")
    foreign.unlink()
    until_published(client, "iceberg", "delta", version=version)
    assert seen_by_others(daemon) == [list(range(4))] * 2
    assert b"publishing resumed" in daemon.stderr_file.read_bytes()


def test_a_failing_format_is_tried_again_and_the_other_follows(
    daemon: Daemon, client: fl.FlightClient
) -> None:
    folder = folder_of(daemon)
    create(client, TABLE, numbers(0, 1).schema, publish=[])
    (folder / "_delta_log").write_text("a file where the folder has to be")
    set_property(daemon, TABLE, PUBLISH, ["iceberg", "delta"])
    version = write(client, 0, 1)
    until(lambda: bool(published(client).get("delta", {}).get("error")), "the error")
    until(lambda: published(client)["iceberg"]["versions_behind"] == 0, "Iceberg to follow")
    told = published(client)["delta"]
    assert (told["refused"], told["number"]) == (None, None)
    assert status_of(daemon)["publishing"]["behind"] == 1
    (folder / "_delta_log").unlink()
    until_published(client, "iceberg", "delta", version=version)
    assert seen_by_others(daemon) == [[0]] * 2
    assert b'"table not published"' in daemon.stderr_file.read_bytes()


def test_old_metadata_is_deleted_by_garbage_collection(tmp_path: Path) -> None:
    cleaning = {**QUICK, "manifest__retain": "0s", "manifest__orphan_grace": "1s"}
    with Daemon.start(tmp_path / "data", **cleaning) as daemon, fl.connect(daemon.flight) as client:
        first = write(client, 0, 1)
        until_published(client, "iceberg", "delta", version=first)
        oldest = min((folder_of(daemon) / "metadata").glob("snap-*.avro"))
        until_published(client, "iceberg", "delta", version=write(client, 1, 12))
        until(lambda: not oldest.exists(), "old metadata to go")
        assert seen_by_others(daemon) == [list(range(13))] * 2
        assert b"published metadata cleaned" in daemon.stderr_file.read_bytes()


def test_a_daemon_that_starts_publishes_what_it_left_without_being_asked(tmp_path: Path) -> None:
    with Daemon.start(tmp_path / "data", **QUICK) as daemon, fl.connect(daemon.flight) as client:
        version = write(client, 0, 2)
        until_published(client, "iceberg", "delta", version=version)
        daemon.kill()
    # What a daemon does that stops while it cannot publish.
    with daemon.again(**QUICK | {"publish__formats": "[]"}) as again:
        with fl.connect(again.flight) as client:
            write(client, 2, 2)
        again.terminate()
    with daemon.again(**QUICK) as again:
        until(lambda: seen_by_others(again) == [[0, 1, 2, 3]] * 2, "all versions are published")
