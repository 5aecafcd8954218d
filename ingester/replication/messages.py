"""Columns of a `sync` message by their roles, checked and read as changes.

Fields of a batch are matched to the message's columns by position: names of fields do not count, as
a key stands there twice. What a message says of its columns:

    old_pk, new_pk    the key before and afterwards, null for "nothing": same names and types
    value             any other column of the table
    changed           boolean, of the value of the same name; without one a value always applies

Law of this file: pure; what does not fit is refused with the column's name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ingester.errors import InvalidRequest
from ingester.replication.fold import Changes, Mask, batch_of
from ingester.schema.expansion import plain

Role = Literal["old_pk", "new_pk", "value", "changed"]


class SyncColumn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The role and name of a field of the batch."""

    role: Role
    name: str


class SyncLayout:
    """Knows where keys, values and flags stand, for all batches of one schema."""

    def __init__(self, columns: Sequence[SyncColumn], schema: pa.Schema) -> None:
        """Raise :class:`InvalidRequest` unless the columns are those of a message."""
        if len(columns) != len(schema):
            raise InvalidRequest(
                f"sync: {len(columns)} columns are described, the batch has {len(schema)}"
            )
        self._places: dict[Role, dict[str, int]] = {
            "old_pk": {}, "new_pk": {}, "value": {}, "changed": {},
        }  # fmt: skip
        for place, column in enumerate(columns):
            there = self._places[column.role]
            if column.name in there:
                raise InvalidRequest(f"sync: {column.role} {column.name!r} is there twice")
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
        """The columns of the table that the message has, as they were sent, the key's first."""

    def key_batch(self, role: Role, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Pick the keys of a role as they were sent, in one order on both sides."""
        there = self._places[role]
        return batch_of({name: batch.column(there[name]) for name in self.key}, batch.num_rows)

    def value_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Pick the values as they were sent."""
        values = {name: batch.column(at) for name, at in self._places["value"].items()}
        return batch_of(values, batch.num_rows)

    def changes(self, batch: pa.RecordBatch) -> Changes:
        """Read the batch's rows as changes.

        Raises:
            InvalidRequest: a key is partly null, or a row has none; a flag is null.
        """
        old, new = self._keys("old_pk", batch), self._keys("new_pk", batch)
        nothing = _missing(old) & _missing(new)
        if nothing.any():
            raise InvalidRequest(
                f"sync: row {int(np.flatnonzero(nothing)[0])} has neither an old nor a new key"
            )
        return Changes(old, new, self.value_batch(batch), self._flags(batch))

    def _check_keys(self, schema: pa.Schema) -> None:
        old, new = self._places["old_pk"], self._places["new_pk"]
        if not new:
            raise InvalidRequest("sync: no column has the role new_pk")
        for role, there, others in (("old_pk", old, new), ("new_pk", new, old)):
            strangers = [name for name in there if name not in others]
            if strangers:
                other = "new_pk" if role == "old_pk" else "old_pk"
                raise InvalidRequest(f"sync: {role} {strangers[0]!r} has no {other}")
        for name, at in old.items():
            before, afterwards = schema.field(at).type, schema.field(new[name]).type
            if before != afterwards:
                raise InvalidRequest(
                    f"sync: key {name!r} is {before} in old_pk and {afterwards} in new_pk"
                )

    def _check_values(self, schema: pa.Schema) -> None:
        values = self._places["value"]
        for name in values:
            if name in self._places["new_pk"]:
                raise InvalidRequest(f"sync: {name!r} is in the key and a value, too")
        for name, at in self._places["changed"].items():
            if name not in values:
                raise InvalidRequest(f"sync: changed {name!r} has no value of that name")
            if not pa.types.is_boolean(schema.field(at).type):
                raise InvalidRequest(
                    f"sync: changed {name!r} is {schema.field(at).type}, not boolean"
                )

    def _keys(self, role: Role, batch: pa.RecordBatch) -> pa.RecordBatch:
        # In one order on both sides, whatever the order in the message is.
        there = self._places[role]
        columns = {name: _plain(batch.column(there[name])) for name in self.key}
        nulls = [pc.is_null(column).to_numpy(zero_copy_only=False) for column in columns.values()]
        partly = np.logical_or.reduce(nulls) & ~np.logical_and.reduce(nulls)
        if partly.any():
            raise InvalidRequest(
                f"sync: {role} of row {int(np.flatnonzero(partly)[0])} is null in part"
            )
        return batch_of(columns, batch.num_rows)

    def _flags(self, batch: pa.RecordBatch) -> dict[str, Mask]:
        flags = {}
        for name, at in self._places["changed"].items():
            column = batch.column(at)
            if column.null_count:
                raise InvalidRequest(f"sync: changed {name!r} has {column.null_count} nulls")
            flags[name] = column.to_numpy(zero_copy_only=False)
        return flags


def _plain(column: pa.Array) -> pa.Array:
    return plain(column) if pa.types.is_dictionary(column.type) else column


def _missing(keys: pa.RecordBatch) -> Mask:
    missing: Mask = pc.is_null(keys.column(0)).to_numpy(zero_copy_only=False)
    return missing
