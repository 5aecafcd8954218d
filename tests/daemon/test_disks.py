"""Disk checks: a file system without free inodes, or without write access, is detected."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
import trio.testing

from ingester.config.settings import Settings, WalSettings
from ingester.daemon.disks import TOUCH_S, Disks
from ingester.write.admission import DiskRoom
from tests.crash.worlds import mount, no_small_disk


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A mounted file system for this test."""
    if (why := no_small_disk(tmp_path)) is not None:
        pytest.skip(why)
    at = tmp_path / "disk"
    at.mkdir()
    assert mount(at)
    try:
        yield at
    finally:
        subprocess.run(["umount", "--lazy", at], check=True)


def test_a_disk_without_an_inode_lacks_room_for_what_is_not_reserved(disk: Path) -> None:
    def lacks(reserved_bytes: int) -> bool:
        return DiskRoom(disk, 4096, lambda: reserved_bytes).lacks(1)

    assert not lacks(0)
    # The root directory uses the only inode.
    subprocess.run(["mount", "-o", "remount,nr_inodes=1", disk], check=True)
    assert [lacks(100_000), lacks(0)] == [False, True]


def test_a_disk_that_takes_no_writes_is_known_though_it_has_room(disk: Path) -> None:
    (disk / "wal").mkdir()

    async def main() -> list[str | None]:
        disks, found = Disks(Settings(data_dir=disk)), []
        for options in ("ro", "rw"):
            await disks.look()
            found.append(disks.log_problem)
            subprocess.run(["mount", "-o", f"remount,{options}", disk], check=True)
            await trio.sleep(TOUCH_S)
        await disks.look()
        return [*found, disks.log_problem]

    clock = trio.testing.MockClock(autojump_threshold=0.05)
    assert trio.run(main, clock=clock) == [None, "Read-only file system", None]


def test_a_volume_that_is_taken_away_is_known_and_one_that_is_not_there_yet_is_none(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "d" / "wal"

    async def main() -> list[tuple[str | None, bool]]:
        disks, found = Disks(Settings(data_dir=folder.parent)), []
        for exists in (False, True, False):
            if exists:
                folder.mkdir(parents=True)
            elif folder.exists():
                folder.rmdir()
            await disks.look()
            found.append((disks.log_problem, disks.room("log") is not None))
            await trio.sleep(TOUCH_S)
        return found

    clock = trio.testing.MockClock(autojump_threshold=0.05)
    gone = ("No such file or directory", False)
    assert trio.run(main, clock=clock) == [(None, True), (None, True), gone]
    # Batches that need a new file are refused; the daemon keeps running.
    assert DiskRoom(folder, 1, lambda: 0).lacks(1)
    assert not DiskRoom(folder, 1, lambda: 100_000).lacks(1)


def test_a_volume_that_cannot_be_looked_at_any_more_ends_no_look(tmp_path: Path) -> None:
    """A failed volume answers every call with an error, as the renamed folder does here."""
    data = tmp_path / "d"
    (data / "wal").mkdir(parents=True)

    async def main() -> tuple[str | None, bool]:
        disks = Disks(Settings(data_dir=data))
        await disks.look()
        assert disks.room("log") is not None
        data.rename(tmp_path / "away")
        data.symlink_to("x" * 300)
        await trio.sleep(TOUCH_S)
        await disks.look()
        return disks.log_problem, disks.room("log") is not None

    clock = trio.testing.MockClock(autojump_threshold=0.05)
    assert trio.run(main, clock=clock) == ("File name too long", False)


def test_without_a_log_on_disk_its_disk_is_neither_measured_nor_touched(tmp_path: Path) -> None:
    (tmp_path / "wal").mkdir()
    with_log = Disks(Settings(data_dir=tmp_path))
    without = Disks(Settings(data_dir=tmp_path, wal=WalSettings(disk="off")))
    for disks in (with_log, without):
        trio.run(disks.look)
        assert disks.room("spill") is not None
    assert with_log.room("log") is not None
    assert (without.room("log"), without.log_problem) == (None, None)
