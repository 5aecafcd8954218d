"""What a table is: schema, primary key, partition spec, sort order, timestamp unit.

Law of this file: an immutable value with a round trip through manifest actions. Types never change
and columns are only added, so that a batch that fitted an earlier definition fits every later one.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from persist.manifest import Action, Properties, Schema, Spec, TableState
from persist.partitioning import PartitionSpec

DELETED = "_deleted"
"""A column that rows of a keyed table may have on their way to files, true where a row says that
its key is gone. No table has a column of this name, and no file."""


@dataclass(frozen=True, slots=True)
class TableDefinition:
    """Everything that writers, readers and files of a table have to agree on."""

    schema: pa.Schema
    spec: PartitionSpec
    primary_key: tuple[str, ...] = ()
    sort_by: tuple[str, ...] = ()
    timestamp_unit: str = "us"
    schema_id: int = 1
    spec_id: int = 1

    @property
    def keyed(self) -> bool:
        """Whether the last write of a primary key replaces the earlier ones."""
        return bool(self.primary_key)

    @property
    def key_schema(self) -> pa.Schema:
        """The columns of the primary key."""
        return pa.schema([self.schema.field(name) for name in self.primary_key])

    def with_schema(self, schema: pa.Schema) -> TableDefinition:
        """The same table with further columns, under the next schema id."""
        return replace(self, schema=schema, schema_id=self.schema_id + 1)

    def schema_action(self) -> Schema:
        """The action that makes this definition's schema current."""
        text = base64.b64encode(self.schema.serialize().to_pybytes()).decode()
        return Schema(schema_id=self.schema_id, arrow=text)

    def actions(self) -> tuple[Action, ...]:
        """The actions that define a new table."""
        values: dict[str, Any] = {
            "primary_key": list(self.primary_key),
            "sort_by": list(self.sort_by),
            "timestamp_unit": self.timestamp_unit,
        }
        return (
            self.schema_action(),
            Spec(spec_id=self.spec_id, fields=self.spec.texts()),
            Properties(values=values),
        )

    @classmethod
    def of_state(cls, state: TableState) -> TableDefinition:
        """The definition as a manifest version has it."""
        schema = state.current_schema
        spec = state.current_spec
        properties = state.properties
        assert schema is not None and spec is not None
        return cls(
            schema=read_schema(schema),
            spec=PartitionSpec.parse(spec.fields),
            primary_key=tuple(properties.get("primary_key", ())),
            sort_by=tuple(properties.get("sort_by", ())),
            timestamp_unit=str(properties.get("timestamp_unit", "us")),
            schema_id=schema.schema_id,
            spec_id=spec.spec_id,
        )


def schema_with_deletes(schema: pa.Schema) -> pa.Schema:
    """The schema with :data:`DELETED` behind; what a row that deletes lacks is null."""
    fields = [field.with_nullable(True) for field in schema]
    return pa.schema([*fields, pa.field(DELETED, pa.bool_())])


def read_schema(action: Schema) -> pa.Schema:
    """The Arrow schema that a schema action carries."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(action.arrow)))
