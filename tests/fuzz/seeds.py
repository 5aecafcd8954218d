"""Valid bytes to begin with, all made by the product's own code."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import trio

from ingester.dml.control_records import encode_opened, encode_origins, head_of
from ingester.dml.record import LoggedSchema, encode_operation, encode_schema, table_rows
from persist.manifest import Manifest, Proposal, commit, write_snapshot
from persist.parquet.encode import encode
from persist.partitioning import PartitionedRows, PartitionSpec
from persist.store import open_store
from persist.switching import roll_back, switch_version
from persist.table import TableDefinition
from tests.fuzz.raw_flight import ipc_stream
from tests.persist.manifest.samples import DEFINITION as SMALL
from tests.persist.manifest.samples import OTHER, history
from tests.wal.driving import running
from wal import Entry, Preamble, RecordKind

BATCH = pa.record_batch(
    {
        "i": pa.array([1, None, 3], pa.int64()),
        "s": pa.array(["a", None, "ccc"]),
        "d": pa.array(["x", "y", "x"]).dictionary_encode(),
        "l": pa.array([[1, 2], None, []], pa.list_(pa.int32())),
        "m": pa.array([{"x": 1.5, "y": "t"}, None, {"x": None, "y": None}]),
        "v": pa.array(["short", "much longer than twelve bytes", None], pa.string_view()),
        "b": pa.array([True, None, False]),
        "t": pa.array([0, None, 86_400_000_000], pa.timestamp("us", "UTC")),
        "n": pa.nulls(3),
    }
)
PLAIN = BATCH.select(["i", "s", "l", "m", "b", "t"])
"""Columns of the types that a table and the log contain: no dictionaries, no views."""
DEFINITION = TableDefinition(PLAIN.schema, PartitionSpec.parse(["day(t)"]))
TABLE = ("ns", "table")


def operation(origin: tuple[str, int] | None = None) -> bytes:
    """An operation's payload, with two parts."""
    parts = [((day,), PLAIN) for day in ("2026-11-21", None)]
    schema = LoggedSchema.of(1, TABLE, PLAIN.schema)
    rows = table_rows(schema, 1, PartitionedRows.joined(parts, PLAIN.schema))
    pieces = encode_operation(rows, origin)
    return b"".join(bytes(piece) for piece in pieces)


@cache
def operations() -> list[bytes]:
    """Payloads of operations."""
    two = [operation(("origin", 7))] * 2
    together = head_of([len(one) for one in two]) + b"".join(two)
    return [operation(), two[0], together]


@cache
def schemas() -> list[bytes]:
    """Payloads of schema records."""
    return [encode_schema(1, TABLE, PLAIN.schema), encode_schema(2, TABLE, BATCH.schema)]


@cache
def origins() -> list[bytes]:
    """Payloads of origins records."""
    known = encode_origins([("o", *TABLE, 7), ("p", *TABLE, 2**63 - 1)])
    return [encode_origins([]), known, encode_opened(["o", "p"])]


@cache
def segments() -> list[bytes]:
    """Segments as a log writes them: sealed ones, and an open one as after a kill."""

    async def write(folder: Path) -> None:
        async with running(folder, clean=False) as state:
            schema = Preamble(RecordKind.SCHEMA, (schemas()[0],))
            for _ in range(6):
                entry = Entry(RecordKind.OPERATION, [operations()[0]], (schema,))
                state.answers.append(state.log, entry)
                await state.answers.wait(entry)

    with tempfile.TemporaryDirectory() as folder:
        trio.run(write, Path(folder))
        return [path.read_bytes() for path in sorted(Path(folder).glob("*.wal"))]


@cache
def manifest_files() -> dict[str, bytes]:
    """Every file of a table with a snapshot in the middle, by path."""
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(f"file://{folder}")
        states = history(Manifest(store, *TABLE), 5)
        write_snapshot(Manifest(store, *TABLE), states[2])
        # Switched back and forth, so that the newest versions are a seal and an import.
        commit(Manifest(store, *TABLE, 2), None, Proposal(SMALL), OTHER)
        switch_version(store, *TABLE, 2)
        roll_back(store, *TABLE, carry=False)
        return {info.path: store.get(info.path) for info in store.list("")}


def manifest_kind(suffix: str) -> list[bytes]:
    """The contents of the files with this suffix."""
    return [data for path, data in manifest_files().items() if path.endswith(suffix)]


@cache
def parquet_files() -> list[bytes]:
    """Data files, with several row groups."""
    rows = pa.table({"i": np.arange(1_000), "s": [f"text {i % 7}" for i in range(1_000)]})
    nested = pa.Table.from_batches([PLAIN])
    return [bytes(encode([rows], {"rows": "1000"}, 300)), bytes(encode([nested], {"rows": "3"}))]


@cache
def ipc_streams() -> list[bytes]:
    """IPC streams, compressed and not, with a dictionary that grows."""

    def streams() -> Iterator[pa.Buffer]:
        for batch, compression in ((BATCH, None), (BATCH, "zstd"), (PLAIN, "lz4"), (PLAIN, None)):
            sink = pa.BufferOutputStream()
            options = pa.ipc.IpcWriteOptions(compression=compression, emit_dictionary_deltas=True)
            with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
                writer.write_batch(batch)
                writer.write_batch(batch.slice(1))
            yield sink.getvalue()

    return [stream.to_pybytes() for stream in streams()]


@cache
def ipc_messages() -> list[list[tuple[bytes, bytes]]]:
    """The same as lists of (header, body)."""
    return [ipc_stream(BATCH, BATCH), ipc_stream(PLAIN, PLAIN, compression="zstd")]


TICKETS = [
    b'{"namespace":"ns","table":"table"}',
    b'{"namespace":"ns","table":"table","columns":["i","s"],"limit":5,"scope":"all"}',
    b'{"namespace":"ns","table":"table","scope":"buffered","version":3}',
    b'{"namespace":"ns","table":"table","filter":[[["i",">",1],["s","in",["a","b",null]]],'
    b'[["t","<","2026-11-21T00:00:00Z"],["b","=",true],["l","is null"]]]}',
]
COMMANDS = [
    b'{"type":"write","namespace":"ns","table":"table","origin":"o"}',
    b'{"type":"sync","namespace":"ns","table":"table","origin":"o","begin":false,"sequence":17,'
    b'"last":true,"columns":[{"role":"old_pk","name":"id"}]}',
]
METADATA = [
    b'{"sequence":17}',
    b'{"sequence":17,"checkpoint":{"partition":"topic-0","state":"AAAA"}}',
]
BODIES = [
    b'{"namespace":"ns","table":"table","timeout_s":1.5}',
    b'{"origin":"o"}',
    b"{}",
    b'{"namespace":"ns","table":"table","schema":"AAAA","primary_key":["i"],'
    b'"partition_by":["day(t)","bucket(16, s)"],"sort_by":["i"],"timestamp_unit":"us"}',
]
