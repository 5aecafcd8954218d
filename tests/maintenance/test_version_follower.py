"""Manifest snapshots in the background: each is written when due, even if others fail."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import trio
import trio.testing

from ingester.buffer import BufferTree, FreezeLimits, TableBuffer, TreeHooks
from ingester.maintenance import RETRY_S, SnapshotWriter
from ingester.memory.ledger import MemoryLedger, Watermarks
from ingester.origins.registry import Origins
from ingester.tables.catalog import Catalog
from ingester.tables.commits import CommitHooks, Commits
from persist.manifest import WriterAction, WriterIdentity, snapshot_due
from persist.partitioning import UNPARTITIONED
from persist.store import PutInfo, StoreDenied
from persist.store.local import LocalStore
from persist.table import TableDefinition

if TYPE_CHECKING:
    from typing_extensions import Buffer

WRITER, OTHER = (WriterIdentity(name, "0" * 16, 1) for name in ("tested", "other"))
NUMBERS = pa.schema({"n": pa.int64()})


def _tree() -> BufferTree:
    return BufferTree(MemoryLedger(Watermarks(1, 1, 1)), Origins(), FreezeLimits(1), TreeHooks())


class DenyingStore(LocalStore):
    """Refuses snapshots of the tables in ``denied``."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.denied = {"first"}

    def put(self, path: str, data: Buffer) -> PutInfo:
        if path.endswith(".snapshot") and path.split("/")[1] in self.denied:
            raise StoreDenied(f"{path}: denied, on purpose")
        return super().put(path, data)


async def _due_table(catalog: Catalog, name: str) -> TableBuffer:
    table = await catalog.create("ns", name, TableDefinition(NUMBERS, UNPARTITIONED))
    while not snapshot_due(table.state):
        changed = (WriterAction(f"other-{table.state.version}", "0" * 16, 1, "open"),)
        async with catalog.commits.held(table.key):
            table.install(await catalog.commits.commit_held(table.key, table.state, changed))
    return table


def test_a_snapshot_that_cannot_be_written_holds_up_no_other_and_is_tried_again(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        store = DenyingStore(tmp_path / "store")
        tree = _tree()
        commits = Commits(store, tree, WRITER, CommitHooks(spill=lambda handle: None))
        catalog = Catalog(commits, tree, WRITER)
        tables = [await _due_table(catalog, name) for name in ("first", "second")]
        snapshots = SnapshotWriter(commits)
        for table in tables:
            snapshots.note(table)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(snapshots.run)
            await trio.sleep(RETRY_S / 2)
            assert [snapshot_due(table.state) for table in tables] == [True, False]
            store.denied.clear()
            await trio.sleep(RETRY_S)
            assert [snapshot_due(table.state) for table in tables] == [False, False]
            assert snapshots.written == 2
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0.2))


class HangingStore(LocalStore):
    """Counts reads."""

    reads = 0

    def get(self, path: str) -> bytes:
        self.reads += 1
        return super().get(path)


def test_a_store_that_is_known_to_be_away_holds_up_no_answer(tmp_path: Path) -> None:
    """A hanging store would delay each answer; what needs the newest version still asks it."""

    async def main() -> None:
        store, answers = HangingStore(tmp_path / "store"), False
        tree = _tree()
        hooks = CommitHooks(spill=lambda handle: None, reads=lambda: answers)
        catalog = Catalog(Commits(store, tree, WRITER, hooks), tree, WRITER)
        table = await catalog.create("ns", "t", TableDefinition(NUMBERS, UNPARTITIONED))
        other = Catalog(Commits(store, _tree(), OTHER, hooks), tree, OTHER)
        await other.commits.commit_held(
            table.key, table.state, (WriterAction("o", "0" * 16, 1, "open"),)
        )
        known, before = table.state.version, store.reads
        await catalog.refresh(table, 0.0)
        assert (table.state.version, store.reads) == (known, before)
        assert catalog.refresh_lag_s >= 0
        answers = True
        await catalog.refresh(table, 0.0)
        assert table.state.version == known + 1
        assert store.reads > before

    trio.run(main)
