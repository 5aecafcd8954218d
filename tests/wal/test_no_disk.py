"""A log on a disk that keeps nothing: the same order and groups, and nothing on disk."""

from __future__ import annotations

from pathlib import Path

from tests.wal.driving import in_trio, recovered_records, running
from tests.wal.test_shipping import ByHand, for_store
from wal import LogSettings, NoDisk
from wal.disk import Mode


@in_trio
async def test_a_log_without_a_disk_orders_rotates_and_prunes_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    folder, shipping = tmp_path / "wal", ByHand()
    settings = LogSettings(segment_bytes=8192)
    async with running(folder, settings, disk=NoDisk(), shipping=shipping) as state:
        entries = [for_store(b"x" * 1000) for _ in range(40)]
        state.answers.append(state.log, *entries)
        await shipping.wait_for(40)
        assert [entry.seq for entry in entries] == list(range(1, 41))
        assert entries[-1].segment > entries[0].segment == 1
        state.log.shipped(shipping.take(40))
        assert await state.answers.wait(*entries) == [None] * 40
        assert state.applied == entries
        assert await state.log.prune(entries[-1].segment) == list(range(1, entries[-1].segment))
        assert state.log.statistics().last_seq == 40
        await state.log.rotate()
        large = for_store(bytes(100_000))
        state.answers.append(state.log, large)
        await shipping.wait_for(1)
        state.log.shipped(shipping.take(1))
        assert await state.answers.wait(large) == [None]
    assert not folder.exists()
    recovered, records = await recovered_records(folder, NoDisk())
    assert (recovered.segments, recovered.last_seq, records) == ((), 0, [])
    assert not folder.exists()


class CountingDisk(NoDisk):
    """Counts the descriptors that are open."""

    def __init__(self) -> None:
        super().__init__()
        self.open_files = set[int]()

    def open(self, path: Path, mode: Mode) -> int:
        fd = super().open(path, mode)
        self.open_files.add(fd)
        return fd

    def close(self, fd: int) -> None:
        super().close(fd)
        self.open_files.remove(fd)


@in_trio
async def test_a_log_without_a_disk_closes_all_that_it_opened(tmp_path: Path) -> None:
    disk = CountingDisk()
    async with running(tmp_path / "wal", disk=disk) as state:
        entries = await state.answers.write(state.log, *[bytes(1000)] * 30)
        await state.log.prune(entries[-1].segment)
        assert entries[-1].segment > 5
        assert 0 < len(disk.open_files) < 5
    assert disk.open_files == set()
