"""The end of a segment, the first records of the next one, and work during a rotation."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
import trio
import trio.testing

import wal.segments
from tests.wal.disks import FaultyDisk
from tests.wal.driving import (
    in_trio,
    operation,
    payloads,
    recovered_records,
    running,
    segment_files,
    to_thread_until,
    trimmed,
)
from wal import Entry, Log, LogSettings, RecordKind
from wal.format import SEAL_RECORD_BYTES, segment_name


def test_a_segment_never_outgrows_its_size(tmp_path: Path) -> None:
    async def write() -> None:
        async with running(tmp_path) as state:
            entries = [operation(b"%04d" % i * (i % 90)) for i in range(300)]
            state.answers.append(state.log, *entries)
            assert set(await state.answers.wait(*entries)) == {None}
            assert [entry.seq for entry in state.applied] == list(range(1, 301))
            numbers = [entry.segment for entry in state.applied]
            assert numbers == sorted(numbers)
            assert numbers[-1] > 5
        assert max(file.stat().st_size for file in segment_files(tmp_path)) <= 4096
        _, records = await recovered_records(tmp_path)
        assert payloads(records) == [b"%04d" % i * (i % 90) for i in range(300)]
        assert [one.segment for one in records] == numbers

    trio.run(write)


def test_a_record_larger_than_a_segment_gets_its_own(tmp_path: Path) -> None:
    async def write() -> None:
        async with running(tmp_path) as state:
            sizes = [10, 9000, 10, 20_000, 30_000, 10]
            entries = [operation(b"x" * size) for size in sizes]
            state.answers.append(state.log, *entries)
            assert set(await state.answers.wait(*entries)) == {None}
            assert [entry.segment for entry in entries] == [1, 2, 3, 4, 5, 6]
        assert [len(one) for one in payloads((await recovered_records(tmp_path))[1])] == sizes

    trio.run(write)


def test_a_segment_ends_by_age_when_it_holds_an_operation(tmp_path: Path) -> None:
    async def write() -> None:
        settings = LogSettings(segment_bytes=4096, segment_age_s=60)
        async with running(tmp_path, settings) as state:
            clock.jump(1000)
            await trio.testing.wait_all_tasks_blocked()
            assert state.log.open_segment == 1
            await state.answers.write(state.log, b"x")
            clock.jump(59)
            await state.answers.write(state.log, b"y")
            assert state.log.open_segment == 1
            clock.jump(1)
            while state.log.open_segment == 1:
                await trio.sleep(0)
            (entry,) = await state.answers.write(state.log, b"z")
            assert entry.segment == 2

    clock = trio.testing.MockClock()
    trio.run(write, clock=clock)


def test_an_idle_log_rotates_by_age(tmp_path: Path) -> None:
    async def write() -> None:
        disk = FaultyDisk()
        settings = LogSettings(segment_bytes=4096, segment_age_s=60)
        async with running(tmp_path, settings, disk=disk) as state:
            await state.answers.write(state.log, b"x")
            await trio.testing.wait_all_tasks_blocked()
            token, opened = trio.lowlevel.current_trio_token(), trio.Event()
            disk.before("rename", lambda _: token.run_sync_soon(opened.set))
            clock.jump(60)
            with trio.fail_after(20):
                await opened.wait()

    clock = trio.testing.MockClock()
    trio.run(write, clock=clock)


def test_an_unused_segment_is_rotated_only_if_forced(tmp_path: Path) -> None:
    async def write() -> None:
        async with running(tmp_path) as state:
            await state.log.rotate()
            assert state.log.open_segment == 1
            await state.log.rotate(force=True)
            assert state.log.open_segment == 2
            await state.answers.write(state.log, b"x")
            async with trio.open_nursery() as nursery:
                for _ in range(5):
                    nursery.start_soon(state.log.rotate)
            assert state.log.open_segment == 3

    trio.run(write)


class Shipped:
    """Ships every entry, and keeps those that the test has not given back."""

    def __init__(self) -> None:
        self.kept: list[Entry] = []
        self.any = threading.Event()

    def takes(self, entry: Entry) -> bool:
        return True

    def submit(self, entries: Sequence[Entry]) -> None:
        self.kept += entries
        self.any.set()

    def announce(self) -> None:
        pass


@in_trio
async def test_what_the_store_has_is_applied_while_the_next_segment_is_opened(
    tmp_path: Path,
) -> None:
    shipping, logs = Shipped(), list[Log]()

    def carry() -> Sequence[tuple[int, Sequence[bytes]]]:
        for log in logs:
            log.shipped(shipping.kept)
            log.catch_up()
        return []

    async with running(tmp_path, carry=carry, shipping=shipping) as state:
        entry = operation(b"x")
        state.answers.append(state.log, entry)
        assert await trio.to_thread.run_sync(shipping.any.wait, 20)
        logs.append(state.log)
        await state.log.rotate(force=True)
        logs.clear()
        assert await state.answers.wait(entry) == [None]
        assert state.applied == [entry]
        assert (entry.segment, state.log.open_segment) == (1, 2)


def test_carried_records_are_first_in_each_new_segment_and_as_of_its_opening(
    tmp_path: Path,
) -> None:
    async def write() -> None:
        applied: list[bytes] = []

        def carry() -> Sequence[tuple[int, Sequence[bytes]]]:
            return (
                [(RecordKind.ORIGINS, [b"applied: ", b"%d" % len(state.applied)])]
                if applied
                else [(RecordKind.ORIGINS, [b"nothing"])]
            )

        async with running(tmp_path, carry=carry) as state:
            applied.append(b"from here on")
            await state.answers.write(state.log, b"a", b"b", b"c")
            await state.log.rotate()
            await state.answers.write(state.log, b"d")
            # A segment without writes contains only its initial records.
            await state.log.rotate()
        _, records = await recovered_records(tmp_path)
        got = [(one.segment, bytes(one.payload)) for one in records]
        assert got == [
            (1, b"nothing"),
            (1, b"a"),
            (1, b"b"),
            (1, b"c"),
            (2, b"applied: 3"),
            (2, b"d"),
            (3, b"applied: 4"),
        ]
        assert records[4].first_seq == 4

    trio.run(write)


def test_a_segment_is_named_only_after_its_header_and_carried_records_are_synced(
    tmp_path: Path,
) -> None:
    async def write() -> None:
        disk = FaultyDisk()
        on_disk: list[bytes] = []
        temporary = tmp_path / (segment_name(1) + ".tmp")
        disk.before("rename", lambda target: on_disk.append(temporary.read_bytes()))
        async with running(tmp_path, disk=disk, carry=lambda: [(3, [b"carried"])]):
            names = disk.names()
        assert b"INGSTLOG" in on_disk[0]
        assert b"carried" in on_disk[0]
        at = names.index("rename")
        assert names[at - 1 : at + 2] == ["fdatasync", "rename", "fsync_directory"]

    trio.run(write)


def test_the_next_segment_is_prepared_before_it_is_needed(tmp_path: Path) -> None:
    async def write() -> None:
        disk = FaultyDisk()
        async with running(tmp_path, disk=disk) as state:
            prepared = trio.Event()
            token = trio.lowlevel.current_trio_token()
            disk.before("fsync", lambda _: token.run_sync_soon(prepared.set))
            await state.answers.write(state.log, b"x" * 1000)
            assert not prepared.is_set()
            await state.answers.write(state.log, b"x" * 1000)
            await prepared.wait()
            await trio.testing.wait_all_tasks_blocked()
            assert (tmp_path / (segment_name(2) + ".tmp")).stat().st_size == 4096
            disk.fail("allocate")
            await state.answers.write(state.log, b"x" * 3000)
            assert state.log.open_segment == 2
            disk.heal()
        assert [file.name for file in sorted(tmp_path.iterdir())] == [
            segment_name(1),
            segment_name(2),
        ]

    trio.run(write)


@pytest.mark.parametrize(("fast_s", "zeros"), [(0.0, [*range(0, 8 << 20, 1 << 20)]), (1e9, [])])
def test_a_preallocated_file_is_zeroed_unless_segments_fill_quickly(
    tmp_path: Path, fast_s: float, zeros: list[int]
) -> None:
    async def write() -> None:
        disk = FaultyDisk()
        async with running(tmp_path, LogSettings(segment_bytes=8 << 20), disk=disk) as state:
            disk.calls.clear()
            await state.answers.write(state.log, b"x" * (5 << 20))
            await to_thread_until(lambda: "fsync" in disk.names(), "a spare")
            written = [offset for call, offset in disk.calls if call == "pwritev"]
            of_the_entry = 2  # pieces of 4 MiB at most
            assert written[of_the_entry:] == zeros
            await state.log.rotate()
            await state.answers.write(state.log, b"y")
        _, records = await recovered_records(tmp_path)
        assert [len(one) for one in payloads(records)] == [5 << 20, 1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wal.segments, "FAST_S", fast_s)
        trio.run(write)


def test_no_caller_waits_for_the_trim_of_a_sealed_segment(tmp_path: Path) -> None:
    async def write() -> None:
        disk = FaultyDisk()
        cut, go_on = threading.Event(), threading.Event()

        def wait(_: object) -> None:
            cut.set()
            assert go_on.wait(20)

        disk.before("truncate", wait)
        async with running(tmp_path, disk=disk) as state:
            await state.answers.write(state.log, b"one")
            await state.log.rotate()
            await state.answers.write(state.log, b"two")
            assert await trio.to_thread.run_sync(cut.wait, 20)
            first = tmp_path / segment_name(1)
            assert first.stat().st_size == 4096
            # As after a crash: zeros after a seal are harmless.
            copy = tmp_path / "copy"
            copy.mkdir()
            (copy / first.name).write_bytes(first.read_bytes())
            recovered, records = await recovered_records(copy)
            assert payloads(records) == [b"one"]
            assert (recovered.torn_bytes, recovered.torn_segments) == (0, 0)
            go_on.set()
            await trimmed(disk, 1)
        assert first.stat().st_size == recovered.segments[0].bytes < 4096

    trio.run(write)


def test_statistics_count_events(tmp_path: Path) -> None:
    async def write() -> None:
        async with running(tmp_path) as state:
            await state.answers.write(state.log, b"a")
            await state.answers.write(state.log, b"b")
            await state.log.rotate()
            await state.answers.write(state.log, b"c")
            facts = state.log.statistics()
            assert (facts.segments, facts.open_segment, facts.rotations) == (2, 2, 1)
            assert (facts.records, facts.groups, facts.syncs) == (3, 3, 3)
            assert (facts.last_seq, state.log.statistics().last_seq) == (3, 3)
            assert facts.open_bytes == 512 + 48
            assert facts.bytes == 512 + 96 + SEAL_RECORD_BYTES + 512 + 48
            assert facts.last_sync_s > 0

    trio.run(write)
