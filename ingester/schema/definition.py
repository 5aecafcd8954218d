"""Table definitions from a client's request or from a first batch.

Every resulting definition can be stored by all parts of the daemon; anything else is refused
here, naming the culprit. Pure.
"""

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import pyarrow as pa

from ingester.errors import BadRequest
from ingester.schema.limits import (
    LARGEST,
    ShapeLimits,
    check_column_names,
    check_schema,
    check_shown_columns,
)
from ingester.schema.normalise import kept_schema, missing_columns
from ingester.shown_text import shown_name
from persist.manifest import TableState
from persist.partitioning import (
    InvalidPartitionSpec,
    PartitionSpec,
    check_folder_names,
    default_spec,
)
from persist.publish.format import FORMATS
from persist.table import AckLevel, TableDefinition, read_schema

MAX_AGE_S = (0.01, 30 * 86400.0)
"""The range of a table's own ``persist.max_age``, in seconds; that of the setting."""
_KEYABLE = (
    pa.types.is_integer,
    pa.types.is_string,
    pa.types.is_binary,
    pa.types.is_boolean,
    pa.types.is_date32,
    pa.types.is_timestamp,
    pa.types.is_decimal128,
)


def automatic_definition(sent: pa.Schema) -> TableDefinition:
    """Return the definition for a first write: all nullable, ``day(time)`` if that column
    exists.
    """
    kept = kept_schema(sent, "us", ())
    fields = [field.with_nullable(True) for field in kept]
    if not fields:
        raise BadRequest(
            "a table needs at least one column with a type; this batch has none"
            if not len(sent)
            else f"columns {sent.names} have no type yet (null, or null inside): send their types"
        )
    schema = pa.schema(fields)
    spec = default_spec(schema)
    check_column_names(schema.names, spec.names)
    check_shown_columns(schema)
    return TableDefinition(schema, spec)


def keyed_definition(sent: pa.Schema, primary_key: Sequence[str]) -> TableDefinition:
    """Return the definition for a replicated table's first changes: all but the key nullable."""
    kept = kept_schema(sent, "us", ())
    fields = [field.with_nullable(True) for field in kept]
    return define_table(pa.schema(fields), primary_key=primary_key, partition_by=[])


def draft_definition(have: TableDefinition | None, sent: pa.Schema) -> TableDefinition | None:
    """Return the definition that a write of this schema leads to; None if the table has it.

    Raises:
        BadRequest: names, types or columns that the table cannot have.
    """
    if have is None:
        return automatic_definition(sent)
    wider = widened(have, sent)
    return None if wider is have else wider


def widened(definition: TableDefinition, sent: pa.Schema) -> TableDefinition:
    """Return the definition with the batch's columns that the table lacks."""
    missing = missing_columns(definition, sent)
    if not missing:
        return definition
    check_shown_columns(missing)
    schema = pa.schema([*definition.schema, *missing])
    check_schema("the table, with the batch's new columns,", schema, LARGEST)
    return definition.with_schema(schema)


def define_table(
    schema: pa.Schema,
    *,
    primary_key: Sequence[str] = (),
    partition_by: Sequence[str] | None = None,
    sort_by: Sequence[str] = (),
    timestamp_unit: str = "us",
    limits: ShapeLimits = LARGEST,
) -> TableDefinition:
    """Return the definition that a client requests.

    Raises:
        BadRequest: an invalid name, type, key, partition spec or sort order.
    """
    if timestamp_unit not in ("us", "ns"):
        raise BadRequest(f"timestamp_unit {timestamp_unit!r} is neither 'us' nor 'ns'")
    check_schema("the schema", schema, limits)
    kept = kept_schema(schema, timestamp_unit, ())
    if len(kept) < len(schema) or not len(kept):
        untyped = [field.name for field in schema if field.name not in kept.names]
        raise BadRequest(f"columns {untyped}: a table's columns need a type")
    try:
        spec = default_spec(kept) if partition_by is None else PartitionSpec.parse(partition_by)
        spec.check_schema(kept)
        check_folder_names(spec)
    except InvalidPartitionSpec as exc:
        raise BadRequest(str(exc)) from exc
    check_column_names(kept.names, spec.names)
    check_shown_columns(kept)
    for kind, names in (("primary_key", primary_key), ("sort_by", sort_by)):
        _check_listed(kind, names, kept)
    if primary_key:
        strangers = [column for column in spec.columns if column not in primary_key]
        if strangers and partition_by is None:
            spec = PartitionSpec()
        elif strangers:
            raise BadRequest(
                f"partition_by uses {strangers}, not in the primary key {list(primary_key)}:"
                " a key must always be in the same partition"
            )
        kept = pa.schema([f.with_nullable(False) if f.name in primary_key else f for f in kept])
    return TableDefinition(kept, spec, tuple(primary_key), tuple(sort_by), timestamp_unit)


def with_properties(
    definition: TableDefinition,
    publish: Sequence[str] | None,
    max_age_s: float | None,
    ack: AckLevel | None = None,
) -> TableDefinition:
    """Return the definition with the properties that a client requests; None leaves one unset.

    Raises:
        BadRequest: an unknown format, or an age out of range.
    """
    for name in publish or ():
        if name not in FORMATS:
            raise BadRequest(f"publish: {shown_name(name)} is not one of {', '.join(FORMATS)}")
    if max_age_s is not None and not MAX_AGE_S[0] <= max_age_s <= MAX_AGE_S[1]:
        raise BadRequest(f"max_age_s {max_age_s} is not between {MAX_AGE_S[0]} and {MAX_AGE_S[1]}")
    formats = None if publish is None else tuple(each for each in FORMATS if each in publish)
    return replace(definition, publish=formats, max_age_s=max_age_s, ack=ack)


def check_properties(have: TableDefinition, asked: TableDefinition, key: tuple[str, str]) -> None:
    """Raise :class:`BadRequest` if a table exists with other properties than those asked for."""
    for name in ("publish", "max_age_s", "ack"):
        there, wanted = getattr(have, name), getattr(asked, name)
        if wanted is None or wanted == there:
            continue
        if name == "ack":
            own = "no ack of its own" if there is None else f"ack {there!r}"
            raise BadRequest(
                f"table {key[0]}/{key[1]} exists and has {own}, not {wanted!r}; it is fixed at"
                f' creation: change [tables."{key[0]}/{key[1]}"] ack in the daemon\'s settings'
            )
        raise BadRequest(
            f"table {key[0]}/{key[1]} exists with {name} {_json(there)}, asked for {_json(wanted)}"
        )


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _check_listed(kind: str, names: Sequence[str], schema: pa.Schema) -> None:
    if len(set(names)) != len(names):
        raise BadRequest(f"{kind} {list(names)} has a column twice")
    for name in names:
        index = schema.get_field_index(name)
        if index < 0:
            raise BadRequest(f"{kind}: no column {name!r}")
        if not any(is_kind(schema.field(index).type) for is_kind in _KEYABLE):
            raise BadRequest(
                f"{kind}: column {name!r} of type {schema.field(index).type} has no order"
            )


def check_same(state: TableState, asked: TableDefinition, key: tuple[str, str]) -> None:
    """Raise :class:`BadRequest` if a table was not created with this definition.

    Columns and partition specs added since do not count: repeating the definition succeeds.
    """
    have = TableDefinition.of_state(state)
    if asked.spec in dict(have.other_specs).values():
        asked = replace(asked, spec=have.spec)
    for name in ("primary_key", "spec", "sort_by", "timestamp_unit"):
        if getattr(have, name) != getattr(asked, name):
            raise BadRequest(
                f"table {key[0]}/{key[1]} exists with {_shown(name, have)}, asked for"
                f" {_shown(name, asked)}"
            )
    schemas = [read_schema(schema) for schema in state.schemas.values()]
    if not any(schema.equals(asked.schema) for schema in schemas):
        raise BadRequest(
            f"table {key[0]}/{key[1]} exists with other columns: {_columns(have)}, asked for"
            f" {_columns(asked)}"
        )


def _shown(name: str, definition: TableDefinition) -> str:
    if name == "spec":
        return f"partition_by {list(definition.spec.texts())}"
    value = getattr(definition, name)
    return f"{name} {list(value) if isinstance(value, tuple) else value!r}"


def _columns(definition: TableDefinition) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in definition.schema)
