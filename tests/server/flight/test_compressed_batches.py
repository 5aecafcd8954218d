"""Compressed batches keep their values and are refused by their decompressed size."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.flight as fl
import pytest

from ingester.client.errors import Unreachable, from_arrow
from ingester.errors import BadRequest, IngesterError, MemoryFull
from ingester.server.flight.put_messages import next_chunk
from tests.drivers.daemon import Daemon
from tests.drivers.wire import Stream, Table, path, persist, query
from tests.fuzz.raw_flight import call, flight_data, ipc_stream, path_descriptor

MIB = 1 << 20
SMALL = 2 * MIB


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("compressed")
    with Daemon.start(folder / "d", flight__max_batch_bytes=SMALL) as daemon:
        yield daemon


@pytest.fixture
def client(daemon: Daemon) -> Iterator[fl.FlightClient]:
    with fl.connect(daemon.flight) as client:
        yield client


class _Compressed(Stream):
    """A stream that compresses its batches."""

    def __init__(
        self, client: fl.FlightClient, table: Table, schema: pa.Schema, codec: str = "zstd"
    ) -> None:
        options = fl.FlightCallOptions(write_options=pa.ipc.IpcWriteOptions(compression=codec))
        self.writer, self.reader = client.do_put(path(table), schema, options)


def _put(client: fl.FlightClient, table: Table, *batches: pa.RecordBatch, codec: str) -> None:
    with _Compressed(client, table, batches[0].schema, codec) as stream:
        for batch in batches:
            stream.write(batch)
        stream.writer.done_writing()


def _zeros(nbytes: int, columns: int = 1) -> pa.RecordBatch:
    zeros = pa.array(np.zeros(nbytes // 8))
    return pa.record_batch({f"c{number}": zeros for number in range(columns)})


def _mixed(first: int, count: int) -> pa.RecordBatch:
    """Columns of every physical layout; ``word`` is dictionary-encoded."""
    numbered = range(first, first + count)
    words = pa.array([f"w{i % 5}" if i % 7 else None for i in numbered])
    return pa.record_batch(
        {
            "i": pa.array(numbered, pa.int64()),
            "word": words.dictionary_encode(),
            "text": pa.array([None if i % 3 else f"text {i}" for i in numbered]),
            "view": pa.array([f"a longer text, of number {i}" for i in numbered], pa.string_view()),
            "yes": pa.array([i % 2 == 0 for i in numbered]),
            "list": pa.array([[i, None] * (i % 3) for i in numbered], pa.list_(pa.int64())),
            "struct": pa.array([{"a": i, "b": str(i)} for i in numbered]),
        }
    )


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
@pytest.mark.parametrize("count", [3, 3000])
def test_what_comes_compressed_is_what_is_there(
    daemon: Daemon, client: fl.FlightClient, table: Table, codec: str, count: int
) -> None:
    batches = [_mixed(n * count, count) for n in range(4)]
    _put(client, table, *batches, codec=codec)
    sent = pa.Table.from_batches([b.drop_columns(["word", "view"]) for b in batches])
    for _ in range(2):
        answer = query(client, table).sort_by("i")
        assert answer.select(sent.schema.names).equals(sent)
        assert answer["word"].to_pylist() == [w for b in batches for w in b["word"].to_pylist()]
        assert answer["view"].to_pylist() == [w for b in batches for w in b["view"].to_pylist()]
        persist(client, table)


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
@pytest.mark.parametrize(("nbytes", "columns"), [(64 * MIB, 1), (1 * MIB, 64), (3 * MIB, 1)])
def test_a_batch_is_refused_for_its_real_size_and_leaves_nothing(
    daemon: Daemon,
    client: fl.FlightClient,
    table: Table,
    codec: str,
    nbytes: int,
    columns: int,
) -> None:
    with pytest.raises(pa.ArrowInvalid, match=rf"max_batch_bytes is {SMALL}: send smaller"):
        _put(client, table, _zeros(nbytes, columns), codec=codec)
    with pytest.raises(pa.ArrowKeyError):
        query(client, table)


def test_a_batch_that_claims_more_memory_than_there_is_is_refused(
    daemon: Daemon, client: fl.FlightClient, table: Table
) -> None:
    schema, (head, body) = ipc_stream(_zeros(8000), compression="zstd")[:2]
    claims = struct.pack("<q", 1 << 60) + body[8:]  # a buffer starts with its full size
    frames = [flight_data(*schema, path_descriptor(*table)), flight_data(head, claims)]
    assert "does not decode" in repr(call(daemon.flight, "DoPut", frames))
    _put(client, table, _zeros(8000), codec="zstd")


class _Short:
    """A reader whose next batch cannot be allocated."""

    def __init__(self, said: str) -> None:
        self._said = said

    def read_chunk(self) -> None:
        raise pa.ArrowMemoryError(self._said)


@pytest.mark.parametrize(
    ("said", "refusal"),
    [
        (f"malloc of size {SMALL} failed", MemoryFull),
        ("realloc of some kind failed", MemoryFull),
        (f"malloc of size {SMALL + 64} failed", BadRequest),
        ("capacity too large", BadRequest),
    ],
)
def test_a_batch_that_may_be_sent_is_refused_for_now_without_memory(
    said: str, refusal: type[IngesterError]
) -> None:
    with pytest.raises(refusal, match=said) as refused:
        next_chunk(_Short(said), SMALL)
    assert (refused.value.retry_after_s is not None) == (refusal is MemoryFull)


def test_a_connection_that_was_cut_may_be_tried_again() -> None:
    said = "gRPC returned resource exhausted error, with message: Stream removed (RST_STREAM)"
    assert isinstance(from_arrow(pa.ArrowInvalid(said)), Unreachable)


def test_a_dictionary_within_an_extension_type_comes_through(
    client: fl.FlightClient, table: Table
) -> None:
    kind = pa.opaque(pa.dictionary(pa.int8(), pa.string()), "place", "vendor")
    storage = pa.array(["a", "b", "a"]).dictionary_encode().cast(kind.storage_type)
    column = pa.ExtensionArray.from_storage(kind, storage)
    _put(client, table, pa.record_batch({"k": column}), codec="zstd")
    assert query(client, table)["k"].to_pylist() == ["a", "b", "a"]


def test_the_largest_batch_finds_room_by_default(shared: Daemon, table: Table) -> None:
    with fl.connect(shared.flight) as client:
        for columns in (1, 60):
            _put(client, table, _zeros(60 * MIB // columns, columns), codec="lz4")
        rows = 60 * MIB // 8 + MIB // 8
        assert query(client, table, columns=[]).num_rows == rows
        persist(client, table)
