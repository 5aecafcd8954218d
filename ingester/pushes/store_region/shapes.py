"""Whether a push's rows fit a table, and whether the tables of several regions are alike.

    plan, no table     ─▶ the definition of the table that is to be made
    plan, a table      ─▶ its definition, with the columns that it lacks
    two definitions    ─▶ what keeps the files of one from being those of the other

Law of this file: pure. Files are the same bytes in every region, so whatever decides where a row
lies in them, and which type it has there, has to be the same: partitions, order, key, the unit of
time, and the type of each column that both tables have. Ids are not: each region has its own.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa

from ingester.errors import InvalidRequest
from ingester.pushes.record import PushPlan
from ingester.schema.carried import is_nanoseconds, takes
from ingester.schema.definition import define_table, widened
from persist.table import TableDefinition


class ShapeClash(ValueError):
    """Rows and a table, or two tables, that do not go together; the message names the column."""


def plan_schema(plan: PushPlan) -> pa.Schema:
    """Return the columns that a push brings; none where its plan does not say.

    Raises:
        ShapeClash: the plan has something else than a schema.
    """
    if not plan.schema:
        return pa.schema([])
    try:
        return pa.ipc.read_schema(pa.py_buffer(plan.schema))
    except (pa.ArrowException, OSError) as exc:
        raise ShapeClash(f"the push has no schema that can be read: {exc}") from exc


def with_schema(plan: PushPlan, schema: pa.Schema) -> PushPlan:
    """Return the plan of a push that brings these columns."""
    return msgspec.structs.replace(plan, schema=schema.serialize().to_pybytes())


def new_definition(plan: PushPlan) -> TableDefinition:
    """Return the definition of the table that the plan makes where there is none.

    Raises:
        ShapeClash: there can be no such table.
    """
    schema = plan_schema(plan)
    if not len(schema):
        raise ShapeClash("there is no such table, and the push does not say which columns it has")
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
    except InvalidRequest as exc:
        raise ShapeClash(str(exc)) from exc


def widened_by(definition: TableDefinition, plan: PushPlan) -> TableDefinition:
    """Return the table with the plan's columns that it lacks: itself where it has all of them.

    Raises:
        ShapeClash: a column of another type, or a new one that the table cannot get.
    """
    schema = definition.schema
    # A reader of the table sees what its partitions are made of as columns; no file has them.
    given = [
        field
        for field in plan_schema(plan)
        if field.name in schema.names or field.name not in definition.spec.names
    ]
    for field in given:
        index = schema.get_field_index(field.name)
        if index >= 0 and not takes(schema.field(index).type, field.type):
            raise ShapeClash(
                f"column {field.name!r} is {schema.field(index).type} in the table, and"
                f" {field.type} in the push"
            )
    try:
        new = [field for field in given if field.name not in schema.names]
        return widened(definition, pa.schema(new)) if new else definition
    except InvalidRequest as exc:
        raise ShapeClash(str(exc)) from exc


def check_brings(definition: TableDefinition, plan: PushPlan) -> None:
    """Return if the push brings what each row of the table needs, and asks for no other shape.

    Raises:
        ShapeClash: a column is missing that may not be null; or the plan names another key, other
            partitions or another order than the table has.
    """
    given = plan_schema(plan).names
    for field in definition.schema:
        if not field.nullable and field.name not in given:
            raise ShapeClash(f"the push has no column {field.name!r}, which may not be null")
    for what, asked, have in (
        ("primary_key", plan.primary_key or None, definition.primary_key),
        ("partition_by", plan.partition_by, definition.spec.texts()),
        ("sort_by", plan.sort_by or None, definition.sort_by),
    ):
        if asked is not None and asked != have:
            raise ShapeClash(f"the table has {what} {list(have)}, and the push says {list(asked)}")


def clash(mine: TableDefinition, its: TableDefinition) -> str | None:
    """Return why files of one table cannot be those of the other one; None where they can."""
    facts: tuple[tuple[str, Any, Any], ...] = (
        ("primary_key", mine.primary_key, its.primary_key),
        ("partition_by", mine.spec.texts(), its.spec.texts()),
        ("sort_by", mine.sort_by, its.sort_by),
        ("timestamp_unit", mine.timestamp_unit, its.timestamp_unit),
    )
    for what, one, other in facts:
        if one != other:
            return f"{what} is {_shown(one)} there, and {_shown(other)}"
    for field in mine.schema:
        index = its.schema.get_field_index(field.name)
        if index < 0:
            continue
        other = its.schema.field(index)
        if (field.type, field.nullable) != (other.type, other.nullable):
            return f"column {field.name!r} is {_kind(field)} there, and {_kind(other)}"
    return None


def plan_like(definition: TableDefinition, plan: PushPlan) -> PushPlan:
    """Return the plan that makes a table of this shape where there is none."""
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
