"""A client that sends batches of all sizes without waiting: a refused batch ends the stream."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from tests.drivers.small_rows import SCHEMA
from tests.drivers.wire import Json, Stream, Table, rows, writing

SMALL, MIDDLE, LARGE = 3, 8_000, 150_000
"""Row counts of batches that are coalesced, or prepared by their reader."""


def batch(start: int, count: int, *, fits: bool = True) -> pa.RecordBatch:
    """Rows from ``start``; unless ``fits``, the last timestamp is not in whole microseconds."""
    times = pa.array([1000] * (count - 1) + [1000 if fits else 1001], SCHEMA.field("time").type)
    return pa.record_batch([pa.array(range(start, start + count)), times], schema=SCHEMA)


def text(start: int, count: int, *, fits: bool = True) -> pa.RecordBatch:
    """Rows that need no conversion; unless ``fits``, the last text is not UTF-8."""
    words = [b"word"] * (count - 1) + [b"word" if fits else b"\xff"]
    return pa.record_batch(
        {
            "i": pa.array(range(start, start + count)),
            "text": pa.array(words, pa.binary()).view(pa.string()),
        }
    )


class _Sent:
    """A stream, with or without an origin, whose batches have rising sequences."""

    def __init__(self, client: fl.FlightClient, table: Table, schema: pa.Schema, origin: bool):
        self._origin = origin
        self._sequence = 0
        self.stream = Stream(client, writing(table, "o" if origin else None), schema)

    def send(self, batch: pa.RecordBatch) -> None:
        self._sequence += 1
        self.stream.send(batch, {"sequence": self._sequence} if self._origin else None)

    def send_all(self, batches: Iterable[pa.RecordBatch]) -> list[Json]:
        """Send all batches and close the stream; raises the server's refusal."""
        for each in batches:
            self.send(each)
        answers = self.stream.rest()
        self.stream.close()
        return answers


WITH_OR_WITHOUT = pytest.mark.parametrize("origin", [False, True], ids=["plain", "origin"])
SIZES = [SMALL, MIDDLE, MIDDLE, SMALL, LARGE, MIDDLE, MIDDLE, MIDDLE]


def _batches(
    make: Callable[..., pa.RecordBatch], sizes: Iterable[int], start: int = 0
) -> Iterator[pa.RecordBatch]:
    for count in sizes:
        yield make(start, count)
        start += count


@WITH_OR_WITHOUT
@pytest.mark.parametrize("make", [batch, text])
@pytest.mark.parametrize("bad", [SMALL, MIDDLE, LARGE])
@pytest.mark.parametrize("then", [SMALL, MIDDLE, LARGE])
def test_nothing_behind_a_refused_batch_is_kept(
    client: fl.FlightClient,
    table: Table,
    make: Callable[..., pa.RecordBatch],
    bad: int,
    then: int,
    origin: bool,
) -> None:
    sent, end = _Sent(client, table, make(0, 1).schema, origin), sum(SIZES)
    for each in _batches(make, SIZES):
        sent.send(each)
    behind = _batches(make, [then] * 6, end + bad)
    with pytest.raises((pa.ArrowException, fl.FlightError)):
        sent.send_all([make(end, bad, fits=False), *behind])
    assert sorted(rows(client, table)) == list(range(end))


@WITH_OR_WITHOUT
def test_the_answers_are_in_the_order_of_the_batches(
    client: fl.FlightClient, table: Table, origin: bool
) -> None:
    sizes = [SMALL, MIDDLE, MIDDLE, LARGE, MIDDLE, SMALL, SMALL, MIDDLE] * 12
    sent = _Sent(client, table, text(0, 1).schema, origin)
    sequences = [answer["sequence"] for answer in sent.send_all(_batches(text, sizes))]
    assert len(sequences) == len(sizes)
    assert sequences == sorted(set(sequences))
    assert sorted(rows(client, table)) == list(range(sum(sizes)))


def test_batches_of_all_sizes_that_are_repeated_while_new_ones_follow_are_kept_once(
    client: fl.FlightClient, table: Table
) -> None:
    schema, sizes = text(0, 1).schema, SIZES * 3
    first = _Sent(client, table, schema, origin=True)
    for each in _batches(text, SIZES * 2):
        first.send(each)  # a newer stream may find them under way
    answers = _Sent(client, table, schema, origin=True).send_all(_batches(text, sizes))
    assert [bool(each["duplicate"]) for each in answers[-len(SIZES) :]] == [False] * len(SIZES)
    assert len(answers) == len(sizes)
    assert sorted(rows(client, table)) == list(range(sum(sizes)))
