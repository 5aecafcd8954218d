"""A refused small batch ends its own stream, whichever way it waits; other streams continue."""

from __future__ import annotations

import contextlib
import json
import threading
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from tests.drivers.daemon import Daemon
from tests.drivers.small_rows import EACH, SCHEMA, WRITERS, row
from tests.drivers.wire import Stream, Table, path, rows

OPTIONS = fl.FlightCallOptions(timeout=60)


class Writer:
    """A client in its own thread that waits for each answer."""

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
    with contextlib.suppress(pa.ArrowInvalid):  # the server may end the call first
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
    # pyarrow's client discards answers when a write fails.
    assert len(answers) == bad_at or not all_sent
    assert rows(client, table) == [-1, *range(bad_at)]
