"""The daemon merges small files in the background, beside its writers, and loses no row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import trio
import trio.testing

from ingester.buffer import BufferTree, FreezeLimits, TableBuffer, TreeHooks
from ingester.compaction import CompactionHooks, Compactor
from ingester.config.settings import (
    MaintenanceSettings,
    MemorySettings,
    PersistSettings,
    Settings,
)
from ingester.memory.ledger import MemoryLedger, Watermarks
from ingester.observability.status import CompactionStatus
from ingester.origins.registry import Origins
from ingester.tables.catalog import Catalog
from ingester.tables.commits import CommitHooks, Commits
from persist.compaction import InProcess, Rewriting, plan_compaction
from persist.manifest import Manifest, TableState, WriterIdentity, verify
from persist.parquet.encode import encode_sorted
from persist.parquet.put import FileOrigin, put_file
from persist.partitioning import UNPARTITIONED
from persist.store import open_store
from persist.store.local import LocalStore
from persist.table import TableDefinition
from tests.drivers.daemon import Daemon
from tests.drivers.waiting import until
from tests.drivers.wire import create, events, http, persist, put, query

QUICK: dict[str, Any] = {"maintenance__compact": "true", "persist__max_age": "100ms"}
NUMBERS = pa.schema({"n": pa.int64()})
WRITER = WriterIdentity("tested", "0" * 16, 1)
TABLE, KEYED = ("it", "plain"), ("it", "keyed")


def state_of(daemon: Daemon, table: tuple[str, str]) -> TableState:
    return Manifest(open_store(f"file://{daemon.data_dir / 'store'}"), *table).load()


def told(daemon: Daemon) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(http(daemon.http + "/api/status")[2])["compaction"]
    return found


def numbers(client: fl.FlightClient, table: tuple[str, str]) -> list[int]:
    return sorted(query(client, table, columns=["i"])["i"].to_pylist())


def test_small_files_are_merged_while_rows_are_written(tmp_path: Path) -> None:
    rounds = 0
    with (
        Daemon.start(tmp_path / "data", **QUICK) as daemon,
        fl.connect(daemon.flight) as client,
    ):
        create(client, KEYED, events(0, 1).schema, primary_key=["i"], partition_by=[])

        def write() -> bool:
            nonlocal rounds
            put(client, TABLE, events(100 * rounds, 100, days=2))
            put(client, KEYED, events(30 * rounds % 600, 100, days=2))
            persist(client, TABLE)
            rounds += 1
            return bool(told(daemon)["runs"] >= 2)

        until(write, "two compactions", 60.0)
        persist(client, KEYED)
        until(lambda: state_of(daemon, TABLE).file_count <= 8, "the rest to be merged")
        assert numbers(client, TABLE) == list(range(100 * rounds))
        wanted = {30 * n % 600 + m for n in range(rounds) for m in range(100)}
        assert numbers(client, KEYED) == sorted(wanted)
        counts = told(daemon)
        assert counts["replaced_files"] > counts["new_files"] > 0
        assert (counts["failed_runs"], counts["last_run_at"] is None) == (0, False)
        lines = http(daemon.http + "/metrics")[2].decode().splitlines()
        plain = [line.split() for line in lines if line[:1] != "#" and "{" not in line]
        metrics = {name: float(value) for name, value, *_ in plain}
        assert metrics["ingester_compaction_replaced_files_total"] >= counts["replaced_files"]
        assert metrics["ingester_compaction_seconds_count"] >= counts["runs"]
        for table in (TABLE, KEYED):
            found = verify(Manifest(open_store(f"file://{daemon.data_dir / 'store'}"), *table))
            assert not found.damaged, "a kept version lacks a file"
        log = daemon.stderr_file.read_bytes()
        assert b"table compacted" in log and b"internal-error" not in log
        assert daemon.terminate() == 0
        with daemon.again() as after, fl.connect(after.flight) as client:
            assert numbers(client, TABLE) == list(range(100 * rounds))
            assert numbers(client, KEYED) == sorted(wanted)


class World:
    """A compactor of its own over a table with small files, and the hooks that it asks."""

    def __init__(self, folder: Path, **maintenance: bool) -> None:
        self.busy = self.stopping = False
        self.store = LocalStore(folder / "store")
        self.ledger = MemoryLedger(Watermarks(800 << 20, 400 << 20, 720 << 20))
        self.tree = BufferTree(self.ledger, Origins(), FreezeLimits(1), TreeHooks())
        commits = Commits(self.store, self.tree, WRITER, CommitHooks(spill=lambda handle: None))
        self.catalog = Catalog(commits, self.tree, WRITER)
        settings = Settings(
            maintenance=MaintenanceSettings(**maintenance),
            memory=MemorySettings(limit=800 << 20),
            persist=PersistSettings(max_age=0.01),
        )
        hooks = CompactionHooks(
            lambda: self.busy, lambda: self.stopping, lambda seconds, counts: None
        )
        self.compactor = Compactor(self.catalog, self.tree, self.ledger, settings, hooks)

    async def table(self, files: int) -> TableBuffer:
        definition = TableDefinition(NUMBERS, UNPARTITIONED)
        table = await self.catalog.create("ns", "t", definition)
        await self.add(table, files)
        return table

    async def add(self, table: TableBuffer, files: int) -> None:
        """Commit files of ten rows each, of an hour ago."""
        origin = FileOrigin("push", "test", table.definition, (table.definition.spec_id, ()))
        rows = pa.table({"n": [*range(10)]}, schema=NUMBERS)
        root = self.catalog.commits.manifest(table.key).root
        adds = [
            put_file(self.store, root, file, origin)
            for _ in range(files)
            for file in encode_sorted(rows, table.definition, metadata={}, target_bytes=1 << 20)
        ]
        async with self.catalog.commits.held(table.key):
            state = await self.catalog.commits.commit_held(table.key, table.state, tuple(adds))
            self.catalog.commits.show(table, state)


def test_it_waits_while_the_daemon_is_busy_or_short_of_memory(tmp_path: Path) -> None:
    async def main() -> None:
        world = World(tmp_path, compact=True)
        table = await world.table(20)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.compactor.run)
            world.busy = True
            await trio.sleep(5)
            assert table.state.file_count == 20
            world.ledger.buffered, world.busy = 401 << 20, False
            await trio.sleep(5)
            assert table.state.file_count == 20
            world.ledger.buffered = 0
            while table.state.file_count > 1:
                await trio.sleep(0.1)
            assert (world.compactor.statistics().runs, world.ledger.used) == (1, 0)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(rate=20))


def test_nothing_is_merged_unless_it_is_switched_on(tmp_path: Path) -> None:
    async def main() -> None:
        world = World(tmp_path)
        await world.table(20)
        with trio.fail_after(1):
            await world.compactor.run()
        assert world.compactor.statistics() == CompactionStatus()

    trio.run(main)


def test_files_that_others_replaced_meanwhile_are_a_conflict(tmp_path: Path) -> None:
    """Another compaction commits while ours has read its files."""

    async def main() -> None:
        world = World(tmp_path, compact=True)
        table = await world.table(20)
        manifest = Manifest(world.store, *table.key)
        reads = world.store.open

        def overtaken(path: str) -> pa.NativeFile:
            if path.endswith(".parquet"):
                world.store.open = reads  # type: ignore[method-assign]
                runner = InProcess(world.store, 1 << 30)
                Rewriting(manifest, runner, 1 << 20).run([plan_compaction])
            return reads(path)

        world.store.open = overtaken  # type: ignore[method-assign]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.compactor.run)
            while not world.compactor.statistics().conflicts:
                await trio.sleep(0.1)
            assert table.state.file_count == 1
            assert world.compactor.statistics().new_files == 0
            nursery.cancel_scope.cancel()
        assert not verify(manifest).damaged

    trio.run(main, clock=trio.testing.MockClock(rate=20))


def test_a_damaged_file_is_told_and_the_table_is_left_alone_for_a_while(tmp_path: Path) -> None:
    async def main() -> None:
        world = World(tmp_path, compact=True)
        table = await world.table(20)
        [path, *_] = table.state.files
        world.store.put(f"{Manifest(world.store, *table.key).root}/{path}", b"PAR1 damaged PAR1")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.compactor.run)
            while not world.compactor.statistics().failed_runs:
                await trio.sleep(0.1)
            await trio.sleep(10)
            assert world.compactor.statistics().failed_runs == 1
            assert table.state.file_count == 20
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(rate=20))
