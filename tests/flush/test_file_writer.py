"""Rows that cannot be encoded stay in memory, and the daemon continues.

Buffers of a partition become files in their order, and memory for jobs is released.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import trio

import ingester.flush.file_writer
import ingester.flush.flusher
from ingester.buffer import FlushJob, RowsToFlush
from ingester.flush.file_writer import CannotEncode, FileWriter, Ordered, Upload
from ingester.flush.flusher import Flusher
from persist.parquet.copy_on_write import RewriteLimits
from tests.drivers.stage import AS_THEY_CAME, KEYED, SORTED, WRITER, Stage


def test_rows_that_do_not_fit_the_tables_version_cannot_be_encoded(tmp_path: Path) -> None:
    stage = Stage(tmp_path, AS_THEY_CAME)

    async def write() -> None:
        await stage.create()
        stage.write(10)

    trio.run(write)
    stage.on_freeze = lambda job: None
    job = stage.tree.freeze(next(iter(stage.table.partitions.values())))
    assert job is not None
    state = stage.table.state
    flags = stage.table.definition.with_schema(pa.schema({"filling": pa.bool_()})).schema_action()
    other = replace(state, current_schema=flags)
    file_writer = FileWriter(stage.store, WRITER, RewriteLimits(1 << 20))
    with pytest.raises(CannotEncode):
        file_writer.upload(job.rows, other)
    assert not list((tmp_path / "store").rglob("*.parquet"))
    assert len(file_writer.upload(job.rows, state).files.adds) == 1


async def _until(happened: Callable[[], bool]) -> None:
    with trio.fail_after(30):
        while not happened():
            await trio.sleep(0.01)


class Stubborn(FileWriter):
    """Fails for the first buffer until the test allows it."""

    stage = ""
    may = False
    tried = 0

    def _refuse(self, stage: str, flushed: RowsToFlush) -> None:
        if stage == self.stage and flushed.first_seq == 1 and not self.may:
            self.tried += 1
            raise CannotEncode("not yet")

    def order(self, flushed: RowsToFlush, *args: Any, **more: Any) -> Ordered:
        self._refuse("order", flushed)
        return super().order(flushed, *args, **more)

    def put(self, ordered: Ordered) -> Upload:
        self._refuse("put", ordered.flushed)
        return super().put(ordered)


@pytest.mark.parametrize("kind", [AS_THEY_CAME, KEYED])
@pytest.mark.parametrize("where", ["order", "put"])
def test_buffers_behind_one_that_cannot_be_encoded_follow_it_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, kind: str
) -> None:
    monkeypatch.setattr(ingester.flush.flusher, "ENCODE_RETRY_S", 0.02)
    stage = Stage(tmp_path, kind, file_writer=Stubborn)
    file_writer = stage.file_writer
    assert isinstance(file_writer, Stubborn)
    file_writer.stage = where

    async def persist() -> None:
        await stage.create()
        flusher: Flusher = stage.flusher
        for _ in range(4):
            stage.write(10)
            [partition] = stage.table.partitions.values()
            assert stage.tree.freeze(partition) is not None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(flusher.run)
            await _until(lambda: file_writer.tried > 4 and not flusher.queue.queued_jobs)
            assert stage.persisted == []
            file_writer.may = True
            await _until(lambda: len(stage.persisted) == 4)
            assert [job.handle.first_seq for job in stage.persisted] == [1, 11, 21, 31]
            assert flusher.queued_bytes == stage.ledger.jobs == 0
            nursery.cancel_scope.cancel()

    trio.run(persist)


def _frozen(stage: Stage) -> FlushJob:
    """A buffer of ten rows that is not flushed."""
    stage.write(10)
    stage.on_freeze = lambda job: None
    job = stage.tree.freeze(next(iter(stage.table.partitions.values())))
    assert job is not None
    return job


def test_only_rows_that_depend_on_no_files_are_put_into_order_beforehand(tmp_path: Path) -> None:
    async def begin(kind: str) -> bool:
        stage = Stage(tmp_path / kind, kind)
        await stage.create()
        job, uploads = _frozen(stage), stage.flusher.pool
        begun = await uploads.begin(job)
        assert stage.ledger.jobs == begun.nbytes >= job.handle.nbytes
        ordered = begun.ordered is not None
        assert (await uploads.finish(begun)).files.adds
        assert begun.ordered is None
        assert stage.ledger.jobs == 0
        return ordered

    assert trio.run(begin, AS_THEY_CAME)
    assert not trio.run(begin, KEYED)


def test_what_cannot_be_read_at_the_beginning_is_read_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def persist() -> None:
        stage = Stage(tmp_path, AS_THEY_CAME)
        await stage.create()
        job, uploads = _frozen(stage), stage.flusher.pool
        with monkeypatch.context() as patch:

            def fail(*_: object) -> Ordered:
                raise OSError("not now")

            patch.setattr(stage.file_writer, "order", fail)
            begun = await uploads.begin(job)
        assert begun.ordered is None
        assert stage.ledger.jobs == begun.nbytes >= job.handle.nbytes
        assert sum(add.rows for add in (await uploads.finish(begun)).files.adds) == 10
        assert stage.ledger.jobs == 0

    trio.run(persist)


def test_a_buffer_of_many_chunks_has_few_once_it_is_put_into_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_back: list[int] = []
    monkeypatch.setattr(ingester.flush.file_writer, "MANY_CHUNKS", 5)
    monkeypatch.setattr(ingester.flush.file_writer, "CHUNK_BYTES", 5_000_000)
    monkeypatch.setattr(ingester.flush.file_writer, "TRIM_BYTES", 6_000_000)
    monkeypatch.setattr(ingester.flush.file_writer, "give_back", lambda: given_back.append(1))

    async def upload(writes: int) -> tuple[int, int]:
        stage = Stage(tmp_path / str(writes), SORTED)
        await stage.create()
        for _ in range(writes - 1):
            stage.write(14)
        job = _frozen(stage)
        handle = job.handle
        size, chunks = handle.nbytes, handle.rows.chunk_count
        assert chunks == writes
        before = pa.Table.from_batches(handle.rows.batches())
        upload = await stage.flusher.pool.finish(await stage.flusher.pool.begin(job))
        assert sum(add.rows for add in upload.files.adds) == before.num_rows
        assert handle.nbytes == size
        assert pa.Table.from_batches(handle.rows.batches()) == before
        return handle.rows.chunk_count, len(given_back)

    assert trio.run(upload, 5) == (5, 0)
    chunks, times = trio.run(upload, 20)
    assert chunks == 4
    assert times == 2
