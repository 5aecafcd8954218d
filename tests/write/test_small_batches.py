"""Small batches of many streams are coalesced; each stream gets its own answers in order."""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as fl

from ingester.schema import Normaliser
from ingester.schema.normalise import kept_schema
from persist.partitioning import UNPARTITIONED
from persist.table import TableDefinition
from tests.drivers.daemon import Daemon
from tests.drivers.small_rows import EACH, SCHEMA, WRITERS, row
from tests.drivers.wire import (
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
    """Small batches are coalesced when the log is free; the others are prepared before."""
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
    """The rows of one coalesced run span partitions: some are in files, the rest in the log."""
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
    """There must be fewer groups than operations; otherwise nothing was coalesced."""

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
    """A dictionary of one long text is not a small batch, however short its message is."""
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
    """The answer is sent before the busy event loop applies the operation."""
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
                    # `describe_table` runs on the event loop, without a query.
                    (facts,) = act(client, "describe_table", namespace=table[0], table=table[1])
                    assert facts["buffered"]["rows"] == number + 1
            stream.writer.done_writing()
    finally:
        over.set()
        for thread in threads:
            thread.join(60)
    assert not failures
