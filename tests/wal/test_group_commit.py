"""Who is written when, in which order, and when the others see it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
import trio
import trio.testing

from tests.wal.disks import FaultyDisk
from tests.wal.driving import (
    IDENTITY,
    SMALL,
    Answers,
    Running,
    operation,
    payloads,
    recovered_records,
    running,
    segment_files,
)
from wal import Entry, Log, LogClosed, LogFailed, LogSettings, Preamble, RecordKind
from wal.format import SEGMENT_HEADER_BYTES, segment_name
from wal.group import GROUP_BYTES
from wal.scan import BytesSource, find_headers


class HeldDisk(FaultyDisk):
    """Holds a data sync until it is let go; tells when one has begun."""

    def __init__(self) -> None:
        super().__init__()
        self.held = threading.Event()
        self.let_go = threading.Event()

    def hold(self) -> None:
        def wait(_: object) -> None:
            self.held.set()
            assert self.let_go.wait(20)

        self.before("fdatasync", wait)

    async def wait_until_held(self) -> None:
        assert await trio.to_thread.run_sync(self.held.wait, 20)


def test_nothing_is_applied_or_answered_before_it_is_synced(tmp_path: Path) -> None:
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
            disk.heal()
            disk.let_go.set()
            assert await state.answers.wait(entry) == [None]
            assert state.applied == [entry]

    trio.run(write)


def test_what_arrives_during_a_sync_is_the_next_group(tmp_path: Path) -> None:
    async def write() -> None:
        disk = HeldDisk()
        async with running(tmp_path, disk=disk) as state:
            disk.hold()
            first, *rest = [operation(b"%d" % i) for i in range(50)]
            state.answers.append(state.log, first)
            await disk.wait_until_held()
            state.answers.append(state.log, *rest)
            assert (state.log.pending, state.log.pending_bytes) == (49, 49 * 48)
            disk.heal()
            disk.let_go.set()
            await state.answers.wait(first, *rest)
            assert (state.log.pending, state.log.pending_bytes) == (0, 0)
            assert state.log.statistics().groups == 2
            assert state.log.statistics().syncs == 2
            assert state.applied == [first, *rest]
            assert [entry.seq for entry in state.applied] == list(range(1, 51))

    trio.run(write)


def test_a_group_is_applied_once_and_answered_before_anything_else_runs(tmp_path: Path) -> None:
    events: list[object] = []

    async def write() -> None:
        log = Log(tmp_path, SMALL)
        await log.recover()
        await log.start(IDENTITY, 1)

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
                entry = Entry(RecordKind.OPERATION, [b"x"], tag=tag)
                entry.on_done = answered
                log.append_nowait(entry)
            await nursery.start(log.run, apply)
            await done.wait()
            await log.close()

    trio.run(write)
    assert events == [["a", "b", "c"], "a", "b", "c", "the loop went on"]


def test_a_write_waits_for_no_timer(tmp_path: Path) -> None:
    async def write() -> None:
        # The clock stands still: a delay of any length would never end.
        async with running(tmp_path) as state:
            for i in range(20):
                await state.answers.write(state.log, b"%d" % i)

    trio.run(write, clock=trio.testing.MockClock())


def test_a_preamble_stands_once_in_each_segment_before_what_names_it(tmp_path: Path) -> None:
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


def test_a_record_claims_no_more_to_be_durable_than_a_finished_sync_covers(
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
            # Written while the sync runs, which therefore says nothing of it.
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


def test_off_syncs_only_where_a_segment_ends(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("mode", ["commit", "interval", "off"])
def test_close_finishes_what_waits_and_leaves_a_sealed_log(tmp_path: Path, mode: str) -> None:
    async def write() -> None:
        settings = LogSettings(fsync=mode, segment_bytes=4096)  # type: ignore[arg-type]
        async with running(tmp_path, settings) as state:
            entries = [operation(b"%d" % i) for i in range(200)]
            state.answers.append(state.log, *entries)
            await state.log.close()
            assert [state.answers.by_entry[entry] for entry in entries] == [None] * 200
            with pytest.raises(LogClosed):
                state.log.append_nowait(operation(b"late"))
            await state.log.close()
        before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
        recovered, records = await recovered_records(tmp_path)
        assert payloads(records) == [b"%d" % i for i in range(200)]
        assert (recovered.torn_bytes, recovered.torn_segments) == (0, 0)
        assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before

    trio.run(write)


def test_a_cancelled_log_answers_everyone_and_can_still_be_sealed(tmp_path: Path) -> None:
    async def write() -> None:
        disk = HeldDisk()
        log = Log(tmp_path, SMALL, disk=disk)
        await log.recover()
        await log.start(IDENTITY, 1)
        state = Running(log)
        first, second = operation(b"being synced"), operation(b"waiting")
        async with trio.open_nursery() as nursery:
            await nursery.start(log.run, state.apply)
            disk.hold()
            state.answers.append(log, first)
            await disk.wait_until_held()
            state.answers.append(log, second)
            nursery.cancel_scope.cancel()
            disk.heal()
            disk.let_go.set()
        assert state.answers.by_entry[first] is None
        assert isinstance(state.answers.by_entry[second], LogClosed)
        assert state.applied == [first]
        with pytest.raises(LogClosed):
            log.append_nowait(operation(b"late"))
        with pytest.raises(LogClosed):
            await log.rotate()
        await log.close()
        assert payloads((await recovered_records(tmp_path))[1]) == [b"being synced"]

    trio.run(write)


def test_a_log_that_never_ran_answers_what_was_appended_when_it_is_closed(tmp_path: Path) -> None:
    async def write() -> None:
        log = Log(tmp_path, SMALL)
        await log.recover()
        await log.start(IDENTITY, 1)
        answers, entry = Answers(), operation(b"x")
        answers.append(log, entry)
        await log.close()
        assert isinstance(answers.by_entry[entry], LogClosed)
        assert (await recovered_records(tmp_path))[1] == []

    trio.run(write)


def test_a_sink_that_fails_on_what_is_written_ends_the_log(tmp_path: Path) -> None:
    async def write() -> None:
        log = Log(tmp_path, SMALL)
        await log.recover()
        await log.start(IDENTITY, 1)
        answers, entry = Answers(), operation(b"x")

        def apply(entries: Sequence[Entry]) -> None:
            raise ZeroDivisionError

        answers.append(log, entry)
        with pytest.raises(LogFailed, match="ZeroDivisionError"):
            await log.run(apply)
        assert isinstance(answers.by_entry[entry], LogFailed)
        await log.close()

    trio.run(write)


def test_a_callback_that_fails_keeps_nobody_else_waiting(tmp_path: Path) -> None:
    async def write() -> None:
        log = Log(tmp_path, SMALL)
        await log.recover()
        await log.start(IDENTITY, 1)
        answers, bad, good = Answers(), operation(b"bad"), operation(b"good")

        def fails(entry: Entry, error: BaseException | None) -> None:
            raise ZeroDivisionError

        bad.on_done = fails
        log.append_nowait(bad)
        answers.append(log, good)
        with pytest.RaisesGroup(ZeroDivisionError):
            await log.run(lambda entries: None)
        assert answers.by_entry[good] is None
        await log.close()

    trio.run(write)


def test_stages_cannot_be_mixed_up(tmp_path: Path) -> None:
    async def misuse() -> None:
        log = Log(tmp_path, SMALL)
        with pytest.raises(RuntimeError, match="after recover"):
            log.replay()
        with pytest.raises(RuntimeError, match="after recover"):
            await log.start(IDENTITY, 1)
        with pytest.raises(RuntimeError, match="after start"):
            await log.run(lambda entries: None)
        await log.recover()
        assert segment_files(tmp_path) == []
        await log.start(IDENTITY, 1)
        assert [file.name for file in segment_files(tmp_path)] == [segment_name(1)]
        with pytest.raises(RuntimeError, match="once"):
            await log.start(IDENTITY, 1)
        await log.close()

    trio.run(misuse)
