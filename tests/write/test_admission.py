"""Writes refused for lack of room (memory, flush queue, batch size), and how they recover."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from tests.drivers.daemon import Daemon
from tests.drivers.s3_server import S3Server
from tests.drivers.wire import (
    Json,
    Stream,
    Table,
    act,
    extra,
    http,
    numbers,
    persist,
    put,
    query,
    rows,
    writing,
)

TEXT = "x" * 100_000


def _large(i: int, count: int = 10) -> pa.RecordBatch:
    """A batch of ten rows, about 1 MB."""
    return numbers(i, count, s=pa.array([TEXT] * count))


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    """An S3 server whose requests can be made to fail."""
    with S3Server.start() as server:
        server.make_bucket("lake")
        yield server


def _start(folder: Path, server: S3Server, **settings: Any) -> Daemon:
    return Daemon.start(
        folder / "data",
        environment=server.environment,
        store="s3://lake/" + folder.name,
        **settings,
    )


def _fill_until_refused(
    client: fl.FlightClient, table: Table, acknowledged: int
) -> tuple[int, Json]:
    """Write 1 MB batches until one is refused: (acknowledged rows, the refusal)."""
    while True:
        try:
            put(client, table, _large(acknowledged))
        except fl.FlightUnavailableError as error:
            return acknowledged, extra(error)
        acknowledged += 10
        assert acknowledged < 2000, "the limit was never reached"


@pytest.mark.s3
def test_over_the_high_watermark_writes_are_refused_queries_go_on_and_it_recovers(
    tmp_path: Path, server: S3Server, table: Table
) -> None:
    with (
        _start(tmp_path, server, memory__limit="64MiB", persist__max_age="1h") as daemon,
        fl.connect(daemon.flight) as client,
    ):
        put(client, table, _large(0))
        persist(client, table)
        server.fault("unavailable", method="PUT", contains=tmp_path.name, times=1_000_000)
        acknowledged, refusal = _fill_until_refused(client, table, 10)
        assert refusal["code"] == "memory"
        assert refusal["retry_after_s"] > 0
        assert refusal["message"]
        # Queries still read files and buffers. A refused batch leaves no rows,
        assert rows(client, table) == list(range(acknowledged))
        # no column, and no table.
        wider = numbers(0, 10, s=pa.array([TEXT] * 10), new=pa.array(range(10)))
        for where, batch in ((table, wider), ((table[0], "new"), _large(0))):
            with pytest.raises(fl.FlightUnavailableError) as refused:
                put(client, where, batch)
            assert extra(refused.value)["code"] == "memory"
        assert "new" not in query(client, table).schema.names
        _refuses(daemon, "memory")
        server.clear_faults()
        persist(client, table)
        _accepts(daemon)
        put(client, table, _large(acknowledged))
        assert rows(client, table) == list(range(acknowledged + 10))


@pytest.mark.s3
def test_a_full_persist_queue_refuses_writes_until_it_is_shorter(
    tmp_path: Path, server: S3Server, table: Table
) -> None:
    with (
        _start(
            tmp_path,
            server,
            persist__queue_bytes="8MiB",
            persist__max_partition_bytes="2MiB",
            memory__limit="1GiB",
        ) as daemon,
        fl.connect(daemon.flight) as client,
    ):
        put(client, table, _large(0))
        server.fault("unavailable", method="PUT", contains=tmp_path.name, times=1_000_000)
        acknowledged, refusal = _fill_until_refused(client, table, 10)
        assert refusal["code"] == "saturated"
        assert refusal["retry_after_s"] > 0
        assert rows(client, table) == list(range(acknowledged))
        _refuses(daemon, "saturated")
        # A new origin would need a lookup in the store, so it is refused first.
        with pytest.raises(fl.FlightUnavailableError) as refused:
            put(client, table, _large(0), origin="new", metadata=[{"sequence": 1}])
        assert extra(refused.value)["code"] == "saturated"
        server.clear_faults()
        persist(client, table)
        _accepts(daemon)
        put(client, table, _large(acknowledged))
        assert rows(client, table) == list(range(acknowledged + 10))


def _refuses(daemon: Daemon, code: str) -> None:
    status, _, body = http(f"{daemon.http}/health/ready?for=write")
    assert status == 503
    assert code in json.loads(body)["reasons"][0]
    assert http(f"{daemon.http}/health/ready")[0] == 200
    admission = json.loads(http(f"{daemon.http}/api/status")[2])["admission"]
    assert admission["accepts_writes"] is False
    assert [reason["code"] for reason in admission["reasons"]] == [code]


def _accepts(daemon: Daemon) -> None:
    assert http(f"{daemon.http}/health/ready?for=write")[0] == 200
    admission = json.loads(http(f"{daemon.http}/api/status")[2])["admission"]
    assert admission["accepts_writes"] is True
    assert admission["reasons"] == []


def test_far_more_rows_than_memory_go_through_a_small_daemon(tmp_path: Path, table: Table) -> None:
    with (
        Daemon.start(tmp_path / "data", memory__limit="48MiB") as daemon,
        fl.connect(daemon.flight) as client,
    ):
        before = daemon.resident_bytes
        sent = 0
        while sent < 3000:  # 300 MB
            try:
                put(client, table, _large(sent))
                sent += 10
            except fl.FlightUnavailableError as error:
                assert extra(error)["code"] == "memory"  # noqa: PT017
                persist(client, table)  # waits for room, without polling
        assert rows(client, table) == list(range(3000))
        assert daemon.resident_bytes - before < 250 << 20


def test_writers_in_a_pipeline_survive_refusals_for_memory(tmp_path: Path, table: Table) -> None:
    """Four pipelined clients are refused for memory; origins let them resend without duplicates."""

    def write(writer: int) -> None:
        todo = list(range(writer * 1000, writer * 1000 + 600, 10))
        with fl.connect(daemon.flight) as own:
            while todo:
                stream = Stream(own, writing(table, f"writer-{writer}"), _large(0).schema)
                answered = 0
                with suppress(fl.FlightUnavailableError):
                    for first in todo[:8]:
                        stream.send(_large(first), {"sequence": first})
                    stream.writer.done_writing()
                with suppress(fl.FlightUnavailableError):
                    while stream.answer() is not None:
                        answered += 1
                try:
                    stream.close()
                except fl.FlightUnavailableError as error:
                    codes.append(extra(error)["code"])
                del todo[:answered]

    codes: list[str] = []
    with Daemon.start(tmp_path / "data", memory__limit="32MiB") as daemon:
        writers = [threading.Thread(target=write, args=(n,)) for n in range(4)]
        for thread in writers:
            thread.start()
        for thread in writers:
            thread.join()
        assert daemon.process.poll() is None
        assert set(codes) == {"memory"}
        with fl.connect(daemon.flight) as client:
            assert rows(client, table) == [w * 1000 + i for w in range(4) for i in range(600)]


def test_a_batch_over_max_batch_bytes_is_refused_with_both_sizes(
    tmp_path: Path, table: Table
) -> None:
    with (
        Daemon.start(tmp_path / "data", flight__max_batch_bytes="1MiB") as daemon,
        fl.connect(daemon.flight) as client,
    ):
        put(client, table, _large(0, 10))
        with pytest.raises(pa.ArrowInvalid, match=r"max_batch_bytes.*1048576"):
            put(client, table, _large(10, 11))
        assert rows(client, table) == list(range(10))


def test_a_batch_of_the_default_limit_passes(client: fl.FlightClient, table: Table) -> None:
    put(client, table, numbers(0, 8_000_000))  # 61 MiB: below the burst of every rate limit
    assert query(client, table, columns=[]).num_rows == 8_000_000
    with pytest.raises(pa.ArrowInvalid, match="max_batch_bytes"):
        put(client, table, numbers(0, 9_000_000))
    act(client, "persist", namespace=table[0], table=table[1])
