"""Replay: every record once, in order, in bounded chunks, into the caller's memory."""

from __future__ import annotations

import mmap
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from tests.wal.disks import FaultyDisk
from tests.wal.driving import SMALL, payloads, running
from wal import Log, LogDamaged, LogSettings
from wal.disk import Disk
from wal.format import SEGMENT_HEADER_BYTES, record_bytes, segment_name
from wal.replay import CHUNK_BYTES, CHUNK_RECORDS

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


def test_pieces_are_bounded_in_bytes_and_hold_one_segment_each(tmp_path: Path) -> None:
    async def write_and_read() -> None:
        sizes = [1 << 20] * 11 + [20 << 20, 100, 3 << 20]
        async with running(tmp_path, LogSettings(segment_bytes=64 << 20)) as state:
            await state.answers.write(state.log, *[bytes(size) for size in sizes])
            await state.log.rotate()
            await state.answers.write(state.log, b"next")
        log = Log(tmp_path, SMALL)
        await log.recover()
        chunks = [chunk async for chunk in log.replay()]
        assert [len(one.payload) for chunk in chunks for one in chunk] == [*sizes, 4]
        for chunk in chunks:
            assert len({one.segment for one in chunk}) == 1
            assert len(chunk) == 1 or sum(len(one.payload) for one in chunk) <= CHUNK_BYTES

    trio.run(write_and_read)


def test_small_records_are_bounded_by_their_number(tmp_path: Path) -> None:
    async def write_and_read() -> None:
        async with running(tmp_path, LogSettings(segment_bytes=16 << 20)) as state:
            await state.answers.write(state.log, *[b"%d" % i for i in range(CHUNK_RECORDS + 5)])
        log = Log(tmp_path, SMALL)
        await log.recover()
        chunks = [chunk async for chunk in log.replay()]
        assert [len(chunk) for chunk in chunks] == [CHUNK_RECORDS, 5]
        assert [one.first_seq for one in chunks[1]] == list(
            range(CHUNK_RECORDS + 1, CHUNK_RECORDS + 6)
        )

    trio.run(write_and_read)


def test_each_payload_is_in_its_own_buffer_from_the_caller(tmp_path: Path) -> None:
    async def write_and_read() -> None:
        async with running(tmp_path, LogSettings(segment_bytes=1 << 20)) as state:
            await state.answers.write(state.log, b"", b"small", b"large" * 60_000)
        log = Log(tmp_path, SMALL)
        await log.recover()
        given: list[object] = []

        def allocate(length: int) -> memoryview:
            assert threading.current_thread() is not threading.main_thread()
            buffer = memoryview(mmap.mmap(-1, max(length, 1)))[:length]
            given.append(buffer)
            return buffer

        records = [one async for chunk in log.replay(allocate=allocate) for one in chunk]
        assert all(one.payload is buffer for one, buffer in zip(records, given, strict=True))
        assert payloads(records) == [b"", b"small", b"large" * 60_000]

    trio.run(write_and_read)


class CountingDisk(Disk):
    """A disk that counts the bytes it reads."""

    read_bytes = 0

    def pread_into(self, fd: int, buffer: WriteableBuffer, offset: int) -> int:
        done = super().pread_into(fd, buffer, offset)
        self.read_bytes += done
        return done


@pytest.mark.parametrize("size", [100, 300_000])
def test_records_of_any_size_are_read_once(tmp_path: Path, size: int) -> None:
    async def write_and_read() -> None:
        async with running(tmp_path, LogSettings(segment_bytes=64 << 20)) as state:
            await state.answers.write(state.log, *[bytes(size)] * (6_000_000 // size))
        disk = CountingDisk()
        log = Log(tmp_path, SMALL, disk=disk)
        await log.recover()
        disk.read_bytes, total = 0, 0
        async for chunk in log.replay():
            total += sum(record_bytes(len(one.payload)) for one in chunk)
        assert total <= disk.read_bytes <= 1.4 * total

    trio.run(write_and_read)


def test_replay_can_begin_at_a_segment_and_ignores_later_ones(tmp_path: Path) -> None:
    async def write_and_read() -> None:
        async with running(tmp_path) as state:
            for i in range(4):
                await state.answers.write(state.log, b"%d" % i)
                await state.log.rotate()
        log = Log(tmp_path, SMALL)
        await log.recover()
        records = [one async for chunk in log.replay(from_segment=3) for one in chunk]
        assert payloads(records) == [b"2", b"3"]
        await log.prune(2)
        records = [one async for chunk in log.replay() for one in chunk]
        assert payloads(records) == [b"1", b"2", b"3"]
        await log.close()

    trio.run(write_and_read)


def test_exactly_one_chunk_is_read_ahead(
    tmp_path: Path,
) -> None:
    async def write_and_read() -> None:
        async with running(tmp_path) as state:
            for i in range(6):
                await state.answers.write(state.log, b"%d" % i)
                await state.log.rotate()
        log = Log(tmp_path, SMALL)
        await log.recover()
        read: list[int] = []
        token, second = trio.lowlevel.current_trio_token(), trio.Event()

        def allocate(length: int) -> bytearray:
            read.append(length)
            if len(read) == 2:
                token.run_sync_soon(second.set)
            return bytearray(length)

        chunks = log.replay(allocate=allocate)
        await chunks.__anext__()
        with trio.fail_after(20):
            await second.wait()
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert len(read) == 2
        await chunks.aclose()  # type: ignore[attr-defined]

    trio.run(write_and_read)


def test_a_change_between_recovery_and_replay_is_damage(tmp_path: Path) -> None:
    async def write_and_read(at: int) -> None:
        async with running(tmp_path) as state:
            await state.answers.write(state.log, b"payload")
        log = Log(tmp_path, SMALL)
        await log.recover()
        with (tmp_path / segment_name(1)).open("r+b") as file:
            file.seek(SEGMENT_HEADER_BYTES + at)
            file.write(b"\xff")
        with pytest.raises(LogDamaged) as caught:
            [chunk async for chunk in log.replay()]
        assert caught.value.offset == SEGMENT_HEADER_BYTES
        (tmp_path / segment_name(1)).unlink()

    trio.run(write_and_read, 9)
    trio.run(write_and_read, 42)


def test_an_unreadable_block_is_reported_as_damage(tmp_path: Path) -> None:
    async def write_and_read() -> None:
        async with running(tmp_path) as state:
            await state.answers.write(state.log, b"payload")

        class Unreadable(FaultyDisk):
            def pread_into(self, fd: int, buffer: object, offset: int) -> int:
                raise OSError(5, "Input/output error")

        with pytest.raises(LogDamaged, match="expected readable bytes, found Input/output error"):
            await Log(tmp_path, SMALL, disk=Unreadable()).recover()

    trio.run(write_and_read)
