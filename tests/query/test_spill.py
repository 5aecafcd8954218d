"""Merged rows of a keyed table wait on disk until they are sent, or are counted as memory."""

from __future__ import annotations

import gc
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
import trio

from ingester.errors import ClientGone, TooSlow
from ingester.query import spill as spill_module
from ingester.query.fair_scheduler import CpuAccount
from ingester.query.read_context import Selection
from ingester.query.reader import PartReader
from ingester.query.snapshot import snapshot_all
from ingester.query.spill import FEW_BYTES, ResultSpill, SpilledResult
from ingester.query.stream import AnswerStream
from ingester.query.ticket import predicate_of
from persist.parquet.copy_on_write import RewriteLimits
from tests.drivers.stage import KEYED, KEYS, SCHEMA, Stage


@pytest.fixture(autouse=True)
def _no_garbage() -> None:
    """Collect the garbage of other tests first, so that it does not disturb memory measurements."""
    gc.collect()


ROWS = pa.record_batch({"n": pa.array(range(50_000)), "s": ["x" * 50] * 50_000})


@pytest.mark.parametrize("where", ["on disk", "in memory", "few"])
def test_all_rows_come_back_in_order(tmp_path: Path, where: str) -> None:
    rows = ROWS.slice(0, 100) if where == "few" else ROWS
    spill = ResultSpill(None if where == "in memory" else tmp_path / "spill")
    waiting = SpilledResult(spill, [rows.slice(0, 30), rows.slice(30)])
    assert spill.nbytes == pytest.approx(0 if where == "on disk" else rows.nbytes, abs=16)
    assert (spill.files, spill.file_bytes > 0) == ((1, True) if where == "on disk" else (0, False))
    assert pa.Table.from_batches(waiting.parts()).combine_chunks().to_batches() == [rows]
    waiting.close()
    waiting.close()
    assert (spill.nbytes, spill.files, spill.file_bytes) == (0, 0, 0)
    if where == "on disk":
        assert not list((tmp_path / "spill").iterdir()), "it has a name"


def test_without_room_on_the_disk_rows_stay_in_memory_and_count(tmp_path: Path) -> None:
    (tmp_path / "spill").write_bytes(b"a file where the folder would be")
    spill = ResultSpill(tmp_path / "spill")
    waiting = SpilledResult(spill, [ROWS])
    assert spill.nbytes == ROWS.nbytes > FEW_BYTES
    assert sum(part.num_rows for part in waiting.parts()) == ROWS.num_rows
    waiting.close()
    assert spill.nbytes == 0


@pytest.mark.parametrize("what", ["DISK_SHARE", "MOST_FILES"])
def test_files_of_answers_leave_the_disk_to_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    free = shutil.disk_usage(tmp_path).free
    share = int(free / (1.5 * ROWS.nbytes))  # room for one result, not for two
    monkeypatch.setattr(spill_module, what, share if what == "DISK_SHARE" else 1)
    spill = ResultSpill(tmp_path / "spill")
    first, second = SpilledResult(spill, [ROWS]), SpilledResult(spill, [ROWS])
    assert (spill.files, spill.nbytes) == (1, ROWS.nbytes)
    first.close()
    third = SpilledResult(spill, [ROWS])
    assert (spill.files, spill.nbytes) == (1, ROWS.nbytes)
    second.close()
    third.close()
    assert (spill.files, spill.nbytes) == (0, 0)


def test_rows_on_disk_are_in_no_memory(tmp_path: Path) -> None:
    before = pa.total_allocated_bytes()
    rows = pa.record_batch({"n": pc.random(1_000_000)})
    assert pa.total_allocated_bytes() >= before + rows.nbytes > before + FEW_BYTES
    waiting = SpilledResult(ResultSpill(tmp_path / "spill"), [rows])
    del rows
    assert pa.total_allocated_bytes() < before + FEW_BYTES
    assert sum(part.num_rows for part in waiting.parts()) == 1_000_000
    waiting.close()


def stream(stage: Stage, account: CpuAccount | None = None) -> AnswerStream:
    """A stream of all rows."""
    predicate: list[Any] = []
    selection = Selection(SCHEMA, predicate_of(predicate, SCHEMA), None)
    snapshot = snapshot_all(stage.table, lambda table: len(stage.rows))
    reader = PartReader(snapshot, selection, stage.groups, ("ns", "t"), account)
    return AnswerStream(stage.table.key, reader, on_close=lambda stream: None)


@pytest.mark.parametrize("end", ["read", "dropped", "expired"])
def test_an_answer_that_stands_still_holds_keys_and_no_rows(tmp_path: Path, end: str) -> None:
    stage = Stage(tmp_path, KEYED)

    async def main() -> None:
        await stage.create()
        stage.write(2_000)
        answer = stream(stage)
        first = next(answer).batch.num_rows
        keys = len({key for _, key in stage.rows})
        assert first < keys
        assert 0 < stage.groups.result_spill.nbytes <= 16 * keys < stage.table.nbytes / 4
        if end == "read":
            assert first + sum(part.batch.num_rows for part in answer) == keys
        elif end == "dropped":
            del answer
        else:
            assert answer.expire(float("inf"))
            with pytest.raises(TooSlow):
                next(answer)
        assert stage.groups.result_spill.nbytes == 0

    trio.run(main)


@pytest.mark.parametrize("where", ["on disk", "in memory"])
def test_an_answer_whose_client_goes_while_rows_are_put_aside_holds_nothing(
    tmp_path: Path, where: str
) -> None:
    stage = Stage(tmp_path, KEYED)
    spill = stage.groups.result_spill
    if where == "in memory":
        spill.folder = None

    def check_wanted() -> None:
        if spill.files or spill.nbytes:
            raise ClientGone

    async def main() -> None:
        await stage.create()
        stage.write(2_000)
        with pytest.raises(ClientGone):
            next(stream(stage, CpuAccount("ns", check_wanted=check_wanted)))
        assert (spill.files, spill.file_bytes, spill.nbytes) == (0, 0, 0)

    trio.run(main)


def test_an_answer_that_stands_still_holds_neither_buffers_nor_row_groups(tmp_path: Path) -> None:
    stage = Stage(tmp_path, KEYED)

    async def main() -> None:
        async with stage.running():
            stage.write(KEYS)
            await stage.persist()  # a row group of 1.2 MB
            before = pa.total_allocated_bytes()
            stage.write(1000)
            answer = stream(stage)
            found = next(answer).batch.num_rows
            assert pa.total_allocated_bytes() > before + 50_000_000
            await stage.persist()
            stage.groups.shrink()
            assert pa.total_allocated_bytes() < before + 1_000_000
            assert found + sum(part.batch.num_rows for part in answer) == KEYS

    trio.run(main)


def test_an_answer_that_stands_still_in_a_file_holds_a_part_of_it(tmp_path: Path) -> None:
    stage = Stage(tmp_path, KEYED)
    stage.file_writer.limits = RewriteLimits(1 << 30)  # all in one row group

    async def main() -> None:
        async with stage.running():
            stage.write(KEYS)
            await stage.persist()
            before = pa.total_allocated_bytes()
            stage.write(1)
            answer = stream(stage)
            found = next(answer).batch.num_rows
            assert stage.groups.nbytes > 1_000_000
            stage.groups.shrink()
            assert pa.total_allocated_bytes() < before + 700_000
            assert found + sum(part.batch.num_rows for part in answer) == KEYS

    trio.run(main)
