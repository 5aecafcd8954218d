"""Batches that come compressed: kept as they are, refused by their real size, never held twice."""

from __future__ import annotations

import contextlib
import json
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.flight as fl
import pytest

from ingester.client.errors import InvalidRequest, Unreachable, from_arrow
from ingester.memory.allocator import pool_bytes, pool_slack_bytes
from tests.drivers.daemon import Daemon, Launch
from tests.drivers.waiting import until
from tests.drivers.wire import Stream, Table, extra, path, persist, put, query
from tests.fuzz.raw_flight import NoAnswer, call, flight_data, ipc_stream, path_descriptor

MIB = 1 << 20
SMALL = 2 * MIB


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """One with small limits, and a room that was laid out for them: a cold start."""
    folder = tmp_path_factory.mktemp("compressed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Launch, "warm", False)
        with Daemon.start(
            folder / "d", flight__max_batch_bytes=SMALL, memory__limit="256MiB"
        ) as daemon:
            yield daemon


@pytest.fixture
def client(daemon: Daemon) -> Iterator[fl.FlightClient]:
    with fl.connect(daemon.flight) as client:
        yield client


class _Compressed(Stream):
    """A stream whose batches are compressed."""

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


def _in_room(daemon: Daemon) -> int:
    with urllib.request.urlopen(daemon.http + "/api/status", timeout=30) as answer:
        return int(json.load(answer)["admission"]["memory"]["by_kind"]["decoding"])


def _zeros(nbytes: int, columns: int = 1) -> pa.RecordBatch:
    zeros = pa.array(np.zeros(nbytes // 8))
    return pa.record_batch({f"c{number}": zeros for number in range(columns)})


def _mixed(first: int, count: int) -> pa.RecordBatch:
    """Every way in which a column is laid out; the words are a dictionary."""
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
        # The stream is over, its rows are kept: they lie elsewhere.
        assert _in_room(daemon) == 0
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
    assert _in_room(daemon) == 0
    with pytest.raises(pa.ArrowKeyError):
        query(client, table)


def test_a_good_batch_that_finds_no_room_is_refused_for_now(
    daemon: Daemon, client: fl.FlightClient, table: Table
) -> None:
    # A stream keeps its dictionary as long as it lives.
    words = pa.array(["x" * (SMALL - 64 * 1024)])
    held = pa.record_batch({"d": pa.DictionaryArray.from_arrays(pa.array([0], pa.int8()), words)})
    with ExitStack() as stack:
        refused: fl.FlightUnavailableError | None = None
        for _ in range(40):
            stream = _Compressed(client, table, held.schema)
            try:
                stream.write(held)
            except fl.FlightUnavailableError as error:
                refused = error
                break
            stack.enter_context(stream)
        assert refused is not None, "the room was never full"
        assert extra(refused)["code"] == "memory"
        assert extra(refused)["retry_after_s"] > 0
        assert _in_room(daemon) > 20 * MIB
        # Whoever sends plain batches needs no room.
        with Stream(client, path((table[0], table[1] + "p")), _zeros(MIB).schema) as plain:
            plain.write(_zeros(MIB))
    _put(client, table, held, codec="zstd")


def test_messages_that_grpc_is_to_decompress_are_refused(daemon: Daemon) -> None:
    gzip: list[Any] = [("grpc.default_compression_algorithm", 2)]
    with (
        fl.connect(daemon.flight, generic_options=gzip) as client,
        pytest.raises(pa.ArrowNotImplementedError, match="'gzip' is disabled"),
    ):
        list(client.do_action(fl.Action("status", pa.py_buffer(bytes(MIB)))))


def test_a_message_far_too_large_is_refused_before_anybody_reads_it(
    client: fl.FlightClient, table: Table
) -> None:
    with pytest.raises(pa.ArrowInvalid, match="larger than max") as refused:
        put(client, table, _zeros(16 * MIB))
    # Our own client has words for it.
    error = from_arrow(refused.value)
    assert isinstance(error, InvalidRequest)
    assert "send smaller batches" in str(error)


def test_a_connection_that_was_cut_may_be_tried_again() -> None:
    said = "gRPC returned resource exhausted error, with message: Stream removed (RST_STREAM)"
    assert isinstance(from_arrow(pa.ArrowInvalid(said)), Unreachable)


def test_without_a_room_it_says_so_and_works(
    tmp_path: Path, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Launch, "warm", False)
    environment = {"ARROW_DEFAULT_MEMORY_POOL": "mimalloc"}
    with (
        Daemon.start(tmp_path / "d", environment=environment) as daemon,
        fl.connect(daemon.flight) as client,
    ):
        _put(client, table, _mixed(0, 3000), codec="zstd")
        assert query(client, table, columns=[]).num_rows == 3000
        told = [json.loads(line) for line in daemon.stderr_file.read_text().splitlines()]
        assert [each["what"] for each in told if each.get("runbook") == "not-bounded"] == [
            "decompression"
        ]


def test_idle_streams_hold_nothing_of_the_room(
    daemon: Daemon, client: fl.FlightClient, table: Table
) -> None:
    batch = _zeros(MIB)
    with _Compressed(client, table, batch.schema) as stream:
        stream.write(batch)
        assert _in_room(daemon) == 0
        # Sent ahead: another thread reads, and waits for the next one.
        for _ in range(64):
            stream.send(batch)
        for _ in range(64):
            assert stream.answer() is not None
        assert _in_room(daemon) == 0
        stream.write(batch)
        assert _in_room(daemon) == 0


def test_a_dictionary_within_an_extension_type_comes_through(
    client: fl.FlightClient, table: Table
) -> None:
    kind = pa.opaque(pa.dictionary(pa.int8(), pa.string()), "place", "vendor")
    storage = pa.array(["a", "b", "a"]).dictionary_encode().cast(kind.storage_type)
    column = pa.ExtensionArray.from_storage(kind, storage)
    _put(client, table, pa.record_batch({"k": column}), codec="zstd")
    assert query(client, table)["k"].to_pylist() == ["a", "b", "a"]


def test_a_silent_stream_with_a_large_dictionary_does_not_make_others_wait(
    daemon: Daemon, client: fl.FlightClient, table: Table
) -> None:
    """Each batch of every other compressed stream waited for two seconds."""
    nbytes = pool_bytes(SMALL, 256 * MIB) - pool_slack_bytes() - SMALL // 2
    zeros = [None, pa.py_buffer(np.array([0, nbytes])), pa.py_buffer(np.zeros(nbytes, np.uint8))]
    large = pa.LargeBinaryArray.from_buffers(pa.large_binary(), 1, zeros)
    keys = pa.DictionaryArray.from_arrays(pa.array([0]), large)
    messages = ipc_stream(pa.record_batch({"k": keys}), compression="zstd")
    frames = [flight_data(*messages[0], path_descriptor(*table)), flight_data(*messages[1])]
    _put(client, table, _zeros(8), codec="zstd")
    before = _in_room(daemon)

    def silent() -> None:
        with contextlib.suppress(NoAnswer):
            call(daemon.flight, "DoPut", frames, timeout_s=6.0, end=False)

    thread = threading.Thread(target=silent)
    thread.start()
    until(lambda: _in_room(daemon) >= before + nbytes, "the dictionary")
    began = time.monotonic()
    _put(client, ("others", table[1]), *[_zeros(80_000)] * 5, codec="zstd")
    assert time.monotonic() - began < 3.0
    thread.join()
    until(lambda: _in_room(daemon) == before, "the end of the silent stream")


def test_the_largest_batch_finds_room_by_default(shared: Daemon, table: Table) -> None:
    with fl.connect(shared.flight) as client:
        for columns in (1, 60):
            _put(client, table, _zeros(60 * MIB // columns, columns), codec="lz4")
        rows = 60 * MIB // 8 + MIB // 8
        assert query(client, table, columns=[]).num_rows == rows
        persist(client, table)
