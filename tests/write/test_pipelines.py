"""Pipelined writes: answers arrive in order, and a refusal stops everything behind it.

Calls have a deadline of one minute where a bug would hang.
"""

from __future__ import annotations

import itertools
import threading

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from tests.drivers.daemon import Daemon
from tests.drivers.wire import (
    ARROW_AND_FLIGHT,
    Stream,
    Table,
    events,
    numbers,
    path,
    put,
    query,
    rows,
    ticket,
)

OPTIONS = fl.FlightCallOptions(timeout=60)


def test_a_client_may_have_1024_batches_on_the_way_without_reading(
    client: fl.FlightClient, table: Table
) -> None:
    with Stream(client, path(table), numbers(0, 1).schema) as stream:
        for i in range(1024):
            stream.send(numbers(i, 1))
        answers = stream.rest()
    assert len(answers) == 1024
    assert all(answer["accepted"] for answer in answers)
    sequences = [answer["sequence"] for answer in answers]
    assert sequences == sorted(set(sequences))
    assert rows(client, table) == list(range(1024))


def test_a_client_that_reads_meanwhile_may_send_any_number(
    client: fl.FlightClient, table: Table
) -> None:
    answers = []
    with Stream(client, path(table), numbers(0, 1).schema) as stream:

        def read() -> None:
            while (answer := stream.answer()) is not None:
                answers.append(answer)

        reading = threading.Thread(target=read)
        reading.start()
        for i in range(5000):
            stream.send(numbers(i, 1))
        stream.writer.done_writing()
        reading.join()
    assert len(answers) == 5000
    assert rows(client, table) == list(range(5000))


def _refused_in_the_middle(client: fl.FlightClient, table: Table, first: int) -> None:
    """Send 40 batches, the 21st of which is refused."""
    schema = pa.schema({"i": pa.int64(), "time": pa.timestamp("ns", "UTC")})

    def batch(i: int, ns: int) -> pa.RecordBatch:
        columns = [pa.array([i], pa.int64()), pa.array([ns], schema.field("time").type)]
        return pa.record_batch(columns, schema=schema)

    writer, reader = client.do_put(path(table), schema, OPTIONS)
    try:
        for i in range(40):
            writer.write_batch(batch(first + i, 1 if i == 20 else 1000))
        writer.done_writing()
        while reader.read():
            pass
    except ARROW_AND_FLIGHT:
        pass  # the stream ended while the client was sending; closing it reports the reason
    with pytest.raises(pa.ArrowInvalid, match="whole microseconds"):
        writer.close()


def test_nothing_behind_a_refused_batch_is_applied_and_all_before_it_is(
    client: fl.FlightClient, table: Table
) -> None:
    _refused_in_the_middle(client, table, 0)
    assert rows(client, table) == list(range(20))


def test_three_hundred_refusals_in_the_middle_do_no_harm(
    client: fl.FlightClient, table: Table, shared: Daemon
) -> None:
    for attempt in range(300):
        _refused_in_the_middle(client, table, attempt * 100)
    assert shared.process.poll() is None
    assert rows(client, table) == [a * 100 + i for a in range(300) for i in range(20)]


def test_a_refusal_reaches_a_client_that_waits_for_its_answer(
    client: fl.FlightClient, table: Table
) -> None:
    good, bad = _with_time(1000), _with_time(1)
    for _ in range(50):
        writer, reader = client.do_put(path(table), good.schema, OPTIONS)
        writer.write_batch(good)
        assert reader.read() is not None
        writer.write_batch(bad)
        # No done_writing: the client waits with its side open. pyarrow returns None at the end of
        # the answers and reports the reason when the stream is closed.
        assert not reader.read()
        with pytest.raises(pa.ArrowInvalid, match="'time'"):
            writer.close()
    assert query(client, table).num_rows == 50


def _with_time(ns: int) -> pa.RecordBatch:
    return pa.record_batch({"time": pa.array([ns], pa.timestamp("ns", "UTC"))})


def test_clients_that_vanish_in_the_middle_leave_whole_batches(
    shared: Daemon, client: fl.FlightClient, table: Table
) -> None:
    put(client, table, events(0, 9, days=3))
    for attempt in range(1, 20):
        with fl.connect(shared.flight) as leaving:
            writer, reader = leaving.do_put(path(table), events(0, 9).schema, OPTIONS)
            for part in range(5):
                writer.write_batch(events((attempt * 5 + part) * 9, 9, days=3))
            if attempt % 2:
                assert reader.read() is not None
            del writer, reader
    found = rows(client, table)
    assert len(found) == len(set(found))
    assert len(found) % 9 == 0


def test_a_batch_over_many_partitions_is_seen_whole_or_not_at_all(
    shared: Daemon, client: fl.FlightClient, table: Table
) -> None:
    put(client, table, events(0, 50, days=25))
    done = threading.Event()
    torn: list[int] = []
    asked = itertools.count()

    def look() -> None:
        with fl.connect(shared.flight) as looking:
            while not done.is_set():
                count = looking.do_get(ticket(table, columns=["i"])).read_all().num_rows
                next(asked)
                if count % 50:
                    torn.append(count)

    readers = [threading.Thread(target=look) for _ in range(3)]
    for reader in readers:
        reader.start()
    with Stream(client, path(table), events(0, 1).schema) as stream:
        for i in range(1, 150):
            stream.write(events(i * 50, 50, days=25))
        stream.writer.done_writing()
    done.set()
    for reader in readers:
        reader.join()
    assert not torn
    assert next(asked) > 10
    assert rows(client, table) == list(range(150 * 50))


def test_concurrent_writers_of_one_table_lose_nothing(
    shared: Daemon, client: fl.FlightClient, table: Table
) -> None:
    def write(writer: int) -> None:
        with fl.connect(shared.flight) as own:
            put(own, table, *[events(writer * 1000 + i * 10, 10, days=4) for i in range(100)])

    writers = [threading.Thread(target=write, args=(writer,)) for writer in range(4)]
    for thread in writers:
        thread.start()
    for thread in writers:
        thread.join()
    assert rows(client, table) == list(range(4000))
