"""Rows of many partitions that arrive in one message: what is counted is what is kept."""

from __future__ import annotations

import gc
from itertools import pairwise

import pyarrow as pa
import pytest

from ingester.buffer import BufferTree, FreezeLimits, PersistedFiles, TableBuffer, TreeHooks
from ingester.buffer.shared_memory import COPIED_BYTES
from ingester.dml.record import SLICED_BYTES, LoggedSchema, make_operation, table_rows
from ingester.memory.ledger import MemoryLedger, Watermarks
from ingester.origins.registry import Origins
from persist.manifest import TableState, apply
from persist.partitioning import PartitionSpec, order_by_partition
from persist.table import TableDefinition

SCHEMA = pa.schema({"p": pa.string(), "n": pa.int64(), "f": pa.string()})
DEFINITION = TableDefinition(SCHEMA, PartitionSpec.parse(["identity(p)"]))
KEY = ("ns", "t")
LOGGED = LoggedSchema.of(1, KEY, SCHEMA)


def _batch(partitions: list[str], filling: int) -> pa.RecordBatch:
    count = len(partitions)
    return pa.record_batch(
        [pa.array(partitions), pa.array(range(count), pa.int64()), ["x" * filling] * count],
        schema=SCHEMA,
    )


class Tree(BufferTree):
    """A tree of one table."""

    def __init__(self) -> None:
        self.memory = MemoryLedger(Watermarks(1 << 40, 1 << 39, 1 << 40))
        super().__init__(self.memory, Origins(), FreezeLimits(1 << 40), TreeHooks())
        state = apply(TableState(), DEFINITION.actions())
        self.table = self.tables[KEY] = TableBuffer(*KEY, state)

    def write(self, batch: pa.RecordBatch) -> None:
        ordered = order_by_partition(batch, DEFINITION.spec)
        operation = make_operation(table_rows(LOGGED, 1, ordered))
        operation.seq, operation.epoch = self.applied_seq + 1, 1
        self.apply(operation)

    def release(self, name: str) -> None:
        """Release a partition's buffer, as if its files were committed."""
        job = self.freeze(self.table.partitions[1, (name,)])
        assert job is not None
        files = PersistedFiles((), ())
        assert self.install(self.table, self.table.state, [(job.handle, files)]) == []


def test_rows_of_cold_partitions_do_not_keep_those_of_hot_ones() -> None:
    gc.collect()
    tree, before = Tree(), pa.total_allocated_bytes()
    for number in range(100):
        # A megabyte for one partition, which is flushed again and again, and a row for another.
        tree.write(_batch(["hot"] * 250 + [f"cold {number}"], 4000))
        if number % 10 == 9:
            tree.release("hot")
    assert tree.table.rows == 100
    assert tree.table.nbytes < 1 << 20
    assert pa.total_allocated_bytes() - before < 24 << 20


def test_rows_that_are_in_use_are_not_copied() -> None:
    """Each message begins a day and ends the one before, as times that rise do."""
    tree = Tree()
    before = pa.total_allocated_bytes()
    for day in range(60):
        tree.write(_batch([f"{day}"] * 200 + [f"{day + 1}"] * 200, 2000))
    copied = [
        chunk
        for handle in tree.table.handles()
        for chunk in handle.rows.chunks()
        if chunk.memory is None
    ]
    assert copied == []
    kept = pa.total_allocated_bytes() - before
    assert kept < 1.1 * tree.table.nbytes
    # Every second day leaves, and with the next rows the other halves are copied.
    for day in range(0, 60, 2):
        tree.release(f"{day}")
    for day in range(100, 130):
        tree.write(_batch([f"{day}"] * 200 + [f"{day + 1}"] * 200, 2000))
    assert pa.total_allocated_bytes() - before < 1.1 * tree.table.nbytes + (20 << 20)
    gc.collect()
    left = [int(values[0] or 0) for _, values in tree.table.partitions]
    found = {
        int(p)
        for handle in tree.table.handles()
        for batch in handle.rows.batches()
        for p in batch["p"].to_pylist()
    }
    assert found == set(left)


@pytest.mark.parametrize("filling", [10, 3000])
def test_what_is_counted_comes_and_goes_with_the_rows(filling: int) -> None:
    tree = Tree()
    names = [f"p{n}" for n in range(10)]
    for _ in range(120):
        tree.write(_batch(names * 12, filling))
    rows = 120 * 120
    kept = sum(handle.nbytes for handle in tree.table.handles())
    assert tree.memory.buffered == tree.table.nbytes == tree.table.use.held_bytes == kept
    assert kept >= rows * filling
    for name in names:
        tree.freeze(tree.table.partitions[1, (name,)])
    # Frozen buffers, too, are copied, and counted as what they are.
    assert (tree.memory.buffered, tree.memory.frozen) == (0, kept)
    for _ in range(80):
        tree.write(_batch(names * 12, filling))
    handles = list(tree.table.handles())
    frozen = sum(handle.nbytes for handle in handles if handle.frozen)
    assert tree.memory.frozen == tree.table.use.frozen_bytes == frozen
    assert tree.memory.buffered == sum(handle.nbytes for handle in handles) - frozen
    found = sorted(
        n for handle in handles for b in handle.rows.batches() for n in b["n"].to_pylist()
    )
    assert found == sorted(list(range(120)) * 200)


def test_what_a_buffer_leaves_behind_is_copied_little_by_little() -> None:
    gc.collect()
    tree, before = Tree(), pa.total_allocated_bytes()
    batch = _batch(["a", "b", "c", "d"] * 60, 4000)
    for _ in range(60):
        tree.write(batch)

    def copied() -> int:
        chunks = (chunk for handle in tree.table.handles() for chunk in handle.rows.chunks())
        return sum(chunk.nbytes for chunk in chunks if chunk.memory is None)

    steps = [0]
    for name in "ab":
        tree.release(name)
        steps.append(copied())
    for _ in range(60):
        tree.write(batch)
        steps.append(copied())
    assert steps[-1] > 12 << 20
    most = max(later - earlier for earlier, later in pairwise(steps))
    assert most < COPIED_BYTES + batch.nbytes
    assert pa.total_allocated_bytes() - before < 1.1 * tree.table.nbytes + (18 << 20)


def test_what_a_buffer_leaves_behind_is_copied_though_no_message_follows() -> None:
    tree = Tree()
    for _ in range(60):
        tree.write(_batch(["a", "b", "c"] * 60, 4000))
        tree.write(_batch(["d"], 1))
    tree.release("a")
    chunks = [chunk for handle in tree.table.handles() for chunk in handle.rows.chunks()]
    assert sum(chunk.memory is None for chunk in chunks if chunk.nbytes > 4000) > 0


def test_joined_chunks_leave_the_messages_that_they_came_in() -> None:
    gc.collect()
    tree, before = Tree(), pa.total_allocated_bytes()
    for _ in range(60):
        tree.write(_batch(["a"] * 100 + ["b"] * 100, 4000))
    for name in "ab":
        job = tree.freeze(tree.table.partitions[1, (name,)])
        assert job is not None
        assert list(job.handle.rows.enlarge_chunks(8 << 20))
    assert pa.total_allocated_bytes() - before < 1.1 * tree.table.nbytes


def test_parts_of_a_large_message_are_copied_where_it_is_prepared() -> None:
    batch = _batch(["a", "b"] * 300, SLICED_BYTES // 500)
    rows = table_rows(LOGGED, 1, order_by_partition(batch, DEFINITION.spec))
    assert not rows.shares_memory
    assert rows.message is not None
    assert rows.message.size > SLICED_BYTES
    for part in rows.parts:
        assert part.batch.num_rows == 300
        assert part.nbytes == part.batch.get_total_buffer_size()
        assert part.batch.nbytes == pytest.approx(part.nbytes, rel=0.1)
