"""The copies of a daemon: their limits, and how they end."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pyarrow as pa
import pytest
import trio
import trio.testing

from ingester.buffer import BufferTree, FreezeLimits, TreeHooks
from ingester.copies import copies as room
from ingester.copies.copies import Copies, CopyOptions
from ingester.copies.copy_files import Encoders
from ingester.copies.table_copy import CopyName, CopyState, IllegalCopyTransition, IncomingCopy
from ingester.copies.takeover import Takeover
from ingester.errors import BadRequest, NotAvailable, Stopping, TooManyStreams, UnknownTable
from ingester.memory.ledger import MemoryLedger, Watermarks
from ingester.origins.checkpoint_state import SourceCheckpoint
from ingester.origins.registry import Origins
from ingester.tables.catalog import Catalog
from ingester.tables.commits import CommitHooks, Commits
from persist.manifest import WriterIdentity, list_versions
from persist.parquet.sparse_rows import SplitRows
from persist.store import PutInfo
from tests.drivers.memory_store import MemoryStore

ME = WriterIdentity("tested", "0" * 16, 1)
SCHEMA = pa.schema({"id": pa.int64()})
STATE = SourceCheckpoint("source", b"state", None, "2026-11-26T10:00:00.000+00:00")
MEMORY = 1 << 30


async def nothing_buffered(*_: object) -> None:
    """No-op: the buffer is empty."""


class Room:
    """Copies into a store in memory."""

    def __init__(self, store: Any = None) -> None:
        self.store: Any = MemoryStore() if store is None else store
        self.stopping = False
        self.transformers: tuple[str, ...] = ()
        self.ledger = MemoryLedger(Watermarks(MEMORY, MEMORY, MEMORY))
        tree = BufferTree(self.ledger, Origins(), FreezeLimits(1), TreeHooks())
        commits = Commits(self.store, tree, ME, CommitHooks(spill=lambda handle: None))
        self.catalog = Catalog(commits, tree, ME)
        options = CopyOptions(
            names_of=lambda key, definition: self.transformers,
            is_stopping=lambda: self.stopping,
            upto_in=lambda tables: 0,
            target_bytes=1 << 20,
        )
        takeover = Takeover(self.catalog, tree, nothing_buffered)
        self.copies = Copies(self.catalog, ME, Encoders(self.ledger), takeover, options)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.copies.run)
            await trio.testing.wait_all_tasks_blocked()
            yield
            nursery.cancel_scope.cancel()

    async def bring(self, name: CopyName, rows: int = 10) -> IncomingCopy:
        """Send rows of a copy."""
        copy = await self.copies.open(name, ("id",), SCHEMA)
        batch = pa.record_batch([pa.array(range(rows), pa.int64())], schema=SCHEMA)
        split: SplitRows = [((), copy.normaliser()(batch))]
        await trio.to_thread.run_sync(copy.files.add, split)
        return copy

    def files(self) -> list[str]:
        """Return the data files in the store."""
        return [each.path for each in self.store.list("ns/") if each.path.endswith(".parquet")]


def test_a_copy_that_nobody_goes_on_with_is_forgotten_with_all_it_had(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(room, "LOOK_S", 0.05)

    async def main() -> None:
        there = Room()
        async with there.running():
            name = CopyName(("ns", "t"), "one")
            done = await there.bring(name)
            await there.copies.finish(name, 10, STATE)
            idle = CopyName(("ns", "t"), "two")
            await there.bring(idle, 200_000)  # the rows of one file
            left = await there.bring(idle)
            with trio.fail_after(30):
                while len(there.files()) < 2:
                    await trio.sleep(0.02)
            assert there.ledger.others > 0
            there.copies.closed(left)  # the copy's second stream
            for copy in (done, left):  # as if an hour had passed
                copy._touched_at = copy.files.touched_at = time.monotonic() - 3600
            await trio.sleep(0.2)
            assert there.ledger.others > 0, "its first stream is open"
            for copy in (done, left):
                there.copies.closed(copy)
                copy._touched_at = copy.files.touched_at = time.monotonic() - 3600
            with trio.fail_after(30):
                while there.ledger.others or len(there.files()) > 1:
                    await trio.sleep(0.02)
                while list_versions(there.store, "ns", "t")[-1].gone is None:
                    await trio.sleep(0.02)
            for gone in (idle, name):
                with pytest.raises(UnknownTable, match="is unknown here"):
                    await there.copies.finish(gone, 10, STATE)
            await there.copies.abort(idle)
        assert there.catalog.known("ns", "t") is not None

    trio.run(main)


class SlowStore(MemoryStore):
    """A store in which claiming a table version is slow."""

    def create(self, path: str, data: Any) -> PutInfo:
        put = super().create(path, data)
        if "/_versions/" in path:
            time.sleep(0.2)
        return put


def test_copies_that_are_begun_together_do_not_give_each_other_up() -> None:
    async def main() -> None:
        there = Room(SlowStore())
        first, *names = [CopyName(("ns", "t"), f"copy {number}") for number in range(3)]
        async with there.running():
            await there.bring(first)
            await there.copies.finish(first, 10, STATE)
            async with trio.open_nursery() as nursery:
                for name in names:
                    nursery.start_soon(there.bring, name)
            for name in names:
                assert (await there.copies.finish(name, 10, STATE)).rows == 10

    trio.run(main)


def test_so_many_copies_are_under_way_at_once_however_many_were_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(room, "MOST", 3)

    async def main() -> None:
        there = Room()
        async with there.running():
            for number in range(5):
                name = CopyName(("ns", f"t{number}"), "done")
                await there.bring(name)
                done = await there.copies.finish(name, 10, STATE)
                assert (done.table_version, done.rows) == (1, 10)
                assert await there.copies.finish(name, 10, STATE) == done
            for number in range(3):
                await there.bring(CopyName(("ns", f"t{number}"), "open"))
            with pytest.raises(TooManyStreams):
                await there.bring(CopyName(("ns", "t3"), "open"))
            await there.bring(CopyName(("ns", "t0"), "open"))  # another stream of an open copy
            # A stop releases all open copies and refuses new ones.
            there.stopping = True
            there.copies.stop()
            with pytest.raises(Stopping):
                await there.bring(CopyName(("ns", "t9"), "late"))
            with trio.fail_after(30):
                while there.ledger.others:
                    await trio.sleep(0.02)

    trio.run(main)


def test_a_table_that_is_transformed_takes_no_copies() -> None:
    async def main() -> None:
        there = Room()
        there.transformers = ("acme.rules:Clean",)
        async with there.running():
            with pytest.raises(NotAvailable, match="acme"):
                await there.bring(CopyName(("ns", "t"), "one"))

    trio.run(main)


def test_a_copy_goes_from_state_to_state_as_drawn() -> None:
    async def main() -> None:
        there = Room()
        async with there.running():
            copy = await there.copies.open(CopyName(("ns", "t"), "one"), ("id",), SCHEMA)
            with pytest.raises(IllegalCopyTransition):
                copy.become(CopyState.DONE)
            copy.become(CopyState.COMPLETE)
            with pytest.raises(BadRequest, match="is complete"):
                await there.bring(copy.name)

    trio.run(main)
