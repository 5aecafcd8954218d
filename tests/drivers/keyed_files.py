"""Files of a keyed table without a daemon, written as a flush would write them."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from persist.manifest import Action, Add, Manifest, PartitionKey, Remove, TableState
from persist.parquet.reading import footer_checksum
from persist.parquet.stats import column_stats
from persist.partitioning import folder_of
from persist.table import TableDefinition

Key = tuple[Any, ...]
Rows = Mapping[Key, tuple[Any, ...]]
"""Maps the key columns, which come first in the table, to the values of the other columns."""


def add_file(
    manifest: Manifest,
    definition: TableDefinition,
    partition: PartitionKey,
    rows: Rows,
    kind: str = "persist",
) -> Add:
    """Write a file with these rows, sorted by key, in row groups of three."""
    ordered = [(*key, *rows[key]) for key in sorted(rows)]
    columns = [
        pa.array([row[n] for row in ordered], field.type)
        for n, field in enumerate(definition.schema)
    ]
    table = pa.Table.from_arrays(columns, schema=definition.schema)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=3, store_schema=False)
    folder = folder_of(definition.spec_of(partition[0]), partition[1])
    path = "/".join(part for part in ("data", folder, f"{uuid.uuid4().hex}.parquet") if part)
    data = sink.getvalue()
    put = manifest.store.put(manifest.object_path(path), data)
    return Add(
        path=path,
        kind=kind,  # type: ignore[arg-type]
        rows=table.num_rows,
        bytes=data.size,
        spec_id=partition[0],
        values=partition[1],
        stats=column_stats(table),
        writer="me",
        epoch=1,
        first_seq=0,
        last_seq=0,
        schema_id=definition.schema_id,
        at=put.at.isoformat(),
        footer_crc32c=footer_checksum(data),
    )


def rows_of(
    manifest: Manifest, definition: TableDefinition, files: Iterable[Add]
) -> dict[Any, Any]:
    """Read the rows of files in which each key occurs once."""
    found: dict[Key, tuple[Any, ...]] = {}
    width = len(definition.primary_key)
    for add in files:
        data = manifest.store.get(manifest.object_path(add.path))
        assert len(data) == add.bytes
        table = pq.read_table(pa.BufferReader(data), partitioning=None)
        assert table.num_rows == add.rows
        columns = [
            table.column(name).cast(field.type).to_pylist()
            if (name := field.name) in table.column_names
            else [None] * table.num_rows
            for field in definition.schema
        ]
        for row in zip(*columns, strict=True):
            assert row[:width] not in found, f"key {row[:width]} stands twice"
            found[row[:width]] = row[width:]
    return found


def flushed(
    manifest: Manifest,
    definition: TableDefinition,
    state: TableState,
    partition: PartitionKey,
    changes: Mapping[Key, tuple[Any, ...] | None],
) -> list[Action]:
    """Replace all files that contain one of the keys; a value of None deletes the key."""
    merged: dict[Key, tuple[Any, ...]] = {}
    actions: list[Action] = []
    for add in state.partitions.get(partition, ()):
        there = rows_of(manifest, definition, [add])
        if there.keys() & changes.keys():
            actions.append(Remove(path=add.path, reason="flush"))
            merged |= there
    for key, values in changes.items():
        merged.pop(key, None)
        if values is not None:
            merged[key] = values
    if merged:
        actions.append(add_file(manifest, definition, partition, merged))
    return actions
