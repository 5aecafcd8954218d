"""What an answer of a keyed table has merged and sends later is on disk, and counted where not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import trio

from ingester.errors import TooSlow
from ingester.query.aside import FEW_BYTES, Aside, RowsAside
from ingester.query.filters import parse_filter
from ingester.query.reader import PartReader, Selection
from ingester.query.snapshot import snapshot_all
from ingester.query.stream import AnswerStream
from tests.integration.stage import KEYED, SCHEMA, Stage

ROWS = pa.record_batch({"n": pa.array(range(50_000)), "s": ["x" * 50] * 50_000})


@pytest.mark.parametrize("where", ["on disk", "in memory", "few"])
def test_all_rows_come_back_in_order(tmp_path: Path, where: str) -> None:
    rows = ROWS.slice(0, 100) if where == "few" else ROWS
    aside = Aside(None if where == "in memory" else tmp_path / "spill")
    waiting = RowsAside(aside, rows)
    assert aside.nbytes == (0 if where == "on disk" else rows.nbytes)
    assert pa.Table.from_batches(waiting.parts()).combine_chunks().to_batches() == [rows]
    waiting.close()
    waiting.close()
    assert aside.nbytes == 0
    if where == "on disk":
        assert not list((tmp_path / "spill").iterdir()), "it has a name"


def test_without_room_on_the_disk_rows_stay_in_memory_and_count(tmp_path: Path) -> None:
    (tmp_path / "spill").write_bytes(b"a file where the folder would be")
    aside = Aside(tmp_path / "spill")
    waiting = RowsAside(aside, ROWS)
    assert aside.nbytes == ROWS.nbytes > FEW_BYTES
    assert sum(part.num_rows for part in waiting.parts()) == ROWS.num_rows
    waiting.close()
    assert aside.nbytes == 0


@pytest.mark.parametrize("end", ["read", "dropped", "expired"])
def test_an_answer_that_stands_still_holds_keys_and_no_rows(tmp_path: Path, end: str) -> None:
    stage = Stage(tmp_path, KEYED)

    def stream() -> AnswerStream:
        predicate: list[Any] = []
        selection = Selection(SCHEMA, parse_filter(predicate, SCHEMA), None)
        snapshot = snapshot_all(stage.table, lambda: len(stage.rows))
        reader = PartReader(snapshot, selection, stage.groups, "ns/t/v1")
        return AnswerStream(stage.table.key, reader, on_close=lambda stream: None)

    async def main() -> None:
        await stage.create()
        stage.write(10_000)
        answer = stream()
        first = next(answer).batch.num_rows
        keys = len({key for _, key in stage.rows})
        assert first < keys
        assert 0 < stage.groups.aside.nbytes <= 16 * keys < stage.table.nbytes / 4
        if end == "read":
            assert first + sum(part.batch.num_rows for part in answer) == keys
        elif end == "dropped":
            del answer
        else:
            assert answer.expire(float("inf"))
            with pytest.raises(TooSlow):
                next(answer)
        assert stage.groups.aside.nbytes == 0

    trio.run(main)
