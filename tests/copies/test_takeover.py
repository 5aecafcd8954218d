"""A copy takes over a table while the store is unreachable: no writes, bounded waits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pyarrow as pa
import pytest
import trio
import trio.testing

from ingester.buffer import BufferTree, FreezeLimits, TableBuffer, TreeHooks
from ingester.copies.takeover import WRITERS_WAIT_S, Takeover
from ingester.errors import BadRequest, ReplacedByCopy, StoreUnreachable
from ingester.memory.ledger import MemoryLedger, Watermarks
from ingester.origins.registry import Origins
from ingester.schema.definition import keyed_definition
from ingester.tables.catalog import Catalog
from ingester.tables.commits import CommitHooks, Commits
from ingester.tables.new_version import WholeTable
from persist.manifest import CheckpointAction, WriterIdentity, claim_version, last_switch
from persist.store import PutInfo, StoreUnavailable
from persist.switching import switch_version
from tests.drivers.memory_store import MemoryStore

ME = WriterIdentity("tested", "0" * 16, 1)
KEY = ("ns", "t")
OLD, NEW = pa.schema({"id": pa.int64()}), pa.schema({"k": pa.string()})
STATE = CheckpointAction("source", "AAAA", None, "tested", 1, 0)


class AwayStore(MemoryStore):
    """A store in which a version switch fails before it takes effect, or after (``does``)."""

    def __init__(self) -> None:
        super().__init__()
        self.away = False
        self.does = False

    def create(self, path: str, data: Any) -> PutInfo:
        if self.away and "/_current/" in path:
            if self.does:
                super().create(path, data)
            raise StoreUnavailable("away")
        return super().create(path, data)


async def nothing_buffered(*_: object) -> None:
    """No-op: the buffer is empty."""


async def opened() -> tuple[AwayStore, Catalog, Takeover, TableBuffer]:
    """Open a table that this daemon owns."""
    store: Any = AwayStore()
    tree = BufferTree(MemoryLedger(Watermarks(1, 1, 1)), Origins(), FreezeLimits(1), TreeHooks())
    commits = Commits(store, tree, ME, CommitHooks(spill=lambda handle: None))
    catalog = Catalog(commits, tree, ME)
    table = await catalog.prepare_write(*KEY, OLD, keyed_definition(OLD, ["id"]))
    return store, catalog, Takeover(catalog, tree, nothing_buffered), table


def whole_of(store: Any) -> WholeTable:
    """Return a copy without rows."""
    number = claim_version(store, *KEY, "_copy/c/1")
    return WholeTable(KEY, number, "_copy/c/1", keyed_definition(NEW, ["k"]), (), STATE)


def run(test: Callable[..., Awaitable[None]], *args: object) -> None:
    """Run a test with a clock that skips waits."""
    trio.run(test, *args, clock=trio.testing.MockClock(autojump_threshold=0.01))


def test_writers_wait_and_are_refused_until_it_is_known() -> None:
    run(_writers_wait)


async def _writers_wait() -> None:
    store, catalog, takeover, table = await opened()
    before, whole = table.definition, whole_of(store)
    store.away = True
    table.check_shape(before)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_carried_out, takeover, whole)
        while not table.write_latch._exclusive:
            await trio.sleep(0.01)
        with trio.move_on_after(WRITERS_WAIT_S / 2) as waiting:
            async with table.write_latch.shared():
                raise AssertionError("nobody writes meanwhile")
        assert waiting.cancelled_caught, "who comes early waits"
        with pytest.raises(StoreUnreachable, match="being replaced by a copy"):
            async with table.write_latch.shared():
                raise AssertionError("nobody writes meanwhile")
        with pytest.raises(StoreUnreachable):
            await trio.to_thread.run_sync(table.write_latch.enter)
        store.away = False
    assert table.state.table_version == whole.number
    async with table.write_latch.shared():
        with pytest.raises(ReplacedByCopy):
            table.check_shape(before)
        table.check_shape(table.definition)
    assert catalog.known(*KEY) is table
    assert table.definition.schema.names == ["k"]


def test_a_switch_whose_answer_was_lost_is_made_once() -> None:
    run(_answer_lost)


async def _answer_lost() -> None:
    store, _, takeover, table = await opened()
    whole = whole_of(store)
    store.away = store.does = True
    assert (await takeover.carry_out(whole, is_new=False)).table_version == whole.number
    assert table.definition.schema.names == ["k"]
    assert last_switch(store, *KEY)[0] == 1


async def _carried_out(takeover: Takeover, whole: WholeTable) -> None:
    await takeover.carry_out(whole, is_new=False)


def test_a_table_that_a_push_was_faster_for_is_followed() -> None:
    run(_push_was_faster)


async def _push_was_faster() -> None:
    store, catalog, takeover, table = await opened()
    whole: WholeTable = whole_of(store)
    await catalog.new_versions.prepare(table, whole)
    pushed = claim_version(store, *KEY, "push")
    other = WholeTable(KEY, pushed, "push", keyed_definition(NEW, ["k"]), (), STATE)
    await catalog.new_versions.prepare(table, other)
    switch_version(store, *KEY, pushed, push_id="push", reshape=ME)
    with pytest.raises(BadRequest, match="start the copy again"):
        await catalog.new_versions.take_over(table, whole)
    assert table.state.table_version == pushed
    # A repeated copy gets the same refusal, and a finished one succeeds again.
    with pytest.raises(BadRequest):
        await takeover.carry_out(whole, is_new=False)
    assert (await takeover.carry_out(other, is_new=False)).table_version == pushed
