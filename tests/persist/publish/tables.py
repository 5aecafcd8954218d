"""Real tables of each kind on any store: a manifest, Parquet files, and the steps to publish.

A ``BuiltTable`` commits to a real manifest. ``rows`` is the model: the rows that pyarrow reads from
the files that a version lists. ``KINDS`` maps a name to a function that makes a table of that kind
with several versions.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from persist.manifest import (
    Action,
    Add,
    EpochComplete,
    Manifest,
    Owner,
    Proposal,
    Remove,
    TableState,
    WriterAction,
    WriterIdentity,
    claim_version,
    commit,
    walk,
)
from persist.manifest.actions import parse_time
from persist.parquet.encode import Pages, encode
from persist.parquet.field_ids import with_field_ids
from persist.parquet.reading import footer_checksum
from persist.parquet.sparse_rows import SparseRows
from persist.parquet.stats import column_stats, leaves_without_nan
from persist.partitioning import PartitionSpec, folder_of, split_batch
from persist.publish.steps import OpenFile, Place, Step
from persist.store import ObjectStore
from persist.switching import switch_version
from persist.table import TableDefinition

ME = WriterIdentity(ingester_id="me", incarnation="first", epoch=1)


class BuiltTable:
    """A table of which each call commits one version.

    ``field_ids``: whether new files have the ids of columns. Older files of real tables have none.
    """

    def __init__(
        self,
        store: ObjectStore,
        schema: pa.Schema,
        spec: Sequence[str] = (),
        *,
        key: Sequence[str] = (),
        table: str = "t",
        field_ids: bool = True,
    ) -> None:
        self.definition = TableDefinition(schema, PartitionSpec.parse(spec), tuple(key))
        self.store, self.table, self.field_ids = store, table, field_ids
        self.manifest = Manifest(store, "ns", table, 1)
        self.rearranged: set[str] = set()
        self._earlier: list[Manifest] = []
        self._first = 1
        self._nothing = 0
        self.state = commit(self.manifest, None, Proposal(self.definition.actions()), ME)

    @staticmethod
    def definition_of(schema: pa.Schema, spec: Sequence[str] = ()) -> TableDefinition:
        """The definition of a new table."""
        return TableDefinition(schema, PartitionSpec.parse(spec))

    def _commit(self, *actions: Action) -> TableState:
        self.state = commit(self.manifest, self.state, Proposal(actions), ME)
        return self.state

    def write(self, rows: pa.Table, kind: str = "persist", schema_id: int = 0) -> list[Add]:
        """Write a file per partition with these rows, without a commit."""
        batch = rows.combine_chunks().to_batches()
        parts = split_batch(batch[0], self.definition.spec) if batch else []
        return [
            self._file(values, pa.Table.from_batches([part]), kind, schema_id)
            for values, part in parts
        ]

    def _file(self, values: Any, rows: pa.Table, kind: str, schema_id: int) -> Add:
        definition = self.definition
        schema = rows.schema
        if self.field_ids:
            schema = with_field_ids(schema, definition.first_schema_id)
        pages = Pages(statistics=leaves_without_nan(SparseRows.of_table(rows)))
        data = encode([rows.cast(schema)], {}, 3, pages)
        folder = folder_of(definition.spec, values)
        path = "/".join(p for p in ("data", folder, f"{uuid.uuid4().hex}.parquet") if p)
        put = self.store.put(self.manifest.object_path(path), data)
        return Add(
            path=path,
            kind=kind,  # type: ignore[arg-type]
            rows=rows.num_rows,
            bytes=data.size,
            spec_id=definition.spec_id,
            values=values,
            stats=column_stats(rows),
            writer="me",
            epoch=1,
            first_seq=0,
            last_seq=0,
            schema_id=schema_id or definition.schema_id,
            at=put.at.isoformat(),
            footer_crc32c=footer_checksum(data),
        )

    def append(self, rows: pa.Table) -> TableState:
        """Add rows, which have the table's schema."""
        return self._commit(*self.write(rows))

    def upsert(self, rows: pa.Table, delete: pa.Table | None = None) -> TableState:
        """Replace and delete rows by key; each touched file is written again."""
        names = list(self.definition.primary_key)
        keys = rows.select(names) if delete is None else _joined(rows.select(names), delete)
        wanted = {tuple(row.values()) for row in keys.to_pylist()}
        removed, kept = [], [rows]
        for add in self.state.files.values():
            there = self._read(self.manifest, add)
            touched = [tuple(row.values()) in wanted for row in there.select(names).to_pylist()]
            if any(touched):
                removed.append(Remove(path=add.path, reason="flush"))
                kept.append(there.filter(pc.invert(pa.array(touched))))
        return self._commit(*removed, *self.write(_joined(*kept)))

    def compact(self, paths: Sequence[str] | None = None) -> TableState:
        """Merge files, by default all, into one per partition."""
        old = [add for path, add in self.state.files.items() if paths is None or path in paths]
        rows = _joined(*(self._read(self.manifest, add) for add in old))
        gone = [Remove(path=add.path, reason="compaction") for add in old]
        state = self._commit(*gone, *self.write(rows, "rewrite"))
        self.rearranged.add(state.uid)
        return state

    def remove(self, paths: Sequence[str] | None = None) -> TableState:
        """Remove files, by default all."""
        gone = list(self.state.files) if paths is None else paths
        return self._commit(*(Remove(path=path, reason="delete") for path in gone))

    def change(self, *actions: Action) -> TableState:
        """Commit actions as they are."""
        return self._commit(*actions)

    def change_nothing(self) -> TableState:
        """Commit a version with the same files."""
        self._nothing += 1
        return self._commit(EpochComplete(ingester_id="gone", epoch=self._nothing))

    def add_columns(self, *fields: pa.Field) -> TableState:
        """Append columns to the schema."""
        schema = pa.schema([*self.definition.schema, *fields])
        self.definition = self.definition.with_schema(schema)
        return self._commit(self.definition.schema_action())

    def partition_by(self, *texts: str) -> TableState:
        """Use another partition spec for new files."""
        self.definition = self.definition.with_spec(texts)
        return self._commit(self.definition.spec_action())

    def switch(self, rows: pa.Table, definition: TableDefinition | None = None) -> TableState:
        """Replace the table by a new table version with these rows.

        Args:
            definition: of the table if it is defined again.
        """
        again = definition is not None
        if definition is not None:
            self.definition = definition.redefined(self.definition)
        if again:
            owner = WriterAction("me", "first", 1, "open"), Owner(ingester_id="me", epoch=1)
            self._commit(*owner)
        number = claim_version(self.store, "ns", self.table, uuid.uuid4().hex)
        self._earlier.append(self.manifest)
        self.manifest = Manifest(self.store, "ns", self.table, number)
        new = commit(self.manifest, None, Proposal(self.definition.actions()), ME)
        new = commit(self.manifest, new, Proposal(self.write(rows, "push")), ME)
        switch_version(self.store, "ns", self.table, number, reshape=ME if again else None)
        self.state = self.manifest.load()
        self._first = self.state.version
        return self.state

    def steps(self, after: int = 0) -> list[Step]:
        """The steps of all versions with numbers above ``after``; the first of all is complete."""
        return [step for step in self._steps() if step.place.number > after]

    def _steps(self) -> Iterator[Step]:
        number = 0
        for manifest in (*self._earlier, self.manifest):
            current = manifest is self.manifest
            first = self._first if current and self._earlier else 1
            before: TableState | None = None
            for each in walk(manifest, first, manifest.head()):
                number += 1
                yield self._step(number, manifest, each.commit.at, before, each.state)
                before = each.state

    def _step(
        self,
        number: int,
        manifest: Manifest,
        at: str,
        before: TableState | None,
        state: TableState,
    ) -> Step:
        root, moment = f"v{manifest.table_version}", parse_time(at)
        old = {} if before is None else dict(before.files)
        assert moment is not None
        return Step(
            place=Place(number, manifest.table_version, state.version, state.uid),
            at_ms=int(moment.timestamp() * 1000),
            added=tuple(
                OpenFile(f"{root}/{path}", add)
                for path, add in state.files.items()
                if path not in old
            ),
            removed=tuple(
                OpenFile(f"{root}/{path}", add)
                for path, add in old.items()
                if path not in state.files
            ),
            rearranged=state.uid in self.rearranged,
            state=state,
            definition=TableDefinition.of_state(state),
            complete=before is None,
        )

    def _read(self, manifest: Manifest, add: Add) -> pa.Table:
        data = self.store.get(manifest.object_path(add.path))
        table = pq.read_table(pa.BufferReader(data), partitioning=None)
        return fitted(table, self.definition.schema)

    def rows(self, step: Step | None = None) -> pa.Table:
        """The rows of a step, by default of the last one, with its schema."""
        step = self.steps()[-1] if step is None else step
        schema = step.definition.schema
        tables = [
            pq.read_table(
                pa.BufferReader(self.store.get(f"ns/{self.table}/{file.path}")), partitioning=None
            )
            for file in step.files()
        ]
        return pa.concat_tables([schema.empty_table(), *(fitted(t, schema) for t in tables)])


def _joined(*tables: pa.Table) -> pa.Table:
    return pa.concat_tables([t.cast(tables[0].schema) for t in tables])


def fitted(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The rows with these columns, null where a file lacks one."""
    columns = [
        table.column(field.name).cast(field.type)
        if field.name in table.column_names
        else pa.nulls(len(table), field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


STRUCT = pa.struct([("a", pa.int64()), ("b", pa.struct([("c", pa.string())]))])
SCHEMA = pa.schema(
    [
        ("n", pa.int64()),
        ("time", pa.timestamp("us", "UTC")),
        ("wall", pa.timestamp("us")),
        ("day", pa.date32()),
        ("host", pa.string()),
        ("ok", pa.bool_()),
        ("i8", pa.int8()),
        ("i16", pa.int16()),
        ("i32", pa.int32()),
        ("f32", pa.float32()),
        ("f64", pa.float64()),
        ("price", pa.decimal128(9, 2)),
        ("wide", pa.decimal128(38, 10)),
        ("raw", pa.binary()),
        ("s", STRUCT),
        ("l", pa.list_(pa.string())),
        ("ls", pa.list_(STRUCT)),
        ("m", pa.map_(pa.string(), pa.list_(pa.int32()))),
    ]
)
"""Every type that both formats can express; ``n`` numbers the rows."""
HOSTS = ["a", "b/c é%=", "", None, "ü" * 12, "x" * 80, "a\0b", "~"]


def sample(first: int = 0, count: int = 8, schema: pa.Schema = SCHEMA) -> pa.Table:
    """Rows numbered from ``first``, with values that are hard to keep and many nulls."""
    rows = [_row(n) for n in range(first, first + count)]
    return pa.Table.from_pylist(rows, schema=schema)


def _row(n: int) -> dict[str, Any]:
    step = dt.timedelta(days=37 * (n % 40) - 400, hours=n, microseconds=7 * n + 1)
    time = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + step
    inner = {"a": n, "b": {"c": f"c{n}"} if n % 3 else None}
    full = {
        "time": time,
        "wall": time.replace(tzinfo=None),
        "day": time.date(),
        "host": HOSTS[n % len(HOSTS)],
        "ok": n % 2 == 0,
        "i8": n % 256 - 128,
        "i16": (n * 7919) % 65536 - 32768,
        "i32": (n * 104729) % 2**32 - 2**31,
        "f32": [0.0, -0.0, 1.5, -2.25][n % 4],
        "f64": [0.0, -0.0, float("nan"), 1e300, -5e-324, float("inf")][n % 6],
        "price": Decimal(n * 37 - 9999) / 100,
        "wide": Decimal(-1) ** n * Decimal(n) * Decimal("1234567890123456789.0123456789"),
        "raw": bytes([n % 256]) * (n % 70),
        "s": inner,
        "l": ["x", None, str(n)][: n % 4],
        "ls": [inner, None],
        "m": [("k", [n, None]), ("", None)],
    }
    kept = {
        name: None if (n + place) % 11 == 10 else v for place, (name, v) in enumerate(full.items())
    }
    return {"n": n, **kept}


def appended(store: ObjectStore, **options: Any) -> BuiltTable:
    """Three appends, with a version without files between them."""
    table = BuiltTable(store, SCHEMA, **options)
    table.append(sample(0))
    table.append(sample(8))
    table.change_nothing()
    table.append(sample(16, 30))
    return table


def keyed(store: ObjectStore, **options: Any) -> BuiltTable:
    """Rows by key: inserted, replaced and deleted."""
    table = BuiltTable(store, SCHEMA, ["bucket(3, n)"], key=["n"], **options)
    table.upsert(sample(0, 20))
    table.upsert(sample(10, 20))
    changed = sample(5, 3)
    hosts = pa.array(["new"] * 3)
    table.upsert(changed.set_column(4, SCHEMA.field("host"), hosts), sample(12, 4).select(["n"]))
    return table


TRANSFORMS = (
    *(f"identity({name})" for name in [*SCHEMA.names[:9], "price", "wide"]),
    *(f"{part}({name})" for part in ("year", "month", "day") for name in ("time", "wall", "day")),
    "hour(time)",
    "hour(wall)",
    *(f"bucket(5, {name})" for name in ("n", "time", "day", "host", "price", "raw", "i8")),
)


def partitioned(store: ObjectStore, *spec: str, **options: Any) -> BuiltTable:
    """Two appends to a table with these partitions."""
    table = BuiltTable(store, SCHEMA, spec, **options)
    table.append(sample(0, 12))
    table.append(sample(8, 12))
    return table


def evolved(store: ObjectStore, **options: Any) -> BuiltTable:
    """Columns appended twice and other partitions twice, with rows before and after."""
    table = BuiltTable(store, pa.schema(list(SCHEMA)[:6]), ["day(time)"], **options)
    table.append(sample(0, 6, table.definition.schema))
    table.add_columns(*list(SCHEMA)[6:14])
    table.append(sample(6, 6, table.definition.schema))
    table.partition_by("bucket(2, host)", "day(time)")
    table.add_columns(*list(SCHEMA)[14:])
    table.append(sample(12, 6))
    table.partition_by()
    table.append(sample(18, 6))
    return table


def compacted(store: ObjectStore, **options: Any) -> BuiltTable:
    """Four appends, a compaction of some files, an append, a compaction of all."""
    table = BuiltTable(store, SCHEMA, ["identity(ok)"], **options)
    for first in range(0, 32, 8):
        table.append(sample(first))
    table.compact(list(table.state.files)[:4])
    table.append(sample(32))
    table.compact()
    return table


def emptied(store: ObjectStore, **options: Any) -> BuiltTable:
    """Two appends, one file removed, then all others."""
    table = BuiltTable(store, SCHEMA, ["month(time)"], **options)
    table.append(sample(0))
    table.append(sample(8))
    table.remove([next(iter(table.state.files))])
    table.remove()
    return table


def switched(store: ObjectStore, **options: Any) -> BuiltTable:
    """Replaced by another table version, then appended to."""
    table = appended(store, **options)
    table.switch(sample(100))
    table.append(sample(108))
    return table


def redefined(store: ObjectStore, **options: Any) -> BuiltTable:
    """Replaced by a table version whose columns have the same names and other types."""
    table = appended(store, **options)
    schema = pa.schema([("host", pa.int64()), ("n", pa.int64()), ("time", pa.string())])
    rows = pa.table({"host": [1, 2], "n": [3, 4], "time": ["x", "y"]}, schema)
    table.switch(rows, TableDefinition(schema, PartitionSpec.parse(["identity(n)"])))
    table.append(rows)
    return table


KINDS: dict[str, Callable[..., BuiltTable]] = {
    "appended": appended,
    "keyed": keyed,
    "evolved": evolved,
    "compacted": compacted,
    "emptied": emptied,
    "switched": switched,
    "redefined": redefined,
}
