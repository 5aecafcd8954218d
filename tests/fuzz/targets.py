"""All decoders, by name.

A target takes bytes and returns how far they got; a larger number is closer to valid. It raises
where the product is wrong: any error that is not ours, or an AssertionError for a silent wrong
result.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import pyarrow as pa
from crc32c import crc32c

from ingester.dml.control_records import decode_opened, decode_origins, decode_record
from ingester.dml.record import DamagedRecord, decode_schema
from ingester.errors import BadRequest, IngesterError, NotAvailable
from ingester.query.row_group_cache import RowGroupCache
from ingester.query.ticket import encode_ticket, parse_ticket, predicate_of
from ingester.schema import Normaliser
from ingester.schema.definition import automatic_definition, define_table
from ingester.schema.normalise import validate_fully
from ingester.server.flight.requests import (
    CreateTableBody,
    OriginsBody,
    PersistBody,
    SyncCommand,
    TableBody,
    WriteCommand,
    parse_body,
    parse_put,
)
from ingester.write.metadata import SharedStates, parse_metadata
from ingester.write.operation_maker import OperationMaker
from persist.manifest.files import DamagedFile, decode_changelog, decode_commit, decode_snapshot
from persist.parquet.reading import DataFile, group_bounds
from tests.fuzz import seeds
from tests.fuzz.folders import log_folder, manifest_folder, one_file_store
from tests.fuzz.sealing import sealed_changelog, sealed_segment, sealed_snapshot
from tests.wal.bytes_source import BytesSource
from wal.format import padded
from wal.scan import scan


@dataclass(frozen=True, slots=True)
class Target:
    """One decoder with the seeds that it reads."""

    run: Callable[[bytes], int]
    seeds: Callable[[], Sequence[bytes]]


def _scan(data: bytes) -> int:
    verdict = scan(BytesSource(data), 1)
    for last in (True, False):
        verdict.state(last=last)
    assert verdict.end <= padded(len(data))  # zeros after the last payload may be cut off
    return verdict.records


def _operation(data: bytes) -> int:
    parts = []
    for operations in (1, 2):
        with contextlib.suppress(DamagedRecord):
            found = decode_record(pa.py_buffer(data), {1: seeds.PLAIN.schema}, operations)
            parts += [part for logged in found for part in logged.parts]
    for part in parts:
        str(part.batch)
        part.batch.serialize()
        part.batch.take(pa.array(range(part.batch.num_rows)))
    return len(parts)


def _schema(data: bytes) -> int:
    try:
        _, schema = decode_schema(pa.py_buffer(data))
    except DamagedRecord:
        return 0
    # As replay does.
    assert schema.serialize().size
    assert str(schema) is not None
    return len(schema)


def _origins(data: bytes) -> int:
    found = 0
    for decode in (decode_origins, decode_opened):
        with contextlib.suppress(DamagedRecord):
            found += len(decode(pa.py_buffer(data)))
    return found


def _decoded(decode: Callable[[bytes], object]) -> Callable[[bytes], int]:
    def run(data: bytes) -> int:
        try:
            decode(data)
        except DamagedFile:
            return 0
        return 1

    return run


def _ticket(data: bytes) -> int:
    try:
        ticket = parse_ticket(data)
        assert parse_ticket(encode_ticket(ticket)) == ticket
        predicate = predicate_of(ticket.filter, seeds.PLAIN.schema)
        assert predicate.select(seeds.PLAIN).num_rows <= 3
        predicate.may_match({}, 3)
    except BadRequest:
        return 0
    return 1 + len(ticket.filter or ())


class _Descriptor:
    """A descriptor as pyarrow passes it to a handler."""

    def __init__(self, command: bytes | None, path: list[bytes]) -> None:
        from pyarrow.flight import DescriptorType

        self.command, self.path = command, path
        self.descriptor_type = DescriptorType.PATH if command is None else DescriptorType.CMD


def _descriptor(data: bytes) -> int:
    got = 0
    for descriptor in (_Descriptor(data, []), _Descriptor(None, data.split(b"/"))):
        with contextlib.suppress(BadRequest, NotAvailable):
            got += isinstance(parse_put(descriptor), WriteCommand | SyncCommand)
    return got


def _metadata(data: bytes) -> int:
    try:
        metadata = parse_metadata(data, "origin", SharedStates())
    except BadRequest:
        return 0
    return 1 + (metadata.sequence is not None)


def _body(data: bytes) -> int:
    got = 0
    for kind in (CreateTableBody, PersistBody, TableBody, OriginsBody):
        try:
            body = parse_body("body", data, kind)
            if isinstance(body, CreateTableBody):
                define_table(
                    seeds.PLAIN.schema,
                    primary_key=body.primary_key,
                    partition_by=body.partition_by,
                    sort_by=body.sort_by,
                    timestamp_unit=body.timestamp_unit,
                )
            got += 1
        except BadRequest:
            pass
    return got


_OPERATIONS = OperationMaker(1 << 20)


def _batches(data: bytes) -> int:
    """Read a stream as DoPut does, up to the payload for the log."""
    try:
        reader = pa.ipc.open_stream(data)
    except (pa.ArrowException, OSError):
        return 0  # Arrow's server refuses it before a handler runs
    got = 0
    for definition in (None, seeds.DEFINITION):
        try:
            normalise = Normaliser(definition or automatic_definition(reader.schema), reader.schema)
        except BadRequest:
            continue
        got += 1
        came: list[pa.RecordBatch] = []
        while True:
            try:
                came.append(reader.read_next_batch())
            except (StopIteration, pa.ArrowException, OSError):
                break
            try:
                for _, rows in _OPERATIONS.ordered(normalise, came[-1]).parts():
                    rows.validate(full=True)
                    rows.serialize()
                    got += 1
            except BadRequest:
                break
        got += _together(came)
    return got


def _together(batches: list[pa.RecordBatch]) -> int:
    """Validate several batches at once: if that passes, each of them must pass alone."""
    if not batches:
        return 0
    try:
        validate_fully(batches)
    except pa.ArrowException:
        return 0
    for batch in batches:
        batch.validate(full=True)
    pa.concat_batches(batches).validate(full=True)
    return 1


def _arrow_schema(data: bytes) -> int:
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(data))
    except (ValueError, pa.ArrowException, OSError):
        return 0
    try:
        return len(define_table(schema).schema)
    except BadRequest:
        return 0


def _parquet(data: bytes) -> int:
    """Read any bytes, under the footer checksum that a manifest has for a seed.

    A manifest also has the size, which detects a file of another size. This target reads such a
    file nevertheless to try the reader. It accepts other values from it, because its pages may
    lie at other offsets.
    """
    ends = [end for end in _footers() if data.endswith(end)] or _footers()
    end = ends[len(data) % len(ends)]
    file = DataFile("file", None, crc32c(end))
    groups = RowGroupCache(one_file_store(data))
    of_its_size = len(data) == len(seeds.parquet_files()[_footers().index(end)])
    try:
        found = groups.footer(file)
        for index in range(found.num_row_groups):
            group_bounds(groups.footer(file), index, seeds.PLAIN.schema)
            batch = groups.group(file, index, tuple(seeds.PLAIN.schema.names)).batch
            batch.validate(full=True)
            assert batch.num_rows == found.row_group(index).num_rows, "rows are missing"
            assert _known(batch) or not of_its_size, "other values than were written"
    except IngesterError:
        return 0
    return int(found.num_row_groups)


@cache
def _footers() -> tuple[bytes, ...]:
    files = seeds.parquet_files()
    return tuple(data[-8 - int.from_bytes(data[-8:-4], "little") :] for data in files)


def _known(batch: pa.RecordBatch) -> bool:
    """Whether all rows are rows of a seed."""
    if batch.num_rows == seeds.PLAIN.num_rows:
        return bool(batch.to_pylist() == seeds.PLAIN.to_pylist())
    texts = [f"text {i % 7}" for i in batch["i"].to_pylist()]
    return bool(batch["s"].to_pylist() == texts)


TARGETS: dict[str, Target] = {
    "segment": Target(_scan, seeds.segments),
    "segment-sealed": Target(lambda data: _scan(sealed_segment(data, 1)), seeds.segments),
    "log-folder": Target(log_folder, seeds.segments),
    "operation": Target(_operation, seeds.operations),
    "schema-record": Target(_schema, seeds.schemas),
    "origins-record": Target(_origins, seeds.origins),
    "changelog": Target(_decoded(decode_changelog), lambda: seeds.manifest_kind(".changelog")),
    "changelog-sealed": Target(
        lambda data: _decoded(decode_changelog)(sealed_changelog(data)),
        lambda: seeds.manifest_kind(".changelog"),
    ),
    "commit": Target(_decoded(decode_commit), lambda: seeds.manifest_kind(".commit")),
    "snapshot": Target(_decoded(decode_snapshot), lambda: seeds.manifest_kind(".snapshot")),
    "snapshot-sealed": Target(
        lambda data: _decoded(decode_snapshot)(sealed_snapshot(data)),
        lambda: seeds.manifest_kind(".snapshot"),
    ),
    "manifest-folder": Target(manifest_folder, lambda: list(seeds.manifest_files().values())),
    "ticket": Target(_ticket, lambda: seeds.TICKETS),
    "descriptor": Target(_descriptor, lambda: [*seeds.COMMANDS, b"ns/table"]),
    "metadata": Target(_metadata, lambda: seeds.METADATA),
    "body": Target(_body, lambda: seeds.BODIES),
    "batches": Target(_batches, seeds.ipc_streams),
    "arrow-schema": Target(
        _arrow_schema,
        lambda: [s.serialize().to_pybytes() for s in (seeds.BATCH.schema, seeds.PLAIN.schema)],
    ),
    "parquet": Target(_parquet, seeds.parquet_files),
}
