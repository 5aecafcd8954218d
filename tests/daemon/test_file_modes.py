"""Permissions of the daemon's files: private to its user, at most readable by its group."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.flight as fl
import pytest

from ingester.client import Client
from ingester.query.spill import empty_spill_folder
from persist.store.local import LocalStore
from tests.drivers.daemon import Daemon
from tests.drivers.wire import numbers, persist, put
from wal import DirectoryLock
from wal.disk import Disk


@contextmanager
def umask(mask: int) -> Iterator[None]:
    """Set this umask inside the block, for this process and the processes that it starts."""
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    """The permissions of everything in the folder, by path."""
    paths = [folder, *folder.rglob("*")]
    return {str(path.relative_to(folder)): stat.S_IMODE(path.stat().st_mode) for path in paths}


def too_open(folder: Path) -> dict[str, str]:
    """Paths that others can access, or that the group can write, with their modes."""
    return {path: oct(mode) for path, mode in modes(folder).items() if mode & 0o027}


def test_store_log_lock_and_spill_of_a_daemon_started_under_umask_0(tmp_path: Path) -> None:
    data = tmp_path / "deep" / "data"
    with umask(0), Daemon.start(data, environment={"PYTHONHASHSEED": "0"}) as daemon:
        with fl.connect(daemon.flight) as client:
            put(client, ("n", "t"), numbers(0, 10))
            persist(client, ("n", "t"))
            put(client, ("n", "t"), numbers(10, 10))
        with Client(daemon.flight) as client:
            assert client.query("n", "t").num_rows == 20
        assert too_open(data) == {}
        daemon.kill()
    found = modes(data)
    kinds = {name.partition(".")[2] or name.rpartition("/")[2] for name in found}
    assert {"LOCK", "parquet", "spill", "wal"} <= kinds, sorted(found)


def test_a_folder_that_was_there_and_is_open_to_everybody_is_told(tmp_path: Path) -> None:
    data, store = tmp_path / "data", tmp_path / "store"
    for folder, mode in ((data, 0o755), (data / "wal", 0o750), (store, 0o777)):
        folder.mkdir()
        folder.chmod(mode)
    with Daemon.start(data, store=f"file://{store}", log__format="json") as daemon:
        daemon.kill()
        lines = [json.loads(line) for line in daemon.stderr_file.read_text().splitlines()]
    told = [each for each in lines if each["event"] == "folder is open to everybody"]
    assert {(each["folder"], each["mode"]) for each in told} == {
        (str(data), "0755"),
        (str(store), "0777"),
    }
    assert {each["runbook"] for each in told} == {"open-folder"}


@pytest.mark.parametrize(("mask", "file", "folder"), [(0, 0o640, 0o750), (0o077, 0o600, 0o700)])
def test_what_each_part_makes_is_at_most_0640_and_0750(
    tmp_path: Path, mask: int, file: int, folder: int
) -> None:
    with umask(mask):
        LocalStore(tmp_path / "store").put("a/b", b"x")
        with DirectoryLock(tmp_path / "log"):
            pass
        disk = Disk()
        disk.make_directory(tmp_path / "log" / "wal")
        disk.close(disk.open(tmp_path / "log" / "wal" / "1", "create"))
        empty_spill_folder(tmp_path / "spill")
    for made in ("store", "log", "spill"):
        for path, mode in modes(tmp_path / made).items():
            assert mode == (folder if (tmp_path / made / path).is_dir() else file), path
