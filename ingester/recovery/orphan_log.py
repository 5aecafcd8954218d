"""The acknowledged operations of a log whose daemon does not run, on disk or in the store.

The log is only read. Damage that a start would refuse is refused here with the same error. A torn
tail and what follows a fence were never acknowledged, and are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from ingester.dml.control_records import decode_record
from ingester.dml.record import DamagedRecord, LoggedOperation, checkpoint_of, decode_schema
from ingester.origins.checkpoint_state import SharedBytes, SourceCheckpoint
from ingester.store_log.fencing import FencedEpoch
from ingester.store_log.reading import ObjectCursor, left_objects
from persist.manifest import WriterIdentity
from persist.store import ObjectStore, StoreRetry
from wal import Disk, Record, RecordKind
from wal.recovery import facts_of, refusal, survey
from wal.replay import RecordSource, ReplayCursor


class OrphanOperation(NamedTuple):
    """An operation with its permanent identity."""

    writer: WriterIdentity
    seq: int
    logged: LoggedOperation
    checkpoint: SourceCheckpoint | None


class OrphanSegment(NamedTuple):
    """A segment on disk, or a log object."""

    name: str
    writer: WriterIdentity


class OrphanLog:
    """The log of a daemon that does not run.

    Args:
        segments: by the numbers that the records name.
        cursor: begins to read.
    """

    def __init__(
        self, segments: Mapping[int, OrphanSegment], cursor: Callable[[], RecordSource]
    ) -> None:
        self._segments = segments
        self._cursor = cursor

    @property
    def segments(self) -> int:
        """The number of segments."""
        return len(self._segments)

    def writers(self) -> list[WriterIdentity]:
        """The log's writers by epoch, each once, including those without operations."""
        found = {segment.writer for segment in self._segments.values()}
        return sorted(found, key=lambda writer: (writer.ingester_id, writer.epoch))

    def operations(self) -> Iterator[OrphanOperation]:
        """All operations, oldest first; about 8 MiB, or a few log objects, are read at a time.

        Raises:
            LogDamaged, ObjectDamaged, DamagedRecord: a record is damaged.
            ObjectNotFound: a log object was deleted meanwhile.
        """
        cursor = self._cursor()
        schemas: dict[int, pa.Schema] = {}
        shared: dict[str, SharedBytes] = {}
        segment = -1
        while (records := cursor.next_chunk()) is not None:
            for record in records:
                if record.segment != segment:
                    segment = record.segment
                    schemas.clear()
                    shared.clear()
                try:
                    operations = self._decoded(record, schemas, shared)
                except DamagedRecord as exc:
                    name = self._segments[segment].name
                    raise DamagedRecord(f"{name}, offset {record.offset}: {exc}") from exc
                yield from operations

    def _decoded(
        self, record: Record, schemas: dict[int, pa.Schema], shared: dict[str, SharedBytes]
    ) -> list[OrphanOperation]:
        if record.kind == RecordKind.SCHEMA:
            header, schema = decode_schema(record.payload)
            schemas[header.schema_number] = schema
        if record.kind == RecordKind.SHARED:
            bulk = SharedBytes.of(record.payload.to_pybytes())
            shared[bulk.id] = bulk
        if record.kind != RecordKind.OPERATION:
            return []
        writer = self._segments[record.segment].writer
        found = decode_record(record.payload, schemas, record.operations)
        return [
            OrphanOperation(
                writer, record.first_seq + number, logged, checkpoint_of(logged.header, shared)
            )
            for number, logged in enumerate(found)
        ]


def folder_log(folder: Path) -> OrphanLog:
    """The log in a folder; every segment is checked completely.

    Raises:
        LogDamaged, LogTooNew: a start would refuse the log.
        OSError: the folder cannot be read.
    """
    disk = Disk()
    found = survey(disk, folder)
    if (error := refusal(folder, found)) is not None:
        raise error
    facts = [
        facts_of(verdict, state)
        for verdict, state in zip(found.verdicts, found.states(), strict=True)
        if state != "headerless"
    ]
    segments = {
        each.number: OrphanSegment(
            f"log segment {each.number}",
            WriterIdentity(each.ingester_id, each.incarnation, each.epoch),
        )
        for each in facts
    }
    return OrphanLog(segments, lambda: ReplayCursor(disk, folder, facts, pa.allocate_buffer))


def store_log(
    store: ObjectStore,
    ended: Sequence[FencedEpoch],
    writers: Mapping[int, WriterIdentity],
    policy: StoreRetry,
) -> OrphanLog:
    """The log objects of ended epochs.

    Args:
        writers: by epoch.
        policy: how long reading is retried.
    """
    objects = left_objects(ended, ())
    segments = {
        each.segment: OrphanSegment(f"log object {each.path}", writers[each.epoch])
        for each in objects
    }
    return OrphanLog(segments, lambda: ObjectCursor(store, objects, (), pa.allocate_buffer, policy))
