"""The order of groups, their content, and when they become visible."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import pytest
import trio
import trio.testing

from tests.wal.driving import operation, recovered_records, running, started
from tests.wal.held_disk import HeldDisk
from wal import Entry, Log, LogSettings, Preamble, RecordKind
from wal.group import GROUP_BYTES


def _pending(log: Log) -> tuple[int, int]:
    statistics = log.statistics()
    return statistics.pending, statistics.pending_bytes


def test_nothing_is_applied_or_answered_before_it_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def write() -> None:
        disk = HeldDisk()
        async with running(tmp_path, disk=disk) as state:
            disk.hold()
            entry = operation(b"x")
            state.answers.append(state.log, entry)
            await disk.wait_until_held()
            await trio.testing.wait_all_tasks_blocked()
            assert state.applied == []
            assert state.answers.by_entry == {}
            # Its duration so far can be queried meanwhile.
            before = state.log.writing_s
            assert 0 < before < state.log.writing_s
            # The same when the machine's clock is set back.
            monkeypatch.setattr(time, "time_ns", lambda: 0)
            assert before < state.log.writing_s < 60
            disk.heal()
            disk.let_go.set()
            assert await state.answers.wait(entry) == [None]
            assert state.applied == [entry]
            assert state.log.writing_s == 0

    trio.run(write)


def test_entries_that_arrive_during_a_sync_are_the_next_group(tmp_path: Path) -> None:
    async def write() -> None:
        disk = HeldDisk()
        async with running(tmp_path, disk=disk) as state:
            disk.hold()
            first, *rest = [operation(b"%d" % i) for i in range(50)]
            state.answers.append(state.log, first)
            await disk.wait_until_held()
            state.answers.append(state.log, *rest)
            assert _pending(state.log) == (49, 49 * 48)
            disk.heal()
            disk.let_go.set()
            await state.answers.wait(first, *rest)
            assert _pending(state.log) == (0, 0)
            assert state.log.statistics().groups == 2
            assert state.log.statistics().syncs == 2
            assert state.applied == [first, *rest]
            assert [entry.seq for entry in state.applied] == list(range(1, 51))

    trio.run(write)


def test_a_group_is_applied_once_and_answered_before_anything_else_runs(tmp_path: Path) -> None:
    events: list[object] = []

    async def write() -> None:
        log = await started(tmp_path)

        def apply(entries: Sequence[Entry]) -> None:
            events.append([entry.tag for entry in entries])
            trio.lowlevel.current_trio_token().run_sync_soon(events.append, "the loop went on")

        done = trio.Event()

        def answered(entry: Entry, error: BaseException | None) -> None:
            events.append(entry.tag)
            if entry.tag == "c":
                done.set()

        async with trio.open_nursery() as nursery:
            for tag in "abc":
                entry = Entry(RecordKind.OPERATION, [b"x"])
                entry.tag = tag
                entry.on_done = answered
                log.append_nowait(entry)
            await nursery.start(log.run, apply)
            await done.wait()
            await log.close()

    trio.run(write)
    assert events == [["a", "b", "c"], "a", "b", "c", "the loop went on"]


def test_a_write_waits_for_no_timer(tmp_path: Path) -> None:
    async def write() -> None:
        # The clock stands still, so a delay of any length would never end.
        async with running(tmp_path) as state:
            for i in range(20):
                await state.answers.write(state.log, b"%d" % i)

    trio.run(write, clock=trio.testing.MockClock())


def test_a_preamble_is_once_in_each_segment_before_its_entries(tmp_path: Path) -> None:
    async def write() -> None:
        one, two = (Preamble(RecordKind.SCHEMA, (name,)) for name in (b"one", b"two"))
        async with running(tmp_path) as state:
            for _ in range(2):
                entries = [
                    operation(b"a", one),
                    operation(b"b", one, two, two),
                    operation(b"c", two),
                ]
                state.answers.append(state.log, *entries)
                await state.answers.wait(*entries)
            await state.log.rotate()
            entry = operation(b"d", two)
            state.answers.append(state.log, entry)
            await state.answers.wait(entry)
        _, records = await recovered_records(tmp_path)
        got = [(one.segment, one.kind, bytes(one.payload), one.first_seq) for one in records]
        schema, op = RecordKind.SCHEMA, RecordKind.OPERATION
        assert got == [
            (1, schema, b"one", 1),
            (1, op, b"a", 1),
            (1, schema, b"two", 2),
            (1, op, b"b", 2),
            (1, op, b"c", 3),
            (1, op, b"a", 4),
            (1, op, b"b", 5),
            (1, op, b"c", 6),
            (2, schema, b"two", 7),
            (2, op, b"d", 7),
        ]

    trio.run(write)


def test_only_operations_take_a_sequence(tmp_path: Path) -> None:
    async def write() -> None:
        async with running(tmp_path) as state:
            entries = [Entry(kind, [b"x"]) for kind in (2, 3, 2)]
            state.answers.append(state.log, *entries)
            await state.answers.wait(*entries)
            assert [entry.seq for entry in entries] == [1, 2, 2]
            assert state.log.statistics().last_seq == 2

    trio.run(write)


def test_a_long_queue_is_committed_in_bounded_groups(tmp_path: Path) -> None:
    async def write() -> None:
        async with running(tmp_path, LogSettings(segment_bytes=64 << 20)) as state:
            part = bytes(4 << 20)
            entries = [operation(part) for _ in range(9)]
            state.answers.append(state.log, *entries)
            await state.answers.wait(*entries)
            assert state.log.statistics().groups == -(-9 * (4 << 20) // GROUP_BYTES)

    trio.run(write)


def _groups_of_a_few_batches(folder: Path, *, fsync: Literal["commit", "off"]) -> int:
    """Eight batches of 400 KB that arrive while another one is being written or synced."""

    async def write() -> int:
        disk = HeldDisk()
        async with running(folder, LogSettings(fsync=fsync), disk=disk) as state:
            disk.hold(call="fdatasync" if fsync == "commit" else "pwritev")
            first, *rest = [operation(bytes(400_000)) for _ in range(9)]
            state.answers.append(state.log, first)
            await disk.wait_until_held()
            state.answers.append(state.log, *rest)
            await trio.sleep(0.02)  # a sync of this length costs as much as writing all of them
            disk.heal()
            disk.let_go.set()
            await state.answers.wait(first, *rest)
            assert state.applied == [first, *rest]
            return state.log.statistics().groups - 1

    return trio.run(write)


def test_a_few_batches_are_split_if_a_sync_is_cheap(tmp_path: Path) -> None:
    assert _groups_of_a_few_batches(tmp_path, fsync="off") == 2


def test_a_few_batches_are_one_group_if_a_sync_is_slow(tmp_path: Path) -> None:
    assert _groups_of_a_few_batches(tmp_path, fsync="commit") == 1
