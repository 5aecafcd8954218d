"""A query over its CPU limit, or without a client, is ended and delays no other query."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.flight as fl
import pytest

from tests.drivers.daemon import Daemon
from tests.drivers.waiting import until
from tests.drivers.wire import create, extra, http, persist, put, query, ticket

ROWS = 1_800_000
SCHEMA = pa.schema({"i": pa.int64(), "s": pa.string()})
COSTLY: Any = [[["i", ">=", n], ["s", "<", "h"], ["s", ">", "h"]] for n in range(1000)]
"""Alternatives that no row fulfils, but neither a set lookup nor statistics can tell: each is
evaluated for every row, which takes about ten times the limit."""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder: Path = tmp_path_factory.mktemp("cpu")
    with Daemon.start(folder / "data", query__max_cpu="800ms", memory__limit="1GiB") as daemon:
        yield daemon


def _rows(first: int, count: int) -> pa.RecordBatch:
    numbers = np.arange(first, first + count)
    texts = [f"h{n}" if n % 1000 else "g" for n in numbers]
    return pa.record_batch([numbers, texts], schema=SCHEMA)


@pytest.mark.parametrize("key", [[], ["i"]], ids=["rows", "keys"])
def test_a_query_that_computes_too_long_ends_in_the_middle_and_leaves_nothing(
    daemon: Daemon, key: list[str]
) -> None:
    with fl.connect(daemon.flight) as client:
        table = ("t", f"t{len(key)}")
        create(client, table, SCHEMA, primary_key=key)
        put(client, table, _rows(0, ROWS - 50_000))
        persist(client, table)
        put(client, table, _rows(ROWS - 50_000, 50_000))
        reader = client.do_get(ticket(table, filter=[[["i", "<", 1000]], *COSTLY]))
        found = 0 if key else reader.read_chunk().data.num_rows
        with pytest.raises(fl.FlightTimedOutError, match=r"0\.8 s.*query\.max_cpu") as error:
            reader.read_all()
        assert extra(error.value)["code"] == "timeout"
        assert found == 1000 or key, "keys are merged before the first part"
        until(lambda: _streams(client)["open"] == 0, "the answer to be let go")
        assert _streams(client)["files"] == 0
        metrics = http(f"{daemon.http}/metrics")[2].decode()
        assert 'ingester_limit_refused_total{limit="max_cpu"}' in metrics
        assert 'ingester_limit_refused_total{limit="max_cpu"} 0.0' not in metrics
        put(client, ("t", f"small{len(key)}"), _rows(0, 1000))
        wanted = [[["i", "=", n]] for n in range(500, 100_500)]
        assert query(client, ("t", f"small{len(key)}"), filter=wanted).num_rows == 500


def test_another_namespace_is_answered_while_costly_queries_have_the_processors(
    daemon: Daemon,
) -> None:
    with fl.connect(daemon.flight) as client:
        large, small = ("large", "t"), ("small", "t")
        put(client, large, _rows(0, ROWS // 2))
        put(client, small, _rows(0, 10))
    ended: list[BaseException] = []

    def ask() -> None:
        with fl.connect(daemon.flight) as client, pytest.raises(fl.FlightTimedOutError) as error:
            query(client, large, filter=COSTLY)
        ended.append(error.value)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    with fl.connect(daemon.flight) as client:
        until(lambda: _streams(client)["open"] > 0, "the costly queries to begin")
        for _ in range(5):
            assert query(client, small, filter=[[["i", "=", 3]]]).num_rows == 1
        assert len(ended) < len(threads), "five small ones take less than all the large ones"
    for thread in threads:
        thread.join()
    assert len(ended) == len(threads)


def test_a_query_whose_client_has_gone_computes_no_more(daemon: Daemon) -> None:
    table = ("gone", "t")
    with fl.connect(daemon.flight) as client:
        put(client, table, _rows(0, ROWS // 4))
        before = _count(daemon, "ingester_clients_gone_total")
        ended = _count(daemon, 'ingester_limit_refused_total{limit="max_cpu"}')
        asked = fl.FlightCallOptions(timeout=0.2)
        with pytest.raises(fl.FlightTimedOutError):
            client.do_get(ticket(table, filter=COSTLY), asked).read_all()
        gone = "ingester_clients_gone_total"
        until(lambda: _count(daemon, gone) == before + 1, "the query to end")
        until(lambda: _streams(client)["open"] == 0, "the answer to be let go")
    assert _count(daemon, 'ingester_limit_refused_total{limit="max_cpu"}') == ended, (
        "it has ended before it used what it may"
    )


def _count(daemon: Daemon, name: str) -> float:
    lines = http(f"{daemon.http}/metrics")[2].decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name} "))


def _streams(client: fl.FlightClient) -> dict[str, int]:
    (result,) = client.do_action(fl.Action("status", b"{}"))
    streams: dict[str, int] = json.loads(result.body.to_pybytes())["streams"]
    return streams
