"""The log waits for callers that return at once, and for no others; no wait is long."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from tests.drivers.waiting import until
from tests.wal.drafts import TextDraft, join
from tests.wal.driving import Answers, in_trio, operation, running
from tests.wal.held_disk import HeldDisk
from wal import commit_delay
from wal.commit_delay import ENOUGH, MAX_SKIPPED, CommitDelay
from wal.entry import Draft, Entry
from wal.log import Log

PATIENCE_S = 20.0


class DelayedGroup:
    """A commit delay, and a thread that waits for its callers."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.delay = CommitDelay(self.lock)
        # So long that a useless wait fails the test.
        self.delay.wait_s = self.delay.most_s = PATIENCE_S

    def arrive(self, *callers: int) -> None:
        for caller in callers:
            with self.lock:
                self.delay.arrived(caller)

    def go(self) -> None:
        with self.lock:
            self.delay.group_drawn()

    def wait(self) -> None:
        with self.lock:
            self.delay.wait()

    def leave(self) -> None:
        with self.lock:
            self.delay.leave()

    def _is_waited_for(self) -> bool:
        return self.delay.is_waiting

    def waiting(self, meanwhile: Callable[[], object]) -> float:
        """Wait in a thread and call ``meanwhile``; return the duration of the wait."""
        began = time.monotonic()
        thread = threading.Thread(target=self.wait)
        thread.start()
        until(self._is_waited_for, "the thread to wait")
        with self.lock:  # the thread has released the lock, and waits
            pass
        meanwhile()
        thread.join(2 * PATIENCE_S)
        return time.monotonic() - began


def test_a_group_waits_until_the_callers_of_the_last_one_return() -> None:
    group = DelayedGroup()
    group.arrive(1, 2, 3)
    group.go()
    group.arrive(2)
    assert group.waiting(lambda: group.arrive(7, 3, 1)) < PATIENCE_S
    # All callers have arrived.
    group.wait()
    group.go()
    group.arrive(1, 2, 3, 7)
    group.wait()


def test_other_callers_do_not_replace_missing_ones_unless_they_are_many() -> None:
    group = DelayedGroup()
    group.arrive(1, 2, 3)
    group.go()
    group.arrive(1, *range(10, 10 + ENOUGH - 2))
    assert group.waiting(lambda: group.arrive(99)) < PATIENCE_S
    group.go()
    group.arrive(*range(200, 210))
    group.delay.wait_s = 0.0
    group.wait()
    assert group.delay.failed


def test_there_is_no_wait_for_one_caller_or_after_leave() -> None:
    group = DelayedGroup()
    group.wait()
    group.arrive(1)
    group.go()
    group.wait()
    group.arrive(1, 2)
    group.go()
    assert group.waiting(group.leave) < PATIENCE_S


def test_each_caller_extends_the_wait() -> None:
    group = DelayedGroup()
    group.delay.wait_s = 2.0
    group.arrive(1, 2, 3)
    group.go()
    # Each pause is shorter than the wait and their sum is longer, by the clock of the condition.
    assert group.waiting(lambda: arrive_slowly(group, every_s=0.8)) > 2.0
    assert not group.delay.failed


def test_the_whole_wait_is_short() -> None:
    group = DelayedGroup()
    group.delay.most_s = 0.15
    group.arrive(1, 2, 3)
    group.go()
    group.waiting(lambda: arrive_slowly(group, every_s=0.1))
    assert group.delay.failed


def arrive_slowly(group: DelayedGroup, every_s: float) -> None:
    for caller in (1, 2, 3):
        time.sleep(every_s)
        group.arrive(caller)


def test_callers_that_do_not_return_are_waited_for_less_and_less_often() -> None:
    group, waits = DelayedGroup(), 0
    group.delay.wait_s = 0.0
    for _ in range(2_000):
        group.go()
        group.arrive(*range(6))
        group.go()
        group.arrive(*range(5))  # of six callers
        waits += group.delay.skips == 0
        group.wait()
    assert waits < 20
    assert group.delay.backoff == MAX_SKIPPED
    # Callers that return soon reset the backoff.
    successful_waits(group, 2 * MAX_SKIPPED)
    assert group.delay.backoff == 0


def test_a_single_failed_wait_changes_nothing() -> None:
    group = DelayedGroup()
    for _ in range(50):
        group.delay.wait_s = 0.0
        group.go()
        group.arrive(1, 2)
        group.go()
        group.wait()
        assert group.delay.failed
        successful_waits(group, 1)
        assert not group.delay.failed
    assert group.delay.skips == 0


def successful_waits(group: DelayedGroup, times: int) -> None:
    group.delay.wait_s = PATIENCE_S
    for _ in range(times):
        group.go()
        group.arrive(1, 2)
        group.go()
        if group.delay.skips:
            group.wait()
        else:
            group.waiting(lambda: group.arrive(1, 2))


def test_a_held_or_closed_log_does_not_wait_for_callers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without that, the next group would wait for two callers that never return."""
    monkeypatch.setattr(commit_delay, "WAIT_S", PATIENCE_S)
    monkeypatch.setattr(commit_delay, "MOST_S", PATIENCE_S)

    def append_two(log: Log, answers: Answers) -> None:
        entries = [operation(b"one"), operation(b"two")]
        together = threading.Barrier(2)

        def append(number: int) -> None:
            together.wait(20)
            entries[number].on_done = answers.note
            log.append(entries[number])

        threads = [threading.Thread(target=append, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)

    async def rotate_and_close() -> None:
        began = time.monotonic()
        for _ in range(20):
            async with running(tmp_path) as state:
                await trio.to_thread.run_sync(append_two, state.log, state.answers)
                await state.log.rotate(force=True)
                await trio.to_thread.run_sync(append_two, state.log, state.answers)
        assert time.monotonic() - began < PATIENCE_S

    trio.run(rotate_and_close)


@in_trio
async def test_callers_that_wait_for_answers_count_whichever_thread_writes(
    tmp_path: Path,
) -> None:
    waiting, arrive = list[object](), CommitDelay.arrived

    def note(delay: CommitDelay, caller: object) -> None:
        waiting.append(caller)
        arrive(delay, caller)

    disk = HeldDisk()
    async with running(tmp_path, make=join, disk=disk) as state:
        disk.hold()
        first = operation(b"first")
        state.answers.append(state.log, first)
        await disk.wait_until_held()
        drafts = [TextDraft(b"%d" % number, lambda draft, error: None) for number in range(3)]
        drafts[0].waits = drafts[1].waits = True
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(CommitDelay, "arrived", note)
            for draft in drafts:
                state.log.append_nowait(draft)
        assert waiting == [draft.sessions for draft in drafts[:2]]
        disk.let_go.set()
        await state.answers.wait(first)


def test_a_caller_that_arrives_while_entries_are_made_is_in_the_next_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups: list[set[object]] = []
    drawn_before = CommitDelay.group_drawn

    def note(delay: CommitDelay) -> None:
        groups.append(set(delay.callers))
        drawn_before(delay)

    monkeypatch.setattr(CommitDelay, "group_drawn", note)
    drafts = [TextDraft(b"%d" % number, lambda draft, error: None) for number in range(2)]
    for draft in drafts:
        draft.waits = True

    logs: list[Log] = []

    def join_late(drawn: list[Draft]) -> list[Entry]:
        if drawn == drafts[:1]:
            other = threading.Thread(target=logs[0].append_nowait, args=(drafts[1],))
            other.start()
            other.join(PATIENCE_S)
        return join(drawn)

    async def append() -> None:
        async with running(tmp_path, make=join_late) as state:
            logs.append(state.log)
            state.log.append_nowait(drafts[0])
            with trio.fail_after(PATIENCE_S):
                while state.log.statistics().last_seq < 2:
                    await trio.sleep(0.01)

    trio.run(append)
    assert groups == [{draft.sessions} for draft in drafts]
