"""The acknowledged operations of a log whose daemon does not run.

The log is only read. Damage that a start would refuse is refused here with the same error; a torn
tail, which was never acknowledged, is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from ingester.dml.control_records import decode_record
from ingester.dml.record import DamagedRecord, LoggedOperation, checkpoint_of, decode_schema
from ingester.origins.checkpoint_state import SharedBytes, SourceCheckpoint
from persist.manifest import WriterIdentity
from wal import Disk, Record, RecordKind, SegmentFacts
from wal.recovery import facts_of, refusal, survey
from wal.replay import ReplayCursor


class OrphanOperation(NamedTuple):
    """An operation with its permanent identity."""

    writer: WriterIdentity
    seq: int
    logged: LoggedOperation
    checkpoint: SourceCheckpoint | None


class OrphanLog:
    """The log of a stopped daemon, in its folder."""

    def __init__(self, folder: Path) -> None:
        """Check every segment completely.

        Raises:
            LogDamaged, LogTooNew: a start would refuse the log.
            OSError: the folder cannot be read.
        """
        self._disk = Disk()
        self._folder = folder
        found = survey(self._disk, folder)
        if (error := refusal(folder, found)) is not None:
            raise error
        self._facts: dict[int, SegmentFacts] = {
            verdict.number: facts_of(verdict, state)
            for verdict, state in zip(found.verdicts, found.states(), strict=True)
            if state != "headerless"
        }

    @property
    def segments(self) -> int:
        """The number of segments."""
        return len(self._facts)

    def writers(self) -> list[WriterIdentity]:
        """The log's writers by epoch, each once, including those without operations."""
        found = {_identity(facts) for facts in self._facts.values()}
        return sorted(found, key=lambda writer: (writer.ingester_id, writer.epoch))

    def operations(self) -> Iterator[OrphanOperation]:
        """All operations, oldest first; about 8 MiB are read at a time.

        Raises:
            LogDamaged, DamagedRecord: a record is damaged.
        """
        facts = list(self._facts.values())
        cursor = ReplayCursor(self._disk, self._folder, facts, pa.allocate_buffer)
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
                    raise DamagedRecord(
                        f"log segment {record.segment}, offset {record.offset}: {exc}"
                    ) from exc
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
        writer = _identity(self._facts[record.segment])
        found = decode_record(record.payload, schemas, record.operations)
        return [
            OrphanOperation(
                writer, record.first_seq + number, logged, checkpoint_of(logged.header, shared)
            )
            for number, logged in enumerate(found)
        ]


def _identity(facts: SegmentFacts) -> WriterIdentity:
    return WriterIdentity(facts.ingester_id, facts.incarnation, facts.epoch)
