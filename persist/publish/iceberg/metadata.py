"""Table metadata: the JSON object whose creation publishes snapshots. Pure.

``v<k>.metadata.json`` follows from ``v<k-1>.metadata.json`` and the steps alone
(https://iceberg.apache.org/spec/#table-metadata). Its properties say which manifest version it
publishes, so the next publisher continues from it, and a metadata file of another writer, which
copies them, is recognised.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import msgspec

from persist.publish.iceberg.schema import (
    FIRST_PARTITION_ID,
    last_column_id,
    name_mapping,
    partition_ids,
    schema_json,
    spec_json,
    specs_of,
)
from persist.publish.steps import Place, Step
from persist.table import TableDefinition

Operation = Literal["append", "overwrite", "replace", "delete"]
Json = dict[str, Any]

NEWEST_SNAPSHOTS, SLOTS = 100, 100
"""The newest snapshots are all kept; of older ones the first in each slot of the retention."""
METADATA_LOG = 100
"""Earlier metadata files that are kept and named."""

WRITTEN_BY_ANOTHER = "was written by another writer; published tables are read-only"
_NAMESPACE = uuid.UUID("f2c9f5c2-6c1f-5a86-9d0f-6d1a2b9f6e51")
_KEY = "ingester."


class Published(NamedTuple):
    """One metadata file of the ingester.

    Attributes:
        k: the number of the metadata file.
        at_ms: the time of the current snapshot.
        first_schema_id: of the table's definition.
    """

    k: int
    place: Place
    at_ms: int
    first_schema_id: int
    content: Json

    @property
    def snapshots(self) -> list[Json]:
        """The snapshots, oldest first; the last one is current."""
        return list(self.content["snapshots"])


def read_metadata(k: int, data: bytes) -> Published:
    """The content of ``v<k>.metadata.json``.

    Raises:
        ValueError: it is not the ingester's.
    """
    try:
        content = msgspec.json.decode(data)
        facts = {name: content["properties"][_KEY + name] for name in _facts_of(k, None)}
        number = int(facts["number"])
        place = Place(number, int(facts["table-version"]), int(facts["version"]), facts["uid"])
        last = content["snapshots"][-1]
        ours = (
            int(facts["metadata"]) == k
            and content["format-version"] == 2
            and content["current-snapshot-id"] == number == content["last-sequence-number"]
            and last["snapshot-id"] == number
            and content["refs"].keys() == {"main"}
        )
        at_ms, first_schema_id = last["timestamp-ms"], int(facts["first-schema-id"])
    except (msgspec.DecodeError, LookupError, TypeError, ValueError, AttributeError) as exc:
        raise ValueError("is not readable") from exc
    if not ours:
        raise ValueError(WRITTEN_BY_ANOTHER)
    return Published(k, place, at_ms, first_schema_id, content)


def _facts_of(k: int, step: Step | None) -> dict[str, str]:
    """What the properties say about the publication."""
    if step is None:
        step_facts = dict.fromkeys(("number", "table-version", "version", "uid"), "")
        return {"metadata": str(k), **step_facts, "first-schema-id": ""}
    return {
        "metadata": str(k),
        "number": str(step.place.number),
        **_version_facts(step.place),
        "first-schema-id": str(step.definition.first_schema_id),
    }


def _version_facts(place: Place) -> dict[str, str]:
    return {
        "table-version": str(place.table_version),
        "version": str(place.version),
        "uid": place.uid,
    }


def snapshot_json(
    step: Step, operation: Operation, parent: Json | None, manifest_list: str
) -> Json:
    """The snapshot of a step.

    Args:
        parent: the snapshot before it, if any.
        manifest_list: the URL of its manifest list.
    """
    at_ms = step.at_ms if parent is None else max(step.at_ms, parent["timestamp-ms"])
    before = {} if parent is None else {"parent-snapshot-id": parent["snapshot-id"]}
    return {
        "snapshot-id": step.place.number,
        **before,
        "sequence-number": step.place.number,
        "timestamp-ms": at_ms,
        "manifest-list": manifest_list,
        "summary": _summary(step, operation, parent),
        "schema-id": step.definition.schema_id,
    }


def _summary(step: Step, operation: Operation, parent: Json | None) -> dict[str, str]:
    """Changes and totals. Some readers need every total."""
    state = step.state
    totals = {"data-files": state.file_count, "records": state.rows, "files-size": state.bytes}
    added, removed = (
        {
            "data-files": len(files),
            "records": sum(file.add.rows for file in files),
            "files-size": sum(file.add.bytes for file in files),
        }
        for files in (step.added, step.removed)
    )
    if step.complete and parent is not None:
        removed = {name: int(parent["summary"][f"total-{name}"]) for name in totals}
    partitions = {file.add.partition for file in (*step.added, *step.removed)}
    counts = {
        "added-data-files": added["data-files"],
        "added-records": added["records"],
        "added-files-size": added["files-size"],
        "deleted-data-files": removed["data-files"],
        "deleted-records": removed["records"],
        "removed-files-size": removed["files-size"],
        "changed-partition-count": len(partitions),
        **{f"total-{name}": count for name, count in totals.items()},
        "total-delete-files": 0,
        "total-position-deletes": 0,
        "total-equality-deletes": 0,
    }
    facts = {_KEY + name: text for name, text in _version_facts(step.place).items()}
    return {"operation": operation, **{name: str(n) for name, n in counts.items()}, **facts}


def next_metadata(
    before: Published | None,
    snapshots: Sequence[Json],
    steps: Sequence[Step],
    *,
    location: str,
    retain_s: float,
) -> Published:
    """The metadata that publishes further snapshots, the last of which is of the last step.

    Args:
        snapshots: those of ``before`` that are still of this table, and the new ones.
        location: the URL of the table's folder.
    """
    k, step = 1 if before is None else before.k + 1, steps[-1]
    kept = kept_snapshots(snapshots, retain_s)
    at_ms = kept[-1]["timestamp-ms"]
    definition = step.definition
    content = {
        "format-version": 2,
        "table-uuid": _table_uuid(before, step, location),
        "location": location,
        "last-sequence-number": step.place.number,
        "last-updated-ms": at_ms,
        "schemas": _schemas(before, kept, steps),
        **_layout(definition),
        "properties": {
            **{_KEY + name: text for name, text in _facts_of(k, step).items()},
            "schema.name-mapping.default": msgspec.json.encode(name_mapping(definition)).decode(),
            # Programs that expire snapshots or purge a table must not delete its files.
            "gc.enabled": "false",
        },
        "current-snapshot-id": step.place.number,
        "refs": {"main": {"snapshot-id": step.place.number, "type": "branch"}},
        "snapshots": kept,
        "statistics": [],
        "partition-statistics": [],
        "snapshot-log": [
            {"timestamp-ms": each["timestamp-ms"], "snapshot-id": each["snapshot-id"]}
            for each in kept
        ],
        "metadata-log": _metadata_log(before, location),
    }
    return Published(k, step.place, at_ms, definition.first_schema_id, content)


def _layout(definition: TableDefinition) -> Json:
    """The current schema, the partition specs, and the sort order, which is none."""
    return {
        "last-column-id": last_column_id(definition),
        "current-schema-id": definition.schema_id,
        "default-spec-id": definition.spec_id,
        "partition-specs": [spec_json(definition, spec_id) for spec_id in specs_of(definition)],
        "last-partition-id": max((FIRST_PARTITION_ID - 1, *partition_ids(definition).values())),
        "default-sort-order-id": 0,
        "sort-orders": [{"order-id": 0, "fields": []}],
    }


def _table_uuid(before: Published | None, step: Step, location: str) -> str:
    if before is not None:
        return str(before.content["table-uuid"])
    table = "/".join(location.rsplit("/", 2)[1:])
    return str(uuid.uuid5(_NAMESPACE, f"{table}/{step.place.uid}"))


def _schemas(before: Published | None, kept: Sequence[Json], steps: Sequence[Step]) -> list[Json]:
    """The schemas of the kept snapshots; the current one is the last."""
    known = (
        {} if before is None else {each["schema-id"]: each for each in before.content["schemas"]}
    )
    new = {step.definition.schema_id: step.definition for step in steps}
    used = {each["schema-id"] for each in kept}
    return [schema_json(new[one]) if one in new else known[one] for one in sorted(used)]


def _metadata_log(before: Published | None, location: str) -> list[Json]:
    if before is None:
        return []
    entry = {
        "timestamp-ms": before.content["last-updated-ms"],
        "metadata-file": f"{location}/{metadata_path(before.k)}",
    }
    return [*before.content["metadata-log"], entry][-METADATA_LOG:]


def metadata_path(k: int) -> str:
    """The path of a metadata file below the table's folder."""
    return f"metadata/v{k}.metadata.json"


def kept_snapshots(snapshots: Sequence[Json], retain_s: float) -> list[Json]:
    """The snapshots that stay.

    Files of a snapshot whose successor is older than ``retain_s`` may be deleted, so it is dropped.
    Of the others, the newest stay, and of the rest the first in each slot of the retention.
    """
    now, retain_ms = snapshots[-1]["timestamp-ms"], retain_s * 1000
    older, newest = snapshots[:-NEWEST_SNAPSHOTS], snapshots[-NEWEST_SNAPSHOTS:]
    slots: dict[int, Json] = {}
    for each in older:
        # Its next snapshot here need not be its successor, but is younger than that.
        if each["timestamp-ms"] > now - retain_ms:
            slots.setdefault(int(each["timestamp-ms"] * SLOTS // retain_ms), each)
    young = (
        each for each, successor in pairwise(newest) if successor["timestamp-ms"] > now - retain_ms
    )
    return [*slots.values(), *young, newest[-1]]
