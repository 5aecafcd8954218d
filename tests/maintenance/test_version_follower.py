"""Snapshots of manifests in the background: each when it is due, whatever becomes of the others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import trio
import trio.testing

from ingester.buffer import BufferTree, FreezeLimits, TableBuffer, TreeHooks
from ingester.maintenance.manifest_snapshots import SnapshotWriter
from ingester.maintenance.version_follower import RETRY_S
from ingester.memory.ledger import MemoryLedger, Watermarks
from ingester.origins.registry import Origins
from ingester.tables.catalog import Catalog
from ingester.tables.commits import CommitHooks, Commits
from persist.manifest import Writer, WriterIdentity, snapshot_due
from persist.partitioning import UNPARTITIONED
from persist.store import PutInfo, StoreDenied
from persist.store.local import LocalStore
from persist.table import TableDefinition

if TYPE_CHECKING:
    from typing_extensions import Buffer

WRITER = WriterIdentity("tested", "0" * 16, 1)


class DenyingStore(LocalStore):
    """Takes no snapshot of the tables in ``denied``."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.denied = {"first"}

    def put(self, path: str, data: Buffer) -> PutInfo:
        if path.endswith(".snapshot") and path.split("/")[1] in self.denied:
            raise StoreDenied(f"{path}: denied, on purpose")
        return super().put(path, data)


async def _due_table(catalog: Catalog, name: str) -> TableBuffer:
    definition = TableDefinition(pa.schema({"n": pa.int64()}), UNPARTITIONED)
    table = await catalog.create("ns", name, definition)
    while not snapshot_due(table.state):
        changed = (Writer(f"other-{table.state.version}", "0" * 16, 1, "open"),)
        async with catalog.commits.held(table.key):
            table.install(await catalog.commits.commit_held(table.key, table.state, changed))
    return table


def test_a_snapshot_that_cannot_be_written_holds_up_no_other_and_is_tried_again(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        store = DenyingStore(tmp_path / "store")
        tree = BufferTree(
            MemoryLedger(Watermarks(1, 1, 1)), Origins(), FreezeLimits(1), TreeHooks()
        )
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
