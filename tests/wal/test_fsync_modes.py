"""The modes ``interval`` and ``off``: answers precede syncs, and records claim only synced data."""

from __future__ import annotations

from pathlib import Path

import trio
import trio.testing

from tests.wal.bytes_source import BytesSource
from tests.wal.disks import FaultyDisk
from tests.wal.driving import payloads, recovered_records, running
from tests.wal.held_disk import HeldDisk
from wal import LogSettings
from wal.format import SEGMENT_HEADER_BYTES, segment_name
from wal.scan import find_headers


def test_interval_answers_at_once_and_syncs_later(tmp_path: Path) -> None:
    async def write() -> None:
        disk = FaultyDisk()
        settings = LogSettings(fsync="interval", fsync_interval_s=5, segment_bytes=4096)
        async with running(tmp_path, settings, disk=disk) as state:
            synced = trio.Event()
            token = trio.lowlevel.current_trio_token()
            started = trio.current_time()
            await state.answers.write(state.log, b"a")
            await state.answers.write(state.log, b"b")
            assert trio.current_time() == started
            assert state.log.statistics().syncs == 0
            disk.before("fdatasync", lambda _: token.run_sync_soon(synced.set))
            await trio.testing.wait_all_tasks_blocked()
            clock.jump(5)
            await synced.wait()
        assert len(payloads((await recovered_records(tmp_path))[1])) == 2

    clock = trio.testing.MockClock()
    trio.run(write, clock=clock)


def test_synced_to_never_exceeds_a_finished_sync(
    tmp_path: Path,
) -> None:
    async def write() -> None:
        disk = HeldDisk()
        settings = LogSettings(fsync="interval", fsync_interval_s=5, segment_bytes=4096)
        async with running(tmp_path, settings, disk=disk) as state:
            disk.hold()
            await state.answers.write(state.log, b"a")
            await trio.testing.wait_all_tasks_blocked()
            clock.jump(5)
            await disk.wait_until_held()
            # Written during the sync, which therefore does not cover it.
            await state.answers.write(state.log, b"b")
            disk.heal()
            disk.let_go.set()
            while state.log.statistics().syncs == 0:
                await trio.lowlevel.checkpoint()
            await state.answers.write(state.log, b"c")
        data = BytesSource((tmp_path / segment_name(1)).read_bytes())
        claims = [one.header.synced_to for one in find_headers(data, 1, 0)]
        after_a, after_c = SEGMENT_HEADER_BYTES + 48, SEGMENT_HEADER_BYTES + 3 * 48
        assert claims == [SEGMENT_HEADER_BYTES, SEGMENT_HEADER_BYTES, after_a, after_c]

    clock = trio.testing.MockClock()
    trio.run(write, clock=clock)


def test_off_syncs_only_at_the_end_of_a_segment(tmp_path: Path) -> None:
    async def write() -> None:
        disk = FaultyDisk()
        settings = LogSettings(fsync="off", segment_bytes=4096)
        async with running(tmp_path, settings, disk=disk) as state:
            disk.calls.clear()
            for i in range(10):
                await state.answers.write(state.log, b"%d" % i)
            assert {"fdatasync", "fsync"}.isdisjoint(disk.names())
            await state.log.rotate()
            assert {"fdatasync", "fsync"} <= set(disk.names())

    trio.run(write)
