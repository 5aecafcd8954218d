"""Segments that nobody needs any more go in order, and give way to those who write."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import pytest
import trio

from tests.wal.disks import FaultyDisk
from tests.wal.driving import (
    SMALL,
    payloads,
    recovered_records,
    running,
    segment_files,
    trimmed,
)
from wal import LogSettings
from wal.disk import OsDisk
from wal.format import segment_name
from wal.inspection import inspect, verify
from wal.segment import remove


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


def test_a_large_segment_goes_in_pieces_while_others_write(tmp_path: Path) -> None:
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
            # It is gone for good before it is cut: a piece that fails is nobody's trouble.
            disk.fail("truncate")
            assert await state.log.prune(3) == [2]
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("wal.segments._BUSY_S", 0.0)
                disk.calls.clear()
                assert await state.log.prune(4) == [3]
                assert disk.names() == ["rename", "fsync_directory", "unlink"]
            assert segment_files(tmp_path) == [tmp_path / segment_name(4)]
            disk.heal()
            await state.answers.write(state.log, b"x")
        _, records = await recovered_records(tmp_path)
        assert [one.first_seq for one in records] == [4]

    trio.run(write)


def test_two_prunes_at_once_delete_each_segment_once(tmp_path: Path) -> None:
    async def write() -> None:
        async with running(tmp_path, SMALL) as state:
            for i in range(4):
                await state.answers.write(state.log, b"%d" % i)
                await state.log.rotate()
            removed: list[int] = []

            async def prune() -> None:
                removed.extend(await state.log.prune(5))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(prune)
                nursery.start_soon(prune)
            assert sorted(removed) == [1, 2, 3, 4]

    trio.run(write)


class Removing(OsDisk):
    """Has a segment removed, and those before it, when it is opened to be read."""

    def __init__(self, number: int) -> None:
        self._number = number

    def open(self, path: Path, mode: Literal["read", "write", "create"]) -> int:
        fd = super().open(path, mode)
        if mode == "read" and path.name == segment_name(self._number):
            for number in range(1, self._number + 1):
                remove(self, path.with_name(segment_name(number)), lambda: True)
        return fd


@pytest.mark.parametrize("gone", [1, 2, 3])
def test_a_look_at_a_log_whose_segments_go_meanwhile_finds_no_damage(
    tmp_path: Path, gone: int
) -> None:
    async def write() -> None:
        async with running(tmp_path, SMALL) as state:
            for _ in range(4):
                await state.answers.write(state.log, b"x" * 3000)

    trio.run(write)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("wal.segment._FREED_AT_ONCE", 1024)
        assert verify(tmp_path, Removing(gone)) == []
    left = [facts.number for facts in inspect(tmp_path)]
    assert left == [1, 2, 3, 4][gone:]
    os.truncate(tmp_path / segment_name(4), 1000)
    assert [finding.file for finding in verify(tmp_path)] == [segment_name(4)]
