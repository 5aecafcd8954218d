"""Which segments of the log are deleted, and when."""

from __future__ import annotations

from pathlib import Path

import trio

from ingester.flush.log_truncation import LogTruncation
from tests.drivers.stage import AS_THEY_CAME, Stage
from tests.wal.driving import running


def test_a_segment_stays_until_it_is_replayed_and_all_its_rows_are_in_files(tmp_path: Path) -> None:
    async def main() -> None:
        stage, removed = Stage(tmp_path, AS_THEY_CAME), list[int]()
        async with running(tmp_path / "wal") as state, stage.running():
            log = state.log
            truncation = LogTruncation(log, stage.tree, stage.flusher, removed.append)
            await state.answers.write(log, b"operation")
            first = stage.segment = log.open_segment
            await log.rotate()
            truncation.note_replaying(first)
            assert truncation.keep_from() == first
            truncation.note_replaying(None)
            assert truncation.keep_from() == log.open_segment > first
            stage.write(4)
            assert truncation.keep_from() == first
            await truncation.truncate()
            assert removed == []
            await stage.persist()
            assert truncation.keep_from() == log.open_segment
            await truncation.truncate()
            assert removed == [1]

    trio.run(main)
