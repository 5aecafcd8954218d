"""``create``, ``tables`` and ``checkpoints``: tables and the checkpoints of their sources."""

import datetime
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Literal

import msgspec
import pyarrow as pa

from ingester.client import AckLevel, NotFound, TableDescription
from ingester.config.units import format_duration, parse_duration

from .connecting import connect
from .exits import USAGE, CommandFailed
from .input.files import format_of, opened
from .input.source import TextOptions
from .input.type_names import parse_field, split_outside
from .printing import print_json, print_line, print_table, shown, size

_NAMED = 10
"""Maximum number of partitions that a message names."""


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
    publish: str | None
    max_age: str | None
    ack: AckLevel | None


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
            publish=_names(asked.publish),
            max_age_s=_seconds("--max-age", asked.max_age),
            ack=asked.ack,
        )
    if as_json:
        print_json(found)
    else:
        _print_definition(found)


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


def _seconds(option: str, text: str | None) -> float | None:
    try:
        return None if text is None else parse_duration(text)
    except ValueError as exc:
        raise CommandFailed(f"{option}: {exc}", USAGE) from exc


def _print_definition(found: TableDescription) -> None:
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
    if found.max_age_s is not None:
        age = format_duration(found.max_age_s)
        print_line(f"flushed after {age}, or persist.max_age if that is shorter")
    if found.ack == "store":
        print_line("acknowledged in object storage")
    if found.publish is not None:
        print_line(f"published in {', '.join(found.publish) or 'no open format'}")


def print_tables(endpoint: str, as_json: bool) -> None:
    """Print every table with its newest version and its rows in memory and in files."""
    found: list[TableDescription] = []
    with connect(endpoint) as client:
        for summary in client.tables():
            try:
                found.append(client.describe(summary.namespace, summary.table))
            except NotFound:  # dropped since the listing
                continue
    if as_json:
        print_json(found)
        return
    published = any(table.published for table in found)
    at_store = any(table.ack == "store" for table in found)
    rows = [
        (
            table.namespace,
            table.table,
            _version_of(table),
            table.buffered.rows,
            table.persisted.rows,
            table.persisted.files,
            size(table.persisted.bytes),
            table.partition_by or [],
            *([] if not published else [_published(table)]),
            *([] if not at_store else [table.ack]),
        )
        for table in found
    ]
    headings = ["namespace", "table", "version", "in buffer", "in files", "files", "size"]
    more = [*(["published"] if published else []), *(["ack"] if at_store else [])]
    print_table([*headings, "partitioned by", *more], rows)


def _published(table: TableDescription) -> str:
    """Return the formats that a table is published in, each with its newest version."""
    return ", ".join(
        f"{each.format} {'stopped' if each.refused else shown(each.number)}"
        for each in table.published
    )


def _version_of(table: TableDescription) -> object:
    """Return the manifest version, with the generation if it is not the first."""
    if table.table_version == 1:
        return table.manifest_version
    return f"{table.manifest_version} of v{table.table_version}"


def print_checkpoints(
    endpoint: str, namespace: str | None, table: str | None, as_json: bool
) -> None:
    """Print each checkpoint with its size, age, and whether it is in object storage.

    Raises:
        ClientError: No such table, or no daemon.
    """
    with connect(endpoint) as client:
        found = client.checkpoints(namespace, table)
    if as_json:
        print_json(found)
        return
    if not found:
        print_line("no checkpoints")
        return
    now = datetime.datetime.now(datetime.UTC)
    rows = [
        (
            one.namespace,
            one.table,
            one.partition,
            size(one.bytes),
            size(one.shared_bytes) if one.shared_id else "-",
            _age(one.at, now),
            "durable" if one.durable else "in the log",
            one.origin,
        )
        for one in found
    ]
    headings = ["namespace", "table", "partition", "size", "shared", "age", "kept", "origin"]
    print_table(headings, rows)


def delete_checkpoint(endpoint: str, table: tuple[str, str], partition: str, as_json: bool) -> None:
    """Delete a checkpoint and print its size.

    Raises:
        CommandFailed: The table has no checkpoint of this partition.
        ClientError: No such table, or no daemon.
    """
    with connect(endpoint) as client:
        listed = client.checkpoints(*table)
        gone = next((each for each in listed if each.partition == partition), None)
        if gone is None:
            raise CommandFailed(_unknown(table, partition, [each.partition for each in listed]))
        client.delete_checkpoint(*table, partition)
    if as_json:
        print_json(gone)
        return
    print_line(
        f"deleted checkpoint {partition!r} of {'/'.join(table)} ({size(gone.bytes)});"
        " object storage is updated with the table's next commit"
    )


def _unknown(table: tuple[str, str], partition: str, there: Sequence[str]) -> str:
    name = "/".join(table)
    if not there:
        return f"table {name} has no checkpoints"
    close = get_close_matches(partition, there, 1)
    if close:
        helps = f"did you mean {close[0]!r}?"
    elif len(there) <= _NAMED:
        helps = f"it has {', '.join(map(repr, there))}"
    else:
        helps = f"`ingester checkpoints {' '.join(table)}` lists all {len(there)}"
    return f"table {name} has no checkpoint {partition!r}; {helps}"


def _age(at: datetime.datetime | None, now: datetime.datetime) -> str:
    if at is None:
        return "-"
    age_s = max(0.0, (now - at).total_seconds())
    for unit, unit_s, until_s in (("s", 1, 120), ("min", 60, 7200), ("h", 3600, 172_800)):
        if age_s < until_s:
            return f"{age_s / unit_s:.0f} {unit}"
    return f"{age_s / 86_400:.0f} days"
