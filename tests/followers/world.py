"""A follower's view of a table in memory: files, manifest, live feed.

The model is simple enough to be correct: rows are tuples in lists, and a flush moves operations
from a list into a file. :meth:`World.truth` returns the table's rows at any moment.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pyarrow as pa

from ingester.client.errors import InvalidRequest, Unavailable
from ingester.followers.feed import OPERATION, GroupOf, LiveAnswer, LiveBatch
from ingester.followers.files import FilePiece, fitted, selected
from ingester.followers.followed_copy import CopySource, FollowedCopy
from ingester.followers.place import SinkCalls, SinkPlace
from ingester.followers.sink import FileRows, FollowedTable
from ingester.followers.state import CopySelection, FeedPosition
from ingester.followers.version_copy import CopyOpening, Seek, open_copy_of
from persist.manifest import (
    EMPTY,
    Action,
    Add,
    Applied,
    CommittedVersion,
    EpochComplete,
    PartitionKey,
    Remove,
    TableState,
    VersionNotKept,
    WriterIdentity,
    apply,
)
from persist.partitioning import PartitionSpec
from persist.predicate.parse import parse_predicate
from persist.store import ObjectNotFound
from persist.table import TableDefinition
from tests.followers.memory_sink import Disk, MemorySink, OwnStates, StatefulSink

ME = "here"
ROW = dict[str, Any]


@dataclass
class Op:
    """One operation's rows in one partition."""

    epoch: int
    seq: int
    p: int
    buffer: int
    upserts: list[ROW]
    deletes: list[ROW] = field(default_factory=list)
    flushed_in: int = 0
    """The version whose files contain it."""

    @property
    def position(self) -> FeedPosition:
        return FeedPosition(self.epoch, self.seq)


class World:
    """A table partitioned by ``p``."""

    def __init__(self, *, keyed: bool) -> None:
        self.keyed = keyed
        fields = [("p", pa.int64()), ("id", pa.int64()), ("v", pa.string())]
        self.definition = TableDefinition(
            pa.schema(fields),
            PartitionSpec.parse(["identity(p)"]),
            ("p", "id") if keyed else (),
        )
        self.epoch = 1
        self.seq = 0
        self.buffered: list[Op] = []
        self.gone: list[Op] = []
        """Operations in files that the daemon no longer answers for."""
        self.taken_back_in = 0
        """The version whose files lack rows already sent to followers."""
        self.known_epochs = {1}
        """The epochs whose positions this daemon can resume from."""
        self.files: dict[str, list[ROW]] = {}
        self.versions: list[tuple[TableState, CommittedVersion]] = []
        self.kept_from = 1
        self.flushed: list[Op] = []
        """Operations in files that the daemon still answers for."""
        self.lost: list[Op] = []
        self.at_most = 1000
        """The most operations in one answer."""
        self._numbers = itertools.count(1)
        self.commit(list(self.definition.actions()))

    # --------------------------------------------------------------------------------------- events

    @property
    def state(self) -> TableState:
        return self.versions[-1][0]

    @property
    def columns(self) -> list[str]:
        return list(self.definition.schema.names)

    def commit(self, actions: Sequence[Action], writer: str = ME) -> None:
        number = len(self.versions) + 1
        before = self.versions[-1][0] if self.versions else EMPTY
        state = apply(before, actions)
        uid = f"uid{number}"
        state = TableState(
            **{
                name: getattr(state, name)
                for name in TableState.__dataclass_fields__
                if name not in ("version", "uid", "lineage")
            },
            version=number,
            uid=uid,
            lineage=((number, uid),),
        )
        identity = WriterIdentity(writer, "i", self.epoch)
        change = CommittedVersion(number, uid, "2026-11-21T00:00:00+00:00", identity, (*actions,))
        self.versions.append((state, change))

    def write(self, parts: dict[int, tuple[list[ROW], list[ROW]]]) -> None:
        """Write one operation: rows and deleted keys by partition."""
        self.seq += 1
        for p, (upserts, deletes) in parts.items():
            mine = [op for op in self.buffered if op.p == p and op.epoch == self.epoch]
            buffer = mine[-1].buffer if mine and mine[-1].buffer > 0 else self.seq
            self.buffered.append(Op(self.epoch, self.seq, p, buffer, upserts, deletes))

    def freeze(self, p: int) -> None:
        """Freeze a partition's buffer; later operations go into another one."""
        for op in self.buffered:
            if op.p == p and op.buffer > 0:
                op.buffer = -op.buffer

    def flush(self, p: int, *, drop: int = 0) -> None:
        """Flush a partition's oldest buffer, without its first ``drop`` operations.

        Dropped operations belong to an origin that moved to another daemon.
        """
        mine = [op for op in self.buffered if op.p == p]
        if not mine:
            return
        first = mine[0]
        ops = [op for op in mine if (op.epoch, op.buffer) == (first.epoch, first.buffer)]
        self.buffered = [op for op in self.buffered if op not in ops]
        self.flushed += ops[drop:]
        self._commit_ops(p, ops, ops[drop:], ops[0].epoch, ME)
        for op in ops:
            op.flushed_in = len(self.versions)
        if drop:
            self.taken_back_in = len(self.versions)

    def _commit_ops(
        self, p: int, ops: list[Op], written: list[Op], epoch: int, writer: str
    ) -> None:
        actions: list[Action] = []
        first, last = ops[0].seq, ops[-1].seq
        if self.keyed:
            there = self.of_files(p)
            for op in written:
                self._merge(there, op)
            removed = self.state.partitions.get(self.key(p), ())
            actions += [Remove(path=a.path, reason="replaced by newer rows") for a in removed]
            rows = list(there.values())
        else:
            rows = [row for op in written for row in op.upserts]
        if rows:
            actions.append(self._file(p, rows, "persist", writer, epoch, first, last))
        actions.append(Applied(writer, epoch, 1, (p,), last))
        self.commit(actions, writer)

    def _file(
        self, p: int, rows: list[ROW], kind: Any, writer: str, epoch: int, first: int, last: int
    ) -> Add:
        path = f"data/f{next(self._numbers)}"
        self.files[path] = [dict(row) for row in rows]
        return Add(
            path=path,
            kind=kind,
            rows=len(rows),
            bytes=len(rows),
            spec_id=1,
            values=(p,),
            stats={},
            writer=writer,
            epoch=epoch,
            first_seq=first,
            last_seq=last,
            schema_id=self.definition.schema_id,
            at="2026-11-21T00:00:00+00:00",
        )

    def compact(self, p: int, into: int | None = None) -> None:
        """Merge a partition's files into one, possibly in another partition; no row changes."""
        adds = list(self.state.partitions.get(self.key(p), ()))
        if not adds:
            return
        rows = [row for add in adds for row in self.files[add.path]]
        one = self._file(p if into is None else into, rows, "rewrite", "spark", 0, 0, 0)
        self.commit([*(Remove(path=a.path, reason="compaction") for a in adds), one], "spark")

    def others(self, p: int, rows: list[ROW], *, replace: bool = False) -> None:
        """Let another writer add rows to a partition's files, or replace all of its rows."""
        actions: list[Action] = []
        if self.keyed or replace:
            old = list(self.state.partitions.get(self.key(p), ()))
            actions += [Remove(path=a.path, reason="overwritten") for a in old]
            there = {} if replace else self.of_files(p)
            for row in rows:
                there[self.row_key(row) if self.keyed else len(there)] = row
            rows = list(there.values())
        if rows:
            actions.append(self._file(p, rows, "push", "spark", 0, 0, 0))
        if actions:
            self.commit(actions, "spark")

    def add_column(self) -> None:
        name = f"c{self.definition.schema_id}"
        schema = self.definition.schema.append(pa.field(name, pa.int64()))
        self.definition = self.definition.with_schema(schema)
        self.commit([self.definition.schema_action()])

    def restart(self, *, recut: bool) -> None:
        """Restart the daemon: its log restores operations that are in no file."""
        self.epoch += 1
        self.known_epochs.add(self.epoch)
        self.forget()
        for op in self.buffered:
            op.buffer = -abs(op.buffer)
        if recut:
            places: Counter[tuple[int, int]] = Counter()
            for op in self.buffered:
                places[op.p, op.epoch] += 1
                op.buffer = -1_000_000 - places[op.p, op.epoch] // 2
        self._complete()

    def lose_disk(self) -> None:
        """Restart the daemon with an empty log: operations in no file are lost."""
        self.epoch += 1
        self.known_epochs = {self.epoch}
        self.lost = self.buffered
        self.forget()
        self.buffered = []

    def adopt(self) -> None:
        """Adopt the lost log: its operations are flushed under their own identity."""
        lost, self.lost = self.lost, []
        for p in sorted({op.p for op in lost}):
            for epoch in sorted({op.epoch for op in lost if op.p == p}):
                ops = [op for op in lost if (op.p, op.epoch) == (p, epoch)]
                self._commit_ops(p, ops, ops, epoch, ME)

    def _complete(self) -> None:
        there = {op.epoch for op in self.buffered}
        done = [
            EpochComplete(ME, epoch)
            for epoch in range(1, self.epoch)
            if epoch not in there
            and (ME, epoch) not in self.state.epochs_complete
            and epoch not in {op.epoch for op in self.lost}
        ]
        if done:
            self.commit(done)

    def forget(self) -> None:
        """Let the daemon no longer answer for flushed operations."""
        self.gone += self.flushed
        self.flushed = []

    def clean_up(self, keep: int) -> None:
        """Delete all but the newest versions, and files that no kept version needs."""
        self.kept_from = max(self.kept_from, len(self.versions) - keep + 1)
        needed = {p for state, _ in self.versions[self.kept_from - 1 :] for p in state.files}
        self.files = {path: rows for path, rows in self.files.items() if path in needed}

    # ------------------------------------------------------------------------------------- contents

    def key(self, p: int) -> PartitionKey:
        return (1, (p,))

    def row_key(self, row: ROW) -> tuple[Any, Any]:
        return (row["p"], row["id"])

    def of_files(self, p: int) -> dict[Any, ROW]:
        adds = self.state.partitions.get(self.key(p), ())
        rows = [row for add in adds for row in self.files[add.path]]
        return {self.row_key(row) if self.keyed else n: row for n, row in enumerate(rows)}

    def _merge(self, there: dict[Any, ROW], op: Op) -> None:
        for row in op.deletes:
            there.pop(self.row_key(row), None)
        for row in op.upserts:
            there[self.row_key(row)] = row

    def truth(self, threshold: int | None = None) -> Counter[tuple[Any, ...]]:
        """Return the table's rows, each as a tuple of its non-null values."""
        rows: list[ROW] = []
        parts = {key[1][0] for key in self.state.partitions} | {op.p for op in self.buffered}
        for p in parts:
            there = self.of_files(int(str(p)))
            for op in self.buffered:
                if op.p == p and self.keyed:
                    self._merge(there, op)
                elif op.p == p:
                    rows += op.upserts
            rows += there.values()
        return Counter(
            tuple((name, row[name]) for name in self.columns if row.get(name) is not None)
            for row in rows
            if threshold is None or row["id"] > threshold
        )


class WorldFiles:
    """The files of a world, in the form that a copy reads."""

    def __init__(self, world: World, filter_: Any = None) -> None:
        self.world = world
        self.filter = filter_

    def newest(self, known: TableState | None = None) -> TableState:
        return self.world.state

    def version(self, version: int, known: TableState | None = None) -> TableState:
        newest = len(self.world.versions)
        if not self.world.kept_from <= version <= newest:
            raise VersionNotKept(version, self.world.kept_from, newest)
        return self.world.versions[version - 1][0]

    def as_of(self, moment: datetime) -> TableState:
        return self.version(self.world.kept_from)

    def changes(self, since: int, until: int) -> list[CommittedVersion]:
        if since < self.world.kept_from - 1:
            raise VersionNotKept(since, self.world.kept_from, until)
        return [change for _, change in self.world.versions[since:until]]

    def pieces(
        self, state: TableState, adds: Sequence[Add], names: Sequence[str] | None = None
    ) -> Iterator[FilePiece]:
        schema = TableDefinition.of_state(state).schema
        predicate = parse_predicate(None if names else self.filter, schema)
        for add in adds:
            rows = self._rows(add, schema)
            found = [predicate.select(batch) for batch in rows.to_batches()]
            wanted = selected(schema, names)
            table = fitted(pa.Table.from_batches(found, schema), wanted)
            yield FilePiece(add, table.slice(0, 1), last=False)
            yield FilePiece(add, table.slice(1), last=True)

    def _rows(self, add: Add, schema: pa.Schema) -> pa.Table:
        if add.path not in self.world.files:
            raise ObjectNotFound(add.path)
        return pa.Table.from_pylist(self.world.files[add.path], schema)

    def count(self, state: TableState, add: Add) -> int:
        return sum(piece.rows.num_rows for piece in self.pieces(state, [add]))

    def local(self, adds: Sequence[Add]) -> list[FileRows] | None:
        return None


class WorldFeed:
    """The live feed of a world's daemon."""

    def __init__(self, world: World, filter_: Any = None, *, says_buffers: bool = True) -> None:
        self.world = world
        self.filter = filter_
        self.says_buffers = says_buffers

    def ask(self, after: FeedPosition | None, version: int | None, wait_s: float) -> LiveAnswer:
        world = self.world
        now = FeedPosition(world.epoch, world.seq)
        if after is None and version is None:
            return self._answer(now, [], more=False)
        if version is not None and version > len(world.versions):
            raise InvalidRequest("no such version")
        assert version is not None
        told = {"version": len(world.versions)}
        anew = after is not None and (
            after.epoch not in world.known_epochs or world.taken_back_in > version
        )
        begin = FeedPosition(0, -1) if after is None or anew else after
        if anew or any(op.position > begin and op.flushed_in > version for op in world.gone):
            raise Unavailable("stale", code="stale", details={**told, "anew": anew})
        if version < world.kept_from:
            raise Unavailable("not kept", code="stale", details={**told, "anew": False})
        state = world.versions[version - 1][0]
        ops = sorted([*world.flushed, *world.buffered], key=lambda op: (op.epoch, op.seq))
        ops = [
            op
            for op in ops
            if op.position > begin and op.seq > state.applied_to(ME, op.epoch, *world.key(op.p))
        ]
        numbers = sorted({(op.epoch, op.seq) for op in ops})
        some = [n for n in numbers if n[0] == numbers[0][0]][: world.at_most]
        more = len(some) < len(numbers)
        position = FeedPosition(*some[-1]) if more else now
        return self._answer(position, [op for op in ops if (op.epoch, op.seq) in some], more=more)

    def _answer(self, position: FeedPosition, ops: list[Op], *, more: bool) -> LiveAnswer:
        world = self.world
        schema = world.definition.schema
        if world.keyed:
            schema = schema.append(pa.field(OPERATION, pa.string()))
        batches = []
        groups: dict[tuple[int, int, int], list[Op]] = {}
        for op in ops:
            groups.setdefault((op.p, op.epoch, op.buffer), []).append(op)
        for (p, epoch, buffer), each in groups.items():
            rows = self._rows(each)
            if rows:
                number = abs(buffer) if self.says_buffers else None
                of = GroupOf(1, (p,), epoch, each[0].seq, each[-1].seq, number)
                table = pa.Table.from_pylist(rows, schema)
                batches += [
                    LiveBatch(of, b) for b in (table[:1].to_batches() + table[1:].to_batches())
                ]
        return LiveAnswer(ME, position, world.seq, len(world.versions), more, schema, batches)

    def _rows(self, ops: list[Op]) -> list[ROW]:
        predicate = parse_predicate(self.filter, self.world.definition.schema)
        if not self.world.keyed:
            rows = [row for op in ops for row in op.upserts]
            return [row for row in rows if self._matches(predicate, row)]
        last: dict[Any, ROW] = {}
        for op in ops:
            for row in op.deletes:
                key = {"p": row["p"], "id": row["id"]}
                last.pop(self.world.row_key(row), None)
                last[self.world.row_key(row)] = {**key, OPERATION: "delete"}
            for row in op.upserts:
                last.pop(self.world.row_key(row), None)
                kind = {OPERATION: "upsert"}
                if not self._matches(predicate, row):
                    row, kind = {"p": row["p"], "id": row["id"]}, {OPERATION: "delete"}
                last[self.world.row_key(row)] = {**row, **kind}
        return list(last.values())

    def _matches(self, predicate: Any, row: ROW) -> bool:
        (batch,) = pa.Table.from_pylist([row], self.world.definition.schema).to_batches()
        return bool(predicate.select(batch).num_rows)


def copy_of(
    world: World,
    disk: Disk,
    files: WorldFiles | None = None,
    seek: Seek | None = None,
    kind: type[StatefulSink] = MemorySink,
    feed: WorldFeed | None = None,
) -> FollowedCopy:
    """Return an open copy of a world's table."""
    table = FollowedTable("n", "t", 1, world.definition.schema, world.definition.primary_key)
    sink = SinkCalls(kind(table, disk), lambda *_: None)
    source = CopySource(files or WorldFiles(world), feed or WorldFeed(world))
    opening = CopyOpening(table, CopySelection("s"), seek)
    return open_copy_of(opening, source, SinkPlace(sink, OwnStates(disk)))
