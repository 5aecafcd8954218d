"""An answer is a snapshot: fixed at the call, complete, unchanged by anything during the read."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from tests.drivers.daemon import Daemon
from tests.drivers.wire import (
    Stream,
    Table,
    events,
    extra,
    numbers,
    path,
    persist,
    put,
    query,
    rows,
    ticket,
)

# The C++ client and gRPC read ahead, but far less than this.
ROWS, TEXT = 4000, "x" * 20_000


def _large(first: int, count: int) -> pa.RecordBatch:
    return numbers(first, count, s=pa.array([TEXT] * count))


def _fill(client: fl.FlightClient, table: Table) -> None:
    """Write 80 MB into one buffer."""
    with Stream(client, path(table), _large(0, 1).schema) as stream:
        for first in range(0, ROWS, 500):
            stream.write(_large(first, 500))
        stream.writer.done_writing()


def _read_rest(reader: fl.FlightStreamReader) -> list[int]:
    return [i for chunk in reader for i in chunk.data["i"].to_pylist()]


def test_a_reader_that_stops_gets_exactly_the_rest_after_writes_and_persists(
    client: fl.FlightClient, table: Table
) -> None:
    _fill(client, table)
    reader = client.do_get(ticket(table))
    found = reader.read_chunk().data["i"].to_pylist()
    put(client, table, _large(ROWS, 100))
    first = persist(client, table)
    put(client, table, _large(ROWS + 100, 100))
    assert persist(client, table) > first
    found += _read_rest(reader)
    assert found == list(range(ROWS))  # a buffer is read in log order
    assert rows(client, table) == list(range(ROWS + 200))


def test_a_reader_that_has_not_begun_gets_the_rows_of_its_time(
    client: fl.FlightClient, table: Table
) -> None:
    _fill(client, table)
    readers = [client.do_get(ticket(table)) for _ in range(3)]
    put(client, table, _large(ROWS, 50))
    persist(client, table)
    for reader in readers:
        assert sorted(_read_rest(reader)) == list(range(ROWS))


def test_a_reader_of_files_is_not_moved_by_new_files(client: fl.FlightClient, table: Table) -> None:
    _fill(client, table)
    persist(client, table)
    reader = client.do_get(ticket(table))
    found = reader.read_chunk().data["i"].to_pylist()
    put(client, table, _large(ROWS, 50))
    persist(client, table)
    assert sorted(found + _read_rest(reader)) == list(range(ROWS))


def test_readers_in_the_middle_see_every_row_once_through_many_persists(
    shared: Daemon, client: fl.FlightClient, table: Table
) -> None:
    put(client, table, events(0, 1000, days=5))
    done = threading.Event()
    wrong: list[str] = []

    def look() -> None:
        with fl.connect(shared.flight) as looking:
            seen = 0
            while not done.is_set():
                found = looking.do_get(ticket(table, columns=["i"])).read_all()["i"].to_pylist()
                # With one writer, a snapshot is a prefix of whole batches.
                if sorted(found) != list(range(len(found))) or len(found) % 100:
                    wrong.append(f"{len(found)} rows, {len(set(found))} different")
                if len(found) < seen:
                    wrong.append(f"{len(found)} rows after {seen}")
                seen = len(found)

    readers = [threading.Thread(target=look) for _ in range(3)]
    for reader in readers:
        reader.start()
    for step in range(30):
        for part in range(5):
            put(client, table, events(1000 + (step * 5 + part) * 100, 100, days=5))
        persist(client, table)
    done.set()
    for reader in readers:
        reader.join()
    assert wrong == []
    assert rows(client, table) == list(range(16_000))


def test_an_answer_holds_everything_acknowledged_before_its_call(
    shared: Daemon, client: fl.FlightClient, table: Table
) -> None:
    with fl.connect(shared.flight) as other, Stream(client, path(table), _small(0)) as stream:
        for i in range(300):
            stream.write(numbers(i, 1))
            assert query(other, table).num_rows == i + 1
        stream.writer.done_writing()


def _small(i: int) -> pa.Schema:
    return numbers(i, 1).schema


def test_a_wider_table_does_not_change_an_answer_under_way(
    client: fl.FlightClient, table: Table
) -> None:
    _fill(client, table)
    reader = client.do_get(ticket(table))
    found = reader.read_chunk().data["i"].to_pylist()
    put(client, table, numbers(ROWS, 1, more=pa.array([1.5])))
    persist(client, table)
    assert reader.schema.names == ["i", "s"]
    assert sorted(found + _read_rest(reader)) == list(range(ROWS))


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon that waits half a second for its readers and serves three at once."""
    folder: Path = tmp_path_factory.mktemp("strict")
    with Daemon.start(
        folder / "data",
        query__client_timeout="500ms",
        query__max_streams=3,
        memory__limit="1GiB",
    ) as daemon:
        yield daemon


def test_a_client_that_stops_for_too_long_finds_a_timeout(strict: Daemon, table: Table) -> None:
    with fl.connect(strict.flight) as client:
        _fill(client, table)
        reader = client.do_get(ticket(table))
        reader.read_chunk()
        _until_no_stream_is_open(client)
        with pytest.raises(fl.FlightTimedOutError) as error:
            _read_rest(reader)
        assert extra(error.value)["code"] == "timeout"
        assert rows(client, table) == list(range(ROWS))


def test_more_answers_than_max_streams_are_refused_until_one_ends(
    strict: Daemon, table: Table
) -> None:
    with fl.connect(strict.flight) as client:
        _fill(client, table)
        readers = [client.do_get(ticket(table)) for _ in range(3)]
        for reader in readers:
            reader.read_chunk()
        with pytest.raises(fl.FlightUnavailableError) as error:
            query(client, table)
        assert extra(error.value)["code"] == "limit"
        assert extra(error.value)["retry_after_s"] > 0
        put(client, table, _large(ROWS, 1))  # writes are not affected
        assert len(_read_rest(readers[0])) < ROWS
        assert query(client, table).num_rows == ROWS + 1


def _until_no_stream_is_open(client: fl.FlightClient) -> None:
    """Wait until the daemon's status shows no open stream."""
    while True:
        (result,) = client.do_action(fl.Action("status", b"{}"))
        if json.loads(result.body.to_pybytes())["streams"]["open"] == 0:
            return
