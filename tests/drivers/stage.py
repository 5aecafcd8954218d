"""One table with real buffers, catalog, flushes and files, without a daemon.

Tests run each step explicitly, so that every interleaving of writes, flushes and readers can
occur.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import trio

from ingester.buffer import (
    BufferHandle,
    BufferTree,
    FlushJob,
    FreezeLimits,
    TableBuffer,
    TreeHooks,
)
from ingester.dml.operation import Operation, Part
from ingester.flush.file_writer import FileWriter
from ingester.flush.flusher import Flusher, FlushHooks
from ingester.memory.ledger import MemoryLedger, Watermarks
from ingester.origins.registry import Origins
from ingester.query.read_context import AnswerPart, Selection
from ingester.query.reader import PartReader
from ingester.query.row_group_cache import RowGroupCache
from ingester.query.snapshot import Snapshot, snapshot_all
from ingester.query.spill import ResultSpill, spill_handle
from ingester.query.ticket import predicate_of
from ingester.tables.catalog import Catalog
from ingester.tables.commits import CommitHooks, Commits
from persist.manifest import WriterIdentity
from persist.parquet.copy_on_write import RewriteLimits
from persist.partitioning import UNPARTITIONED, PartitionSpec, split_batch
from persist.store.local import LocalStore
from persist.table import TableDefinition

SCHEMA = pa.schema({"n": pa.int64(), "k": pa.int64(), "p": pa.int64(), "filling": pa.string()})
FILLING = "x" * 60_000
"""Four rows form a part."""
KEYS = 20
PARTITIONS = 3
KEYED, SORTED, AS_THEY_CAME = "keyed", "sorted", "as they came"
PARTITIONED, KEYED_PARTITIONED = "partitioned", "keyed and partitioned"
"""The rows go to several buffers that are committed together; the buffer without a key is
sorted."""
SPEC = PartitionSpec.parse(["identity(p)"])
WRITER = WriterIdentity("tested", "0" * 16, 1)


class Reader:
    """An open snapshot, and the row numbers it should return."""

    def __init__(
        self, snapshot: Snapshot, parts: Iterator[AnswerPart], expected: list[int]
    ) -> None:
        self.snapshot = snapshot
        self.parts = parts
        self.expected = expected
        self.found: list[int] = []

    def read(self) -> bool:
        """Read one more part; return False at the end."""
        part = next(self.parts, None)
        if part is None:
            return False
        self.found += part.batch["n"].to_pylist()
        return True


class Stage:
    """One table with every component that its rows pass through."""

    def __init__(
        self,
        folder: Path,
        kind: str,
        store: LocalStore | None = None,
        file_writer: type[FileWriter] = FileWriter,
    ) -> None:
        """``store`` is by default a plain local one in the folder."""
        self.kind = kind
        self.store = LocalStore(folder / "store") if store is None else store
        ledger = self.ledger = MemoryLedger(Watermarks(1 << 40, 1 << 39, 1 << 40))
        self.tree = BufferTree(
            ledger,
            Origins(),
            FreezeLimits(1 << 40),
            TreeHooks(
                lambda job, why: self.on_freeze(job),
                on_release=lambda table, handle: self.on_release(table, handle),
            ),
            ingester_id=WRITER.ingester_id,
        )
        self.spilled: list[BufferHandle] = []
        self.persisted: list[FlushJob] = []
        hooks = CommitHooks(partial(self._spill, folder))
        commits = Commits(self.store, self.tree, WRITER, hooks)
        self.catalog = Catalog(commits, self.tree, WRITER)
        # 500 KB a file: some buffers are split into several files.
        self.file_writer = file_writer(self.store, WRITER, RewriteLimits(500_000))
        observer = FlushHooks(lambda job, *_: self.persisted.append(job))
        self.flusher = Flusher(self.catalog, ledger, self.file_writer, observer, workers=2)
        self.on_freeze: Callable[[FlushJob], None] = self.flusher.enqueue
        self.on_release: Callable[[TableBuffer, BufferHandle], None] = lambda table, handle: None
        self.groups = RowGroupCache(self.store, result_spill=ResultSpill(folder / "spill"))
        self.rows: list[tuple[int, int]] = []
        self.table: TableBuffer
        self.epoch = 1
        self.segment = 0
        """The log segment that operations are attributed to."""

    def _spill(self, folder: Path, handle: BufferHandle) -> None:
        self.spilled.append(handle)
        assert spill_handle(folder / "spill", handle) > 0
        assert not list((folder / "spill").iterdir()), "a spill has a name"

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Create the table and run a flusher."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.flusher.run)
            await self.create()
            yield
            nursery.cancel_scope.cancel()

    async def create(self) -> None:
        definition = TableDefinition(
            SCHEMA,
            SPEC if self.kind in (PARTITIONED, KEYED_PARTITIONED) else UNPARTITIONED,
            primary_key={KEYED: ("k",), KEYED_PARTITIONED: ("p", "k")}.get(self.kind, ()),
            sort_by=("k",) if self.kind in (SORTED, PARTITIONED) else (),
        )
        self.table = await self.catalog.create("ns", "t", definition)

    def write(self, count: int, origin: str | None = None, messages: int = 0) -> None:
        first = len(self.rows)
        numbers = range(first, first + count)
        if self.kind == AS_THEY_CAME:
            keys = list(numbers)
        else:
            keys = [n * 13 % KEYS for n in numbers]
        self.rows += zip(numbers, keys, strict=True)
        columns = (numbers, keys, [n % PARTITIONS for n in numbers], [FILLING] * count)
        batch = pa.record_batch([pa.array(column) for column in columns], schema=SCHEMA)
        parts = tuple(
            Part(values, part, part.nbytes)
            for values, part in split_batch(batch, self.table.definition.spec)
        )
        sequence = None if origin is None else first + 1
        operation = Operation(
            self.table.key,
            parts,
            count,
            batch.nbytes,
            schema_number=1,
            spec_id=self.table.definition.spec_id,
            origin=origin,
            origin_sequence=sequence,
            messages=messages,
            shares_memory=len(parts) > 1,
        )
        operation.seq, operation.epoch, operation.segment = first + 1, self.epoch, self.segment
        self.tree.apply(operation)

    def open(self, filtered: bool) -> Reader:
        expected = {k: n for n, k in self.rows}.values()
        wanted = sorted(expected) if self.kind == KEYED else [n for n, _ in self.rows]
        half = len(self.rows) // 2
        predicate: list[Any] = [[["n", ">=", half]]] if filtered else []
        selection = Selection(SCHEMA, predicate_of(predicate, SCHEMA), None)
        snapshot = snapshot_all(self.table, lambda table: len(self.rows))
        reader = PartReader(snapshot, selection, self.groups, ("ns", "t"))
        return Reader(
            snapshot, reader.parts(), [n for n in wanted if n >= half] if filtered else wanted
        )

    async def persist(self) -> None:
        for partition in list(self.table.partitions.values()):
            self.tree.freeze(partition)
        with trio.fail_after(30):
            while list(self.table.handles()):
                await trio.sleep(0.001)
