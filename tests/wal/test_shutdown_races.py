"""The log ends during other work: all callers are answered, and stored entries count."""

from __future__ import annotations

import errno
import threading
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing

from tests.wal.drafts import TextDraft, join
from tests.wal.driving import in_a_thread, in_trio, operation, running, started
from tests.wal.held_disk import HeldDisk
from tests.wal.test_drafts import Outcomes
from wal import Draft, Entry, LogFailed, LogWriteFailed


@in_trio
async def test_stored_entries_are_applied_even_if_the_log_failed_meanwhile(
    tmp_path: Path,
) -> None:
    disk = HeldDisk()
    seen: list[object] = []

    def refuse(_: object) -> None:
        raise OSError(errno.EIO, "no sync of the folder")

    async def fail_beside_a_sync() -> None:
        async with running(tmp_path, disk=disk, clean=False) as state:
            await state.answers.write(state.log, b"old")
            await state.log.rotate(force=True)
            entry = operation(b"stored")
            entry.on_stored, entry.on_done = seen.append, state.answers.note
            disk.hold()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(in_a_thread, partial(state.log.append, entry))
                await disk.wait_until_held()
                disk.before("fsync_directory", refuse)
                with pytest.raises(LogFailed):
                    await state.log.prune(2)
                disk.let_go.set()
            assert seen == [entry]
            state.log.catch_up()
            seen.extend([entry in state.applied, state.answers.by_entry[entry], state.log.diverged])
            await trio.sleep_forever()

    with pytest.RaisesGroup(pytest.RaisesExc(LogFailed), flatten_subgroups=True):
        await fail_beside_a_sync()
    assert seen[1:] == [True, None, False]


class Making:
    """A maker of entries that does not return before the test says so."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.go = threading.Event()

    def make(self, drafts: list[Draft]) -> list[Entry]:
        self.begun.set()
        assert self.go.wait(20)
        return join(drafts)

    async def wait_until_begun(self) -> None:
        assert await trio.to_thread.run_sync(self.begun.wait, 20)


@pytest.mark.parametrize("here", [True, False])
def test_a_log_is_closed_although_entries_under_construction_failed(
    tmp_path: Path, here: bool
) -> None:
    async def close_meanwhile() -> None:
        making = Making()
        async with running(tmp_path, make=making.make, clean=False) as state:
            outcomes = Outcomes()
            append = state.log.append if here else state.log.append_nowait
            with trio.fail_after(20):
                async with trio.open_nursery() as nursery:
                    unfit = outcomes.draft(b"unfit?")
                    nursery.start_soon(in_a_thread, partial(append, unfit))
                    await making.wait_until_begun()
                    nursery.start_soon(state.log.close)
                    await trio.testing.wait_all_tasks_blocked()
                    making.go.set()
            assert isinstance((await outcomes.wait(1))[b"unfit?"], LogWriteFailed)

    trio.run(close_meanwhile)


@pytest.mark.parametrize("here", [True, False])
def test_entries_under_construction_at_cancellation_are_answered(
    tmp_path: Path, here: bool
) -> None:
    async def cancel_meanwhile() -> None:
        making = Making()
        log = await started(tmp_path)
        outcomes = Outcomes()
        append = log.append if here else log.append_nowait
        async with trio.open_nursery() as nursery:
            draft = outcomes.draft(b"unfit?")
            nursery.start_soon(in_a_thread, partial(append, draft))
            await nursery.start(log.run, lambda entries: None, making.make)
            await making.wait_until_begun()
            nursery.cancel_scope.cancel()
            trio.lowlevel.current_trio_token().run_sync_soon(making.go.set)
        assert [type(error) for _, error in outcomes.seen] == [LogWriteFailed]

    trio.run(cancel_meanwhile)


@in_trio
async def test_a_failed_entry_of_the_appending_thread_is_answered(tmp_path: Path) -> None:
    log = await started(tmp_path)
    answered: list[object] = []

    def fail(_: object) -> None:
        raise MemoryError("no room for what is made")

    def append_both() -> None:
        draft = TextDraft(b"one", lambda draft, error: answered.append(draft))
        entry = operation(b"two")
        entry.on_done = lambda entry, error: answered.append(entry)
        log.append(draft)
        log.append_nowait(entry)

    with pytest.RaisesGroup(MemoryError, flatten_subgroups=True):
        async with trio.open_nursery() as nursery:
            await nursery.start(log.run, lambda entries: None, fail)
            thread = threading.Thread(target=append_both)
            thread.start()
            thread.join(20)  # the loop is blocked meanwhile
            await trio.sleep_forever()
    assert [type(one) for one in answered] == [TextDraft, Entry]


@in_trio
async def test_other_tasks_run_while_many_groups_are_applied(
    tmp_path: Path,
) -> None:
    groups = 60
    async with running(tmp_path) as state:

        def append_all() -> None:
            for number in range(groups):
                state.log.append(operation(b"%d" % number))

        thread = threading.Thread(target=append_all)
        thread.start()
        thread.join(20)  # the loop is blocked meanwhile
        applied = [len(state.applied)]
        while applied[-1] < groups:
            await trio.lowlevel.checkpoint()
            applied.append(len(state.applied))
        assert applied[0] == 0
        assert set(applied) - {0, groups}
