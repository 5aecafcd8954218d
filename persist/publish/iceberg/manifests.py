"""Manifests, which list data files, and manifest lists, as Avro files. Pure.

The same arguments give the same bytes. Fields have the ids and types of
https://iceberg.apache.org/spec/#manifests, and readers find them by id. An entry names the snapshot
that added the file, which is also its sequence number. Every field of a partition has its bounds in
the manifest list, because readers skip a manifest without them.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import fastavro
import msgspec
import pyarrow as pa

from persist.manifest import Add
from persist.parquet.field_ids import field_id
from persist.partitioning import PartitionField
from persist.publish.iceberg.schema import (
    numbered,
    partition_ids,
    result_type,
    schema_json,
    spec_json,
    specs_of,
)
from persist.publish.iceberg.values import (
    bound,
    decimal_bytes,
    in_partition,
    plain_partition,
    to_bytes,
)
from persist.publish.steps import OpenFile
from persist.table import TableDefinition

EXISTING, ADDED, DELETED = 0, 1, 2
MOST_COLUMNS = 100
"""Columns with bounds, as Iceberg's own writers limit them: those of key, sort order and partitions
first.
"""
_CODEC = "deflate"


class Entry(NamedTuple):
    """A file in a manifest.

    Attributes:
        added_in: the number of the snapshot that added the file.
    """

    status: int
    added_in: int
    file: OpenFile


class Counted(msgspec.Struct, frozen=True):
    """Files of one status in a manifest, and their rows."""

    files: int = 0
    rows: int = 0


class Summary(msgspec.Struct, frozen=True):
    """The values of one partition field in a manifest."""

    contains_null: bool
    lower: bytes | None
    upper: bytes | None


class ManifestFile(msgspec.Struct, frozen=True):
    """A manifest, as a manifest list describes it.

    Attributes:
        path: absolute.
        added_in: the number of the snapshot that wrote it.
        min_sequence: the lowest sequence number of a file that it lists.
    """

    path: str
    length: int
    spec_id: int
    added_in: int
    min_sequence: int
    added: Counted
    existing: Counted
    deleted: Counted
    partitions: tuple[Summary, ...]

    @property
    def live(self) -> int:
        """The files that are part of the table."""
        return self.added.files + self.existing.files


class ManifestWriter:
    """Encodes manifests of one definition of a table.

    Args:
        location: the URL of the table's folder.
    """

    def __init__(self, definition: TableDefinition, location: str) -> None:
        self._definition, self._location = definition, location
        self._columns = _bounded_columns(definition)

    @cached_property
    def _schema(self) -> bytes:
        return msgspec.json.encode(schema_json(self._definition))

    def _partition_types(self, spec_id: int) -> list[tuple[PartitionField, pa.DataType]]:
        schema, spec = self._definition.schema, self._definition.spec_of(spec_id)
        return [(field, schema.field(field.column).type) for field in spec.fields]

    def encode(self, spec_id: int, entries: Sequence[Entry]) -> bytes:
        """A manifest of files that all have this partition spec."""
        fields = self._partition_types(spec_id)
        spec = spec_json(self._definition, spec_id)
        facts = {
            "schema": self._schema.decode(),
            "schema-id": str(self._definition.schema_id),
            "partition-spec": msgspec.json.encode(spec["fields"]).decode(),
            "partition-spec-id": str(spec_id),
            "format-version": "2",
            "content": "data",
        }
        avro = _entry_type(_partition_type(self._definition, fields))
        return _container(avro, [self._entry(entry, fields) for entry in entries], facts)

    def _entry(
        self, entry: Entry, fields: list[tuple[PartitionField, pa.DataType]]
    ) -> dict[str, Any]:
        add = entry.file.add
        values = [
            in_partition(result_type(field, kind), plain_partition(field, kind, value))
            for (field, kind), value in zip(fields, add.values, strict=True)
        ]
        names = [avro_name(field.name) for field, _ in fields]
        return {
            "status": entry.status,
            "snapshot_id": entry.added_in,
            "sequence_number": entry.added_in,
            "file_sequence_number": entry.added_in,
            "data_file": {
                "content": 0,
                "file_path": f"{self._location}/{entry.file.path}",
                "file_format": "PARQUET",
                "partition": dict(zip(names, values, strict=True)),
                "record_count": add.rows,
                "file_size_in_bytes": add.bytes,
                "sort_order_id": 0,
                **self._metrics(add),
            },
        }

    def _metrics(self, add: Add) -> dict[str, Any]:
        counts, nulls, lower, upper = [], [], [], []
        for name, number, kind in self._columns:
            if (stats := add.stats.get(name)) is None:
                continue
            counts.append({"key": number, "value": add.rows})
            if stats.nulls is not None:
                nulls.append({"key": number, "value": stats.nulls})
            if (low := bound(kind, stats.min, upper=False)) is not None:
                lower.append({"key": number, "value": low})
            if (high := bound(kind, stats.max, upper=True)) is not None:
                upper.append({"key": number, "value": high})
        return {
            "value_counts": ("array", counts),
            "null_value_counts": ("array", nulls),
            "lower_bounds": ("array", lower),
            "upper_bounds": ("array", upper),
        }

    def described(
        self, path: str, length: int, spec_id: int, number: int, entries: Sequence[Entry]
    ) -> ManifestFile:
        """The line of a manifest list about a manifest that snapshot ``number`` writes."""
        counted = {
            status: Counted(
                sum(entry.status == status for entry in entries),
                sum(entry.file.add.rows for entry in entries if entry.status == status),
            )
            for status in (ADDED, EXISTING, DELETED)
        }
        live = [entry.added_in for entry in entries if entry.status != DELETED]
        return ManifestFile(
            path=path,
            length=length,
            spec_id=spec_id,
            added_in=number,
            min_sequence=min(live, default=number),
            added=counted[ADDED],
            existing=counted[EXISTING],
            deleted=counted[DELETED],
            partitions=tuple(self._summaries(spec_id, entries)),
        )

    def _summaries(self, spec_id: int, entries: Sequence[Entry]) -> Iterator[Summary]:
        for place, (field, kind) in enumerate(self._partition_types(spec_id)):
            distinct = {entry.file.add.values[place] for entry in entries}
            plain = [plain_partition(field, kind, value) for value in distinct]
            known: list[Any] = [value for value in plain if value is not None]
            result = result_type(field, kind)
            yield Summary(
                contains_null=len(known) < len(plain),
                lower=to_bytes(result, min(known)) if known else None,
                upper=to_bytes(result, max(known)) if known else None,
            )


def _bounded_columns(definition: TableDefinition) -> list[tuple[str, int, pa.DataType]]:
    """Name, number and type of the columns whose bounds a manifest has."""
    partitioned = (field.column for spec in specs_of(definition).values() for field in spec.fields)
    schema = numbered(definition)
    first = (*definition.primary_key, *definition.sort_by, *partitioned)
    names = [
        name
        for name in dict.fromkeys((*first, *schema.names))
        if not pa.types.is_nested(schema.field(name).type)
    ]
    fields = [schema.field(name) for name in names[:MOST_COLUMNS]]
    return sorted(((f.name, field_id(f), f.type) for f in fields), key=lambda each: each[1])


def decode_entries(data: bytes) -> dict[str, int]:
    """The files that a manifest lists as part of the table, and the snapshot that added each.

    Returns:
        Absolute paths, in the order of the manifest.

    Raises:
        ValueError: it is no manifest.
    """
    return {
        entry["data_file"]["file_path"]: entry["snapshot_id"]
        for entry in _read(data)
        if entry["status"] != DELETED
    }


def encode_list(number: int, parent: int | None, manifests: Sequence[ManifestFile]) -> bytes:
    """The manifest list of a snapshot."""
    facts = {
        "snapshot-id": str(number),
        "parent-snapshot-id": "null" if parent is None else str(parent),
        "sequence-number": str(number),
        "format-version": "2",
    }
    return _container(_LIST, [_described(manifest) for manifest in manifests], facts)


def _described(manifest: ManifestFile) -> dict[str, Any]:
    return {
        "manifest_path": manifest.path,
        "manifest_length": manifest.length,
        "partition_spec_id": manifest.spec_id,
        "content": 0,
        "sequence_number": manifest.added_in,
        "min_sequence_number": manifest.min_sequence,
        "added_snapshot_id": manifest.added_in,
        "added_files_count": manifest.added.files,
        "existing_files_count": manifest.existing.files,
        "deleted_files_count": manifest.deleted.files,
        "added_rows_count": manifest.added.rows,
        "existing_rows_count": manifest.existing.rows,
        "deleted_rows_count": manifest.deleted.rows,
        "partitions": [
            {
                "contains_null": each.contains_null,
                "contains_nan": False,
                "lower_bound": each.lower,
                "upper_bound": each.upper,
            }
            for each in manifest.partitions
        ],
    }


def decode_list(data: bytes) -> list[ManifestFile]:
    """The manifests of a snapshot.

    Raises:
        ValueError: it is no manifest list.
    """
    return [
        ManifestFile(
            path=each["manifest_path"],
            length=each["manifest_length"],
            spec_id=each["partition_spec_id"],
            added_in=each["added_snapshot_id"],
            min_sequence=each["min_sequence_number"],
            added=Counted(each["added_files_count"], each["added_rows_count"]),
            existing=Counted(each["existing_files_count"], each["existing_rows_count"]),
            deleted=Counted(each["deleted_files_count"], each["deleted_rows_count"]),
            partitions=tuple(
                Summary(one["contains_null"], one["lower_bound"], one["upper_bound"])
                for one in each["partitions"]
            ),
        )
        for each in _read(data)
    ]


def _container(avro: Any, records: list[dict[str, Any]], facts: Mapping[str, str]) -> bytes:
    sink = io.BytesIO()
    # By default the marker between blocks is random.
    marker = hashlib.md5(repr(sorted(facts.items())).encode(), usedforsecurity=False).digest()
    fastavro.writer(sink, avro, records, _CODEC, metadata=dict(facts), sync_marker=marker)
    return sink.getvalue()


def _read(data: bytes) -> list[Any]:
    return list(fastavro.reader(io.BytesIO(data)))


def avro_name(name: str) -> str:
    """A name that Avro accepts, as Iceberg makes it."""
    text = re.sub(r"[^A-Za-z0-9_]", lambda match: f"_x{ord(match[0]):X}", name)
    return f"_{text}" if text[0].isdigit() else text


def _partition_type(
    definition: TableDefinition, fields: list[tuple[PartitionField, pa.DataType]]
) -> dict[str, Any]:
    numbers = partition_ids(definition)
    return {
        "type": "record",
        "name": "r102",
        "fields": [
            {
                "name": avro_name(field.name),
                "iceberg-field-name": field.name,
                "type": ["null", _avro_type(result_type(field, kind), numbers[field])],
                "default": None,
                "field-id": numbers[field],
            }
            for field, kind in fields
        ],
    }


def _avro_type(kind: pa.DataType, number: int) -> Any:
    if pa.types.is_date32(kind):
        return {"type": "int", "logicalType": "date"}
    if pa.types.is_timestamp(kind):
        utc = bool(kind.tz)
        return {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": utc}
    if pa.types.is_decimal128(kind):
        return {
            "type": "fixed",
            "name": f"decimal_{number}",
            "size": decimal_bytes(kind.precision),
            "logicalType": "decimal",
            "precision": kind.precision,
            "scale": kind.scale,
        }
    if pa.types.is_boolean(kind):
        return "boolean"
    if pa.types.is_string(kind):
        return "string"
    return "long" if pa.types.is_int64(kind) else "int"


def _map(number: int, value: str) -> dict[str, Any]:
    """A map with numbers as keys, which are ``number``, and values, which are the next one."""
    return {
        "type": "array",
        "logicalType": "map",
        "items": {
            "type": "record",
            "name": f"k{number}_v{number + 1}",
            "fields": [_required("key", number, "int"), _required("value", number + 1, value)],
        },
    }


def _required(name: str, number: int, kind: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "field-id": number}


def _optional(name: str, number: int, kind: Any) -> dict[str, Any]:
    return {"name": name, "type": ["null", kind], "default": None, "field-id": number}


def _entry_type(partition: dict[str, Any]) -> dict[str, Any]:
    data_file = {
        "type": "record",
        "name": "r2",
        "fields": [
            _required("content", 134, "int"),
            _required("file_path", 100, "string"),
            _required("file_format", 101, "string"),
            _required("partition", 102, partition),
            _required("record_count", 103, "long"),
            _required("file_size_in_bytes", 104, "long"),
            _optional("value_counts", 109, _map(119, "long")),
            _optional("null_value_counts", 110, _map(121, "long")),
            _optional("lower_bounds", 125, _map(126, "bytes")),
            _optional("upper_bounds", 128, _map(129, "bytes")),
            _optional("sort_order_id", 140, "int"),
        ],
    }
    return {
        "type": "record",
        "name": "manifest_entry",
        "fields": [
            _required("status", 0, "int"),
            _optional("snapshot_id", 1, "long"),
            _optional("sequence_number", 3, "long"),
            _optional("file_sequence_number", 4, "long"),
            _required("data_file", 2, data_file),
        ],
    }


_SUMMARIES = {
    "type": "array",
    "element-id": 508,
    "items": {
        "type": "record",
        "name": "r508",
        "fields": [
            _required("contains_null", 509, "boolean"),
            _optional("contains_nan", 518, "boolean"),
            _optional("lower_bound", 510, "bytes"),
            _optional("upper_bound", 511, "bytes"),
        ],
    },
}
_LIST = {
    "type": "record",
    "name": "manifest_file",
    "fields": [
        _required("manifest_path", 500, "string"),
        _required("manifest_length", 501, "long"),
        _required("partition_spec_id", 502, "int"),
        _required("content", 517, "int"),
        _required("sequence_number", 515, "long"),
        _required("min_sequence_number", 516, "long"),
        _required("added_snapshot_id", 503, "long"),
        _required("added_files_count", 504, "int"),
        _required("existing_files_count", 505, "int"),
        _required("deleted_files_count", 506, "int"),
        _required("added_rows_count", 512, "long"),
        _required("existing_rows_count", 513, "long"),
        _required("deleted_rows_count", 514, "long"),
        _optional("partitions", 507, _SUMMARIES),
    ],
}
