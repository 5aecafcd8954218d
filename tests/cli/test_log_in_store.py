"""``ingester wal … --from-store ID``: what an operator does when a machine is lost."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.flight as fl
import pytest

from persist.store import open_store
from tests.cli.conftest import check_refused, run_command
from tests.drivers.daemon import Daemon
from tests.drivers.wire import numbers, put
from tests.fencing.pairs import rows_in_files, store_url

TABLE = ("ns", "t")


@pytest.fixture
def lost(tmp_path: Path) -> Path:
    """The folder with the store of a machine that is lost, with ten rows in its log."""
    settings: dict[str, Any] = {
        "store": store_url(tmp_path),
        "persist__max_age": "1h",
        "wal__disk": "off",
    }
    with Daemon.start(tmp_path / "data", id="lost", **settings) as daemon:
        with fl.connect(daemon.flight) as client:
            put(client, TABLE, numbers(0, 5))
            put(client, TABLE, numbers(5, 5))
        daemon.kill()
    shutil.rmtree(tmp_path / "data")
    return tmp_path


def test_a_lost_machine_is_adopted_from_the_store(lost: Path) -> None:
    options = ("--from-store", "lost", "--store", store_url(lost))
    told = run_command("wal", "inspect", *options, "--json", cwd=lost)
    assert told.returncode == 0, told.stderr
    objects = json.loads(told.stdout)
    assert sum(one["operations"] for one in objects) == 2
    assert {one["state"] for one in objects} == {"stored"}
    assert b"stored" in run_command("wal", "inspect", *options, cwd=lost).stdout
    assert run_command("wal", "verify", *options, cwd=lost).returncode == 0
    first = run_command("wal", "adopt", *options, cwd=lost)
    assert first.returncode == 0, first.stderr
    assert first.stdout.split()[-5:] == [b"ns", b"t", b"10", b"1", b"0"]
    again = run_command("wal", "adopt", *options, cwd=lost)
    assert again.stdout == b"nothing to adopt: the log holds no operations\n"
    assert rows_in_files(lost, TABLE, "i") == list(range(10))


def test_a_collection_of_the_whole_store_deletes_objects_whose_rows_are_in_files(
    lost: Path,
) -> None:
    copy = shutil.copytree(lost / "store" / "_log", lost / "log")
    run_command("wal", "adopt", "--from-store", "lost", "--store", store_url(lost), cwd=lost)
    shutil.copytree(copy, lost / "store" / "_log", dirs_exist_ok=True)
    arguments = ("manifest", "gc", store_url(lost), "--orphan-grace", "0s")
    line = b"log of lost: %s 3 log objects"
    assert line % b"would delete" in run_command(*arguments, "--dry-run", cwd=lost).stdout
    assert line % b"deleted" in run_command(*arguments, cwd=lost).stdout
    assert b"log of lost" not in run_command(*arguments, cwd=lost).stdout


def test_a_damaged_object_is_named_with_the_command_that_helps(lost: Path) -> None:
    options = ("--from-store", "lost", "--store", store_url(lost))
    told = run_command("wal", "inspect", *options, "--json", cwd=lost)
    path = next(one["path"] for one in json.loads(told.stdout) if one["operations"])
    store = open_store(store_url(lost))
    store.put(path, store.get(path)[:-8])
    assert run_command("wal", "verify", *options, cwd=lost).returncode == 1
    refused = run_command("wal", "adopt", *options, cwd=lost)
    check_refused(refused, 1, f"log object {path} is damaged at offset")
    assert b"run: ingester wal repair --from-store lost" in refused.stderr
    repaired = run_command("wal", "repair", *options, "--json", cwd=lost)
    assert [one["path"] for one in json.loads(repaired.stdout)] == [path]
    said = run_command("wal", "repair", *options, cwd=lost).stdout
    assert said == b"nothing to repair: no log object is damaged\n"
    assert run_command("wal", "adopt", *options, cwd=lost).returncode == 0
    assert rows_in_files(lost, TABLE, "i") == list(range(10)), "only the seal was lost"


def test_an_id_that_never_ran_on_the_store_is_refused(lost: Path) -> None:
    for command in ("inspect", "verify", "repair", "adopt"):
        options = ("--from-store", "losd", "--store", store_url(lost))
        refused = run_command("wal", command, *options, cwd=lost)
        check_refused(refused, 1, f"store {store_url(lost)} knows no ingester 'losd'")


def test_a_log_is_named_in_one_way(tmp_path: Path) -> None:
    for arguments in ((), (".", "--from-store", "x")):
        refused = run_command("wal", "adopt", *arguments, cwd=tmp_path)
        check_refused(refused, 2, "give a data directory, or --from-store ID")
    refused = run_command("wal", "verify", "--from-store", "../x", cwd=tmp_path)
    check_refused(refused, 2, "is no ingester id")
