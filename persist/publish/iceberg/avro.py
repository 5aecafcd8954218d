"""Avro files of encoded records, and the types of manifests and manifest lists. Pure.

Fields have the names and ids of https://iceberg.apache.org/spec/#manifests, and readers find them
by id. fastavro encodes records one by one. Their file is put together here, because then a record
that is already encoded can be copied into the next file: it takes a fiftieth of the time, and lets
other threads run in between. The same records give the same bytes.
"""

from __future__ import annotations

import hashlib
import io
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import fastavro
import msgspec
import pyarrow as pa

from persist.partitioning import PartitionField
from persist.publish.iceberg.schema import result_type
from persist.publish.iceberg.values import decimal_bytes

_MAGIC = b"Obj\1"
_FACTS = fastavro.parse_schema({"type": "map", "values": "bytes"})
_BLOCK = 1000
"""Records of a block."""
_RAW = -zlib.MAX_WBITS


def encode(avro: Any, record: Mapping[str, Any]) -> bytes:
    """One record of a type that ``fastavro.parse_schema`` returned."""
    sink = io.BytesIO()
    fastavro.schemaless_writer(sink, avro, record)
    return sink.getvalue()


def file_of(avro: Mapping[str, Any], records: Sequence[bytes], facts: Mapping[str, str]) -> bytes:
    """An Avro file of encoded records.

    Args:
        avro: the type as it is written into the file.
    """
    header = {name: text.encode() for name, text in facts.items()}
    header |= {"avro.schema": msgspec.json.encode(avro), "avro.codec": b"deflate"}
    sink = io.BytesIO()
    sink.write(_MAGIC)
    fastavro.schemaless_writer(sink, _FACTS, header)
    # The marker between blocks may be anything that hardly occurs in them.
    marker = hashlib.sha256(sink.getvalue()).digest()[:16]
    sink.write(marker)
    for first in range(0, len(records), _BLOCK):
        block = records[first : first + _BLOCK]
        packing = zlib.compressobj(wbits=_RAW)
        fastavro.schemaless_writer(sink, "long", len(block))
        fastavro.schemaless_writer(
            sink, "bytes", packing.compress(b"".join(block)) + packing.flush()
        )
        sink.write(marker)
    return sink.getvalue()


def blocks_of(data: bytes) -> Iterator[bytes]:
    """The encoded records of each block of :func:`file_of`, one behind the other."""
    source = io.BytesIO(data)
    source.seek(len(_MAGIC))
    fastavro.schemaless_reader(source, _FACTS, None)
    marker = source.read(16)
    while source.tell() < len(data):
        fastavro.schemaless_reader(source, "long", None)
        block = fastavro.schemaless_reader(source, "bytes", None)
        assert isinstance(block, bytes)
        yield zlib.decompress(block, _RAW)
        source.seek(len(marker), io.SEEK_CUR)


def read(data: bytes, avro: Any = None) -> Iterator[Any]:
    """The records of an Avro file.

    Args:
        avro: a type with the wanted fields; None for all.

    Raises:
        ValueError: it is no Avro file.
    """
    yield from fastavro.reader(io.BytesIO(data), avro)


@lru_cache(maxsize=1024)
def long(number: int) -> bytes:
    """An integer as Avro encodes it."""
    left, parts = number << 1 ^ number >> 63, bytearray()
    while left > 0x7F:
        parts.append(left & 0x7F | 0x80)
        left >>= 7
    parts.append(left)
    return bytes(parts)


def name_of(name: str, number: int) -> str:
    """A name that Avro accepts for a partition field, much as Iceberg makes it.

    The number of the field makes a changed name unique.
    """
    text = re.sub(r"[^A-Za-z0-9_]", lambda match: f"_x{ord(match[0]):X}", name)
    return name if text == name and not name[0].isdigit() else f"_{text}_{number}"


def _required(name: str, number: int, kind: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "field-id": number}


def _optional(name: str, number: int, kind: Any) -> dict[str, Any]:
    return {"name": name, "type": ["null", kind], "default": None, "field-id": number}


def _map(number: int, value: str) -> dict[str, Any]:
    """A map whose keys are numbers; their field has the id ``number``, the values' the next."""
    return {
        "type": "array",
        "logicalType": "map",
        "items": {
            "type": "record",
            "name": f"k{number}_v{number + 1}",
            "fields": [_required("key", number, "int"), _required("value", number + 1, value)],
        },
    }


def data_file_type(fields: Sequence[tuple[PartitionField, pa.DataType, int]]) -> dict[str, Any]:
    """The type of a data file in a manifest.

    Args:
        fields: of the partition, with the type of the source column and the field's number.
    """
    partition = {
        "type": "record",
        "name": "r102",
        "fields": [
            {
                **_optional(name_of(field.name, number), number, _value_type(field, kind, number)),
                "iceberg-field-name": field.name,
            }
            for field, kind, number in fields
        ],
    }
    return {
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


def _value_type(field: PartitionField, column: pa.DataType, number: int) -> Any:
    kind = result_type(field, column)
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


def entry_type(data_file: Any) -> dict[str, Any]:
    """The type of an entry of a manifest."""
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


def entry_start(status: int, snapshot_id: int, sequence: int) -> bytes:
    """All of an encoded entry but the data file. Its length depends on the numbers alone."""
    some = b"\2"  # the second type of a union
    return b"".join(
        (long(status), some, long(snapshot_id), some, long(sequence), some, long(sequence))
    )


ENTRY_PATHS = {
    "type": "record",
    "name": "manifest_entry",
    "fields": [
        _required("status", 0, "int"),
        _optional("sequence_number", 3, "long"),
        _required(
            "data_file",
            2,
            {"type": "record", "name": "r2", "fields": [_required("file_path", 100, "string")]},
        ),
    ],
}
"""The part of an entry that says which file is in a manifest."""

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
MANIFEST_FILE = {
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
"""The type of a line of a manifest list."""
