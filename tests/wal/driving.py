"""Drives the log through its public interface, as the ingester does."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import trio

from tests.drivers.waiting import until
from tests.wal.disks import FaultyDisk
from wal import (
    Disk,
    Draft,
    Entry,
    Log,
    LogIdentity,
    LogSettings,
    Preamble,
    Record,
    RecordKind,
    Recovered,
    Shipping,
)

IDENTITY = LogIdentity("ingester-1", "incarnation-1", 1)
SMALL = LogSettings(segment_bytes=4096)


def in_trio(test: Callable[[Path], Coroutine[None, None, None]]) -> Callable[[Path], None]:
    """Run the test in trio."""

    @wraps(test)
    def run(tmp_path: Path) -> None:
        trio.run(test, tmp_path)

    return run


def operation(payload: bytes, *preambles: Preamble) -> Entry:
    return Entry(RecordKind.OPERATION, [payload], preambles)


class Answers:
    """The outcome of each entry: None, or the error. Waits are events, not polls."""

    def __init__(self) -> None:
        self.by_entry: dict[Entry, BaseException | None] = {}
        self._changed = trio.Event()

    def append(self, log: Log, *entries: Entry) -> None:
        for entry in entries:
            entry.on_done = self.note
            log.append_nowait(entry)

    def note(self, entry: Entry, error: BaseException | None) -> None:
        assert entry not in self.by_entry, "an entry is answered once"
        self.by_entry[entry] = error
        self._changed.set()
        self._changed = trio.Event()

    async def wait(self, *entries: Entry) -> list[BaseException | None]:
        with trio.fail_after(20):
            while any(entry not in self.by_entry for entry in entries):
                await self._changed.wait()
        return [self.by_entry[entry] for entry in entries]

    async def write(self, log: Log, *payloads: bytes) -> list[Entry]:
        """Append, wait, and check that every entry was accepted."""
        entries = [operation(payload) for payload in payloads]
        self.append(log, *entries)
        errors = await self.wait(*entries)
        assert errors == [None] * len(entries)
        return entries

    @property
    def taken(self) -> list[Entry]:
        return [entry for entry, error in self.by_entry.items() if error is None]


class Running:
    """A running log, and the entries that it applied."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.answers = Answers()
        self.applied: list[Entry] = []

    def apply(self, entries: Sequence[Entry]) -> None:
        self.applied += entries


class Stored:
    """The stored entries, and how many were applied when each was stored."""

    def __init__(self, state: Running) -> None:
        self._state = state
        self.seen: list[tuple[int, int, bool]] = []
        self.one = threading.Event()

    def note(self, entry: Entry) -> None:
        self.seen.append((entry.seq, len(self._state.applied), self._state.log.settled))
        self.one.set()


async def started(directory: Path, **more: Any) -> Log:
    """A new log that accepts entries but does not run yet."""
    log = Log(directory, SMALL, **more)
    await log.recover()
    await log.start(IDENTITY, 1)
    return log


@asynccontextmanager
async def running(
    directory: Path,
    settings: LogSettings = SMALL,
    *,
    clean: bool = True,
    first_seq: int | None = None,
    make: Callable[[list[Draft]], list[Entry]] | None = None,
    disk: Disk | None = None,
    begun: Callable[[], None] | None = None,
    shipping: Shipping | None = None,
    **more: Any,
) -> AsyncIterator[Running]:
    """A started log; closed at the end if `clean`, else left as a killed process leaves it."""
    log = Log(directory, settings, disk=disk, **more)
    recovered = await log.recover()
    await log.start(IDENTITY, first_seq or recovered.last_seq + 1, begun)
    state = Running(log)
    async with trio.open_nursery() as nursery:
        await nursery.start(log.run, state.apply, make, shipping)
        yield state
        if clean:
            await log.close()
        nursery.cancel_scope.cancel()


async def write_killed(directory: Path, *payloads: bytes, settings: LogSettings = SMALL) -> None:
    """A log in which each payload was acknowledged alone, and whose process was then killed."""
    async with running(directory, settings, clean=False) as state:
        for payload in payloads:
            await state.answers.write(state.log, payload)


async def recovered_records(
    directory: Path, disk: Disk | None = None
) -> tuple[Recovered, list[Record]]:
    """The content of the log, as a start sees it."""
    log = Log(directory, SMALL, disk=disk)
    recovered = await log.recover()
    records = [record async for chunk in log.replay() for record in chunk]
    return recovered, records


async def in_a_thread(call: Callable[[], object]) -> None:
    """Run the call in a thread, and wait until it returns."""
    with trio.fail_after(20):
        await trio.to_thread.run_sync(call)


def payloads(records: list[Record]) -> list[bytes]:
    return [bytes(one.payload) for one in records if one.kind == RecordKind.OPERATION]


def segment_files(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.wal"))


async def trimmed(disk: FaultyDisk, segments: int) -> None:
    """Return when that many segments have been trimmed."""
    await to_thread_until(lambda: disk.names().count("truncate") >= segments, "trimmed segments")


async def to_thread_until(happened: Callable[[], bool], what: str) -> None:
    """Like `until`, but in a thread."""
    await trio.to_thread.run_sync(until, happened, what)
