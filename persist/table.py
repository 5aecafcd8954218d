"""The definition of a table: schema, primary key, partition spec, sort order, timestamp unit.

An immutable value that is written as manifest actions and read back. Types never change and columns
are only added, so a batch that fits one definition fits every later one with the same
``first_schema_id``.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from persist.manifest import (
    ACK,
    MAX_AGE,
    PUBLISH,
    TRANSFORMERS,
    Action,
    Properties,
    Schema,
    Spec,
    TableState,
)
from persist.partitioning import InvalidPartitionSpec, PartitionSpec, check_folder_names

TableKey = tuple[str, str]
"""The key of a table: (namespace, table)."""

AckLevel = Literal["disk", "store"]
"""What an acknowledged write survives: a crash of the machine, or its loss."""

UNNUMBERED = 0
"""The first schema of a definition for files whose columns may get other numbers in the table."""

DELETED = "_deleted"
"""A column of rows of a keyed table before they are in files; true if the row deletes its key. No
table and no file has a column of this name.
"""


ABOVE = 100
"""The ids of a table that is defined again are this far above the old ones."""


class UsedTransformer(NamedTuple):
    """A class that transforms a table's batches, and its version at the last use."""

    name: str
    """``package.module:Class``"""
    version: str
    previous: str | None = None
    """The version before this one, or None."""


@dataclass(frozen=True, slots=True)
class TableDefinition:
    """The properties of a table that writers, readers and files must agree on."""

    schema: pa.Schema
    spec: PartitionSpec
    primary_key: tuple[str, ...] = ()
    sort_by: tuple[str, ...] = ()
    timestamp_unit: str = "us"
    schema_id: int = 1
    spec_id: int = 1
    other_specs: tuple[tuple[int, PartitionSpec], ...] = ()
    """Specs that are not current, each (spec id, spec); files, buffers and logs may use them."""
    transformers: tuple[UsedTransformer, ...] = ()
    """The classes that transform batches before they are logged, in order."""
    publish: tuple[str, ...] | None = None
    """The formats that the table is published in, ``iceberg`` and ``delta``; None leaves it to the
    daemon's settings, and an empty tuple is none.
    """
    max_age_s: float | None = None
    """The age of buffered rows, in seconds, at which they are flushed, if that is below the
    daemon's ``persist.max_age``.
    """
    ack: AckLevel | None = None
    """The acknowledgement level of writes; None leaves it to the daemon's settings."""
    first_schema_id: int = 1
    """The first schema since the table was last defined again; another value means another
    table. :data:`UNNUMBERED` only for making files.
    """

    def spec_of(self, spec_id: int) -> PartitionSpec:
        """The partition spec of files, buffers or logged rows with this id.

        Raises:
            KeyError: the table had no such spec at this definition.
        """
        return self.spec if spec_id == self.spec_id else dict(self.other_specs)[spec_id]

    def by_spec(self, spec_id: int) -> TableDefinition:
        """The same table, laid out by another of its specs."""
        specs = {**dict(self.other_specs), self.spec_id: self.spec}
        spec = specs.pop(spec_id)
        return replace(self, spec=spec, spec_id=spec_id, other_specs=tuple(sorted(specs.items())))

    def has_current_layout(self, spec_id: int) -> bool:
        """Whether this spec makes the same partitions as the current one."""
        return spec_id == self.spec_id or dict(self.other_specs).get(spec_id) == self.spec

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

    def redefined(self, before: TableDefinition) -> TableDefinition:
        """The same table, defined again in place of another: all ids are above those of ``before``.

        The ids leave room for columns that the other table still gets. It is published, flushed
        and acknowledged as the other table was.
        """
        first = before.schema_id + ABOVE
        return replace(
            self,
            schema_id=first,
            spec_id=before.spec_id + ABOVE,
            first_schema_id=first,
            publish=before.publish,
            max_age_s=before.max_age_s,
            ack=before.ack,
        )

    def with_transformers(self, used: Sequence[tuple[str, str]]) -> TableDefinition:
        """The same table with these transformers, each (class, version), in order.

        Returns:
            This very definition if it already has them in these versions.
        """
        known = {each.name: each for each in self.transformers}
        now = tuple(_used(name, version, known.get(name)) for name, version in used)
        return self if now == self.transformers else replace(self, transformers=now)

    def with_spec(self, texts: Iterable[str]) -> TableDefinition:
        """The same table laid out by another partition spec, under the next spec id.

        Raises:
            InvalidPartitionSpec: it cannot be parsed, or does not fit the table: column types that
                it cannot transform, or names that the table's columns have.
        """
        spec = PartitionSpec.parse(texts)
        spec.check_schema(self.schema)
        check_folder_names(spec)
        taken = {name.casefold() for name in self.schema.names}
        for field in spec.fields:
            if field.name.casefold() in taken:
                raise InvalidPartitionSpec(
                    f"partition field {field}: the table has a column {field.name!r} already"
                )
        earlier = (*self.other_specs, (self.spec_id, self.spec))
        return replace(self, spec=spec, spec_id=self.spec_id + 1, other_specs=earlier)

    def spec_action(self) -> Spec:
        """The action that makes this spec current."""
        return Spec(spec_id=self.spec_id, fields=self.spec.texts())

    def schema_action(self) -> Schema:
        """The action that makes this schema current."""
        text = base64.b64encode(self.schema.serialize().to_pybytes()).decode()
        return Schema(schema_id=self.schema_id, arrow=text)

    def properties_action(self) -> Properties:
        """The action that makes these properties current."""
        values: dict[str, Any] = {
            "primary_key": list(self.primary_key),
            "sort_by": list(self.sort_by),
            "timestamp_unit": self.timestamp_unit,
        }
        if self.transformers:
            values[TRANSFORMERS] = [
                {"class": each.name, "version": each.version, "previous": each.previous}
                for each in self.transformers
            ]
        if self.publish is not None:
            values[PUBLISH] = list(self.publish)
        if self.max_age_s is not None:
            values[MAX_AGE] = self.max_age_s
        if self.ack is not None:
            values[ACK] = self.ack
        return Properties(values=values)

    def actions(self) -> tuple[Action, ...]:
        """The actions that define a new table."""
        return (self.schema_action(), self.spec_action(), self.properties_action())

    @classmethod
    def of_state(cls, state: TableState) -> TableDefinition:
        """The definition in a manifest version."""
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
            other_specs=tuple(
                (spec_id, PartitionSpec.parse(one.fields))
                for spec_id, one in sorted(state.specs.items())
                if spec_id != spec.spec_id
            ),
            transformers=tuple(
                UsedTransformer(each["class"], each["version"], each.get("previous"))
                for each in properties.get(TRANSFORMERS, ())
            ),
            publish=None if PUBLISH not in properties else tuple(properties[PUBLISH]),
            max_age_s=properties.get(MAX_AGE),
            ack=properties.get(ACK),
            first_schema_id=min(state.schemas, default=schema.schema_id),
        )


def _used(name: str, version: str, before: UsedTransformer | None) -> UsedTransformer:
    if before is None or before.version == version:
        return before or UsedTransformer(name, version)
    return UsedTransformer(name, version, before.version)


def schema_with_deletes(schema: pa.Schema) -> pa.Schema:
    """The schema followed by :data:`DELETED`; columns that a delete lacks are null."""
    fields = [field.with_nullable(True) for field in schema]
    return pa.schema([*fields, pa.field(DELETED, pa.bool_())])


def read_schema(action: Schema) -> pa.Schema:
    """The Arrow schema in a schema action.

    Earlier versions created decimals with more places than digits, which Parquet does not have.
    They get as many digits (tests/tables/test_encodable).
    """
    schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(action.arrow)))
    if not any(map(_lacks_digits, schema.types)):
        return schema
    fields = [_with_digits(field) for field in schema]
    return pa.schema(fields, schema.metadata)


def _lacks_digits(kind: pa.DataType) -> bool:
    # By id: tables may have 10,000 columns.
    if kind.num_fields:
        return any(_lacks_digits(kind.field(place).type) for place in range(kind.num_fields))
    return bool(kind.id == pa.lib.Type_DECIMAL128 and kind.scale > kind.precision)


def _with_digits(field: pa.Field) -> pa.Field:
    t, kind = pa.types, field.type
    if not _lacks_digits(kind):
        return field
    if t.is_list(kind):
        return field.with_type(pa.list_(_with_digits(kind.value_field)))
    if t.is_map(kind):
        return field.with_type(pa.map_(*map(_with_digits, (kind.key_field, kind.item_field))))
    if t.is_struct(kind):
        inner = [_with_digits(kind.field(place)) for place in range(kind.num_fields)]
        return field.with_type(pa.struct(inner))
    return field.with_type(pa.decimal128(kind.scale, kind.scale))
