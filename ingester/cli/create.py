"""``create``: a table with the given columns or those of a file."""

from typing import Literal

import msgspec
import pyarrow as pa

from ingester.client import TableDescription

from .connecting import connect
from .exits import USAGE, CommandFailed
from .input.files import format_of, opened
from .input.source import TextOptions
from .input.type_names import parse_field, split_outside
from .printing import print_json, print_line, print_table


class TableArguments(msgspec.Struct, frozen=True, kw_only=True):
    """The table to create, as given on the command line."""

    namespace: str
    table: str
    columns: list[str]
    like: str | None
    input_format: str | None
    primary_key: str | None
    partition_by: str | None
    sort_by: str | None
    timestamp_unit: str


def create_table(endpoint: str, asked: TableArguments, texts: TextOptions, as_json: bool) -> None:
    """Create the table, unless it exists with the same definition, and print its definition.

    Raises:
        CommandFailed: Wrong usage.
        ClientError: The daemon refused.
    """
    units: dict[str, Literal["us", "ns"]] = {"us": "us", "ns": "ns"}
    if asked.timestamp_unit not in units:
        raise CommandFailed(f"--timestamp-unit {asked.timestamp_unit!r} is not us or ns", USAGE)
    schema = _schema(asked, texts)
    with connect(endpoint) as client:
        found = client.create_table(
            asked.namespace,
            asked.table,
            schema,
            primary_key=_names(asked.primary_key),
            partition_by=_names(asked.partition_by),
            sort_by=_names(asked.sort_by),
            timestamp_unit=units[asked.timestamp_unit],
        )
    if as_json:
        print_json(found)
    else:
        _print(found)


def _schema(asked: TableArguments, texts: TextOptions) -> pa.Schema:
    """The columns of the file and the given ones; a given type overrides the file's."""
    types: dict[str, pa.DataType] = {}
    if asked.like is not None:
        kind = format_of(asked.like, asked.input_format)
        with opened(asked.like, kind, None, texts) as file:
            types = {field.name: field.type for field in file.schema}
    named: set[str] = set()
    for text in asked.columns:
        name, kind = parse_field(text, ":", "column", asked.timestamp_unit)
        if name in named:
            raise CommandFailed(f"column {name!r} is given twice", USAGE)
        named.add(name)
        types[name] = kind
    if not types:
        raise CommandFailed("give columns as name:type, or --like FILE", USAGE)
    empty = [name for name, kind in types.items() if pa.types.is_null(kind)]
    if empty:
        raise CommandFailed(
            f"column {empty[0]!r} has no value in {asked.like}, so its type is unknown:"
            f" add {empty[0]}:TYPE"
        )
    return pa.schema(list(types.items()))


def _names(text: str | None) -> list[str] | None:
    if text is None:
        return None
    return [name.strip() for name in split_outside(text) if name.strip()]


def _print(found: TableDescription) -> None:
    keys, sorted_by = found.primary_key or [], found.sort_by or []
    print_table(
        ("column", "type", "primary key"),
        [(c.name, c.type, "yes" if c.name in keys else "") for c in found.schema],
        title=f"{found.namespace}/{found.table}",
    )
    print_line(
        f"partitioned by {', '.join(found.partition_by or []) or 'nothing'};"
        f" sorted by {', '.join(sorted_by) or 'nothing'};"
        f" timestamps in {found.timestamp_unit}"
    )
