"""Who waits anyway writes the group itself, and hears of it before the loop has applied it."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import trio

from tests.wal.driving import Running, operation, payloads, recovered_records, running
from tests.wal.held_disk import HeldDisk
from tests.wal.test_drafts import Outcomes, in_trio
from wal import Entry, LogClosed, LogFailed, LogFull, RecordKind


class Syncs(HeldDisk):
    """Notes which thread syncs."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: list[threading.Thread] = []

    def fdatasync(self, fd: int) -> None:
        self.threads.append(threading.current_thread())
        super().fdatasync(fd)


class Stored:
    """Which entries are stored, and what was applied when each was."""

    def __init__(self, state: Running) -> None:
        self._state = state
        self.seen: list[tuple[int, int, bool]] = []
        self.one = threading.Event()

    def note(self, entry: Entry) -> None:
        self.seen.append((entry.seq, len(self._state.applied), self._state.log.settled))
        self.one.set()


def _append_all(state: Running, entries: list[Entry]) -> None:
    for entry in entries:
        state.log.append(entry)


async def in_a_thread(call: Callable[[], object]) -> None:
    with trio.fail_after(20):
        await trio.to_thread.run_sync(call)


@in_trio
async def test_an_idle_log_is_written_by_who_appends_and_a_busy_one_by_its_thread(
    tmp_path: Path,
) -> None:
    disk = Syncs()
    async with running(tmp_path, disk=disk) as state:
        first, second, third = (operation(b"%d" % number) for number in range(3))
        for entry in (first, second, third):
            entry.on_done = state.answers._note
        disk.threads.clear()
        disk.hold()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(in_a_thread, partial(state.log.append, first))
            await disk.wait_until_held()
            # Neither waits for the one that writes, nor writes beside it.
            await in_a_thread(partial(state.log.append, second))
            state.log.append_nowait(third)
            assert len(disk.threads) == 1
            disk.let_go.set()
        assert await state.answers.wait(first, second, third) == [None] * 3
        names = [thread.name for thread in disk.threads]
        assert names[0] != "wal-append"
        assert names[1:] == ["wal-append"]
        # Idle again, and again whoever comes writes.
        fourth = operation(b"3")
        fourth.on_done = state.answers._note
        await in_a_thread(partial(state.log.append, fourth))
        assert await state.answers.wait(fourth) == [None]
        assert disk.threads[-1].name != "wal-append"
    _, records = await recovered_records(tmp_path)
    assert payloads(records) == [b"0", b"1", b"2", b"3"]


@in_trio
async def test_what_is_stored_is_told_before_it_is_applied_and_found_by_who_catches_up(
    tmp_path: Path,
) -> None:
    disk = HeldDisk()
    async with running(tmp_path, disk=disk) as state:
        stored = Stored(state)
        entries = [operation(b"one"), operation(b"two")]
        for entry in entries:
            entry.on_stored, entry.on_done = stored.note, state.answers._note
        assert state.log.settled
        # The loop does nothing else meanwhile: what is stored cannot have been applied.
        thread = threading.Thread(target=lambda: _append_all(state, entries))
        thread.start()
        thread.join(20)
        assert stored.seen == [(1, 0, False), (2, 0, False)]
        assert not state.answers.by_entry
        state.log.catch_up()
        assert state.applied == entries
        assert state.log.settled
        # Nothing is applied or answered again.
        assert await state.answers.wait(*entries) == [None, None]
        await state.answers.write(state.log, b"three")
        assert [entry.seq for entry in state.applied] == [1, 2, 3]


@in_trio
async def test_whoever_waits_for_it_is_told_when_all_that_was_stored_is_applied(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as state:
        assert state.log.wait_settled(0.0)
        entry = operation(b"one")
        entry.on_done = state.answers._note
        found: list[bool] = []
        waiting = threading.Event()

        def append_and_wait() -> None:
            state.log.append(entry)
            # The loop waits for this thread: nobody can apply it yet.
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
async def test_nothing_is_told_of_what_was_not_synced(tmp_path: Path) -> None:
    disk = HeldDisk()
    seen: list[object] = []

    async def append_in_vain() -> None:
        async with running(tmp_path, disk=disk, clean=False) as state:
            stored, entry = Stored(state), operation(b"lost")
            entry.on_stored, entry.on_done = stored.note, state.answers._note
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

    def make(log: object, drafts: object) -> None:
        from tests.wal.drafts import join

        makers.append(threading.current_thread().name)
        join(log, drafts)  # type: ignore[arg-type]

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
async def test_many_threads_append_each_in_its_order_and_nothing_is_lost(tmp_path: Path) -> None:
    """Whoever writes leaves the rest to somebody, however the threads meet."""
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
                entry.on_done = state.answers._note
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
async def test_a_closed_log_takes_nothing_here_either(tmp_path: Path) -> None:
    async with running(tmp_path) as state:
        log = state.log
    with pytest.raises(LogClosed):
        log.append(Entry(RecordKind.OPERATION, [b"late"]))


@in_trio
async def test_who_writes_says_when_the_loop_may_apply_it(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("wal.commit.CATCH_UP_S", 3600.0)
        async with running(tmp_path) as state:
            stored = Stored(state)
            first, second = operation(b"one"), operation(b"two")
            first.on_stored, first.on_done = stored.note, state.answers._note
            await in_a_thread(partial(state.log.append, first))
            assert stored.one.is_set()
            for _ in range(20):
                await trio.lowlevel.checkpoint()
            assert state.applied == []
            state.log.tell()
            assert await state.answers.wait(first) == [None]
            # Who is answered on the loop does not depend on it.
            second.on_done = state.answers._note
            await in_a_thread(partial(state.log.append, second))
            assert await state.answers.wait(second) == [None]
            state.log.tell()  # nothing is left to be told


@in_trio
async def test_small_groups_are_applied_together_or_when_somebody_waits(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("wal.commit.CATCH_UP_S", 3600.0)
        patch.setattr("wal.commit.LOOK_AGAIN_S", 3600.0)
        patch.setattr("wal.handover._AT_ONCE_S", 0.0)
        async with running(tmp_path) as state:
            stored = Stored(state)
            entries = [operation(b"small") for _ in range(40)]
            for entry in entries:
                entry.on_stored, entry.on_done = stored.note, state.answers._note
            # The loop is told of the first, and would look for others by itself in an hour.
            state.log.append_nowait(entries[0])
            assert await state.answers.wait(entries[0]) == [None]
            await in_a_thread(partial(state.log.append, entries[1]))
            state.log.tell()
            for _ in range(20):
                await trio.lowlevel.checkpoint()
            assert state.applied == entries[:1]
            await in_a_thread(partial(state.log.wait_settled, 20.0))
            assert state.applied == entries[:2]
            # It is told of many, whoever writes them, and of a large one.
            for entry in entries[2:33]:
                await in_a_thread(partial(state.log.append, entry))
                state.log.tell()
                assert state.applied == entries[:2]
            await in_a_thread(partial(state.log.append, entries[33]))
            state.log.tell()
            assert await state.answers.wait(entries[33]) == [None]
            large = operation(b"3" * 70_000)
            large.on_stored, large.on_done = stored.note, state.answers._note
            state.log.append_nowait(large)
            assert await state.answers.wait(large) == [None]
            assert state.applied == [*entries[:34], large]


@in_trio
async def test_where_somebody_has_had_to_wait_the_loop_is_told_of_each(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("wal.commit.CATCH_UP_S", 3600.0)
        patch.setattr("wal.commit.LOOK_AGAIN_S", 3600.0)
        patch.setattr("wal.handover._AT_ONCE_S", 3600.0)
        async with running(tmp_path) as state:
            stored = Stored(state)
            entries = [operation(b"small") for _ in range(3)]
            for number, entry in enumerate(entries):
                entry.on_stored, entry.on_done = stored.note, state.answers._note
                await in_a_thread(partial(state.log.append, entry))
                if number == 1:
                    await in_a_thread(partial(state.log.wait_settled, 20.0))
                state.log.tell()
                assert await state.answers.wait(entry) == [None]


@in_trio
async def test_the_loop_looks_for_more_until_none_come(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("wal.commit.CATCH_UP_S", 3600.0)
        async with running(tmp_path) as state:
            stored = Stored(state)
            for number in range(3):
                first, second = operation(b"one"), operation(b"two")
                for entry in (first, second):
                    entry.on_stored, entry.on_done = stored.note, state.answers._note
                    await in_a_thread(partial(state.log.append, entry))
                    state.log.tell()
                # The second one is found whether the loop was told of it or not.
                assert await state.answers.wait(second) == [None]
                assert len(state.applied) == 2 * (number + 1)
                await trio.sleep(0.05)


@in_trio
async def test_what_nobody_tells_of_is_applied_all_the_same(tmp_path: Path) -> None:
    async with running(tmp_path) as state:
        stored, entry = Stored(state), operation(b"one")
        entry.on_stored, entry.on_done = stored.note, state.answers._note
        await in_a_thread(partial(state.log.append, entry))
        assert await state.answers.wait(entry) == [None]


@in_trio
async def test_a_run_that_is_cancelled_applies_what_nobody_told_of(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("wal.commit.CATCH_UP_S", 3600.0)
        with trio.fail_after(20):
            async with running(tmp_path, clean=False) as state:
                stored, entry = Stored(state), operation(b"one")
                entry.on_stored, entry.on_done = stored.note, state.answers._note
                await in_a_thread(partial(state.log.append, entry))
        assert state.answers.by_entry[entry] is None
        assert state.applied == [entry]


@in_trio
async def test_a_group_that_is_refused_is_answered_at_once(tmp_path: Path) -> None:
    disk = HeldDisk()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("wal.commit.CATCH_UP_S", 3600.0)
        async with running(tmp_path, disk=disk) as state:
            stored, entry = Stored(state), operation(b"one")
            entry.on_stored, entry.on_done = stored.note, state.answers._note

            def refuse(_: object) -> None:
                raise OSError(errno.ENOSPC, "no room")

            disk.before("pwritev", refuse)
            await in_a_thread(partial(state.log.append, entry))
            assert isinstance((await state.answers.wait(entry))[0], LogFull)
            disk.before("pwritev", lambda _: None)
            await state.answers.write(state.log, b"two")
