"""A worker reads the daemon's rows, and is silent about a query that has ended."""

from __future__ import annotations

import socket

import pyarrow as pa
import pytest

from ingester.sql.wire import Channel, ChannelClosed, bodies_of
from ingester.sql.worker.computing import Scans

SCHEMA = pa.schema({"n": pa.int64()})


def test_a_scan_that_is_dropped_after_its_query_is_not_told_to_the_next_one() -> None:
    ours, its = map(Channel, socket.socketpair())
    scans = Scans(its)
    read = scans.read(0, SCHEMA, ["n"], None)
    late = scans.read(1, SCHEMA, ["n"], None)
    ours.send(b"B", bodies_of([pa.record_batch({"n": [1]})]))
    assert next(read).num_rows == 1
    scans.end(b"E")
    read.close()
    assert list(late) == []
    its.close()
    assert [ours.receive()[0] for _ in range(3)] == [b"O", b"R", b"E"]
    with pytest.raises(ChannelClosed):
        ours.receive()
    ours.close()


def test_a_scan_that_ends_before_its_query_is_told() -> None:
    ours, its = map(Channel, socket.socketpair())
    scans = Scans(its)
    read = scans.read(0, SCHEMA, ["n"], None)
    ours.send(b"B", bodies_of([pa.record_batch({"n": [1]})]))
    assert next(read).num_rows == 1
    read.close()
    assert [ours.receive()[0] for _ in range(3)] == [b"O", b"R", b"C"]
    its.close()
    ours.close()
