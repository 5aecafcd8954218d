"""Whatever happens to its buffers meanwhile, a reader gets the rows of its snapshot, each once.

Real buffers, catalog, persists and files; what a daemon does by itself is done step by step, so
that every interleaving of writes, persists and readers can come up.
"""

from __future__ import annotations

import datetime as dt
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from ingester.buffer import BufferHandle, BufferTree, TableBuffer
from ingester.catalog import Catalog
from ingester.commits import Commits
from ingester.memory import MemoryLedger, Watermarks
from ingester.origins import Origins
from ingester.persisting import Persister
from ingester.query.files import RowGroups
from ingester.query.predicate import parse_filter
from ingester.query.reader import Part, PartReader, Selection
from ingester.query.snapshot import Snapshot, snapshot_all
from ingester.query.spill import spill_handle
from ingester.sinks.operation import Operation
from ingester.sinks.operation import Part as OperationPart
from persist.manifest import WriterIdentity
from persist.partitioning import UNPARTITIONED, PartitionSpec, split_batch
from persist.store.local import LocalStore
from persist.table import TableDefinition

SCHEMA = pa.schema({"n": pa.int64(), "k": pa.int64(), "p": pa.int64(), "filling": pa.string()})
FILLING = "x" * 60_000
"""Four rows make a part."""
KEYS = 20
PARTITIONS = 3
KEYED, SORTED, AS_THEY_CAME = "keyed", "sorted", "as they came"
PARTITIONED = "partitioned"
"""Sorted, and in several buffers that are committed together."""
SPEC = PartitionSpec.parse(["identity(p)"])
WRITER = WriterIdentity("tested", "0" * 16, 1)

steps = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(1, 14)),
        st.tuples(st.just("open"), st.booleans()),
        st.tuples(st.just("read"), st.integers(0, 5)),
        st.tuples(st.just("persist"), st.just(0)),
        st.tuples(st.just("read"), st.integers(0, 5)),
        st.tuples(st.just("leave"), st.integers(0, 5)),
    ),
    min_size=10,
    max_size=40,
)


class Reader:
    """A snapshot under way, and the row numbers that it should bring."""

    def __init__(self, snapshot: Snapshot, parts: Iterator[Part], expected: list[int]) -> None:
        self.snapshot = snapshot
        self.parts = parts
        self.expected = expected
        self.found: list[int] = []

    def read(self) -> bool:
        """One more part; False at the end."""
        part = next(self.parts, None)
        if part is None:
            return False
        self.found += part.batch["n"].to_pylist()
        return True


class Stage:
    """One table with everything that its rows go through."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.kind = kind
        self.store = LocalStore(folder / "store")
        ledger = MemoryLedger(Watermarks(1 << 40, 1 << 39, 1 << 40))
        self.tree = BufferTree(ledger, Origins(), max_partition_bytes=1 << 40)
        self.spilled: list[BufferHandle] = []
        commits = Commits(self.store, self.tree, WRITER, spill=partial(self._spill, folder))
        self.catalog = Catalog(commits, self.tree, WRITER, auto_create=True)
        # 500 KB a file: some buffers become several.
        self.persister = Persister(
            self.catalog, ledger, WRITER, workers=2, target_file_bytes=500_000
        )
        self.tree.on_freeze = self.persister.enqueue
        self.groups = RowGroups(self.store)
        self.rows: list[tuple[int, int]] = []
        self.table: TableBuffer

    def _spill(self, folder: Path, handle: BufferHandle) -> None:
        self.spilled.append(handle)
        assert spill_handle(folder / "spill", handle) > 0
        assert not list((folder / "spill").iterdir()), "a spill has a name"

    async def create(self) -> None:
        definition = TableDefinition(
            SCHEMA,
            SPEC if self.kind == PARTITIONED else UNPARTITIONED,
            primary_key=("k",) if self.kind == KEYED else (),
            sort_by=("k",) if self.kind in (SORTED, PARTITIONED) else (),
        )
        self.table = await self.catalog.create("ns", "t", definition)

    def write(self, count: int) -> None:
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
            OperationPart(values, part, part.nbytes)
            for values, part in split_batch(batch, self.table.definition.spec)
        )
        operation = Operation(self.table, parts, count, batch.nbytes, shape=1)
        operation.seq, operation.epoch = first + 1, 1
        self.tree.apply(operation)

    def open(self, filtered: bool) -> Reader:
        expected = {k: n for n, k in self.rows}.values()
        wanted = sorted(expected) if self.kind == KEYED else [n for n, _ in self.rows]
        half = len(self.rows) // 2
        predicate: list[Any] = [[["n", ">=", half]]] if filtered else []
        selection = Selection(SCHEMA, parse_filter(predicate, SCHEMA), None)
        snapshot = snapshot_all(self.table, len(self.rows))
        reader = PartReader(snapshot, selection, self.groups, "ns/t/v1")
        return Reader(
            snapshot, reader.parts(), [n for n in wanted if n >= half] if filtered else wanted
        )

    async def persist(self) -> None:
        for partition in list(self.table.partitions.values()):
            self.tree.freeze(partition)
        with trio.fail_after(30):
            while list(self.table.handles()):
                await trio.sleep(0.001)


async def _play(kind: str, script: list[tuple[str, int]], folder: Path) -> list[BufferHandle]:
    stage = Stage(folder, kind)
    readers: list[Reader] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.persister.run)
        await stage.create()
        for step, number in script:
            if step == "write":
                stage.write(number)
            elif step == "open":
                readers.append(stage.open(bool(number)))
            elif step == "persist":
                await stage.persist()
            elif readers and step == "read":
                readers[number % len(readers)].read()
            elif readers:
                readers.pop(number % len(readers)).snapshot.close()
        for reader in readers:
            while reader.read():
                pass
            assert sorted(reader.found) == reader.expected
            reader.snapshot.close()
        nursery.cancel_scope.cancel()
    return stage.spilled


@pytest.mark.parametrize("kind", [SORTED, PARTITIONED, AS_THEY_CAME, KEYED])
def test_a_reader_gets_its_snapshot_whatever_happens_to_its_buffers(kind: str) -> None:
    @given(steps)
    @settings(max_examples=50, deadline=dt.timedelta(seconds=30))
    def play(script: list[tuple[str, int]]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            trio.run(_play, kind, script, Path(folder))

    play()


MIDDLE = [("write", 14), ("open", 0), ("read", 0), ("write", 3), ("persist", 0), ("write", 2)]


@pytest.mark.parametrize(
    ("kind", "spills"), [(SORTED, 1), (PARTITIONED, PARTITIONS), (AS_THEY_CAME, 0), (KEYED, 1)]
)
def test_only_what_files_cannot_tell_is_spilled(kind: str, spills: int, tmp_path: Path) -> None:
    spilled = trio.run(_play, kind, MIDDLE, tmp_path)
    assert len(spilled) == spills


def test_a_released_buffer_keeps_no_order_of_arrival_in_memory(tmp_path: Path) -> None:
    for handle in trio.run(_play, SORTED, MIDDLE, tmp_path):
        assert handle.files is not None
        assert handle.files.nbytes == 0


def test_nothing_is_spilled_for_a_reader_that_has_not_begun(tmp_path: Path) -> None:
    script = [("write", 14), ("open", 0), ("persist", 0), ("write", 2), ("persist", 0)]
    assert trio.run(_play, SORTED, script, tmp_path) == []
