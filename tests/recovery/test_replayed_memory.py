"""What replay leaves out of a record does not stay in memory with what is left of it."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
import trio
from immutables import Map

from ingester.buffer import BufferTree, FreezeLimits, TableBuffer, TreeHooks
from ingester.dml.operation import OriginWrite
from ingester.dml.record import LoggedSchema, encode_operation, table_rows
from ingester.memory.ledger import MemoryLedger, Watermarks
from ingester.origins.registry import Origins
from ingester.recovery.replay import Replay, ReplayLimits
from ingester.tables.catalog import Catalog
from persist.manifest import TableState, apply
from persist.partitioning import PartitionSpec, order_by_partition
from persist.table import TableDefinition
from wal import Log, Record, RecordKind

SCHEMA = pa.schema({"p": pa.string(), "f": pa.string()})
DEFINITION = TableDefinition(SCHEMA, PartitionSpec.parse(["identity(p)"]))
KEY = ("ns", "t")
PROCESS = ("ingester", 1)
RECORDS = 40


@pytest.mark.parametrize("coalesced", [False, True])
def test_rows_in_files_are_not_kept_beside_the_others(coalesced: bool) -> None:
    logged = LoggedSchema.of(1, KEY, SCHEMA)
    batch = pa.record_batch([["in files"] * 250 + ["left"] * 5, ["x" * 4000] * 255], schema=SCHEMA)
    counts: list[Any] = [((0, 250),), ((1, 5),)] if coalesced else []
    rows = table_rows(logged, 1, order_by_partition(batch, DEFINITION.spec), row_counts=counts)
    writes = (OriginWrite(0, "a", 1, None), OriginWrite(1, "b", 1, None)) if coalesced else ()
    payload = b"".join(memoryview(each) for each in encode_operation(rows, writes=writes))

    class OneLog:
        async def replay(self, allocate: Any, others: Any) -> AsyncIterator[list[Record]]:
            schema = pa.py_buffer(b"".join(logged.preamble.parts))
            yield [Record(RecordKind.SCHEMA, 1, schema, 1, 0, 1)]
            for number in range(RECORDS):
                copied = allocate(len(payload))
                memoryview(copied).cast("B")[:] = payload
                seq = 1 + number * (1 + coalesced)
                kind = RecordKind.OPERATION
                yield [Record(kind, seq, copied, 1, 0, 1, 1 + coalesced)]

    gc.collect()
    before = pa.total_allocated_bytes()
    origins, memory = Origins(), MemoryLedger(Watermarks(1 << 40, 1 << 39, 1 << 40))
    tree = BufferTree(memory, origins, FreezeLimits(1 << 40), TreeHooks(), ingester_id=PROCESS[0])
    state = apply(TableState(), DEFINITION.actions())
    state = replace(state, applied=Map({(*PROCESS, 1, ("in files",)): 1 << 30}))
    table = tree.tables[KEY] = TableBuffer(*KEY, state)
    table.registered = True
    overlap = SimpleNamespace(note_replayed=lambda *args: None)
    catalog = cast(Catalog, SimpleNamespace(commits=SimpleNamespace(overlap=overlap)))
    replay = Replay(catalog, tree, origins, ReplayLimits(memory, lambda: None), PROCESS[0])
    report = trio.run(replay.run, cast(Log, OneLog()))
    assert (report.rows, report.skipped_rows) == (RECORDS * 5, RECORDS * 250)
    assert table.rows == RECORDS * 5
    assert pa.total_allocated_bytes() - before < 1.2 * table.nbytes
