"""Under load, the file of a deleted segment is reused for a new one.

A reused file looks new to a start after a crash and to a concurrent inspection of the log.
"""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

import wal.segments
from tests.wal.disks import CrashDisk, FaultyDisk, require_zeroing
from tests.wal.driving import (
    SMALL,
    Running,
    in_trio,
    payloads,
    recovered_records,
    running,
    segment_files,
    to_thread_until,
)
from tests.wal.test_crash import Life
from wal import LogSettings
from wal.disk import Disk
from wal.format import segment_name
from wal.inspection import inspect, verify
from wal.segment import prepare, remove


@pytest.fixture(autouse=True)
def always_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wal.segments, "BUSY_S", 1e9)


def _kept(folder: Path, below: int = 4) -> list[Path]:
    """The kept files of the first segments; a spare for a later one may exist as well."""
    return [path for path in sorted(folder.glob("*.tmp")) if path.name < segment_name(below)]


def _inodes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_ino for path in folder.iterdir()}


async def _cut(state: Running) -> None:
    """Return when the files of all sealed segments have been trimmed and released."""
    # Private: a thread releases a file after its last call, and sends no event.
    uncut = state.log._segments.sealed._uncut
    await to_thread_until(lambda: not uncut, "segments cut to their lengths")


async def _fill(state: Running, segments: int, size: int = 3000) -> None:
    for _ in range(segments):
        await state.answers.write(state.log, b"x" * size)
        await state.log.rotate()


def test_files_of_removed_segments_are_reused(tmp_path: Path) -> None:
    require_zeroing(tmp_path)

    async def write() -> None:
        disk = FaultyDisk()
        async with running(tmp_path, disk=disk) as state:
            await _fill(state, 4)
            await _cut(state)
            before = _inodes(tmp_path)
            disk.calls.clear()
            # Two files are kept, and the others are deleted.
            assert await state.log.prune(5) == [1, 2, 3, 4]
            assert disk.names().count("unlink") == 2
            old = {before[segment_name(number)] for number in (1, 2)}
            # The sixth segment may have its file already.
            await _fill(state, 3)
            await state.answers.write(state.log, b"behind them")
            assert disk.names().count("zero") == 2
            assert {_inodes(tmp_path)[segment_name(number)] for number in (6, 7, 8)} > old
        _, records = await recovered_records(tmp_path)
        assert payloads(records) == [b"x" * 3000] * 3 + [b"behind them"]
        assert [one.first_seq for one in records] == [5, 6, 7, 8]

    trio.run(write)


def test_a_closed_log_leaves_no_kept_file(tmp_path: Path) -> None:
    async def write() -> None:
        disk = FaultyDisk()
        async with running(tmp_path, disk=disk) as state:
            await _fill(state, 3)
            await _cut(state)
            await state.log.prune(4)
            assert len(_kept(tmp_path)) == 2
        assert list(tmp_path.iterdir()) == segment_files(tmp_path)
        assert verify(tmp_path) == []

    trio.run(write)


def test_a_killed_log_leaves_kept_files_to_the_next_start(tmp_path: Path) -> None:
    async def write() -> None:
        disk = FaultyDisk()
        async with running(tmp_path, disk=disk, clean=False) as state:
            await _fill(state, 3)
            await _cut(state)
            await state.log.prune(4)
            await state.answers.write(state.log, b"last")
        assert len(_kept(tmp_path)) == 2
        _, records = await recovered_records(tmp_path)
        assert payloads(records) == [b"last"]
        assert not list(tmp_path.glob("*.tmp"))

    trio.run(write)


@pytest.mark.parametrize("size", [10, 20_000])
def test_small_and_overlong_segments_are_not_kept(tmp_path: Path, size: int) -> None:
    async def write() -> None:
        disk = FaultyDisk()
        async with running(tmp_path, disk=disk) as state:
            await _fill(state, 3, size)
            await _cut(state)
            assert await state.log.prune(4) == [1, 2, 3]
            assert not _kept(tmp_path)

    trio.run(write)


@in_trio
async def test_an_idle_log_keeps_no_file(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        disk = FaultyDisk()
        async with running(tmp_path, disk=disk) as state:
            await _fill(state, 3)
            await _cut(state)
            patch.setattr(wal.segments, "BUSY_S", 0.0)
            await state.log.prune(4)
            assert not _kept(tmp_path)


FAULTS = [
    ("zero", errno.EOPNOTSUPP),
    ("zero", errno.ENOSPC),
    ("open to reuse", errno.EACCES),
    ("rename", errno.EIO),
]


@pytest.mark.parametrize(("call", "error"), FAULTS)
def test_a_file_that_cannot_be_reused_is_replaced_by_a_new_one(
    tmp_path: Path, call: str, error: int
) -> None:
    async def write() -> None:
        disk = FaultyDisk()
        async with running(tmp_path, disk=disk) as state:
            await _fill(state, 3)
            await _cut(state)
            await state.log.prune(4)
            # Fail only the first of those calls; the others are on new files.
            disk.fail(call, error, times=1, only=lambda of: not str(of).endswith(".wal"))
            disk.calls.clear()
            await _fill(state, 3)
            assert "allocate" in disk.names()
            assert len(state.answers.taken) == 6
            # The failure is not repeated for later segments.
            disk.heal()
            await _cut(state)
            await state.log.prune(state.log.open_segment)
            assert len(list(tmp_path.glob("*.wal"))) == 1
            assert _kept(tmp_path, below=7) == []
            await state.answers.write(state.log, b"goes on")
        assert not list(tmp_path.glob("*.tmp"))
        _, records = await recovered_records(tmp_path)
        assert payloads(records) == [b"goes on"]

    trio.run(write)


def test_a_file_being_trimmed_is_not_reused(tmp_path: Path) -> None:
    """The trim would cut off the next segment's records."""
    require_zeroing(tmp_path)
    cutting, go_on = threading.Event(), threading.Event()

    def hold(_: object) -> None:
        cutting.set()
        assert go_on.wait(20)

    async def write() -> None:
        disk = FaultyDisk()
        async with running(tmp_path, disk=disk) as state:
            disk.before("truncate", hold)
            await _fill(state, 2)
            await trio.to_thread.run_sync(cutting.wait, 20)
            # The first is being trimmed, and the second waits for it.
            assert await state.log.prune(3) == [1, 2]
            await _fill(state, 3)
            assert "zero" not in disk.names()
            go_on.set()
            await _cut(state)
            await state.log.prune(6)
            await _fill(state, 3)
            assert "zero" in disk.names()
        _, records = await recovered_records(tmp_path)
        assert payloads(records) == [b"x" * 3000] * 3

    trio.run(write)


def test_a_file_with_another_hard_link_is_not_changed(tmp_path: Path) -> None:
    """Backups may be hard links."""
    require_zeroing(tmp_path)
    backup = tmp_path / "backup"
    backup.mkdir()

    async def write() -> None:
        disk = FaultyDisk()
        async with running(tmp_path / "log", disk=disk) as state:
            await _fill(state, 3)
            await _cut(state)
            for path in segment_files(tmp_path / "log")[:3]:
                (backup / path.name).hardlink_to(path)
            before = {path.name: path.read_bytes() for path in backup.iterdir()}
            await state.log.prune(4)
            await _fill(state, 3)
            assert "zero" in disk.names()
            assert {path.name: path.read_bytes() for path in backup.iterdir()} == before

    trio.run(write)
    assert [one.severity for one in verify(backup)] == []


def test_a_backup_by_hard_link_keeps_a_large_segment(tmp_path: Path) -> None:
    """Its blocks must not be released in pieces, as the backup shares them."""
    backup = tmp_path / "backup"
    backup.mkdir()

    async def write() -> None:
        large = LogSettings(segment_bytes=16 << 20)
        async with running(tmp_path / "log", large) as state:
            for _ in range(2):  # less than half full, so the file is not kept
                await state.answers.write(state.log, b"x" * (5 << 20))
                await state.log.rotate()
            await _cut(state)
            for path in segment_files(tmp_path / "log")[:2]:
                (backup / path.name).hardlink_to(path)
            before = {path.name: path.read_bytes() for path in backup.iterdir()}
            assert await state.log.prune(3) == [1, 2]
            assert {path.name: path.read_bytes() for path in backup.iterdir()} == before

    trio.run(write)
    assert [one.severity for one in verify(backup)] == []


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    async def fill() -> None:
        disk = FaultyDisk()
        async with running(tmp_path, disk=disk) as state:
            await _fill(state, 3)
            await _cut(state)

    require_zeroing(tmp_path)
    trio.run(fill)
    return tmp_path


def test_inspecting_a_segment_whose_file_is_reused_finds_no_damage(
    filled: Path,
) -> None:
    class Meanwhile(Disk):
        """Deletes the first segment once it is open, and turns its file into a spare."""

        done = False

        def size(self, fd: int) -> int:
            size = super().size(fd)
            if not self.done:
                self.done = True
                other = Disk()
                remove(other, filled / segment_name(1), lambda: True, kept.append_path)
                [old] = kept.paths
                spare = filled / f"{segment_name(9)}.tmp"
                other.close(prepare(other, spare, size, threading.Event(), old).fd)
            return size

    class Kept:
        paths: list[Path]

        def __init__(self) -> None:
            self.paths = []

        def append_path(self, path: Path) -> bool:
            self.paths.append(path)
            return True

    kept = Kept()
    findings = verify(filled, Meanwhile())
    assert kept.paths
    assert [one.severity for one in findings if one.severity != "note"] == []
    assert [facts.number for facts in inspect(filled)] == [2, 3, 4]


class Pruning(Life):
    """Deletes unneeded segments after each burst, except for the newest ones."""

    needless_to = 0
    """Records up to this sequence may be missing."""

    async def after_burst(self) -> None:
        assert self.log is not None
        keep_from = self.log.statistics().open_segment - 1
        needless = [one.seq for one in self.answers.taken if one.segment < keep_from]
        if needless:
            self.needless_to = max(needless)
            await self.log.prune(keep_from)


had_again: list[str] = []


class Counting(CrashDisk):
    """Counts reused files."""

    def zero(self, fd: int, size: int) -> None:
        super().zero(fd, size)
        had_again.append("once more")


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.integers(500, 1500), min_size=6, max_size=14),
    st.lists(st.integers(20, 260), min_size=1, max_size=3),
    st.integers(0, 2**32),
)
def _crash_while_files_are_reused(sizes: list[int], crashes: list[int], seed: int) -> None:
    disk: CrashDisk = Counting()
    acknowledged: dict[int, bytes] = {}
    sent: set[bytes] = set()
    needless_to, left = 0, [""]
    for epoch, calls in enumerate([*crashes, 10**6, 10**6], start=1):
        life = Pruning(disk, SMALL, epoch)
        life.run(sizes, calls)
        if life.seen is not None:
            seen = dict(life.seen)
            assert list(seen) == list(range(min(seen, default=0), min(seen, default=0) + len(seen)))
            assert set(seen.values()) <= sent
            needed = {seq: row for seq, row in acknowledged.items() if seq > needless_to}
            assert needed.items() <= seen.items()
        sent |= set(life.sent)
        acknowledged |= dict(life.acknowledged)
        needless_to = max(needless_to, life.needless_to)
        left = [name for name in disk.contents() if name.endswith(".tmp")]
        disk = disk.after_crash(seed + epoch)
    assert not left


def test_a_crash_at_any_disk_call_keeps_records_in_reused_files() -> None:
    had_again.clear()
    _crash_while_files_are_reused()
    assert len(had_again) > 50
