"""Small batches of many streams travel together; each stream sees its own answers and refusals."""

from __future__ import annotations

import contextlib
import json
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from ingester.schema import Normaliser
from ingester.schema.normalise import kept_schema
from persist.partitioning import UNPARTITIONED
from persist.table import TableDefinition
from tests.daemon import Daemon
from tests.integration.wire import (
    Stream,
    Table,
    act,
    http,
    numbers,
    path,
    persist,
    put,
    query,
    rows,
)

OPTIONS = fl.FlightCallOptions(timeout=60)
SCHEMA = pa.schema({"i": pa.int64(), "time": pa.timestamp("ns", "UTC")})
WRITERS = 8
EACH = 200


def row(number: int, *, fits: bool = True) -> pa.RecordBatch:
    """One row; a nanosecond beside a whole microsecond does not fit a table of microseconds."""
    times = pa.array([1000 if fits else 1001], SCHEMA.field("time").type)
    return pa.record_batch([pa.array([number], pa.int64()), times], schema=SCHEMA)


class Writer:
    """A client in a thread that waits for each answer."""

    def __init__(self, flight: str, table: Table, number: int, bad_at: int | None) -> None:
        self.number = number
        self.sequences: list[int] = []
        self.failure: Exception | None = None
        self._bad_at = bad_at
        self._arguments = (flight, table)
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        flight, table = self._arguments
        with fl.connect(flight) as client:
            writer, reader = client.do_put(path(table), SCHEMA, OPTIONS)
            try:
                for turn in range(EACH):
                    batch = row(self.number * EACH + turn, fits=turn != self._bad_at)
                    writer.write_batch(batch)
                    answer = json.loads(reader.read().to_pybytes())
                    assert answer["accepted"]
                    self.sequences.append(answer["sequence"])
                writer.done_writing()
            except Exception as exc:
                self.failure = exc
            try:
                writer.close()
            except Exception as exc:
                self.failure = exc


def test_one_bad_batch_among_many_streams_is_its_own_streams_affair(
    shared: Daemon, client: fl.FlightClient, table: Table
) -> None:
    bad = {2: 57, 5: 0, 7: 199}
    Stream(client, path(table), SCHEMA).write(row(-1))
    writers = [Writer(shared.flight, table, n, bad.get(n)) for n in range(WRITERS)]
    for writer in writers:
        writer.thread.start()
    for writer in writers:
        writer.thread.join()
    expected = [-1]
    for writer in writers:
        good = bad.get(writer.number, EACH)
        assert len(writer.sequences) == good
        assert writer.sequences == sorted(set(writer.sequences))
        expected += range(writer.number * EACH, writer.number * EACH + good)
        if writer.number in bad:
            assert isinstance(writer.failure, pa.ArrowInvalid)
            assert "microseconds" in str(writer.failure)
        else:
            assert writer.failure is None
    everyones = [sequence for writer in writers for sequence in writer.sequences]
    assert len(everyones) == len(set(everyones)), "each operation has a sequence of its own"
    assert sorted(rows(client, table)) == sorted(expected)


def test_the_first_batch_of_a_stream_is_refused_by_an_error_and_no_answer(
    client: fl.FlightClient, table: Table
) -> None:
    Stream(client, path(table), SCHEMA).write(row(0))
    writer, reader = client.do_put(path(table), SCHEMA, OPTIONS)
    writer.write_batch(row(1, fits=False))
    assert reader.read() is None
    with pytest.raises(pa.ArrowInvalid, match="microseconds"):
        writer.close()


@pytest.mark.parametrize("before", [1, 2, 3, 5, 40])
def test_a_client_that_waits_for_each_answer_is_refused_by_an_error(
    client: fl.FlightClient, table: Table, before: int
) -> None:
    writer, reader = client.do_put(path(table), SCHEMA, OPTIONS)
    for number in range(before):
        writer.write_batch(row(number))
        assert json.loads(reader.read().to_pybytes())["accepted"]
    writer.write_batch(row(before, fits=False))
    assert reader.read() is None
    with pytest.raises(pa.ArrowInvalid, match="microseconds"):
        writer.close()
    assert rows(client, table) == list(range(before))


@pytest.mark.parametrize("finishes", [True, False])
@pytest.mark.parametrize("bad_at", [1, 20, 49])
def test_a_client_that_sends_ahead_is_told_as_soon_as_it_reads(
    client: fl.FlightClient, table: Table, bad_at: int, finishes: bool
) -> None:
    Stream(client, path(table), SCHEMA).write(row(-1))
    writer, reader = client.do_put(path(table), SCHEMA, OPTIONS)
    all_sent = False
    with contextlib.suppress(pa.ArrowInvalid):  # the server may be faster, and end the call
        for number in range(50):
            writer.write_batch(row(number, fits=number != bad_at))
        if finishes:
            writer.done_writing()
        all_sent = True
    answers: list[dict[str, Any]] = []

    def read_all() -> None:
        while raw := reader.read():
            answers.append(json.loads(raw.to_pybytes()))
        writer.close()

    with pytest.raises(pa.ArrowInvalid, match="microseconds"):
        read_all()
    assert all(answer["accepted"] for answer in answers)
    # pyarrow's client throws answers away when a write fails.
    assert len(answers) == bad_at or not all_sent
    assert rows(client, table) == [-1, *range(bad_at)]


def test_a_client_may_send_ahead_and_wait_by_turns(client: fl.FlightClient, table: Table) -> None:
    sent = 0
    with Stream(client, path(table), SCHEMA) as stream:
        for burst in [1, 1, 1, 30, 1, 1, *[1] * 40, 200, 2, 2, 2, 1, 64, *[1] * 20]:
            for _ in range(burst):
                stream.send(row(sent))
                sent += 1
            sequences = [answer["sequence"] for _ in range(burst) if (answer := stream.answer())]
            assert len(sequences) == burst
            assert sequences == sorted(set(sequences))
        assert stream.rest() == []
    assert rows(client, table) == list(range(sent))


def test_small_and_large_batches_and_those_with_metadata_keep_the_streams_order(
    client: fl.FlightClient, table: Table
) -> None:
    """Small ones wait for the log as they came, the others are ready before."""
    checkpoint = {"checkpoint": {"partition": "p", "state": "AA=="}}
    with Stream(client, path(table), numbers(0, 1).schema) as stream:
        start = 0
        for turn in range(60):
            count = 20_000 if turn % 7 == 3 else 1 + turn % 3
            stream.send(numbers(start, count), checkpoint if turn % 5 == 4 else None)
            start += count
        answers = stream.rest()
    sequences = [answer["sequence"] for answer in answers]
    assert len(sequences) == 60
    assert sequences == sorted(set(sequences))
    assert rows(client, table) == list(range(start))


def test_what_was_answered_survives_a_kill_and_a_persist_of_a_part_of_it(tmp_path: Path) -> None:
    """Rows of one run lie in several partitions; files have some, the log the others."""
    table = ("ns", "days")
    day_ns = 86_400_000_000_000

    def on_day(number: int) -> pa.RecordBatch:
        times = pa.array([number % 5 * day_ns], SCHEMA.field("time").type)
        return pa.record_batch([pa.array([number], pa.int64()), times], schema=SCHEMA)

    with Daemon.start(tmp_path / "data", persist__max_age="1d") as daemon:
        answered: list[int] = []

        def write(first: int) -> None:
            with (
                fl.connect(daemon.flight) as own,
                Stream(own, path(table), SCHEMA) as stream,
            ):
                for number in range(first, first + 100):
                    stream.send(on_day(number))
                assert all(answer["accepted"] for answer in stream.rest())
            answered.extend(range(first, first + 100))

        def write_all(start: int) -> None:
            threads = [
                threading.Thread(target=write, args=(start + 100 * n,)) for n in range(WRITERS)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        with fl.connect(daemon.flight) as client:
            Stream(client, path(table), SCHEMA).write(on_day(0))
            answered.append(0)
            write_all(100)
            persist(client, table)
            write_all(1000)
            assert sorted(rows(client, table)) == sorted(answered)
        daemon.kill()
        with daemon.again() as second, fl.connect(second.flight) as client:
            assert sorted(rows(client, table)) == sorted(answered)
            assert sorted(_in_files(client, table)) == sorted(n for n in answered if n < 1000)


def _in_files(client: fl.FlightClient, table: Table) -> list[int]:
    found = query(client, table)
    version = int(found.schema.metadata[b"manifest_version"])
    return rows(client, table, scope="version", version=version)


def test_runs_are_made_of_what_waits(shared: Daemon, client: fl.FlightClient, table: Table) -> None:
    """Fewer groups than operations, or nothing of this file was tried."""

    def groups() -> float:
        _, _, text = http(f"{shared.http}/metrics")
        (line,) = (
            line
            for line in text.decode().splitlines()
            if line.startswith("ingester_group_operations_count")
        )
        return float(line.split()[1])

    before = groups()
    with Stream(client, path(table), SCHEMA) as stream:
        for number in range(1000):
            stream.send(row(number))
        stream.rest()
    assert groups() - before < 700


def test_few_bytes_that_stand_for_many_are_admitted_for_what_they_become(
    client: fl.FlightClient, table: Table
) -> None:
    """A dictionary of one long text is no small batch, however short its message is."""
    text = pa.DictionaryArray.from_arrays(pa.array([0] * 8000, pa.int16()), ["x" * 2000])
    batch = pa.record_batch([pa.array([1] * 8000, pa.int64()), text], names=["i", "s"])
    assert batch.nbytes < 90_000
    definition = TableDefinition(kept_schema(batch.schema, "us", ()), UNPARTITIONED)
    plan = Normaliser(definition, batch.schema)
    assert plan.most_bytes(batch) is None
    plain = plan(batch)
    again = Normaliser(definition, plain.schema).most_bytes(plain)
    assert again is not None
    assert again >= plain.nbytes
    with Stream(client, path(table), batch.schema) as stream:
        for _ in range(5):
            stream.send(batch)
        assert len(stream.rest()) == 5
    assert len(rows(client, table)) == 40_000


def test_whoever_has_an_answer_finds_the_row_however_it_asks(
    shared: Daemon, client: fl.FlightClient, table: Table
) -> None:
    """It is answered while the loop has yet to apply it, and the loop has much to do."""
    put(client, table, row(0))
    over = threading.Event()
    failures: list[BaseException] = []

    def crowd(number: int) -> None:
        try:
            with (
                fl.connect(shared.flight) as mine,
                Stream(mine, path((table[0], f"crowd-{number}")), SCHEMA) as stream,
            ):
                while not over.is_set():
                    stream.write(row(number))
                stream.writer.done_writing()
        except BaseException as exc:
            failures.append(exc)

    threads = [threading.Thread(target=crowd, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    try:
        with (
            fl.connect(shared.flight) as writing,
            Stream(writing, path(table), SCHEMA) as stream,
        ):
            for number in range(1, EACH):
                stream.write(row(number))
                if number % 3:
                    found = rows(client, table, filter=[[["i", "=", number]]])
                    assert found == [number]
                else:
                    # By way of the loop: what is known without a query.
                    (facts,) = act(client, "describe_table", namespace=table[0], table=table[1])
                    assert facts["buffered"]["rows"] == number + 1
            stream.writer.done_writing()
    finally:
        over.set()
        for thread in threads:
            thread.join(60)
    assert not failures
