"""A client that sends batches of all sizes without waiting: a refused batch ends the stream."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from tests.drivers.small_rows import SCHEMA
from tests.drivers.wire import Stream, Table, path, rows

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


def _send_on(stream: Stream, batches: Iterable[pa.RecordBatch]) -> None:
    """Send all batches and close the stream; raises the server's refusal."""
    for each in batches:
        stream.send(each)
    stream.rest()
    stream.close()


@pytest.mark.parametrize("make", [batch, text])
@pytest.mark.parametrize("bad", [SMALL, MIDDLE, LARGE])
@pytest.mark.parametrize("then", [SMALL, MIDDLE, LARGE])
def test_nothing_behind_a_refused_batch_is_kept(
    client: fl.FlightClient, table: Table, make: Callable[..., pa.RecordBatch], bad: int, then: int
) -> None:
    stream = Stream(client, path(table), make(0, 1).schema)
    start = 0
    for count in (SMALL, MIDDLE, MIDDLE, SMALL, LARGE, MIDDLE, MIDDLE, MIDDLE):
        stream.send(make(start, count))
        start += count
    behind = [make(start + bad + turn * then, then) for turn in range(6)]
    with pytest.raises((pa.ArrowException, fl.FlightError)):
        _send_on(stream, [make(start, bad, fits=False), *behind])
    assert sorted(rows(client, table)) == list(range(start))


def test_the_answers_are_in_the_order_of_the_batches(client: fl.FlightClient, table: Table) -> None:
    start, sizes = 0, [SMALL, MIDDLE, MIDDLE, LARGE, MIDDLE, SMALL, SMALL, MIDDLE] * 12
    with Stream(client, path(table), text(0, 1).schema) as stream:
        for count in sizes:
            stream.send(text(start, count))
            start += count
        sequences = [answer["sequence"] for answer in stream.rest()]
    assert len(sequences) == len(sizes)
    assert sequences == sorted(set(sequences))
    assert sorted(rows(client, table)) == list(range(start))
