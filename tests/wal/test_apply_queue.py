"""The writing thread tells the loop about its groups.

It tells the loop about small groups only if a reader or a caller waits.
"""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

import wal.group_writer
from tests.wal.driving import Running, Stored, in_a_thread, in_trio, operation, running
from tests.wal.held_disk import HeldDisk
from wal import LogFull, LogSettings


@asynccontextmanager
async def groups_to_report(
    directory: Path, *, at_once_s: float | None = None, **more: Any
) -> AsyncIterator[tuple[Running, Stored]]:
    """A log whose loop looks for new groups only once an hour, unless it is told.

    Args:
        at_once_s: How long after a wait the loop is told about each group. If given, the loop does
            not look for further groups either.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wal.group_writer, "CATCH_UP_S", 3600.0)
        if at_once_s is not None:
            patch.setattr(wal.group_writer, "LOOK_AGAIN_S", 3600.0)
            patch.setattr(wal.group_writer, "AT_ONCE_S", at_once_s)
        async with running(directory, **more) as state:
            yield state, Stored(state)


@in_trio
async def test_the_writing_thread_says_when_the_loop_may_apply_its_group(tmp_path: Path) -> None:
    async with groups_to_report(tmp_path) as (state, stored):
        first, second = operation(b"one"), operation(b"two")
        first.on_stored, first.on_done = stored.note, state.answers.note
        await in_a_thread(partial(state.log.append, first))
        assert stored.one.is_set()
        for _ in range(20):
            await trio.lowlevel.checkpoint()
        assert state.applied == []
        state.log.tell()
        assert await state.answers.wait(first) == [None]
        # An answer on the loop does not depend on `tell`.
        second.on_done = state.answers.note
        await in_a_thread(partial(state.log.append, second))
        assert await state.answers.wait(second) == [None]
        state.log.tell()  # no group is pending


@in_trio
async def test_groups_are_applied_together_or_when_a_reader_waits(tmp_path: Path) -> None:
    large_enough = LogSettings(segment_bytes=64 << 20)
    async with groups_to_report(tmp_path, at_once_s=0.0, settings=large_enough) as (state, stored):
        entries = [operation(b"small") for _ in range(40)]
        for entry in entries:
            entry.on_stored, entry.on_done = stored.note, state.answers.note
        # The loop is told about the first group, and would look for others only in an hour. (The
        # appending thread writes, as the log's own thread sleeps; its write is done on return.)
        await in_a_thread(partial(state.log.append, entries[0]))
        state.log.tell()
        assert await state.answers.wait(entries[0]) == [None]
        await in_a_thread(partial(state.log.append, entries[1]))
        state.log.tell()
        for _ in range(20):
            await trio.lowlevel.checkpoint()
        assert state.applied == entries[:1]
        await in_a_thread(partial(state.log.wait_settled, 20.0))
        assert state.applied == entries[:2]
        # The loop is told about many groups, by any thread, and about large ones.
        for entry in entries[2:33]:
            await in_a_thread(partial(state.log.append, entry))
            state.log.tell()
            assert state.applied == entries[:2]
        await in_a_thread(partial(state.log.append, entries[33]))
        state.log.tell()
        assert await state.answers.wait(entries[33]) == [None]
        large = [operation(b"3" * (5 << 20)) for _ in range(2)]
        for entry in large:
            entry.on_stored, entry.on_done = stored.note, state.answers.note
        await in_a_thread(partial(state.log.append, large[0]))
        for _ in range(20):
            await trio.lowlevel.checkpoint()
        assert state.applied == entries[:34]
        await in_a_thread(partial(state.log.append, large[1]))
        assert await state.answers.wait(large[1]) == [None]
        assert state.applied == [*entries[:34], *large]


@in_trio
async def test_after_a_reader_waited_the_loop_is_notified_of_each_group(tmp_path: Path) -> None:
    async with groups_to_report(tmp_path, at_once_s=3600.0) as (state, stored):
        entries = [operation(b"small") for _ in range(3)]
        for number, entry in enumerate(entries):
            entry.on_stored, entry.on_done = stored.note, state.answers.note
            await in_a_thread(partial(state.log.append, entry))
            if number == 1:
                await in_a_thread(partial(state.log.wait_settled, 20.0))
            state.log.tell()
            assert await state.answers.wait(entry) == [None]


@in_trio
async def test_the_loop_checks_for_groups_until_none_arrive(tmp_path: Path) -> None:
    async with groups_to_report(tmp_path) as (state, stored):
        for number in range(3):
            first, second = operation(b"one"), operation(b"two")
            for entry in (first, second):
                entry.on_stored, entry.on_done = stored.note, state.answers.note
                await in_a_thread(partial(state.log.append, entry))
                state.log.tell()
            # The second group is found whether or not the loop was told about it.
            assert await state.answers.wait(second) == [None]
            assert len(state.applied) == 2 * (number + 1)
            await trio.sleep(0.05)


@in_trio
async def test_a_group_that_no_thread_reports_is_applied(tmp_path: Path) -> None:
    async with running(tmp_path) as state:
        stored, entry = Stored(state), operation(b"one")
        entry.on_stored, entry.on_done = stored.note, state.answers.note
        await in_a_thread(partial(state.log.append, entry))
        assert await state.answers.wait(entry) == [None]


@in_trio
async def test_a_cancelled_run_applies_unreported_groups(tmp_path: Path) -> None:
    with trio.fail_after(20):
        async with groups_to_report(tmp_path, clean=False) as (state, stored):
            entry = operation(b"one")
            entry.on_stored, entry.on_done = stored.note, state.answers.note
            await in_a_thread(partial(state.log.append, entry))
    assert state.answers.by_entry[entry] is None
    assert state.applied == [entry]


@in_trio
async def test_a_refused_group_is_answered_at_once(tmp_path: Path) -> None:
    disk = HeldDisk()
    async with groups_to_report(tmp_path, disk=disk) as (state, stored):
        entry = operation(b"one")
        entry.on_stored, entry.on_done = stored.note, state.answers.note

        def refuse(_: object) -> None:
            raise OSError(errno.ENOSPC, "no room")

        disk.before("pwritev", refuse)
        await in_a_thread(partial(state.log.append, entry))
        assert isinstance((await state.answers.wait(entry))[0], LogFull)
        disk.before("pwritev", lambda _: None)
        await state.answers.write(state.log, b"two")
