"""A message's changes in the types of its table.

Law of this file: pure. What comes out fits the table exactly, but for keys that are null where a
row has none; what cannot be kept without loss is refused with the column's name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from ingester.errors import InvalidRequest
from ingester.replication.fold import Changes, Mask, batch_of
from ingester.replication.messages import SyncLayout
from ingester.schema import Normaliser
from persist.partitioning import PartitionSpec
from persist.table import TableDefinition


class TypedChanges:
    """Brings messages of one layout to one table definition."""

    def __init__(self, layout: SyncLayout, definition: TableDefinition) -> None:
        """Compare the layout with the definition.

        Raises:
            InvalidRequest: another key than the table's; a column that clashes.
        """
        if set(layout.key) != set(definition.primary_key):
            has = f"has {list(definition.primary_key)}" if definition.keyed else "has none"
            raise InvalidRequest(f"sync: primary key {list(layout.key)}, the table {has}")
        self._layout = layout
        sent = [f for f in layout.schema if f.name not in layout.key]
        self._keys = _plain_normaliser(definition, definition.primary_key, layout.schema)
        names = [f.name for f in definition.schema if f.name in {one.name for one in sent}]
        self._values = _plain_normaliser(definition, names, pa.schema(sent)) if names else None

    def most_bytes(self, batch: pa.RecordBatch) -> float:
        """Estimate how large the changes will be, before they are made."""
        values, rows = self._layout.value_batch(batch), batch.num_rows
        nbytes = 0.0 if self._values is None else self._values.plain_bytes(values)
        return nbytes + sum(
            self._keys.plain_bytes(self._layout.key_batch(role, batch))
            for role in ("old_pk", "new_pk")
            if rows
        )

    def __call__(self, batch: pa.RecordBatch) -> Changes:
        """Bring a valid batch's changes to the table's types.

        Raises:
            InvalidRequest: values that cannot be kept, keys or flags that are missing.
        """
        changes = self._layout.changes(batch)
        values = changes.values
        if self._values is not None:
            values = self._values(values)
        elif values.num_columns:
            values = values.select([])
        return Changes(
            old=self._keys(changes.old),
            new=self._keys(changes.new),
            values=values,
            changed={n: flag for n, flag in changes.changed.items() if n in values.schema.names},
        )


def joined(messages: Sequence[Changes], definition: TableDefinition) -> Changes:
    """Join messages as if they were one: what a message lacks, its rows keep."""
    sent = {name for message in messages for name in message.values.schema.names}
    fields = [definition.schema.field(n) for n in definition.schema.names if n in sent]
    values = [_column(messages, field) for field in fields]
    changed: dict[str, Mask] = {}
    for field in fields:
        flags = [_flags(message, field.name) for message in messages]
        joined_flags = np.concatenate(flags)
        if not joined_flags.all():
            changed[field.name] = joined_flags
    rows = sum(message.rows for message in messages)
    schema = pa.schema([field.with_nullable(True) for field in fields])
    return Changes(
        old=_one_batch([message.old for message in messages]),
        new=_one_batch([message.new for message in messages]),
        values=pa.RecordBatch.from_arrays(values, schema=schema) if values else batch_of({}, rows),
        changed=changed,
    )


def _plain_normaliser(
    definition: TableDefinition, names: Sequence[str], sent: pa.Schema
) -> Normaliser:
    """Make a normaliser for some of the table's columns alone, none of which is required."""
    fields = [definition.schema.field(name).with_nullable(True) for name in names]
    apart = replace(
        definition, schema=pa.schema(fields), spec=PartitionSpec(), primary_key=(), sort_by=()
    )
    return Normaliser(apart, pa.schema([field for field in sent if field.name in set(names)]))


def _column(messages: Sequence[Changes], field: pa.Field) -> pa.Array:
    return pa.concat_arrays(
        [
            message.values.column(field.name)
            if field.name in message.values.schema.names
            else pa.nulls(message.rows, field.type)
            for message in messages
        ]
    )


def _flags(message: Changes, name: str) -> Mask:
    if name not in message.values.schema.names:
        return np.zeros(message.rows, bool)
    return message.changed.get(name, np.ones(message.rows, bool))


def _one_batch(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
