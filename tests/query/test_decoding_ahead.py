"""Prefetch of row groups: the further a reader has come, the more is decoded ahead."""

from __future__ import annotations

from pathlib import Path

import trio

from ingester.query.row_group_cache import RowGroupCache
from persist.parquet.copy_on_write import RewriteLimits
from persist.parquet.reading import DataFile
from tests.drivers.stage import AS_THEY_CAME, Reader, Stage

FILES, ROWS = 5, 40
"""Four rows of 60 KB make a part, so each file has ten parts in one row group."""


class Watched(RowGroupCache):
    """A cache that records which files were prefetched and decodes nothing ahead."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage.store)
        self.ahead: list[str] = []

    def prefetch(self, file: DataFile, index: int, columns: tuple[str, ...], reader: int) -> bool:
        self.ahead.append(file.path)
        return True


def _opened(folder: Path) -> tuple[Watched, list[str], Reader]:
    """The recording cache, the paths of files of one row group each, and a reader of them."""
    stage = Stage(folder, AS_THEY_CAME)
    stage.file_writer.limits = RewriteLimits(1 << 30)

    async def persist() -> None:
        await stage.create()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.flusher.run)
            for _ in range(FILES):
                stage.write(ROWS)
                await stage.persist()
            nursery.cancel_scope.cancel()

    trio.run(persist)
    groups = stage.groups = Watched(stage)
    [files] = stage.table.state.partitions.values()
    assert [add.rows for add in files] == [ROWS] * FILES
    return groups, [f"ns/t/v1/{add.path}" for add in files], stage.open(filtered=False)


def test_nothing_for_who_has_not_come_through_most_of_a_row_group(tmp_path: Path) -> None:
    groups, _, reader = _opened(tmp_path)
    for _ in range(8):
        assert reader.read()
        assert groups.ahead == []
    reader.snapshot.close()


def test_one_group_behind_most_of_one_and_two_behind_a_whole_one(tmp_path: Path) -> None:
    groups, paths, reader = _opened(tmp_path)
    for _ in range(10):
        assert reader.read()
    assert groups.ahead == paths[1:2]
    assert reader.read()
    assert groups.ahead == paths[1:4]
    while reader.read():
        pass
    assert groups.ahead == paths[1:]
    assert reader.found == reader.expected
