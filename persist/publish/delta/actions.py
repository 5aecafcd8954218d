"""The actions of Delta's log, and the lines of one commit. Pure.

    {"commitInfo": …, "ingesterUid": …}     which manifest version this is
    {"protocol": …}  {"metaData": …}        only if either differs from those of the version before
    {"txn": {"appId": "ingester", …}}
    {"remove": …} …  {"add": …} …

A commit's bytes follow from the table's name, its step and whether the description changed, so two
publishers write the same bytes. The source is Delta's PROTOCOL.md, "Actions".

**Fence.** ``writerFeatures`` contains a name that no other program knows. A writer must refuse a
table with a feature that it does not know, while readers look only at ``readerFeatures``.
"""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec
import pyarrow as pa

from persist.publish.delta.schema import delta_schema, has_wall_clocks
from persist.publish.delta.stats import StatsWriter
from persist.publish.steps import OpenFile, Place, Step

APP = "ingester"
"""The ``appId`` of our transactions, and our name as an engine."""
FENCE = "ingester.published"
"""The writer feature that keeps other writers out."""
_WALL_CLOCKS = "timestampNtz"
_CONFIGURATION = {
    # Spark reads the statistics of the first 32 columns unless told otherwise.
    "delta.dataSkippingNumIndexedCols": "-1",
    # The ingester cleans up log and files, by its own retention.
    "delta.enableExpiredLogCleanup": "false",
    # deltalake's vacuum() checks no features. It would delete our manifests.
    "delta.deletedFileRetentionDuration": "interval 36500 days",
}
_encode = msgspec.json.Encoder().encode


class CommitInfo(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The part of a commit by which a publisher recognises its own. Another writer's has none of
    our keys.
    """

    timestamp: int
    operation: str
    operation_parameters: dict[str, str]
    is_blind_append: bool
    engine_info: str = APP
    ingester_version: int = -1
    ingester_table_version: int = -1
    ingester_uid: str = ""
    ingester_description: str = ""
    """The :attr:`Description.digest` of the version."""

    def place(self, number: int) -> Place:
        """The place of the version that has this number in the log."""
        return Place(number, self.ingester_table_version, self.ingester_version, self.ingester_uid)


class _Line(msgspec.Struct):
    commitInfo: CommitInfo | None = None


_decode = msgspec.json.Decoder(_Line).decode


class Description(NamedTuple):
    """The protocol and the metadata of a table, and what writes the statistics of its files.

    Attributes:
        digest: of protocol and metadata, so that a commit repeats them only if they change.
    """

    protocol: dict[str, Any]
    meta_data: dict[str, Any]
    stats: StatsWriter
    digest: str


def describe(table_id: str, schema: pa.Schema) -> Description:
    """The description of a table with these columns, which Delta can express."""
    extra = [_WALL_CLOCKS] if has_wall_clocks(schema) else []
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": extra,
        "writerFeatures": [*extra, FENCE],
    }
    meta_data = {
        "id": table_id,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": _encode(delta_schema(schema)).decode(),
        "partitionColumns": [],
        "configuration": _CONFIGURATION,
    }
    digest = hashlib.sha256(_encode([protocol, meta_data])).hexdigest()[:16]
    return Description(protocol, meta_data, StatsWriter(schema), digest)


def commit_info(step: Step, description: Description) -> CommitInfo:
    """What a commit says of its version."""
    if step.rearranged:
        operation, parameters = "OPTIMIZE", {}
    else:
        mode = "Overwrite" if step.removed or step.complete else "Append"
        operation, parameters = "WRITE", {"mode": mode}
    return CommitInfo(
        timestamp=step.at_ms,
        operation=operation,
        operation_parameters=parameters,
        is_blind_append=parameters.get("mode") == "Append",
        ingester_version=step.place.version,
        ingester_table_version=step.place.table_version,
        ingester_uid=step.place.uid,
        ingester_description=description.digest,
    )


def commit(step: Step, description: Description, *, described: bool) -> bytes:
    """The lines of the commit of a step; without files if the step is complete.

    Args:
        described: whether to include the protocol and the metadata.
    """
    lines: list[dict[str, Any]] = [{"commitInfo": commit_info(step, description)}]
    if described:
        lines += [{"protocol": description.protocol}, {"metaData": description.meta_data}]
    lines.append({"txn": txn(step)})
    if not step.complete:
        changed = not step.rearranged
        lines += ({"remove": removed(file, step.at_ms, changed)} for file in step.removed)
        lines += ({"add": added(file, description.stats, changed)} for file in step.added)
    return b"".join(_encode(line) + b"\n" for line in lines)


def txn(step: Step) -> dict[str, Any]:
    """The number of the version under our own name."""
    return {"appId": APP, "version": step.place.number, "lastUpdated": step.at_ms}


def added(file: OpenFile, stats: StatsWriter, changed: bool) -> dict[str, Any]:
    """A file that becomes part of the table.

    Args:
        changed: whether its rows are new to the table.
    """
    return {
        "path": encoded(file.path),
        "partitionValues": {},
        "size": file.add.bytes,
        "modificationTime": modified_ms(file),
        "dataChange": changed,
        "stats": stats.text(file.add),
    }


def removed(file: OpenFile, at_ms: int, changed: bool) -> dict[str, Any]:
    """A file that is no longer part of the table."""
    return {
        "path": encoded(file.path),
        "deletionTimestamp": at_ms,
        "dataChange": changed,
        "extendedFileMetadata": True,
        "partitionValues": {},
        "size": file.add.bytes,
    }


def encoded(path: str) -> str:
    """A path below the table's folder as the log has it: as a relative URL.

    The folder ``zip_key=a%2Fb`` is ``zip_key=a%252Fb`` there.
    """
    return quote(path, safe="/=")


def modified_ms(file: OpenFile) -> int:
    """When the file was written, in milliseconds since 1970."""
    return int(dt.datetime.fromisoformat(file.add.at).timestamp() * 1000)


def read_commit(data: bytes) -> CommitInfo | None:
    """What a commit says of its version; None if it is not one of ours."""
    for line in _lines(data):
        try:
            info = _decode(line).commitInfo
        except msgspec.MsgspecError:
            return None
        if info is not None:
            return info if info.ingester_uid else None
    return None


def _lines(data: bytes) -> Iterator[bytes]:
    return (line for line in data.split(b"\n") if line.strip())
