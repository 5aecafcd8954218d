"""Slow and hanging transformers in a real daemon."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from tests.drivers.daemon import Daemon
from tests.drivers.waiting import until as wait_until
from tests.drivers.wire import Json, act, create, extra, http, numbers, put, rows
from tests.write.transform.acme import MODULE

NAMED = pa.schema({"i": pa.int64(), "until": pa.string()})


def named(first: int, until: object) -> pa.RecordBatch:
    return numbers(first, 1, until=pa.array([str(until)]))


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with Daemon.start(
        tmp_path / "d", transform__allowed=MODULE, transform__timeout="1s"
    ) as started:
        yield started


@pytest.fixture
def client(daemon: Daemon) -> Iterator[fl.FlightClient]:
    with fl.connect(daemon.flight) as client:
        for name in ("Waits", "WaitsToo", "Double", "SlowlyMade"):
            create(client, ("tr", name), NAMED, transformers=[f"{MODULE}:{name}"])
        yield client


def status(daemon: Daemon) -> Json:
    told: Json = json.loads(http(daemon.http + "/api/status")[2])["transform"]
    return told


def test_calls_that_hang_are_given_up_and_cost_the_daemon_two_threads(
    client: fl.FlightClient, daemon: Daemon, tmp_path: Path
) -> None:
    until = tmp_path / "released"
    for number in range(2):
        with pytest.raises(fl.FlightTimedOutError, match=r"no answer within 1 s") as caught:
            put(client, ("tr", "Waits"), named(number, until))
        assert extra(caught.value)["code"] == "timeout"
    began = time.monotonic()
    for number in range(20):
        with pytest.raises(fl.FlightTimedOutError, match="Waits: 2 calls of it hang"):
            put(client, ("tr", "Waits"), named(number, until))
    assert time.monotonic() - began < 10
    assert status(daemon) == {"busy_threads": 0, "hung_calls": {f"{MODULE}:Waits": 2}}
    put(client, ("tr", "Double"), named(1, ""))  # other tables are not affected
    put(client, ("tr", "plain"), named(1, ""))
    assert http(daemon.http + "/health/live")[0] == 200
    assert "transformer-hangs" in daemon.stderr_file.read_text()
    until.touch()
    wait_until(lambda: status(daemon)["hung_calls"] == {}, "the calls")
    put(client, ("tr", "Waits"), named(7, until))
    assert rows(client, ("tr", "Waits")) == [7]


def test_a_slow_class_does_not_keep_another_waiting(
    client: fl.FlightClient, tmp_path: Path
) -> None:
    until = tmp_path / "released"
    with ThreadPoolExecutor(8) as pool:
        slow = [pool.submit(put, client, ("tr", "WaitsToo"), named(n, until)) for n in range(8)]
        put(client, ("tr", "Double"), named(2, ""))
        until.touch()
        outcomes = [each.exception() for each in slow]
    assert rows(client, ("tr", "Double")) == [4]
    assert len(rows(client, ("tr", "WaitsToo"))) == outcomes.count(None)


def test_a_constructor_has_the_same_limit(client: fl.FlightClient) -> None:
    with pytest.raises(fl.FlightTimedOutError, match="SlowlyMade: no answer within"):
        put(client, ("tr", "SlowlyMade"), named(1, ""))


def test_a_daemon_stops_while_calls_hang(
    client: fl.FlightClient, daemon: Daemon, tmp_path: Path
) -> None:
    put(client, ("tr", "Double"), named(2, ""))
    with pytest.raises(fl.FlightTimedOutError):
        put(client, ("tr", "Waits"), named(1, tmp_path / "never"))
    assert daemon.terminate() == 0
    with daemon.again() as again, fl.connect(again.flight) as anew:
        assert rows(anew, ("tr", "Double")) == [4]
        assert act(anew, "status")[0]["transform"]["hung_calls"] == {}
