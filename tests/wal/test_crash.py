"""Power is lost at any call, twice; the disk keeps any part of the unsynced writes.

After each start, every acknowledged record exists once, in order. Each recovered record was sent
by a client, and the next start finds it again.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

import wal.segment
import wal.segments
from tests.wal.disks import CrashDisk, PowerLost
from tests.wal.driving import SMALL, Answers, operation
from wal import Log, LogClosed, LogFailed, LogIdentity, LogSettings, Preamble, RecordKind

FOLDER = Path("/log")


class Life:
    """One process: the records that it sent, that were acknowledged, and that it recovered."""

    def __init__(self, disk: CrashDisk, settings: LogSettings, epoch: int) -> None:
        self.disk = disk
        self.settings = settings
        self.epoch = epoch
        self.seen: list[tuple[int, bytes]] | None = None
        self.sent: list[bytes] = []
        self.answers = Answers()
        self.log: Log | None = None

    async def live(self, sizes: list[int]) -> None:
        """Recover, replay, write in bursts, rotate, prune nothing, close; power may be lost."""
        log = self.log = Log(FOLDER, self.settings, disk=self.disk)
        recovered = await log.recover()
        seen = []
        async for chunk in log.replay():
            for one in chunk:
                if one.kind == RecordKind.OPERATION:
                    seen.append((one.first_seq, bytes(one.payload)))
        self.seen = seen
        await log.start(
            LogIdentity("i", f"incarnation-{self.epoch}", self.epoch), recovered.last_seq + 1
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(log.run, lambda entries: None)
            schema = Preamble(RecordKind.SCHEMA, (b"schema",))
            for burst, size in enumerate(sizes):
                entries = [
                    operation(b"%d.%d.%d " % (self.epoch, burst, i) + b"x" * size, schema)
                    for i in range(1 + size % 4)
                ]
                self.sent += [
                    b"".join(entry.body.pieces)[: entry.payload_bytes] for entry in entries
                ]
                self.answers.append(log, *entries)
                if any(await self.answers.wait(*entries)):
                    return
                await self.after_burst()
            await log.close()

    async def after_burst(self) -> None:
        """Let other tasks run."""
        await trio.lowlevel.checkpoint()

    def run(self, sizes: list[int], calls: int) -> None:
        self.disk.calls_left = calls
        try:
            trio.run(self.live, sizes)
        except* PowerLost:
            pass
        except* (LogClosed, LogFailed):
            # The log's own thread noticed the power loss first, and the log refuses further calls.
            if not self.disk.lost:
                raise

    @property
    def acknowledged(self) -> list[tuple[int, bytes]]:
        return [
            (entry.seq, b"".join(entry.body.pieces)[: entry.payload_bytes])
            for entry in self.answers.taken
        ]


bursts = st.lists(st.integers(0, 1500), min_size=1, max_size=8)


@pytest.mark.parametrize("mode", ["commit", "interval", "off"])
@settings(max_examples=120)
@given(bursts, st.lists(st.integers(0, 90), min_size=1, max_size=3), st.integers(0, 2**32))
def test_a_crash_at_any_disk_call_keeps_every_acknowledged_record_once(
    mode: str, sizes: list[int], crashes: list[int], seed: int
) -> None:
    disk = CrashDisk()
    log_settings = LogSettings(
        fsync=mode,  # type: ignore[arg-type]
        fsync_interval_s=0,
        segment_bytes=4096,
    )
    kept: list[tuple[int, bytes]] = []
    sent: set[bytes] = set()
    for epoch, calls in enumerate([*crashes, 10**6], start=1):
        life = Life(disk, log_settings, epoch)
        life.run(sizes, calls)
        if life.seen is not None:
            sequences = [seq for seq, _ in life.seen]
            assert sequences == list(range(1, len(sequences) + 1))
            assert life.seen[: len(kept)] == kept
            assert {payload for _, payload in life.seen} <= sent
            kept = life.seen
        sent |= set(life.sent)
        if mode == "commit":
            kept = kept + life.acknowledged
        disk = disk.after_crash(seed + epoch)
    # The last of these lives ended cleanly and closed its log, so no tail is torn.
    last = Life(disk, SMALL, 99)
    last.run([], 10**6)
    assert last.seen is not None
    assert last.seen[: len(kept)] == kept
    assert not [name for name in disk.contents() if name.endswith(".tmp")]


@settings(max_examples=150)
@given(st.integers(0, 40), st.integers(1, 6), st.integers(0, 2**32))
def test_a_crash_during_deletion_leaves_a_suffix_of_the_segments(
    calls: int, keep_from: int, seed: int
) -> None:
    disk = CrashDisk()
    first = Life(disk, SMALL, 1)
    first.run([3000] * 8, 10**6)
    written = first.acknowledged

    async def prune() -> None:
        log = Log(FOLDER, SMALL, disk=disk)
        segments = (await log.recover()).segments
        assert len(segments) > 6
        needed.append(segments[keep_from].first_seq)
        disk.calls_left = calls
        await log.prune(segments[keep_from].number)

    needed: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wal.segment, "FREED_AT_ONCE", 1024)
        patch.setattr(wal.segment, "FREED_PAUSE_S", 0.0)
        patch.setattr(wal.segments, "BUSY_S", 1e9)
        with suppress(PowerLost):
            trio.run(prune)
    disk = disk.after_crash(seed)
    last = Life(disk, SMALL, 3)
    last.run([], 10**6)
    assert last.seen is not None
    assert last.seen == written[-len(last.seen) :]
    assert last.seen[0][0] <= needed[0]
    assert not [name for name in disk.contents() if name.endswith(".tmp")]


def test_the_simulated_disk_loses_unsynced_data() -> None:
    disk = CrashDisk()
    fd = disk.open(FOLDER / "a", "create")
    disk.pwritev(fd, [b"x" * 4096], 0)
    assert any(not disk.after_crash(seed).contents() for seed in range(10))
    disk.fsync_directory(FOLDER)
    survivors = {disk.after_crash(seed).contents()["a"] for seed in range(20)}
    assert len(survivors) > 5
    disk.fdatasync(fd)
    assert {disk.after_crash(seed).contents()["a"] for seed in range(10)} == {b"x" * 4096}
