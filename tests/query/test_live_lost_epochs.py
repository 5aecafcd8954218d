"""Followers of operations that came back from the store without the log of their epoch."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from ingester.query.live_groups import BEGINNING, GoneOperation, LogPast, Position
from ingester.query.live_tail import LiveSnapshot, LiveTails
from tests.drivers.stage import AS_THEY_CAME, FILLING, PARTITIONED, WRITER, Stage

SMALL = 2 * len(FILLING)


def rows_in(tails: LiveTails, answer: LiveSnapshot) -> list[int]:
    found: list[int] = []
    for group in answer.groups:
        rows = tails.rows(group.handle)
        assert rows is not None
        every = [n for chunk in rows.chunks() for n in chunk.batch["n"].to_pylist()]
        found += every[group.begin : group.end]
    return found


@pytest.mark.parametrize("kind", [AS_THEY_CAME, PARTITIONED])
def test_they_get_all_of_it_at_once_and_no_position_within(tmp_path: Path, kind: str) -> None:
    async def work() -> None:
        stage = Stage(tmp_path, kind)
        # The logs of epochs 2 and 5 are here, those of 3 and 4 are lost.
        past = LogPast(WRITER.ingester_id, 6, {2: 4, 5: 40})
        tails = LiveTails(stage.tree, past, retain_s=3600.0, retain_bytes=1 << 30)
        stage.catalog.commits.followers.append(tails.opened)
        stage.on_release = tails.released
        async with stage.running():
            for stage.epoch in (2, 3, 4, 5, 6):
                for _ in range(4):
                    stage.write(2)
            position, told = BEGINNING, []
            for _ in range(40):
                answer = tails.snapshot(stage.table, position, 1, SMALL)
                assert not isinstance(answer, GoneOperation)
                told += rows_in(tails, answer)
                position = answer.position
                assert position.epoch not in (3, 4)
                assert position.epoch == 6 or past.knows(position)
                if not answer.more:
                    break
            assert sorted(told) == [n for n, _ in stage.rows]
            assert position == tails.now(stage.table)
            first = tails.snapshot(stage.table, BEGINNING, 1, SMALL)
            assert isinstance(first, LiveSnapshot)
            assert (first.position, first.more) == (Position(5, 0), True)

    trio.run(work)
