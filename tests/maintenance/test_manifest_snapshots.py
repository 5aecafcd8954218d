"""The daemon writes snapshots of its manifests, and works without any of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow.flight as fl
import pytest

from tests.drivers.daemon import Daemon
from tests.drivers.waiting import until
from tests.drivers.wire import describe, numbers, persist, put, rows

TABLE = ("it", "snapped")
VERSIONS = 40


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with Daemon.start(tmp_path / "data") as daemon:
        yield daemon


def _manifest(daemon: Daemon) -> Path:
    return daemon.data_dir / "store" / "it" / "snapped" / "v1" / "_manifest"


def _snapshots(daemon: Daemon) -> list[Path]:
    return sorted(_manifest(daemon).glob("*.snapshot"))


def _write_versions(daemon: Daemon) -> None:
    with fl.connect(daemon.flight) as client:
        for step in range(VERSIONS):
            put(client, TABLE, numbers(step, 1))
            persist(client, TABLE)
        assert describe(client, TABLE)["persisted"]["files"] == VERSIONS


def _rows(daemon: Daemon) -> list[int]:
    with fl.connect(daemon.flight) as client:
        return rows(client, TABLE)


def test_a_snapshot_follows_when_the_changelogs_outweigh_it(daemon: Daemon) -> None:
    _write_versions(daemon)
    until(lambda: bool(_snapshots(daemon)), "a snapshot")
    daemon.terminate()
    # With the snapshot, the head is readable without the earlier changelogs.
    newest = int(_snapshots(daemon)[-1].name.split("_")[0])
    for changelog in _manifest(daemon).glob("*.changelog"):
        if int(changelog.name.split("_")[0]) <= newest:
            changelog.unlink()
    with daemon.again() as after:
        assert _rows(after) == list(range(VERSIONS))


@pytest.mark.parametrize("damage", ["flipped", "cut", "emptied", "removed"])
def test_damaged_snapshots_are_read_around(daemon: Daemon, damage: str) -> None:
    _write_versions(daemon)
    until(lambda: bool(_snapshots(daemon)), "a snapshot")
    daemon.kill()
    for path in _snapshots(daemon):
        data = bytearray(path.read_bytes())
        if damage == "removed":
            path.unlink()
            continue
        if damage == "flipped":
            data[len(data) // 2] ^= 1
        kept = {"flipped": bytes(data), "cut": bytes(data[:-7]), "emptied": b""}
        path.write_bytes(kept[damage])
    with daemon.again() as after:
        assert _rows(after) == list(range(VERSIONS))
