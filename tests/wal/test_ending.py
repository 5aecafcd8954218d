"""How a log ends: closed, cancelled, never run or failed; every waiting caller is answered."""

from __future__ import annotations

import time
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
    started,
)
from tests.wal.held_disk import HeldDisk
from wal import Entry, Log, LogClosed, LogFailed, LogSettings
from wal.format import segment_name


@pytest.mark.parametrize("mode", ["commit", "interval", "off"])
def test_close_commits_pending_entries_and_leaves_a_sealed_log(tmp_path: Path, mode: str) -> None:
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
        log = await started(tmp_path, disk=disk)
        state = Running(log)
        first, second = operation(b"being synced"), operation(b"waiting")
        async with trio.open_nursery() as nursery:
            await nursery.start(log.run, state.apply)
            disk.hold()
            state.answers.append(log, first)
            await disk.wait_until_held()
            state.answers.append(log, second)
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                await trio.testing.wait_all_tasks_blocked()  # the cancellation has been delivered
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
        log = await started(tmp_path)
        answers, entry = Answers(), operation(b"x")
        answers.append(log, entry)
        await log.close()
        assert isinstance(answers.by_entry[entry], LogClosed)
        assert (await recovered_records(tmp_path))[1] == []

    trio.run(write)


def test_a_failing_apply_ends_the_log(tmp_path: Path) -> None:
    async def write() -> None:
        log = await started(tmp_path)
        answers, entry = Answers(), operation(b"x")

        def apply(entries: Sequence[Entry]) -> None:
            raise ZeroDivisionError

        answers.append(log, entry)
        with pytest.raises(LogFailed, match="ZeroDivisionError"):
            await log.run(apply)
        assert isinstance(answers.by_entry[entry], LogFailed)
        await log.close()

    trio.run(write)


def test_nothing_is_applied_after_a_refused_group(tmp_path: Path) -> None:
    """The same holds for a group that is already written: its thread did not wait for the sink."""
    applied: list[Entry] = []

    async def write() -> None:
        disk = FaultyDisk()
        log = await started(tmp_path, disk=disk)
        answers, bad, behind = Answers(), operation(b"bad"), operation(b"behind")

        def apply(entries: Sequence[Entry]) -> None:
            if bad not in entries:
                applied.extend(entries)
                return
            synced = disk.names().count("fdatasync")
            answers.append(log, behind)
            while disk.names().count("fdatasync") == synced:
                time.sleep(0.001)
            raise ZeroDivisionError

        answers.append(log, bad)
        with pytest.raises(LogFailed, match="ZeroDivisionError"):
            await log.run(apply)
        assert [type(answers.by_entry[one]) for one in (bad, behind)] == [LogFailed, LogFailed]
        await log.close()

    trio.run(write)
    assert applied == []


def test_a_failing_callback_does_not_delay_other_answers(tmp_path: Path) -> None:
    async def write() -> None:
        log = await started(tmp_path)
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
