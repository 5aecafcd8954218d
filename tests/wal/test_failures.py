"""A disk that refuses a group: what is cut, who is answered, and whether the log continues."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import trio
import trio.testing

from tests.wal.disks import FaultyDisk
from tests.wal.driving import (
    IDENTITY,
    Running,
    operation,
    payloads,
    recovered_records,
    running,
    started,
)
from wal import Log, LogClosed, LogFailed, LogFull, LogSettings, LogWriteFailed, Preamble
from wal.format import SEGMENT_HEADER_BYTES, segment_name


@pytest.mark.parametrize(
    ("error", "expected"),
    [(errno.EIO, LogWriteFailed), (errno.ENOSPC, LogFull), (errno.EDQUOT, LogFull)],
)
def test_a_failed_append_is_cut_back_and_answered(
    tmp_path: Path, error: int, expected: type[Exception]
) -> None:
    async def write() -> None:
        disk = FaultyDisk()
        async with running(tmp_path, disk=disk, clean=False) as state:
            await state.answers.write(state.log, b"before")
            # Part of the group is written, then the disk refuses a write, then it accepts zeros.
            disk.write_short_once(70)
            disk.fail("pwritev", error, skip=1, times=1)
            lost = [operation(b"lost" * 20), operation(b"lost too")]
            state.answers.append(state.log, *lost)
            errors = await state.answers.wait(*lost)
            assert [type(one) for one in errors] == [expected, expected]
            disk.heal()
            end = SEGMENT_HEADER_BYTES + 48
            assert not any((tmp_path / segment_name(1)).read_bytes()[end:])
            (after,) = await state.answers.write(state.log, b"after")
            assert after.seq == 2
            assert [entry.body.length for entry in state.applied] == [6, 5]
            assert state.log.statistics().failed_groups == 1
        assert payloads((await recovered_records(tmp_path))[1]) == [b"before", b"after"]

    trio.run(write)


def test_a_cut_is_synced_before_its_writers_are_answered(tmp_path: Path) -> None:
    async def write() -> None:
        disk = FaultyDisk()
        async with running(tmp_path, disk=disk) as state:
            disk.fail("pwritev", errno.EIO, times=1)
            disk.calls.clear()
            entry = operation(b"x")
            state.answers.append(state.log, entry)
            await state.answers.wait(entry)
            assert disk.names()[:2] == ["pwritev", "truncate"]
            assert disk.names()[-1] == "fsync"

    trio.run(write)


def test_a_range_that_cannot_be_zeroed_is_truncated(tmp_path: Path) -> None:
    async def write() -> None:
        disk = FaultyDisk()
        async with running(tmp_path, disk=disk, clean=False) as state:
            await state.answers.write(state.log, b"before")
            disk.write_short_once(70)
            disk.fail("pwritev", errno.EIO, skip=1)
            entry = operation(b"lost" * 20)
            state.answers.append(state.log, entry)
            assert isinstance((await state.answers.wait(entry))[0], LogWriteFailed)
            assert (tmp_path / segment_name(1)).stat().st_size == SEGMENT_HEADER_BYTES + 48
            disk.heal()
            await state.answers.write(state.log, b"after")
        assert payloads((await recovered_records(tmp_path))[1]) == [b"before", b"after"]

    trio.run(write)


def test_a_short_write_is_continued(tmp_path: Path) -> None:
    async def write() -> None:
        disk = FaultyDisk()
        parts = [bytes([i]) * 20_000 for i in range(3)]
        async with running(tmp_path, LogSettings(segment_bytes=1 << 17), disk=disk) as state:
            for count in (1, 40, 20_041, 60_000):
                disk.write_short_once(count)
                await state.answers.write(state.log, b"".join(parts))
        assert payloads((await recovered_records(tmp_path))[1]) == [b"".join(parts)] * 4

    trio.run(write)


def test_a_preamble_of_a_failed_group_is_written_with_the_next(tmp_path: Path) -> None:
    async def write() -> None:
        disk = FaultyDisk()
        schema = Preamble(1, (b"schema",))
        async with running(tmp_path, disk=disk) as state:
            disk.fail("pwritev", errno.EIO, times=1)
            lost, kept = operation(b"lost", schema), operation(b"kept", schema)
            state.answers.append(state.log, lost)
            await state.answers.wait(lost)
            state.answers.append(state.log, kept)
            await state.answers.wait(kept)
        _, records = await recovered_records(tmp_path)
        assert [bytes(one.payload) for one in records] == [b"schema", b"kept"]

    trio.run(write)


@pytest.mark.parametrize("fatal", ["fdatasync", "truncate", "fsync"])
def test_a_failed_sync_or_cut_answers_everyone_and_then_ends_the_log(
    tmp_path: Path, fatal: str
) -> None:
    async def write() -> None:
        disk = FaultyDisk()
        log = await started(tmp_path, disk=disk)
        state = Running(log)
        first, second = operation(b"first"), operation(b"second" * 500)
        answered_before_the_end: list[int] = []

        async def run() -> None:
            try:
                await log.run(state.apply)
            finally:
                answered_before_the_end.append(len(state.answers.by_entry))

        if fatal != "fdatasync":
            disk.fail("pwritev", errno.EIO)
        disk.fail(fatal)
        state.answers.append(log, first, second)
        with pytest.raises(LogFailed):
            await run()
        assert answered_before_the_end == [2]
        assert {type(error) for error in state.answers.by_entry.values()} == {LogFailed}
        assert state.applied == []
        with pytest.raises(LogClosed):
            log.append_nowait(operation(b"late"))
        disk.calls.clear()
        await log.close()
        assert "pwritev" not in disk.names()

    trio.run(write)


def test_a_failed_timed_sync_ends_the_log(tmp_path: Path) -> None:
    async def write() -> None:
        disk = FaultyDisk()
        log = Log(tmp_path, LogSettings(fsync="interval", fsync_interval_s=0), disk=disk)
        await log.recover()
        await log.start(IDENTITY, 1)
        state = Running(log)
        disk.fail("fdatasync")
        entry = operation(b"x")
        state.answers.append(log, entry)
        with trio.fail_after(20), pytest.raises(LogFailed):
            await log.run(state.apply)
        assert state.answers.by_entry == {entry: None}
        await log.close()

    trio.run(write)


def test_entries_pending_behind_a_failed_group_are_refused(tmp_path: Path) -> None:
    """Otherwise a stream's later batch would be stored without the refused one before it."""

    async def write() -> None:
        disk = FaultyDisk()
        async with running(tmp_path, disk=disk, clean=False) as state:
            await state.answers.write(state.log, b"before")
            disk.fail("pwritev", errno.ENOSPC, times=1)
            # Larger than a segment, so the second goes into a group of its own.
            entries = [operation(b"x" * 5000), operation(b"y" * 5000), operation(b"z")]
            state.answers.append(state.log, *entries)
            errors = await state.answers.wait(*entries)
            assert [type(one) for one in errors] == [LogFull, LogFull, LogFull]
            disk.heal()
            await state.answers.write(state.log, b"after")
        assert payloads((await recovered_records(tmp_path))[1]) == [b"before", b"after"]

    trio.run(write)
