"""Whether rows fit a table, whether the tables of two regions are alike, and files for any region.

    plan, no table     ─▶ the definition of the new table
    plan, a table      ─▶ its definition with the missing columns
    two definitions    ─▶ why files of one do not fit the other

Files are the same bytes in every region. So everything that determines a row's place and types has
to be the same: partitions, order, key, the unit of time, and the type of each shared column. Ids of
schema and partition spec differ by region, and so does a file's time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import msgspec
import pyarrow as pa

from ingester.errors import BadRequest
from ingester.pushes.record import PushPlan
from ingester.schema.definition import define_table, widened
from ingester.schema.types import is_nanoseconds, takes
from persist.manifest import Add, ColumnStats
from persist.manifest.actions import Values
from persist.table import TableDefinition


class ShapeClash(ValueError):
    """Rows do not fit a table, or two tables differ; the message names the column."""


def plan_schema(plan: PushPlan) -> pa.Schema:
    """Return the columns of a plan; none if it has no schema.

    Raises:
        ShapeClash: the schema cannot be decoded.
    """
    if not plan.schema:
        return pa.schema([])
    try:
        return pa.ipc.read_schema(pa.py_buffer(plan.schema))
    except (pa.ArrowException, OSError) as exc:
        raise ShapeClash(f"the schema of the push cannot be decoded: {exc}") from exc


def with_schema(plan: PushPlan, schema: pa.Schema) -> PushPlan:
    """Return the plan with these columns."""
    return msgspec.structs.replace(plan, schema=schema.serialize().to_pybytes())


def new_definition(plan: PushPlan) -> TableDefinition:
    """Return the definition of a new table for the plan.

    Raises:
        ShapeClash: no table can have that shape.
    """
    schema = plan_schema(plan)
    if not len(schema):
        raise ShapeClash("the table does not exist, and the push has no schema for it")
    fields = [field.with_nullable(True) for field in schema]
    nanoseconds = any(is_nanoseconds(field.type) for field in schema)
    try:
        return define_table(
            pa.schema(fields),
            primary_key=plan.primary_key,
            partition_by=plan.partition_by,
            sort_by=plan.sort_by,
            timestamp_unit="ns" if nanoseconds else "us",
        )
    except BadRequest as exc:
        raise ShapeClash(str(exc)) from exc


def widened_by(definition: TableDefinition, plan: PushPlan) -> TableDefinition:
    """Return the table with the columns that it lacks; the same object if it lacks none.

    Raises:
        ShapeClash: a column of another type, or a new one that the table cannot have.
    """
    schema = definition.schema
    # Readers see partition values as columns; files do not contain them.
    given = [
        field
        for field in plan_schema(plan)
        if field.name in schema.names or field.name not in definition.spec.names
    ]
    for field in given:
        index = schema.get_field_index(field.name)
        if index >= 0 and not takes(schema.field(index).type, field.type):
            raise ShapeClash(
                f"column {field.name!r}: table has {schema.field(index).type},"
                f" push has {field.type}"
            )
    try:
        new = [field for field in given if field.name not in schema.names]
        return widened(definition, pa.schema(new)) if new else definition
    except BadRequest as exc:
        raise ShapeClash(str(exc)) from exc


def check_brings(definition: TableDefinition, plan: PushPlan) -> None:
    """Check that the push has every required column of the table, and asks for no other shape.

    Raises:
        ShapeClash: a column that is not nullable is missing, or the plan names another key, other
            partitions or another order.
    """
    given = plan_schema(plan).names
    for field in definition.schema:
        if not field.nullable and field.name not in given:
            raise ShapeClash(
                f"column {field.name!r} is not nullable in the table, and the push does not have it"
            )
    for what, asked, have in (
        ("primary_key", plan.primary_key or None, definition.primary_key),
        ("partition_by", plan.partition_by, definition.spec.texts()),
        ("sort_by", plan.sort_by or None, definition.sort_by),
    ):
        if asked is not None and asked != have:
            raise ShapeClash(f"{what}: table has {list(have)}, push has {list(asked)}")


def clash(mine: TableDefinition, its: TableDefinition) -> str | None:
    """Return why files of one table do not fit the other; None if they do."""
    facts: tuple[tuple[str, Any, Any], ...] = (
        ("primary_key", mine.primary_key, its.primary_key),
        ("partition_by", mine.spec.texts(), its.spec.texts()),
        ("sort_by", mine.sort_by, its.sort_by),
        ("timestamp_unit", mine.timestamp_unit, its.timestamp_unit),
    )
    for what, one, other in facts:
        if one != other:
            return f"{what}: {_shown(one)} and {_shown(other)}"
    for field in mine.schema:
        index = its.schema.get_field_index(field.name)
        if index < 0:
            continue
        other = its.schema.field(index)
        if (field.type, field.nullable) != (other.type, other.nullable):
            return f"column {field.name!r}: {_kind(field)} and {_kind(other)}"
    return None


def plan_like(definition: TableDefinition, plan: PushPlan) -> PushPlan:
    """Return the plan with the shape of this table."""
    shaped = msgspec.structs.replace(
        plan,
        primary_key=definition.primary_key,
        partition_by=definition.spec.texts(),
        sort_by=definition.sort_by,
    )
    return with_schema(shaped, definition.schema)


def _shown(value: Any) -> str:
    return f"{list(value)}" if isinstance(value, tuple) else repr(value)


def _kind(field: pa.Field) -> str:
    return f"{field.type}{'' if field.nullable else ' not null'}"


class PushedFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A data file of a push, for any region; ``path`` is relative to the generation's folder."""

    path: str
    rows: int
    bytes: int
    values: Values
    """The values of the partition fields, in the order of the spec."""
    stats: Mapping[str, ColumnStats]
    """Statistics of the columns in the file; all others are null in each row."""
    writer: str
    footer_crc32c: int | None

    @classmethod
    def of(cls, add: Add) -> Self:
        """Return the file of a manifest entry of any region."""
        return cls(
            path=add.path,
            rows=add.rows,
            bytes=add.bytes,
            values=add.values,
            stats=add.stats,
            writer=add.writer,
            footer_crc32c=add.footer_crc32c,
        )

    def listed(self, definition: TableDefinition, at: str) -> Add:
        """Return the manifest entry of the file in a region with this definition.

        Args:
            at: the file's time by the region's store.

        Raises:
            ShapeClash: the file was written for another shape.
        """
        strays = sorted(set(self.stats) - set(definition.schema.names))
        if strays:
            raise ShapeClash(
                f"file {self.path} has a column {strays[0]!r}, which the table does not have"
            )
        if len(self.values) != len(definition.spec.fields):
            raise ShapeClash(
                f"file {self.path} does not have the partitions {definition.spec.texts()}"
            )
        absent = ColumnStats(nulls=self.rows)
        return Add(
            path=self.path,
            kind="push",
            rows=self.rows,
            bytes=self.bytes,
            spec_id=definition.spec_id,
            values=self.values,
            stats={name: self.stats.get(name, absent) for name in definition.schema.names},
            writer=self.writer,
            epoch=0,
            first_seq=0,
            last_seq=0,
            schema_id=definition.schema_id,
            at=at,
            footer_crc32c=self.footer_crc32c,
        )
