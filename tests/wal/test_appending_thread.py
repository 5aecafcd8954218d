"""A thread that waits for its answer writes the group itself, and learns the outcome early.

It learns the outcome before the loop applies the group.
"""

from __future__ import annotations

import errno
import threading
from functools import partial
from pathlib import Path

import pytest
import trio

from tests.wal.drafts import join
from tests.wal.driving import (
    Running,
    Stored,
    in_a_thread,
    in_trio,
    operation,
    payloads,
    recovered_records,
    running,
)
from tests.wal.held_disk import HeldDisk
from tests.wal.test_drafts import Outcomes
from wal import Draft, Entry, LogClosed, LogFailed, RecordKind


class Syncs(HeldDisk):
    """Records which thread syncs."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: list[threading.Thread] = []

    def fdatasync(self, fd: int) -> None:
        self.threads.append(threading.current_thread())
        super().fdatasync(fd)


def _append_all(state: Running, entries: list[Entry]) -> None:
    for entry in entries:
        state.log.append(entry)


@in_trio
async def test_the_appending_thread_writes_an_idle_log_and_the_logs_thread_a_busy_one(
    tmp_path: Path,
) -> None:
    disk = Syncs()
    async with running(tmp_path, disk=disk) as state:
        first, second, third = (operation(b"%d" % number) for number in range(3))
        for entry in (first, second, third):
            entry.on_done = state.answers.note
        disk.threads.clear()
        disk.hold()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(in_a_thread, partial(state.log.append, first))
            await disk.wait_until_held()
            # These neither wait for the thread that writes, nor write concurrently.
            await in_a_thread(partial(state.log.append, second))
            state.log.append_nowait(third)
            assert len(disk.threads) == 1
            disk.let_go.set()
        assert await state.answers.wait(first, second, third) == [None] * 3
        names = [thread.name for thread in disk.threads]
        assert names[0] != "wal-append"
        assert names[1:] == ["wal-append"]
        # The log's own thread keeps writing for a short time; after that, the appending thread
        # writes.
        written = [b"0", b"1", b"2"]
        with trio.fail_after(20):
            while disk.threads[-1].name == "wal-append":
                written.append(b"%d" % len(written))
                entry = operation(written[-1])
                entry.on_done = state.answers.note
                await in_a_thread(partial(state.log.append, entry))
                assert await state.answers.wait(entry) == [None]
    _, records = await recovered_records(tmp_path)
    assert payloads(records) == written


@in_trio
async def test_a_stored_entry_is_reported_before_it_is_applied_and_found_by_a_catch_up(
    tmp_path: Path,
) -> None:
    disk = HeldDisk()
    async with running(tmp_path, disk=disk) as state:
        stored = Stored(state)
        entries = [operation(b"one"), operation(b"two")]
        for entry in entries:
            entry.on_stored, entry.on_done = stored.note, state.answers.note
        assert state.log.settled
        # The loop is blocked meanwhile, so stored entries cannot have been applied.
        thread = threading.Thread(target=lambda: _append_all(state, entries))
        thread.start()
        thread.join(20)
        assert stored.seen == [(1, 0, False), (2, 0, False)]
        assert not state.answers.by_entry
        state.log.catch_up()
        assert state.applied == entries
        assert state.log.settled
        # No entry is applied or answered twice.
        assert await state.answers.wait(*entries) == [None, None]
        await state.answers.write(state.log, b"three")
        assert [entry.seq for entry in state.applied] == [1, 2, 3]


@in_trio
async def test_a_waiting_reader_continues_when_all_stored_entries_are_applied(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as state:
        assert state.log.wait_settled(0.0)
        entry = operation(b"one")
        entry.on_done = state.answers.note
        found: list[bool] = []
        waiting = threading.Event()

        def append_and_wait() -> None:
            state.log.append(entry)
            # The loop waits for this thread, so the entry cannot have been applied.
            found.append(state.log.wait_settled(0.0))
            waiting.set()
            found.append(state.log.wait_settled(20.0))

        thread = threading.Thread(target=append_and_wait)
        thread.start()
        assert waiting.wait(20)
        assert found == [False]
        state.log.catch_up()
        thread.join(20)
        assert found == [False, True]


@in_trio
async def test_an_unsynced_entry_is_not_reported(tmp_path: Path) -> None:
    disk = HeldDisk()
    seen: list[object] = []

    async def append_in_vain() -> None:
        async with running(tmp_path, disk=disk, clean=False) as state:
            stored, entry = Stored(state), operation(b"lost")
            entry.on_stored, entry.on_done = stored.note, state.answers.note
            disk.hold(then=OSError(errno.EIO, "no sync"))
            disk.let_go.set()
            await in_a_thread(partial(state.log.append, entry))
            seen.extend([*await state.answers.wait(entry), stored.seen, state.log.settled])
            await trio.sleep_forever()

    with pytest.RaisesGroup(pytest.RaisesExc(LogFailed), flatten_subgroups=True):
        await append_in_vain()
    assert isinstance(seen[0], LogFailed)
    assert seen[1:] == [[], True]


@in_trio
async def test_drafts_become_entries_in_the_thread_that_appends(tmp_path: Path) -> None:
    makers: list[str] = []

    def make(drafts: list[Draft]) -> list[Entry]:
        makers.append(threading.current_thread().name)
        return join(drafts)

    async with running(tmp_path, make=make) as state:
        outcomes = Outcomes()
        await in_a_thread(lambda: state.log.append(outcomes.draft(b"here")))
        assert await outcomes.wait(1) == {b"here": None}
        assert makers != []
        assert "wal-append" not in makers
        state.log.append_nowait(outcomes.draft(b"there"))
        await outcomes.wait(2)
        assert makers[-1] == "wal-append"


@in_trio
async def test_many_threads_append_each_in_its_own_order_and_nothing_is_lost(
    tmp_path: Path,
) -> None:
    """The writing thread hands over the remaining entries, in any interleaving of the threads."""
    threads, each = 8, 60
    async with running(tmp_path) as state:
        entries = {
            (thread, number): operation(b"%d-%d" % (thread, number))
            for thread in range(threads)
            for number in range(each)
        }

        def append(thread: int) -> None:
            for number in range(each):
                entry, stored = entries[thread, number], threading.Event()
                entry.on_done = state.answers.note
                entry.on_stored = lambda _, stored=stored: stored.set()
                state.log.append(entry)
                assert stored.wait(20)

        async with trio.open_nursery() as nursery:
            for thread in range(threads):
                nursery.start_soon(in_a_thread, partial(append, thread))
        assert set(await state.answers.wait(*entries.values())) == {None}
        assert sorted(entry.seq for entry in state.applied) == list(range(1, threads * each + 1))
    _, records = await recovered_records(tmp_path)
    for thread in range(threads):
        mine = [one for one in payloads(records) if one.startswith(b"%d-" % thread)]
        assert mine == [b"%d-%d" % (thread, number) for number in range(each)]


@in_trio
async def test_a_closed_log_refuses_an_append_by_the_writing_thread(tmp_path: Path) -> None:
    async with running(tmp_path) as state:
        log = state.log
    with pytest.raises(LogClosed):
        log.append(Entry(RecordKind.OPERATION, [b"late"]))
