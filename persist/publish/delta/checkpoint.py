"""Checkpoints: the whole table at one version, as a Parquet file with a row per action. Pure.

A reader begins at the newest checkpoint and reads only the commits after it. One file holds the
protocol, the metadata, our transaction and an add for each file. Removed files are left out: they
would tell ``VACUUM`` what it may delete, and it is the ingester that deletes files.

The Parquet footer also holds the uid of the manifest version. The source is Delta's PROTOCOL.md,
"Checkpoints" (classic, one file).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from persist.publish.delta.actions import Description, added, txn
from persist.publish.steps import Step

_KEY = b"ingesterUid"
_TEXTS = pa.map_(pa.string(), pa.string())
_NAMES = pa.list_(pa.string())
_ADD = pa.struct(
    [
        ("path", pa.string()),
        ("partitionValues", _TEXTS),
        ("size", pa.int64()),
        ("modificationTime", pa.int64()),
        ("dataChange", pa.bool_()),
        ("stats", pa.string()),
    ]
)
_REMOVE = pa.struct(
    [
        ("path", pa.string()),
        ("deletionTimestamp", pa.int64()),
        ("dataChange", pa.bool_()),
    ]
)
_META_DATA = pa.struct(
    [
        ("id", pa.string()),
        ("format", pa.struct([("provider", pa.string()), ("options", _TEXTS)])),
        ("schemaString", pa.string()),
        ("partitionColumns", _NAMES),
        ("configuration", _TEXTS),
    ]
)
_PROTOCOL = pa.struct(
    [
        ("minReaderVersion", pa.int32()),
        ("minWriterVersion", pa.int32()),
        ("readerFeatures", _NAMES),
        ("writerFeatures", _NAMES),
    ]
)
_TXN = pa.struct([("appId", pa.string()), ("version", pa.int64()), ("lastUpdated", pa.int64())])
OTHER_ROWS = 3
"""Rows of a checkpoint beside the files."""
_AT_ONCE = 10_000
"""Files per row group, which bounds the memory for their statistics as text."""


def encode_checkpoint(step: Step, description: Description) -> pa.Buffer:
    """The checkpoint of the table at a step."""
    kinds = [("txn", _TXN), ("add", _ADD), ("remove", _REMOVE)]
    kinds += [("metaData", _META_DATA), ("protocol", _PROTOCOL)]
    schema = pa.schema(kinds)
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, schema, compression="zstd", store_schema=False) as writer:
        firsts = [
            {"protocol": description.protocol},
            {"metaData": description.meta_data},
            {"txn": txn(step)},
        ]
        writer.write_table(pa.Table.from_pylist([_as_rows(each) for each in firsts], schema))
        files = step.files()
        for start in range(0, len(files), _AT_ONCE):
            part = files[start : start + _AT_ONCE]
            adds = [added(file, description.stats, False) for file in part]
            writer.write_table(_only_adds(adds, schema))
        writer.add_key_value_metadata({_KEY.decode(): step.place.uid})
    return sink.getvalue()


def _as_rows(action: dict[str, Any]) -> dict[str, Any]:
    """The action with its maps as pyarrow takes them."""
    return {
        name: _as_rows(value)
        if name in ("metaData", "protocol", "txn", "format")
        else list(value.items())
        if isinstance(value, dict)
        else value
        for name, value in action.items()
    }


def _only_adds(adds: Sequence[dict[str, Any]], schema: pa.Schema) -> pa.Table:
    columns = [
        pa.array([add[each.name] for add in adds], each.type)
        if each.type != _TEXTS
        else pa.array([[]] * len(adds), _TEXTS)
        for each in _ADD
    ]
    whole = pa.StructArray.from_arrays(columns, fields=list(_ADD))
    return pa.Table.from_arrays(
        [whole if f.name == "add" else pa.nulls(len(adds), f.type) for f in schema], schema=schema
    )


def checkpoint_uid(file: pa.NativeFile) -> str | None:
    """The uid of the manifest version in a checkpoint; None if it is not one of ours."""
    try:
        found = pq.read_metadata(file).metadata or {}
    except pa.ArrowInvalid:
        return None
    return found.get(_KEY, b"").decode() or None
