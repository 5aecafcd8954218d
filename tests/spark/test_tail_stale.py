"""A flush between reading a version and its buffered rows loses and doubles nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow.flight as fl
import pytest
from pyspark.sql import SparkSession

from ingester.spark import TailStale, read_table
from ingester.spark.read.tail import ATTEMPTS
from tests.drivers.daemon import Daemon
from tests.drivers.wire import Table, numbers, persist, put

pytestmark = pytest.mark.spark


def test_a_stale_version_is_pinned_in_vain(
    spark: SparkSession, tmp_path: Path, table: Table
) -> None:
    with (
        Daemon.start(tmp_path / "d", query__tail_retain="0s") as daemon,
        fl.connect(daemon.flight) as client,
    ):
        put(client, table, numbers(0, 10))
        old = persist(client, table)
        put(client, table, numbers(10, 10))
        persist(client, table)
        url = f"file://{daemon.data_dir / 'store'}"
        with pytest.raises(TailStale, match=f"version {old}") as caught:
            read_table(spark, url, *table, old, endpoint=daemon.flight)
        newest = read_table(spark, url, *table, endpoint=daemon.flight)
        assert newest.count() == 20
    assert caught.value.code == "stale"


class Front(fl.FlightServerBase):  # type: ignore[misc]
    """A proxy of a daemon that writes and flushes one more row before each answer.

    The first ``stale`` requests therefore reach the daemon too late.
    """

    def __init__(self, daemon: Daemon, table: Table, stale: int) -> None:
        self.asked: list[int] = []
        self._daemon = daemon
        self._table = table
        self._stale = stale
        super().__init__("grpc://127.0.0.1:0")
        self.url = f"grpc://127.0.0.1:{self.port}"

    def do_get(self, context: fl.ServerCallContext, ticket: fl.Ticket) -> Any:
        self.asked.append(json.loads(ticket.ticket)["version"])
        with fl.connect(self._daemon.flight) as client:
            put(client, self._table, numbers(100 + len(self.asked), 1))
            persist(client, self._table)
            if len(self.asked) <= self._stale:
                extra = json.dumps({"code": "stale", "message": "too old", "retry_after_s": 0.0})
                raise fl.FlightUnavailableError("too old", extra.encode())
            return fl.RecordBatchStream(client.do_get(ticket).read_all())


FrontFor = Callable[[int], Front]


@pytest.fixture
def front(daemon: Daemon, client: fl.FlightClient, table: Table) -> Iterator[FrontFor]:
    """Start proxies of the daemon, whose table has 10 rows in files and 10 in the buffer."""
    put(client, table, numbers(0, 10))
    persist(client, table)
    put(client, table, numbers(10, 10))
    with ExitStack() as opened:

        def open_front(stale: int) -> Front:
            front = Front(daemon, table, stale)
            opened.callback(front.shutdown)
            return front

        yield open_front


def test_rows_persisted_between_a_version_and_its_tail_are_in_the_tail(
    spark: SparkSession, url: str, table: Table, front: FrontFor
) -> None:
    frame = read_table(spark, url, *table, endpoint=front(0).url)
    assert sorted(row.i for row in frame.collect()) == [*range(20), 101]


def test_a_version_that_becomes_stale_while_it_is_loaded_is_replaced_by_a_newer_one(
    spark: SparkSession, daemon: Daemon, url: str, table: Table, front: FrontFor
) -> None:
    twice = front(2)
    frame = read_table(spark, url, *table, endpoint=[daemon.flight, twice.url])
    # Both endpoints are the same daemon, and one answer counts: the one before or the one after the
    # last write. A row from an answer about a stale version would be doubled.
    found = sorted(row.i for row in frame.collect())
    assert found[:22] == [*range(20), 101, 102]
    assert found[22:] in ([], [103])
    assert len(twice.asked) == 3
    assert twice.asked == sorted(set(twice.asked))

    never = front(1000)
    with pytest.raises(TailStale):
        read_table(spark, url, *table, endpoint=never.url)
    assert len(never.asked) == ATTEMPTS
