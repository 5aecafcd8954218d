"""A newer stream of an origin supersedes the older one, and no batch is written twice."""

from __future__ import annotations

import threading
from contextlib import suppress

import pyarrow.flight as fl
import pytest

from tests.drivers.daemon import Daemon
from tests.drivers.wire import (
    ARROW_AND_FLIGHT,
    Stream,
    Table,
    extra,
    numbers,
    put_sequences,
    rows,
    writing,
)


def test_two_clients_racing_with_one_origin_add_each_batch_once(
    shared: Daemon, client: fl.FlightClient, table: Table, origin: str
) -> None:
    def race() -> None:
        with fl.connect(shared.flight) as own:
            for _ in range(10):
                try:
                    put_sequences(own, table, origin, 0, 60)
                except fl.FlightUnavailableError as error:
                    codes.append(extra(error)["code"])

    # Each stream repeats everything after a takeover, as the incarnations of one sender would.
    codes: list[str] = []
    racers = [threading.Thread(target=race) for _ in range(3)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    assert set(codes) == {"superseded"}
    put_sequences(client, table, origin, 0, 60)
    assert rows(client, table) == list(range(610))


def test_a_newer_stream_of_an_origin_ends_the_older(
    client: fl.FlightClient, table: Table, origin: str
) -> None:
    batch = numbers(0, 1)
    older = Stream(client, writing(table, origin), batch.schema)
    older.write(batch, {"sequence": 1})
    newer = Stream(client, writing(table, origin), batch.schema)
    newer.write(numbers(1, 1), {"sequence": 2})
    with pytest.raises(fl.FlightUnavailableError) as error:
        older.write(numbers(9, 1), {"sequence": 3})
    assert extra(error.value)["code"] == "superseded"
    assert (
        extra(error.value)["answered"] == 1
    )  # of this stream, whether the client has read it or not
    newer.write(numbers(2, 1), {"sequence": 3})
    newer.rest()
    newer.close()
    assert rows(client, table) == [0, 1, 2]


def test_two_hundred_refusals_of_clients_that_wait_or_send_on_do_not_crash_the_daemon(
    shared: Daemon, client: fl.FlightClient, table: Table, origin: str
) -> None:
    # The end of the call freed the reader that the server's thread was still using.
    batch = numbers(0, 1)
    for attempt in range(200):
        first = attempt * 40
        older = Stream(client, writing(table, origin), batch.schema)
        older.write(batch, {"sequence": first})
        with Stream(client, writing(table, origin), batch.schema) as newer:
            newer.write(batch, {"sequence": first + 1})
            newer.writer.done_writing()
        with suppress(*ARROW_AND_FLIGHT):  # a send may already fail with the end of the stream
            for n in range(1 if attempt % 2 else 30):
                older.send(batch, {"sequence": first + 2 + n})
            assert older.answer() is None
        with pytest.raises(fl.FlightUnavailableError) as error:
            older.close()
        assert extra(error.value)["code"] == "superseded"
    assert shared.process.poll() is None
    assert len(rows(client, table)) == 400


def test_streams_of_one_origin_into_two_tables_live_side_by_side(
    client: fl.FlightClient, table: Table, origin: str
) -> None:
    other = (table[0], table[1] + "-other")
    batch = numbers(0, 1)
    with (
        Stream(client, writing(table, origin), batch.schema) as one,
        Stream(client, writing(other, origin), batch.schema) as two,
    ):
        for n in range(3):
            one.write(batch, {"sequence": n})
            two.write(batch, {"sequence": n})
        for stream in (one, two):
            stream.writer.done_writing()
    assert len(rows(client, table)) == len(rows(client, other)) == 3
