"""Unneeded segments are deleted in order, and deletions yield to writers."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio

import wal.segment
import wal.segments
from tests.wal.disks import FaultyDisk
from tests.wal.driving import (
    SMALL,
    payloads,
    recovered_records,
    running,
    segment_files,
    trimmed,
)
from wal import LogDamaged, LogSettings, LogWriteFailed
from wal.disk import Disk, Mode
from wal.format import segment_name
from wal.inspection import inspect, verify
from wal.segment import remove

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


def test_prune_deletes_sealed_segments_in_order_and_syncs_the_folder(tmp_path: Path) -> None:
    async def write() -> None:
        disk = FaultyDisk()
        async with running(tmp_path, disk=disk) as state:
            for i in range(4):
                await state.answers.write(state.log, b"%d" % i)
                await state.log.rotate()
            await trimmed(disk, 4)
            disk.calls.clear()
            assert await state.log.prune(3) == [1, 2]
            assert disk.names() == ["rename", "fsync_directory", "unlink"] * 2
            assert await state.log.prune(3) == []
            assert await state.log.prune(999) == [3, 4]
            assert state.log.statistics().segments == 1
            await state.answers.write(state.log, b"still open")
        _, records = await recovered_records(tmp_path)
        assert payloads(records) == [b"still open"]
        assert records[0].first_seq == 5

    trio.run(write)


def test_a_large_segment_is_freed_in_pieces_while_others_write(tmp_path: Path) -> None:
    large = LogSettings(segment_bytes=16 << 20)
    in_pieces = ["rename", "fsync_directory", *["truncate", "fsync"] * 2, "unlink"]

    async def write() -> None:
        disk = FaultyDisk()
        async with running(tmp_path, large, disk=disk) as state:
            for _ in range(3):
                await state.answers.write(state.log, b"x" * (5 << 20))
                await state.log.rotate()
            await trimmed(disk, 3)
            disk.calls.clear()
            assert await state.log.prune(2) == [1]
            assert disk.names() == in_pieces
            # The segment is gone for good before its file is cut, so a failed cut is harmless.
            disk.fail("truncate")
            assert await state.log.prune(3) == [2]
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(wal.segments, "BUSY_S", 0.0)
                disk.calls.clear()
                assert await state.log.prune(4) == [3]
                assert disk.names() == ["rename", "fsync_directory", "unlink"]
            assert segment_files(tmp_path) == [tmp_path / segment_name(4)]
            disk.heal()
            await state.answers.write(state.log, b"x")
        _, records = await recovered_records(tmp_path)
        assert [one.first_seq for one in records] == [4]

    trio.run(write)


def test_two_prunes_at_once_delete_each_segment_once_and_in_order(tmp_path: Path) -> None:
    """A crash between them leaves no gap: only a prefix of the segments is missing."""

    class Renames(FaultyDisk):
        def rename(self, source: Path, target: Path) -> None:
            # The previous deletion is durable by this point.
            gone.append((source.name, self.names()[-1:]))
            super().rename(source, target)

    gone: list[tuple[str, list[str]]] = []

    async def write() -> None:
        disk = Renames()
        async with running(tmp_path, SMALL, disk=disk) as state:
            for i in range(4):
                await state.answers.write(state.log, b"%d" % i)
                await state.log.rotate()
            await trimmed(disk, 4)
            removed: list[int] = []
            gone.clear()

            async def prune() -> None:
                removed.extend(await state.log.prune(5))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(prune)
                nursery.start_soon(prune)
            assert removed == [1, 2, 3, 4]
            assert [name for name, _ in gone] == [segment_name(number) for number in removed]
            assert all(before == ["unlink"] for _, before in gone[1:])

    trio.run(write)


class Meanwhile(Disk):
    """Runs a callback once, when an already opened segment is read."""

    def __init__(self, number: int, act: Callable[[Path], None]) -> None:
        self._name = segment_name(number)
        self._act: Callable[[Path], None] | None = act
        self._opened: tuple[int, Path] | None = None

    def open(self, path: Path, mode: Mode) -> int:
        fd = super().open(path, mode)
        if mode == "read" and path.name == self._name:
            self._opened = fd, path
        return fd

    def pread_into(self, fd: int, buffer: WriteableBuffer, offset: int) -> int:
        if self._act is not None and self._opened is not None and fd == self._opened[0]:
            act, self._act = self._act, None
            act(self._opened[1])
        return super().pread_into(fd, buffer, offset)


async def fill(folder: Path) -> None:
    async with running(folder, SMALL) as state:
        for _ in range(4):
            await state.answers.write(state.log, b"x" * 3000)


@pytest.mark.parametrize("gone", [1, 2, 3])
def test_inspecting_a_log_during_pruning_finds_no_damage(tmp_path: Path, gone: int) -> None:
    trio.run(fill, tmp_path)

    def take_away(path: Path) -> None:
        for number in range(1, gone + 1):
            remove(Disk(), path.with_name(segment_name(number)), lambda: True)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wal.segment, "FREED_AT_ONCE", 1024)
        assert verify(tmp_path, Meanwhile(gone, take_away)) == []
    assert [facts.number for facts in inspect(tmp_path)] == [1, 2, 3, 4][gone:]


def test_inspecting_a_segment_during_its_trim_finds_no_damage(
    tmp_path: Path,
) -> None:
    trio.run(fill, tmp_path)
    last = tmp_path / segment_name(4)
    length = last.stat().st_size
    os.truncate(last, 1 << 21)
    assert verify(tmp_path, Meanwhile(4, lambda path: os.truncate(path, length))) == []
    assert last.stat().st_size == length


def test_a_start_does_not_take_a_missing_segment_for_a_removed_one(tmp_path: Path) -> None:
    trio.run(fill, tmp_path)
    lost = tmp_path / segment_name(2)
    lost.unlink()
    lost.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LogWriteFailed, match="No such file"):
        trio.run(recovered_records, tmp_path)
    with pytest.raises(FileNotFoundError):
        verify(tmp_path)
    lost.unlink()
    with pytest.raises(LogDamaged, match="segment 2"):
        trio.run(recovered_records, tmp_path)


def test_a_segment_that_cannot_be_renamed_is_deleted_at_once(tmp_path: Path) -> None:
    async def write() -> None:
        disk = FaultyDisk()
        async with running(tmp_path, disk=disk) as state:
            await state.answers.write(state.log, b"one")
            await state.log.rotate()
            await trimmed(disk, 1)
            disk.fail("rename", errno.ENOSPC)
            disk.calls.clear()
            assert await state.log.prune(2) == [1]
            assert disk.names() == ["rename", "unlink", "fsync_directory"]
            disk.heal()

    trio.run(write)


def test_many_segments_are_deleted_without_pauses(tmp_path: Path) -> None:
    async def write() -> None:
        disk = FaultyDisk()
        async with running(tmp_path, SMALL, disk=disk) as state:
            for _ in range(6):
                await state.answers.write(state.log, b"x" * 3000)
            await trimmed(disk, 5)
            disk.calls.clear()
            assert await state.log.prune(6) == [1, 2, 3, 4, 5]
            assert "truncate" not in disk.names()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wal.segment, "FREED_AT_ONCE", 1024)
        trio.run(write)
