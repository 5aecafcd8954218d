"""Threads append while the disk refuses at random, and while the log closes."""

from __future__ import annotations

import errno
import threading
from functools import partial
from pathlib import Path

import pytest
import trio

from tests.wal.disks import FaultyDisk
from tests.wal.drafts import END, Note, TextDraft, join
from tests.wal.driving import payloads, recovered_records, running
from wal import Entry, LogClosed, LogFull, LogSettings, LogWriteFailed, OrderedSession, RecordKind

WRITERS = 4
ENTRIES = 400


class Writer:
    """A thread that appends numbered entries, on a new line after each refusal."""

    def __init__(self, name: bytes, *, drafts: bool = False) -> None:
        self.name = name
        self.lines: list[list[tuple[Entry | TextDraft, list[BaseException | None]]]] = []
        self._drafts = drafts
        self.refused_at_once = 0

    def run(self, append: object) -> None:
        assert callable(append)
        line = OrderedSession()
        self.lines.append([])
        for number in range(ENTRIES):
            if number % 7 == 0 and line.refusal is not None:
                line = OrderedSession()
                self.lines.append([])
            answers: list[BaseException | None] = []
            answered = threading.Event()
            note = partial(self.note, answers, answered)
            entry = self._entry(number, line, note)
            try:
                append(entry)
            except LogClosed:
                self.refused_at_once += 1
                continue
            self.lines[-1].append((entry, answers))
            if number % 5 == 0:
                assert answered.wait(20)

    def _entry(self, number: int, line: OrderedSession, note: Note) -> Entry | TextDraft:
        payload = b"%s-%d" % (self.name, number)
        if self._drafts and number % 4:
            # One draft in fifty is unfit, which is known only when its turn comes.
            return TextDraft(payload + b"?" * (number % 50 == 49), note, line)
        entry = Entry(RecordKind.OPERATION, [payload + END], sessions=(line,))
        entry.on_done = note
        return entry

    def note(
        self,
        answers: list[BaseException | None],
        answered: threading.Event,
        entry: object,
        error: BaseException | None,
    ) -> None:
        answers.append(error)
        answered.set()


def run_all(writers: list[Writer], append: object) -> None:
    threads = [threading.Thread(target=writer.run, args=(append,)) for writer in writers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def check(writers: list[Writer]) -> list[bytes]:
    """Every entry was answered once, and no line has an entry in the log after a refused one."""
    taken = []
    for writer in writers:
        for line in writer.lines:
            assert all(len(answers) == 1 for _, answers in line)
            errors = [answers[0] for _, answers in line]
            first = next((i for i, error in enumerate(errors) if error is not None), len(errors))
            assert all(error is not None for error in errors[first:])
            # An entry after an unfit draft may meet a full disk before the session is checked.
            unfit = any(isinstance(error, LogWriteFailed) for error in errors)
            assert len({id(error) for error in errors[first:]}) <= 1 + unfit
            taken += [_payload(entry) for entry, _ in line[:first]]
    return taken


def _payload(entry: Entry | TextDraft) -> bytes:
    if isinstance(entry, TextDraft):
        return entry.payload
    return b"".join(map(bytes, entry.body.pieces)).rstrip(b"\0").removesuffix(END)


def held_by(directory: Path) -> list[bytes]:
    """The payloads of all entries and drafts in a log."""
    records = trio.run(recovered_records, directory)[1]
    return b"".join(payloads(records)).split(END)[:-1]


@pytest.mark.parametrize("drafts", [False, True])
def test_nothing_of_a_session_follows_a_refused_entry(tmp_path: Path, drafts: bool) -> None:
    writers = [Writer(b"w%d" % number, drafts=drafts) for number in range(WRITERS)]

    async def write() -> None:
        disk = FaultyDisk()
        async with running(
            tmp_path, LogSettings(segment_bytes=1 << 20), disk=disk, make=join
        ) as state:
            calls = 0

            def now_and_then(offset: object) -> None:
                nonlocal calls
                calls += 1
                if calls % 9 == 0:
                    raise OSError(errno.ENOSPC, "on purpose")

            disk.before("pwritev", now_and_then)
            await trio.to_thread.run_sync(run_all, writers, state.log.append_nowait)
            disk.heal()
            await state.log.close()

    trio.run(write)
    taken = check(writers)
    refused = [line for writer in writers for line in writer.lines if line and line[-1][1][0]]
    assert refused, "the disk refused something"
    kinds = {type(line[-1][1][0]) for line in refused}
    assert kinds == ({LogFull, LogWriteFailed} if drafts else {LogFull})
    held = held_by(tmp_path)
    assert sorted(held) == sorted(taken)
    for writer in writers:
        mine = [int(one.split(b"-")[1]) for one in held if one.startswith(writer.name + b"-")]
        assert mine == sorted(mine), "in the order in which they were appended"


@pytest.mark.parametrize("seed", range(5))
def test_appends_during_close_are_answered_or_refused_at_once(tmp_path: Path, seed: int) -> None:
    writers = [Writer(b"w%d" % number, drafts=seed % 2 > 0) for number in range(WRITERS)]

    async def write() -> None:
        async with (
            running(tmp_path, LogSettings(segment_bytes=1 << 20), clean=False, make=join) as state,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(trio.to_thread.run_sync, run_all, writers, state.log.append_nowait)
            while len(state.applied) < 10 * seed:
                await trio.sleep(0)
            await state.log.close()

    trio.run(write)
    taken = check(writers)
    answered = sum(len(line) for writer in writers for line in writer.lines)
    assert answered + sum(writer.refused_at_once for writer in writers) == WRITERS * ENTRIES
    assert sorted(held_by(tmp_path)) == sorted(taken)
