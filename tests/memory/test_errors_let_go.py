"""The memory of a failed attempt is freed with its error: a lack of memory may be its cause."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pyarrow.flight as fl
import pytest
import trio

from ingester.errors import BadRequest, MemoryFull
from ingester.flush.file_writer import CannotEncode, FileWriter, Ordered
from ingester.flush.worker_pool import WorkerPool
from ingester.memory.ledger import MemoryLedger, Watermarks
from ingester.server.flight.refusals import refusals, says_answered
from persist.parquet.copy_on_write import RewriteLimits
from persist.prefetch import one_ahead
from tests.drivers.stage import AS_THEY_CAME, WRITER, Stage


class Rows:
    """The rows of an attempt."""


class Hopeless(FileWriter):
    """A file writer that fails for any rows."""

    held: ClassVar[list[weakref.ref[Rows]]] = []

    def order(self, *_args: object, **_more: object) -> Ordered:
        rows = Rows()
        self.held.append(weakref.ref(rows))
        raise CannotEncode(f"not of {rows}")


@pytest.fixture(autouse=True)
def _no_collections() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def test_an_item_that_cannot_be_made_keeps_nothing() -> None:
    held: list[weakref.ref[Rows]] = []

    def make() -> Iterator[int]:
        rows = Rows()
        held.append(weakref.ref(rows))
        yield 1
        raise MemoryError(f"no room for {rows}")

    with pytest.raises(MemoryError):
        list(one_ahead(make()))
    assert [one() for one in held] == [None]


def test_an_upload_that_cannot_be_made_keeps_nothing(tmp_path: Path) -> None:
    stage = Stage(tmp_path, AS_THEY_CAME)

    async def fail_twice() -> None:
        await stage.create()
        stage.write(10)
        [partition] = stage.table.partitions.values()
        stage.on_freeze = lambda job: None
        job = stage.tree.freeze(partition)
        assert job is not None
        ledger = MemoryLedger(Watermarks(limit=3, low=1, high=2))
        file_writer = Hopeless(stage.store, WRITER, RewriteLimits(1))
        uploads = WorkerPool(file_writer, ledger, lambda *_: None, workers=1)
        for _ in range(2):
            with pytest.raises(CannotEncode):
                await uploads.finish(await uploads.begin(job))
        with trio.fail_after(20):
            while any(one() is not None for one in file_writer.held):
                await trio.sleep(0.01)  # the thread that ran it releases it last
        assert len(file_writer.held) == 4, "each began in vain and was tried again when it was due"

    trio.run(fail_twice)


class _Context:
    """A call's context, which discards trailers."""

    def add_trailer(self, name: str, value: bytes) -> None:
        assert name.endswith("-bin")
        assert value


@pytest.mark.parametrize("kind", [BadRequest, MemoryFull])
def test_a_refusal_keeps_nothing_of_the_batch_that_it_is_for(kind: type[Exception]) -> None:
    held: list[weakref.ref[Rows]] = []

    def refuse() -> None:
        rows = Rows()
        held.append(weakref.ref(rows))
        raise kind(f"not {rows}")

    for _ in range(2):
        with (
            suppress(pa.ArrowInvalid, fl.FlightError),
            refusals(_Context()),
            says_answered(lambda: 3),
        ):
            refuse()
    assert [one() for one in held] == [None, None]


def test_who_keeps_what_it_was_refused_for_keeps_no_call() -> None:
    """Each refused stream kept its last message until the garbage collector ran."""
    calls: list[weakref.ref[Rows]] = []

    def call() -> None:
        stream = Rows()  # the error passes through its frame, and it keeps the error
        calls.append(weakref.ref(stream))
        with suppress(fl.FlightError), refusals(_Context()), says_answered(lambda: 0):
            stream.refused_for = MemoryFull("not now")  # type: ignore[attr-defined]
            raise stream.refused_for  # type: ignore[attr-defined]

    call()
    assert [one() for one in calls] == [None]
