"""Columns of a ``sync`` message by their roles, checked and converted to the table's types.

Fields of a batch are matched to the message's columns by position, not by name: a key is in there
twice. The roles:

    old_pk, new_pk    the key before and after, null for "nothing": same names and types
    value             any other column of the table
    changed           boolean, of the value of the same name; without one a value always applies

:class:`SyncLayout` checks the roles, :class:`TypedChanges` converts values. A value that cannot be
kept without loss is refused with the column's name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ingester.errors import BadRequest
from ingester.replication.fold import Changes, Mask, batch_of
from ingester.schema import Normaliser
from ingester.schema.expansion import plain
from persist.partitioning import PartitionSpec
from persist.table import TableDefinition

Role = Literal["old_pk", "new_pk", "value", "changed"]


class MessageColumn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The role and name of a field of the batch."""

    role: Role
    name: str


class SyncLayout:
    """The positions of keys, values and flags, for all batches of one schema."""

    def __init__(self, columns: Sequence[MessageColumn], schema: pa.Schema) -> None:
        """Raise :class:`BadRequest` unless the columns form a message."""
        if len(columns) != len(schema):
            raise BadRequest(
                f"sync: {len(columns)} columns are described, the batch has {len(schema)}"
            )
        self._places: dict[Role, dict[str, int]] = {
            "old_pk": {}, "new_pk": {}, "value": {}, "changed": {},
        }  # fmt: skip
        for place, column in enumerate(columns):
            there = self._places[column.role]
            if column.name in there:
                raise BadRequest(f"sync: {column.role} {column.name!r} is given twice")
            there[column.name] = place
        self._check_keys(schema)
        self._check_values(schema)
        self.key = tuple(self._places["new_pk"])
        """The names of the key's columns."""
        self.schema = pa.schema(
            [
                *(schema.field(at).with_name(name) for name, at in self._places["new_pk"].items()),
                *(schema.field(at).with_name(name) for name, at in self._places["value"].items()),
            ]
        )
        """The message's columns of the table, as sent, the key's first."""

    def key_batch(self, role: Role, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The keys of a role as sent, in the order of ``key``."""
        there = self._places[role]
        return batch_of({name: batch.column(there[name]) for name in self.key}, batch.num_rows)

    def value_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The values as sent."""
        values = {name: batch.column(at) for name, at in self._places["value"].items()}
        return batch_of(values, batch.num_rows)

    def changes(self, batch: pa.RecordBatch) -> Changes:
        """Read the batch's rows as changes.

        Raises:
            BadRequest: a key is partly null, a row has no key, or a flag is null.
        """
        old, new = self._keys("old_pk", batch), self._keys("new_pk", batch)
        nothing = _missing(old) & _missing(new)
        if nothing.any():
            raise BadRequest(
                f"sync: row {int(np.flatnonzero(nothing)[0])} has neither an old nor a new key"
            )
        return Changes(old, new, self.value_batch(batch), self._flags(batch))

    def _check_keys(self, schema: pa.Schema) -> None:
        old, new = self._places["old_pk"], self._places["new_pk"]
        if not new:
            raise BadRequest("sync: no column has the role new_pk")
        for role, there, others in (("old_pk", old, new), ("new_pk", new, old)):
            strangers = [name for name in there if name not in others]
            if strangers:
                other = "new_pk" if role == "old_pk" else "old_pk"
                raise BadRequest(f"sync: {role} {strangers[0]!r} has no {other}")
        for name, at in old.items():
            before, afterwards = schema.field(at).type, schema.field(new[name]).type
            if before != afterwards:
                raise BadRequest(
                    f"sync: key {name!r} is {before} in old_pk and {afterwards} in new_pk"
                )

    def _check_values(self, schema: pa.Schema) -> None:
        values = self._places["value"]
        for name in values:
            if name in self._places["new_pk"]:
                raise BadRequest(f"sync: {name!r} is both in the key and a value")
        for name, at in self._places["changed"].items():
            if name not in values:
                raise BadRequest(f"sync: changed {name!r} has no value of that name")
            if not pa.types.is_boolean(schema.field(at).type):
                raise BadRequest(f"sync: changed {name!r} is {schema.field(at).type}, not boolean")

    def _keys(self, role: Role, batch: pa.RecordBatch) -> pa.RecordBatch:
        # In one order on both sides, whatever the message's order.
        there = self._places[role]
        columns = {name: _plain(batch.column(there[name])) for name in self.key}
        nulls = [pc.is_null(column).to_numpy(zero_copy_only=False) for column in columns.values()]
        partly = np.logical_or.reduce(nulls) & ~np.logical_and.reduce(nulls)
        if partly.any():
            raise BadRequest(f"sync: {role} of row {int(np.flatnonzero(partly)[0])} is partly null")
        return batch_of(columns, batch.num_rows)

    def _flags(self, batch: pa.RecordBatch) -> dict[str, Mask]:
        flags = {}
        for name, at in self._places["changed"].items():
            column = batch.column(at)
            if column.null_count:
                raise BadRequest(f"sync: changed {name!r} has {column.null_count} nulls")
            flags[name] = column.to_numpy(zero_copy_only=False)
        return flags


def _plain(column: pa.Array) -> pa.Array:
    return plain(column) if pa.types.is_dictionary(column.type) else column


def _missing(keys: pa.RecordBatch) -> Mask:
    missing: Mask = pc.is_null(keys.column(0)).to_numpy(zero_copy_only=False)
    return missing


class TypedChanges:
    """Converts messages of one layout to a table's definition."""

    def __init__(self, layout: SyncLayout, definition: TableDefinition) -> None:
        """Compare the layout with the definition.

        Raises:
            BadRequest: another primary key, or a conflicting column.
        """
        if set(layout.key) != set(definition.primary_key):
            has = f"has {list(definition.primary_key)}" if definition.keyed else "has none"
            raise BadRequest(f"sync: primary key {list(layout.key)}, the table {has}")
        self._layout = layout
        sent = [f for f in layout.schema if f.name not in layout.key]
        self._keys = _plain_normaliser(definition, definition.primary_key, layout.schema)
        names = [f.name for f in definition.schema if f.name in {one.name for one in sent}]
        self._values = _plain_normaliser(definition, names, pa.schema(sent)) if names else None

    def most_bytes(self, batch: pa.RecordBatch) -> float:
        """Estimate the changes' size before conversion."""
        values, rows = self._layout.value_batch(batch), batch.num_rows
        nbytes = 0.0 if self._values is None else self._values.plain_bytes(values)
        return nbytes + sum(
            self._keys.plain_bytes(self._layout.key_batch(role, batch))
            for role in ("old_pk", "new_pk")
            if rows
        )

    def __call__(self, batch: pa.RecordBatch) -> Changes:
        """Convert a batch to the table's types.

        Raises:
            BadRequest: a value does not fit, or a key or flag is missing.
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


def no_changes(definition: TableDefinition) -> Changes:
    """Changes of no row of a keyed table."""
    key = {name: definition.schema.field(name).type for name in definition.primary_key}
    keys = batch_of({name: pa.nulls(0, kind) for name, kind in key.items()}, 0)
    return Changes(old=keys, new=keys, values=batch_of({}, 0), changed={})


def joined(messages: Sequence[Changes], definition: TableDefinition) -> Changes:
    """Join messages; a column that a message lacks is unchanged in its rows."""
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
    """A normaliser for some of the table's columns, none of them required."""
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
