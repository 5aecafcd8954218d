"""Manifests, which list data files, and manifest lists. Pure.

An entry names the snapshot that added the file, which is also its sequence number. Every field of a
partition has its bounds in the manifest list, because readers skip a manifest without them.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import fastavro
import msgspec
import pyarrow as pa

from persist.manifest import Add
from persist.parquet.field_ids import field_id
from persist.partitioning import PartitionField
from persist.publish.iceberg import avro
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
    from_bytes,
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


class Entry(NamedTuple):
    """A file in a manifest.

    Attributes:
        added_in: the number of the snapshot that added the file.
        encoded: the file as an earlier manifest has it, if that is known.
    """

    status: int
    added_in: int
    file: OpenFile
    encoded: bytes | None = None


class EncodedManifest(NamedTuple):
    """A manifest, and the length of each encoded entry."""

    data: bytes
    lengths: array[int]

    def files(self, added_in: Iterable[int]) -> Iterator[bytes]:
        """The first files as they are encoded.

        Args:
            added_in: the number in each of their entries.
        """
        records, end = b"".join(avro.blocks_of(self.data)), 0
        for length, number in zip(self.lengths, added_in, strict=False):
            start, end = end + len(avro.entry_start(EXISTING, number, number)), end + length
            yield records[start:end]


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

    def _partition(self, spec_id: int) -> list[tuple[PartitionField, pa.DataType, int]]:
        """Field, type of its column and number for each field of a partition."""
        schema, spec = self._definition.schema, self._definition.spec_of(spec_id)
        numbers = partition_ids(self._definition)
        return [(field, schema.field(field.column).type, numbers[field]) for field in spec.fields]

    def encode(self, spec_id: int, number: int, entries: Sequence[Entry]) -> EncodedManifest:
        """A manifest of files that all have this partition spec, written by snapshot ``number``."""
        fields = self._partition(spec_id)
        data_file = avro.data_file_type(fields)
        parsed = fastavro.parse_schema(data_file)
        records = []
        for status, added_in, file, encoded in entries:
            start = avro.entry_start(status, number if status == DELETED else added_in, added_in)
            records.append(start + (encoded or avro.encode(parsed, self._data_file(file, fields))))
        facts = {
            "schema": self._schema.decode(),
            "schema-id": str(self._definition.schema_id),
            "partition-spec": self._fields(spec_id),
            "partition-spec-id": str(spec_id),
            "format-version": "2",
            "content": "data",
        }
        data = avro.file_of(avro.entry_type(data_file), records, facts)
        return EncodedManifest(data, array("I", map(len, records)))

    def _fields(self, spec_id: int) -> str:
        return msgspec.json.encode(spec_json(self._definition, spec_id)["fields"]).decode()

    def _data_file(
        self, file: OpenFile, fields: list[tuple[PartitionField, pa.DataType, int]]
    ) -> dict[str, Any]:
        add = file.add
        partition = {
            avro.name_of(field.name, number): in_partition(
                result_type(field, kind), plain_partition(field, kind, value)
            )
            for (field, kind, number), value in zip(fields, add.values, strict=True)
        }
        return {
            "content": 0,
            "file_path": f"{self._location}/{file.path}",
            "file_format": "PARQUET",
            "partition": partition,
            "record_count": add.rows,
            "file_size_in_bytes": add.bytes,
            "sort_order_id": 0,
            **self._metrics(add),
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
        for place, (field, kind, _) in enumerate(self._partition(spec_id)):
            distinct = {entry.file.add.values[place] for entry in entries}
            plain = [plain_partition(field, kind, value) for value in distinct]
            known: list[Any] = [value for value in plain if value is not None]
            result = result_type(field, kind)
            yield Summary(
                contains_null=len(known) < len(plain),
                lower=to_bytes(result, min(known)) if known else None,
                upper=to_bytes(result, max(known)) if known else None,
            )


def may_list(manifest: ManifestFile, add: Add, definition: TableDefinition) -> bool:
    """Whether a file's partition is within the bounds of a manifest of the same table."""
    if manifest.spec_id != add.spec_id:
        return False
    fields = definition.spec_of(add.spec_id).fields
    for field, value, summary in zip(fields, add.values, manifest.partitions, strict=True):
        column = definition.schema.field(field.column).type
        kind, plain = result_type(field, column), plain_partition(field, column, value)
        if plain is None:
            if not summary.contains_null:
                return False
        elif summary.lower is None or summary.upper is None:
            return False
        else:
            bounds: Any = from_bytes(kind, summary.lower), from_bytes(kind, summary.upper)
            if not bounds[0] <= plain <= bounds[1]:
                return False
    return True


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
        entry["data_file"]["file_path"]: entry["sequence_number"]
        for entry in avro.read(data, avro.ENTRY_PATHS)
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
    parsed = fastavro.parse_schema(avro.MANIFEST_FILE)
    records = [avro.encode(parsed, _described(manifest)) for manifest in manifests]
    return avro.file_of(avro.MANIFEST_FILE, records, facts)


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
        for each in avro.read(data)
    ]
