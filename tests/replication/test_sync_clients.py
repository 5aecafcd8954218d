"""Two clients of one origin, one of them stale: their transactions do not mix."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from ingester.client import Client, RetryPolicy, Unavailable, UnknownOutcome
from ingester.client.connection import Connection
from ingester.client.sync_stream import SyncAnswer, SyncColumn, SyncStream
from persist.backoff import Backoff
from tests.drivers.daemon import Daemon
from tests.drivers.syncing import Source
from tests.drivers.wire import Json, query

COLUMNS = [SyncColumn("old_pk", "id"), SyncColumn("new_pk", "id"), SyncColumn("value", "batch")]


@pytest.fixture
def source(client: fl.FlightClient, table: tuple[str, str]) -> Source:
    return Source(client, table[1], f"origin of {table[1]}")


def part(source: Source, key: int, **fields: object) -> Json:
    return source.send("t", [(None, key, {"v": float(key)})], **fields)


def refused(source: Source, key: int, **fields: object) -> str:
    with pytest.raises(fl.FlightUnavailableError, match="another client") as caught:
        part(source, key, **fields)
    return str(caught.value.extra_info)


@pytest.mark.parametrize("stale", ["a", None])
def test_a_stale_client_adds_nothing_to_anothers_transaction(
    source: Source, stale: str | None
) -> None:
    named = {} if stale is None else {"transaction": stale}
    assert part(source, 1, begin=True, **named)["accepted"]
    assert part(source, 11, begin=True, transaction="b")["accepted"]
    assert "superseded" in refused(source, 2, **named)
    assert "superseded" in refused(source, 2, sequence=1, **named)
    # An invalid message of the stale client does not end the other's transaction either.
    columns = [{"role": "new_pk", "name": "v"}]
    with pytest.raises(pa.ArrowInvalid, match="no old_pk"):
        source.raw("t", columns, pa.record_batch({"v": [1.0]}), **named)
    assert part(source, 12, sequence=1, transaction="b")["accepted"]
    assert set(source.state("t")) == {11, 12}
    # A closed sequence is closed for both clients: a repetition is a duplicate and opens nothing.
    said = part(source, 2, sequence=1, transaction="a")
    assert (said["accepted"], said["duplicate"], said["memory_sequence"]) == (True, True, 1)
    refused(source, 2, transaction="a")
    refused(source, 2, sequence=2, transaction="a")
    assert set(source.state("t")) == {11, 12}
    assert part(source, 3, sequence=2)["accepted"]
    assert set(source.state("t")) == {3, 11, 12}


def test_what_is_no_good_ends_the_transaction_of_its_client(source: Source) -> None:
    assert part(source, 1, begin=True, transaction="a")["accepted"]
    columns = [{"role": "new_pk", "name": "v"}]
    with pytest.raises(pa.ArrowInvalid, match="no old_pk"):
        source.raw("t", columns, pa.record_batch({"v": [1.0]}), transaction="a")
    refused(source, 2, sequence=1, transaction="a")
    assert part(source, 2, begin=True, sequence=1, transaction="a")["accepted"]
    assert set(source.state("t")) == {2}


def test_a_client_that_lost_the_answer_to_the_end_goes_on_behind_it(
    shared: Daemon, table: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[Json] = []
    exchange = Connection.exchange

    def losing(connection: Connection, command: bytes, batch: pa.RecordBatch) -> bytes:
        answer = exchange(connection, command, batch)
        if json.loads(command).get("sequence") == 1 and len(lost) < 2:
            lost.append(json.loads(answer))
            raise UnknownOutcome("the answer was lost")
        return answer

    def send(stream: SyncStream, key: int, **how: Any) -> SyncAnswer:
        key_ = pa.array([key])
        row = pa.record_batch([pa.nulls(1, pa.int64()), key_, key_], names=["0", "1", "2"])
        return stream.send("t", COLUMNS, row, **how)

    with Client(shared.flight) as client:
        monkeypatch.setattr(Connection, "exchange", losing)
        stream = client.sync(table[1], "A")
        send(stream, 1, begin=True)
        for _ in range(2):  # a repetition of an accepted message changes nothing
            with pytest.raises(UnknownOutcome):
                send(stream, 2, sequence=1)
        assert [answer["duplicate"] for answer in lost] == [False, True]
        assert stream.standing().memory_sequence == 1
        assert send(stream, 3, sequence=2).accepted
    with fl.connect(shared.flight) as flight:
        assert sorted(query(flight, (table[1], "t"))["id"].to_pylist()) == [1, 2, 3]


@pytest.mark.parametrize("name", ["", "x" * 129])
def test_a_name_of_no_use_is_refused(source: Source, name: str) -> None:
    with pytest.raises(pa.ArrowInvalid, match="transaction must have 1 to 128 bytes"):
        part(source, 1, begin=True, transaction=name)


def test_clients_that_write_the_same_batches_at_once_write_each_of_them_whole(
    tmp_path: Path,
) -> None:
    """An interrupted client repeats its transaction after a random pause, so that both finish."""
    batches, messages = 12, 4

    def rows(batch: int, message: int) -> pa.RecordBatch:
        first = (batch * messages + message) * 10
        ids = pa.array(range(first, first + 10), pa.int64())
        nothing, value = pa.nulls(10, pa.int64()), pa.array([batch] * 10, pa.int64())
        return pa.record_batch([nothing, ids, value], names=["0", "1", "2"])

    def send_all(stream: SyncStream) -> None:
        for batch in range(batches):
            backoff = Backoff(0.02, 2.0, Random())
            while (stream.standing().memory_sequence or 0) < batch + 1:
                try:
                    for message in range(messages):
                        closes = batch + 1 if message == messages - 1 else None
                        begin = message == 0
                        said = stream.send(
                            "t", COLUMNS, rows(batch, message), begin=begin, sequence=closes
                        )
                        assert said.accepted
                except Unavailable as exc:
                    codes.append(exc.code)
                    time.sleep(backoff.next_s())

    together = threading.Barrier(2)
    codes: list[str] = []
    failures: list[BaseException] = []

    def run(flight: str) -> None:
        try:
            with Client(flight, retry=RetryPolicy()) as client:
                together.wait(30)
                send_all(client.sync("ns", "A"))
        except BaseException as exc:
            failures.append(exc)

    with Daemon.start(tmp_path / "d") as daemon:
        threads = [threading.Thread(target=run, args=(daemon.flight,)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures
        assert set(codes) == {"superseded"}, "they met, and nothing else went wrong"
        with fl.connect(daemon.flight) as client:
            found = query(client, ("ns", "t")).sort_by("id")
    total = batches * messages * 10
    assert found["id"].to_pylist() == list(range(total))
    assert found["batch"].to_pylist() == [n // (messages * 10) for n in range(total)]
