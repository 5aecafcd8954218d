"""A disk that refuses a segment: its space, its header, its seal or its name."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import trio
import trio.testing

from tests.wal.disks import FaultyDisk
from tests.wal.driving import (
    IDENTITY,
    SMALL,
    Running,
    operation,
    payloads,
    recovered_records,
    running,
    segment_files,
    started,
)
from tests.wal.held_disk import HeldDisk
from wal import Log, LogFailed, LogFull, LogWriteFailed
from wal.format import segment_name

FULL = [errno.ENOSPC, errno.EDQUOT]


def test_no_rotation_follows_a_failed_sync(tmp_path: Path) -> None:
    async def write() -> None:
        disk = HeldDisk()
        log = await started(tmp_path, disk=disk)
        state = Running(log)
        entry = operation(b"x")
        ended: list[str] = []

        async def run(task_status: trio.TaskStatus[None]) -> None:
            with pytest.raises(LogFailed):
                await log.run(state.apply, task_status=task_status)
            ended.append("run")

        async def rotate() -> None:
            with pytest.raises(LogFailed):
                await log.rotate()
            ended.append("rotation")

        async with trio.open_nursery() as nursery:
            await nursery.start(run)
            disk.hold(then=OSError(errno.EIO, "no"))
            state.answers.append(log, entry)
            await disk.wait_until_held()
            nursery.start_soon(rotate)
            await trio.testing.wait_all_tasks_blocked()
            disk.calls.clear()
            disk.let_go.set()
        assert sorted(ended) == ["rotation", "run"]
        assert isinstance(state.answers.by_entry[entry], LogFailed)
        # A second sync could report success although the first one lost data.
        assert disk.names() == []

    trio.run(write)


@pytest.mark.parametrize("error", FULL)
def test_a_full_disk_refuses_rotation_and_recovers_alone(tmp_path: Path, error: int) -> None:
    async def write() -> None:
        disk = FaultyDisk()
        async with running(tmp_path, disk=disk) as state:
            await state.answers.write(state.log, b"x" * 1900)
            disk.fail("allocate", error)
            # The segment has room for this record, and none for the next.
            await state.answers.write(state.log, b"y" * 1000)
            for _ in range(3):
                entry = operation(b"z" * 1000)
                state.answers.append(state.log, entry)
                assert isinstance((await state.answers.wait(entry))[0], LogFull)
                assert state.log.open_segment == 1
            with pytest.raises(LogFull):
                await state.log.rotate()
            await state.answers.write(state.log, b"s" * 100)
            disk.heal()
            await state.answers.write(state.log, b"w" * 1000)
            assert state.log.open_segment == 2
        recovered, records = await recovered_records(tmp_path)
        assert [one[:1] for one in payloads(records)] == [b"x", b"y", b"s", b"w"]
        assert recovered.foreign == ()

    trio.run(write)


def test_a_log_starts_on_a_full_disk_and_takes_writes_when_there_is_room(tmp_path: Path) -> None:
    async def write() -> None:
        disk = FaultyDisk()
        async with running(tmp_path, clean=False) as state:
            await state.answers.write(state.log, b"old")
        disk.fail("allocate", errno.ENOSPC)
        async with running(tmp_path, disk=disk) as state:
            entry = operation(b"x")
            state.answers.append(state.log, entry)
            assert isinstance((await state.answers.wait(entry))[0], LogFull)
            assert await state.log.prune(state.log.open_segment) == [1]
            disk.heal()
            (entry,) = await state.answers.write(state.log, b"new")
            assert (entry.seq, entry.segment) == (2, 2)

    trio.run(write)


def test_the_first_segment_is_noted_when_it_is_there_and_before_it_is_used(tmp_path: Path) -> None:
    async def write() -> None:
        disk, noted = FaultyDisk(), list[list[str]]()

        def begun() -> None:
            noted.append([path.name for path in segment_files(tmp_path)])
            if len(noted) == 1:
                raise OSError(errno.EIO, "the mark cannot be written")

        disk.fail("allocate", errno.ENOSPC)
        async with running(tmp_path, disk=disk, begun=begun) as state:
            assert noted == []
            disk.heal()
            entry = operation(b"x")
            state.answers.append(state.log, entry)
            assert isinstance((await state.answers.wait(entry))[0], LogWriteFailed)
            (entry,) = await state.answers.write(state.log, b"new")
            assert (entry.seq, entry.segment) == (1, 1)
            await state.log.rotate()
        assert noted == [[segment_name(1)], [segment_name(1)]]
        assert payloads((await recovered_records(tmp_path))[1]) == [b"new"]

    trio.run(write)


@pytest.mark.parametrize("call", ["pwritev", "rename"])
def test_a_segment_that_cannot_be_opened_is_tried_again(tmp_path: Path, call: str) -> None:
    async def write() -> None:
        disk = FaultyDisk()
        async with running(tmp_path, disk=disk) as state:
            await state.answers.write(state.log, b"one")
            # The header or the name of the new segment fails; the old one is already sealed.
            seal = 1
            disk.fail(call, errno.EIO, skip=seal if call == "pwritev" else 0, times=1)
            with pytest.raises(LogWriteFailed):
                await state.log.rotate()
            assert state.log.statistics().open_bytes == 0
            (entry,) = await state.answers.write(state.log, b"two")
            assert (entry.seq, entry.segment) == (2, 2)
        assert payloads((await recovered_records(tmp_path))[1]) == [b"one", b"two"]

    trio.run(write)


def test_a_failed_seal_leaves_the_segment_open(tmp_path: Path) -> None:
    async def write() -> None:
        disk = FaultyDisk()
        async with running(tmp_path, disk=disk) as state:
            await state.answers.write(state.log, b"one")
            disk.fail("pwritev", errno.EIO, times=1)
            with pytest.raises(LogWriteFailed, match="sealing"):
                await state.log.rotate()
            disk.heal()
            (entry,) = await state.answers.write(state.log, b"two")
            assert (entry.seq, entry.segment) == (2, 1)
            await state.log.rotate()
            (entry,) = await state.answers.write(state.log, b"three")
            assert (entry.seq, entry.segment) == (3, 2)
        assert payloads((await recovered_records(tmp_path))[1]) == [b"one", b"two", b"three"]

    trio.run(write)


def test_an_unsynced_name_of_a_new_segment_ends_the_log(tmp_path: Path) -> None:
    async def write() -> None:
        disk = FaultyDisk()
        log = Log(tmp_path, SMALL, disk=disk)
        await log.recover()
        disk.fail("fsync_directory")
        with pytest.raises(LogFailed):
            await log.start(IDENTITY, 1)

    trio.run(write)
