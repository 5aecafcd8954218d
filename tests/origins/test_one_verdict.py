"""Every component gives the same verdict on whether a sequence is already stored.

Processes take over one origin in turn and flush rows of two partitions. Deduplication,
replication, replay, adoption and the flush then each decide which rows a process still has to
write, and are compared with a model. The catalogue and the takeover are stand-ins that answer
from the one version that the history has produced.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pyarrow as pa
import trio
from hypothesis import given
from hypothesis import strategies as st

from ingester.buffer import BufferTree, TableBuffer
from ingester.buffer.tree import FreezeLimits, TreeHooks
from ingester.dml.operation import Operation, Part
from ingester.dml.record import LoggedSchema, encode_operation, table_rows
from ingester.errors import OwnedElsewhere
from ingester.memory.ledger import MemoryLedger, Watermarks
from ingester.origins.registry import Origins
from ingester.recovery.adoption_rules import OrphanKey, OrphanPart, left_of
from ingester.recovery.replay import Replay, ReplayLimits
from ingester.replication.dedup import TransactionDedup
from ingester.replication.open_transactions import TableChanges
from ingester.tables.catalog import Catalog
from ingester.tables.claims import OriginClaims
from ingester.tables.origin_takeover import OriginTakeover
from ingester.write.acknowledgement import Acknowledgement
from ingester.write.dedup import Deduplication
from persist.manifest import Applied, OriginAction, PartitionKey, TableState, WriterIdentity, apply
from persist.manifest.origins import Process, fresh, origin_of, owned, taken_over, with_ends
from persist.partitioning import PartitionedRows, PartitionSpec
from persist.table import TableDefinition
from wal import Log, Record, RecordKind

NAME, TABLE, LAST = "o", ("ns", "t"), 9
SCHEMA = pa.schema({"p": pa.int64(), "n": pa.int64()})
DEFINITION = TableDefinition(SCHEMA, PartitionSpec.parse(["identity(p)"]))
PARTITIONS: tuple[PartitionKey, ...] = ((DEFINITION.spec_id, (0,)), (DEFINITION.spec_id, (1,)))
PROCESSES: tuple[Process, ...] = (("a", 1), ("b", 1), ("a", 2), ("c", 5))

Rows = set[tuple[int, PartitionKey]]
"""(sequence, partition)"""


class Bring(NamedTuple):
    """A process flushes its rows of a partition, up to a sequence."""

    process: int
    partition: int
    upto: int
    tells_complete: bool


class History:
    """The state of one version, and the model of it."""

    def __init__(self) -> None:
        self.state = apply(TableState(), DEFINITION.actions())
        self.owner: dict[int, Process] = {}
        self.first: dict[Process, int] = {}
        self.in_files: Rows = set()
        self.logged: dict[Process, Rows] = {}
        """The log of each process: all rows that were in no file when it took over the origin."""
        self.claims: dict[Process, OriginAction] = {}

    @property
    def origin(self) -> OriginAction:
        return self.state.origins[NAME]

    @property
    def newest(self) -> Process:
        return self.origin.owner_id, self.origin.owner_epoch

    def take(self, process: Process, first: int) -> None:
        if not self.owner:
            first = 0
        base = self.state.origins.get(NAME) or fresh(NAME, process)
        self.claims[process] = taken_over(base, process, first, None)
        self.state = apply(self.state, [self.claims[process]])
        self.first[process] = first
        self.owner |= dict.fromkeys(range(first, LAST + 1), process)
        rows = {(seq, key) for seq in range(first, LAST + 1) for key in PARTITIONS}
        self.logged[process] = rows - self.in_files

    def bring(self, process: Process, partition: PartitionKey, bring: Bring) -> None:
        runs = owned(self.origin)
        for index, (run, end) in enumerate(list(with_ends(runs))):
            last = min(bring.upto, end - 1, LAST)
            if run.owner != process or last < run.first:
                continue
            self.in_files |= {(seq, partition) for seq in range(run.first, last + 1)}
            complete = run.first - 1
            while all((complete + 1, key) in self.in_files for key in PARTITIONS):
                complete += 1
            told = min(complete, end - 1) if bring.tells_complete else None
            runs[index] = run.advanced(told, {partition: last})
        applied = max(self.state.applied_to(*process, *partition), bring.upto + 1)
        actions = (
            origin_of(fresh(NAME, self.newest), self.newest, runs, None),
            Applied(*process, *partition, applied),
        )
        self.state = apply(self.state, actions)

    def to_write(self, process: Process, first: int) -> Rows:
        """The rows from ``first`` that a process still has to write, according to the model."""
        return {
            (seq, key)
            for seq, owner in self.owner.items()
            for key in PARTITIONS
            if owner == process and seq >= first and (seq, key) not in self.in_files
        }


@st.composite
def histories(draw: st.DrawFn) -> History:
    history = History()
    for number in range(draw(st.integers(1, len(PROCESSES)))):
        history.take(PROCESSES[number], draw(st.integers(0, LAST)))
        brings = st.builds(
            Bring, st.integers(0, number), st.integers(0, 1), st.integers(0, LAST), st.booleans()
        )
        for bring in draw(st.lists(brings, max_size=4)):
            history.bring(PROCESSES[bring.process], PARTITIONS[bring.partition], bring)
    return history


class Daemon:
    """A daemon that has just started, and knows the origin from the manifest only."""

    def __init__(self, history: History, process: Process) -> None:
        self.origins = Origins()
        self.table = TableBuffer(*TABLE, history.state)
        self.table.registered = True
        origin_table = self.origins.table(NAME, TABLE)
        if history.newest == process:
            self.origins.claim(origin_table, history.origin, process)
        else:
            self.origins.claim(origin_table, history.claims[process], process)
            writer = WriterIdentity(process[0], "run", process[1])
            OriginClaims(self.origins, writer, expire_after_s=1.0).lost_rows(
                self.table, replace(history.state, version=history.state.version + 1)
            )


def by_deduplication(daemon: Daemon) -> tuple[Rows, set[int]]:
    """The rows that deduplication passes on, and the sequences that it refuses."""
    handed: Rows = set()
    refused: set[int] = set()

    class Told(Acknowledgement):
        def answer(self, error: BaseException | None) -> None:
            if error is not None:
                assert isinstance(error, OwnedElsewhere)
                assert self.operation.origin_sequence is not None
                refused.add(self.operation.origin_sequence)

    def append(acknowledgement: Acknowledgement) -> None:
        operation = acknowledgement.operation
        assert operation.origin_sequence is not None
        sequence = operation.origin_sequence
        handed.update((sequence, (operation.spec_id, p.values)) for p in operation.parts)
        acknowledgement.finish(None)

    def shrink(operation: Operation, left: tuple[Part, ...]) -> None:
        operation.parts = left

    def await_store(routes: object, answer: object) -> None:
        raise AssertionError("nothing asks for the store")

    dedup = Deduplication(daemon.origins, append, shrink, lambda table: DEFINITION, await_store)
    for sequence in range(LAST + 1):
        operation = operation_of(sequence, {(sequence, key) for key in PARTITIONS})
        dedup.submit(Told(operation, None))
    return handed, refused


def by_replication(daemon: Daemon) -> tuple[Rows, set[int]]:
    """The rows that replication would commit, and the sequences that it refuses."""
    new: Rows = set()
    refused: set[int] = set()

    async def prepare_write(*args: Any) -> TableBuffer:
        return daemon.table

    async def take(*args: Any) -> None:
        """No-op: the origin keeps the owner that the history gave it."""

    async def ask() -> None:
        catalog = cast(Catalog, SimpleNamespace(prepare_write=prepare_write))
        takeover = cast(OriginTakeover, SimpleNamespace(origins=daemon.origins, take=take))
        dedup = TransactionDedup(catalog, takeover)
        for sequence in range(LAST + 1):
            try:
                found = await dedup.new_in(TABLE, TableChanges(DEFINITION), (NAME, sequence))
            except OwnedElsewhere:
                refused.add(sequence)
                continue
            if found is not None:
                new.update((sequence, key) for key in PARTITIONS if key not in found.covered)

    trio.run(ask)
    return new, refused


def by_replay(history: History, process: Process) -> Rows:
    """The rows that replay of a process's log puts into the buffers."""
    origins = Origins()
    tree = tree_of(origins, process)
    table = tree.tables[TABLE] = TableBuffer(*TABLE, history.state)
    table.registered = True
    overlap = SimpleNamespace(note_replayed=lambda *args: None)
    catalog = cast(Catalog, SimpleNamespace(commits=SimpleNamespace(overlap=overlap)))
    limits = ReplayLimits(MemoryLedger(Watermarks(1 << 30, 1 << 29, 1 << 29)), lambda: None)

    class OrphanLog:
        async def replay(self, allocate: Any, others: Any) -> AsyncIterator[list[Record]]:
            logged = LoggedSchema.of(1, TABLE, SCHEMA)
            schema = pa.py_buffer(b"".join(logged.preamble.parts))
            yield [Record(RecordKind.SCHEMA, 1, schema, 1, 0, process[1])]
            for sequence, rows in sorted(by_sequence(history.logged[process]).items()):
                split = [(part.values, part.batch) for part in parts_of(sequence, rows)]
                ordered = PartitionedRows.joined(split, DEFINITION.schema)
                left = table_rows(logged, DEFINITION.spec_id, ordered)
                pieces = encode_operation(left, (NAME, sequence))
                payload = pa.py_buffer(b"".join(memoryview(piece) for piece in pieces))
                yield [Record(RecordKind.OPERATION, sequence + 1, payload, 1, 0, process[1])]

    replay = Replay(catalog, tree, origins, limits, process[0])
    trio.run(replay.run, cast(Log, OrphanLog()))
    return {
        (row["n"], partition)
        for partition, buffer in table.partitions.items()
        for handle in buffer.handles()
        for batch in handle.rows.batches()
        for row in batch.to_pylist()
    }


def by_adoption(state: TableState, process: Process, logged: Rows) -> Rows:
    """The rows that adoption of a process's log still commits."""
    share: dict[OrphanKey, list[OrphanPart]] = {}
    for sequence, (spec_id, values) in sorted(logged):
        key = OrphanKey(WriterIdentity(process[0], "run", process[1]), spec_id, values)
        old = OrphanPart(sequence + 1, batch_of(sequence, values), NAME, sequence)
        share.setdefault(key, []).append(old)
    return {
        (part.origin_sequence, (key.spec_id, key.values))
        for key, parts in left_of(state, share).items()
        for part in parts
        if part.origin_sequence is not None
    }


def by_flush(history: History, process: Process) -> set[int]:
    """The sequences that a process's commit of all its buffers would leave out."""
    origins = Origins()
    tree = tree_of(origins, process)
    tree.tables[TABLE] = TableBuffer(*TABLE, history.state)
    origins.claim(origins.table(NAME, TABLE), history.claims[process], process)
    for sequence, rows in sorted(by_sequence(history.logged[process]).items()):
        operation = operation_of(sequence, rows)
        operation.seq, operation.epoch = sequence + 1, process[1]
        tree.apply(operation)
    claims = OriginClaims(origins, WriterIdentity(process[0], "run", process[1]))
    left_out = claims.left_out(history.state, list(tree.unreleased()))
    return {seq - 1 for each in left_out for seq in each}


def by_sequence(rows: Rows) -> dict[int, Rows]:
    found: dict[int, Rows] = {}
    for sequence, key in rows:
        found.setdefault(sequence, set()).add((sequence, key))
    return found


def batch_of(sequence: int, values: tuple[Any, ...]) -> pa.RecordBatch:
    return pa.record_batch([pa.array([values[0]]), pa.array([sequence])], schema=SCHEMA)


def tree_of(origins: Origins, process: Process) -> BufferTree:
    return BufferTree(
        MemoryLedger(Watermarks(1 << 30, 1 << 29, 1 << 29)),
        origins,
        FreezeLimits(1 << 30),
        TreeHooks(),
        ingester_id=process[0],
    )


def operation_of(sequence: int, rows: Rows) -> Operation:
    return Operation(
        table=TABLE,
        parts=parts_of(sequence, rows),
        rows=len(rows),
        nbytes=16 * len(rows),
        schema_number=1,
        spec_id=DEFINITION.spec_id,
        origin=NAME,
        origin_sequence=sequence,
    )


def parts_of(sequence: int, rows: Rows) -> tuple[Part, ...]:
    return tuple(Part(values, batch_of(sequence, values), 16) for _, (_, values) in sorted(rows))


@given(histories())
def test_all_who_ask_are_told_what_is_still_to_be_written(history: History) -> None:
    for process in history.first:
        if process == history.newest:
            handed, refused = by_deduplication(Daemon(history, process))
            assert handed == history.to_write(process, 0)
            assert by_replication(Daemon(history, process)) == (handed, refused)
            assert all(history.owner[sequence] != process for sequence in refused)
            unsafe = {seq for seq, owner in history.owner.items() if owner != process}
            assert {s for s in unsafe if not in_files(history, s)} <= refused
        else:
            everything = set(range(LAST + 1))
            assert by_deduplication(Daemon(history, process)) == (set(), everything)
            assert by_replication(Daemon(history, process)) == (set(), everything)
        expected = history.to_write(process, history.first[process])
        logged = history.logged[process]
        assert by_adoption(history.state, process, logged) == expected
        # Only the origin's entry records rows that came in by another log of the same process.
        unapplied = replace(history.state, applied=TableState().applied)
        assert by_adoption(unapplied, process, logged) == expected
        assert by_replay(history, process) == expected
        left_out = by_flush(history, process)
        assert left_out.isdisjoint(sequence for sequence, _ in expected)
        assert left_out >= {
            sequence
            for sequence, key in logged
            if history.owner[sequence] != process and (sequence, key) not in history.in_files
        }


def in_files(history: History, sequence: int) -> bool:
    return all((sequence, key) in history.in_files for key in PARTITIONS)
