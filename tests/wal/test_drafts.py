"""Drafts become entries in order, and nothing follows a refused one in the log."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import trio
import trio.testing

from tests.wal.disks import FaultyDisk
from tests.wal.drafts import TextDraft, join
from tests.wal.driving import in_trio, operation, payloads, recovered_records, running
from tests.wal.held_disk import HeldDisk
from wal import (
    Draft,
    Entry,
    LogClosed,
    LogFailed,
    LogFull,
    LogSettings,
    LogWriteFailed,
    OrderedSession,
    RecordKind,
)


class Outcomes:
    """The outcome of each draft, in the order of the answers."""

    def __init__(self) -> None:
        self.seen: list[tuple[bytes, BaseException | None]] = []
        self._token = trio.lowlevel.current_trio_token()
        self._changed = trio.Event()

    def note(self, draft: object, error: BaseException | None) -> None:
        assert isinstance(draft, TextDraft)
        assert draft.payload not in dict(self.seen), "a draft is answered once"
        self.seen.append((draft.payload, error))
        self._token.run_sync_soon(self._ring)

    def _ring(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def wait(self, count: int) -> dict[bytes, BaseException | None]:
        with trio.fail_after(20):
            while len(self.seen) < count:
                await self._changed.wait()
        return dict(self.seen)

    def draft(self, payload: bytes, line: OrderedSession | None = None) -> TextDraft:
        return TextDraft(payload, self.note, line)


@in_trio
async def test_drafts_that_arrive_during_a_write_become_one_entry(tmp_path: Path) -> None:
    disk = HeldDisk()
    async with running(tmp_path, make=join, disk=disk) as state:
        outcomes = Outcomes()
        disk.hold()
        first = operation(b"first")
        state.answers.append(state.log, first)
        await disk.wait_until_held()
        for number in range(5):
            state.log.append_nowait(outcomes.draft(b"%d" % number))
        assert state.log.pending == 5
        disk.let_go.set()
        await state.answers.wait(first)
        assert set((await outcomes.wait(5)).values()) == {None}
        together = state.applied[1]
        assert [entry.seq for entry in state.applied] == [1, 2]
        assert together.operations == 5
        assert state.log.statistics().last_seq == 6
        assert state.log.statistics().pending_bytes == 0
        after = await state.answers.write(state.log, b"after")
        assert after[0].seq == 7
    recovered, records = await recovered_records(tmp_path)
    assert payloads(records) == [b"first", b"0;1;2;3;4;", b"after"]
    assert recovered.last_seq == 7
    assert [(one.first_seq, one.operations) for one in records] == [(1, 1), (2, 5), (7, 1)]
    (facts,) = (one for one in recovered.segments if one.operations)
    assert (facts.operations, facts.first_seq, facts.last_seq) == (7, 1, 7)


@in_trio
async def test_entries_and_drafts_of_one_session_keep_their_order(tmp_path: Path) -> None:
    async with running(tmp_path, make=join) as state:
        outcomes, line = Outcomes(), OrderedSession()
        entries = []
        for number in range(100):
            if number % 3:
                state.log.append_nowait(outcomes.draft(b"%d" % number, line))
            else:
                entries.append(Entry(RecordKind.OPERATION, [b"%d;" % number], sessions=(line,)))
                state.answers.append(state.log, entries[-1])
        await outcomes.wait(66)
        await state.answers.wait(*entries)
    _, records = await recovered_records(tmp_path)
    assert b"".join(payloads(records)) == b"".join(b"%d;" % number for number in range(100))


@in_trio
async def test_after_an_invalid_draft_nothing_of_its_session_is_accepted(tmp_path: Path) -> None:
    disk = HeldDisk()
    async with running(tmp_path, make=join, disk=disk) as state:
        outcomes, line, other = Outcomes(), OrderedSession(), OrderedSession()
        disk.hold()
        first = operation(b"first;")
        state.answers.append(state.log, first)
        await disk.wait_until_held()
        behind = Entry(RecordKind.OPERATION, [b"entry behind;"], sessions=(line,))
        state.log.append_nowait(outcomes.draft(b"good", line))
        state.log.append_nowait(outcomes.draft(b"bad?", line))
        state.log.append_nowait(outcomes.draft(b"draft behind", line))
        state.answers.append(state.log, behind)
        state.log.append_nowait(outcomes.draft(b"of another", other))
        disk.let_go.set()
        errors = await outcomes.wait(4)
        (refused,) = await state.answers.wait(behind)
        late = Entry(RecordKind.OPERATION, [b"late;"], sessions=(line,))
        state.answers.append(state.log, late)
        assert await state.answers.wait(late) == [refused]
    assert errors[b"good"] is None
    assert errors[b"of another"] is None
    assert isinstance(refused, LogWriteFailed)
    assert errors[b"bad?"] is errors[b"draft behind"] is refused
    _, records = await recovered_records(tmp_path)
    assert b"".join(payloads(records)) == b"first;good;of another;"


@in_trio
async def test_drafts_pending_on_a_full_disk_are_refused(tmp_path: Path) -> None:
    disk = FaultyDisk()
    held, go = threading.Event(), threading.Event()
    async with running(tmp_path, make=join, disk=disk) as state:
        outcomes = Outcomes()

        def full(_: object) -> None:
            held.set()
            assert go.wait(20)
            raise OSError(28, "on purpose")

        disk.before("pwritev", full)
        first = operation(b"first;")
        state.answers.append(state.log, first)
        await trio.to_thread.run_sync(held.wait)
        state.log.append_nowait(outcomes.draft(b"waits"))
        go.set()
        (error,) = await state.answers.wait(first)
        assert isinstance(error, LogFull)
        assert (await outcomes.wait(1))[b"waits"] is error
        disk.heal()
        state.log.append_nowait(outcomes.draft(b"again"))
        assert (await outcomes.wait(2))[b"again"] is None
    _, records = await recovered_records(tmp_path)
    assert payloads(records) == [b"again;"]


@in_trio
async def test_drafts_under_construction_at_the_end_of_the_log_are_answered(tmp_path: Path) -> None:
    making, go = threading.Event(), threading.Event()

    def slowly(drafts: list[Draft]) -> list[Entry]:
        making.set()
        assert go.wait(20)
        return join(drafts)

    with trio.fail_after(20):
        async with running(tmp_path, make=slowly) as state:
            outcomes = Outcomes()
            state.log.append_nowait(outcomes.draft(b"in time"))
            await trio.to_thread.run_sync(making.wait)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(state.log.close)
                await trio.testing.wait_all_tasks_blocked()
                with pytest.raises(LogClosed):
                    state.log.append_nowait(outcomes.draft(b"late"))
                go.set()
            assert await outcomes.wait(1) == {b"in time": None}
    _, records = await recovered_records(tmp_path)
    assert payloads(records) == [b"in time;"]


@in_trio
async def test_a_failing_make_ends_the_log_and_the_drafts_are_answered(
    tmp_path: Path,
) -> None:
    def fails(drafts: list[Draft]) -> list[Entry]:
        raise ValueError("on purpose")

    async def lose() -> None:
        async with running(tmp_path, make=fails, clean=False) as state:
            outcomes = Outcomes()
            state.log.append_nowait(outcomes.draft(b"lost"))
            assert isinstance((await outcomes.wait(1))[b"lost"], LogFailed)
            await trio.sleep_forever()

    with trio.fail_after(20), pytest.RaisesGroup(ValueError, flatten_subgroups=True):
        await lose()


@pytest.mark.parametrize(("kind", "count"), [(RecordKind.OPERATION, 0), (RecordKind.SCHEMA, 2)])
def test_only_a_record_of_operations_holds_several(kind: RecordKind, count: int) -> None:
    with pytest.raises(ValueError, match="cannot hold"):
        Entry(kind, [b""], operations=count)


@in_trio
async def test_a_run_that_opens_a_new_segment_keeps_its_sequences(tmp_path: Path) -> None:
    async with running(tmp_path, LogSettings(segment_bytes=4096), make=join) as state:
        outcomes = Outcomes()
        for number in range(300):
            state.log.append_nowait(outcomes.draft(b"%d" % number * 20))
            if number % 30 == 0:
                await outcomes.wait(number + 1)
        await outcomes.wait(300)
        assert state.log.statistics().last_seq == 300
        assert state.log.statistics().segments > 1
    recovered, records = await recovered_records(tmp_path)
    assert recovered.last_seq == 300
    assert sum(one.operations for one in records) == 300
