"""What the daemon of a release writes before it is killed: data of each kind.

The code of each release runs this once, for its fixture. Additions are for later releases.
"""

from __future__ import annotations

import base64
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as fl

from tests.drivers.daemon import Daemon
from tests.drivers.syncing import KEEP, Source
from tests.drivers.waiting import until
from tests.drivers.wire import Json, Table, act, create, delete, persist, put
from tests.upgrades.written import (
    CHECKED,
    COPIES,
    COPY,
    EVENTS,
    EXPIRED,
    FEED,
    KEYED,
    KEYED_SCHEMA,
    NANOS,
    NANOS_SCHEMA,
    PLAIN,
    PUSHED,
    SHIP,
    STATION,
    changes,
    event_batch,
    keyed_batch,
    nanos_batch,
    plain_batch,
)


def before_all(data: Path, settings: Json) -> None:
    """A first life that ends cleanly: a forgotten origin, and a table for later pushes."""
    settings = {**settings, "origins__expire_after": "1s"}
    with Daemon.start(data, **settings) as daemon, fl.connect(daemon.flight) as client:
        put(client, EXPIRED, plain_batch(0, 2), origin="long ago", metadata=[{"sequence": 1}])
        put(client, PUSHED, plain_batch(0, 5))

        persist(client, PUSHED)
        persist(client, EXPIRED)
        forgotten_at = time.monotonic() + 1.5

        def forgotten() -> bool:
            if time.monotonic() < forgotten_at:
                return False
            put(client, EXPIRED, plain_batch(2, 2))
            persist(client, EXPIRED)
            return "long ago" not in [each["origin"] for each in act(client, "origins")]

        until(forgotten, "the origin to be forgotten")
        client.close()
        assert daemon.terminate() == 0


def first_life(client: fl.FlightClient) -> None:
    """Tables of each kind, with rows in files."""
    put(client, PLAIN, plain_batch(0, 10))
    persist(client, PLAIN)
    put(client, PLAIN, plain_batch(10, 5))
    put(client, PLAIN, plain_batch(15, 5, wider=True))
    persist(client, PLAIN)
    create(client, EVENTS, event_batch(0).schema, partition_by=["day(time)"], sort_by=["host"])
    sequences(client, 1, 3)
    persist(client, EVENTS)
    create(client, KEYED, KEYED_SCHEMA, primary_key=["k"])
    put(client, KEYED, keyed_batch(range(20), "one"))
    persist(client, KEYED)
    delete(client, KEYED, pa.record_batch({"k": pa.array([3, 4], pa.int64())}))
    put(client, KEYED, keyed_batch([4, 20], "two"))
    persist(client, KEYED)
    create(
        client,
        NANOS,
        NANOS_SCHEMA,
        partition_by=["identity(zip)", "bucket(2, zip)"],
        sort_by=["at"],
        timestamp_unit="ns",
    )
    put(client, NANOS, nanos_batch(0, 20))
    persist(client, NANOS)
    source = Source(client, COPY, COPIES[0])
    for name in ("a", "b"):
        create(client, (COPY, name), pa.schema({"id": pa.int64()}), primary_key=["id"])
    source.send("a", changes(1), sequence=1)
    source.send("b", [(None, 1, {"v": 1.5, "s": "one"})], begin=True, transaction="two")
    source.send("a", changes(2), sequence=2, transaction="two")
    for name in ("a", "b"):
        persist(client, (COPY, name))
    checkpoints(client, 1, 3, shared=b"of the first life")
    persist(client, CHECKED)


def many_versions(client: fl.FlightClient, data: Path) -> None:
    """Versions of one table, until one has a snapshot below the head."""
    folder = data.joinpath("store", *KEYED)
    for number in range(500):
        if list(folder.rglob("*.snapshot")):
            break
        put(client, KEYED, keyed_batch([30 + number % 3], f"version {number}"))
        persist(client, KEYED)
    else:
        raise AssertionError("no snapshot")
    put(client, KEYED, keyed_batch([40], "after the snapshot"))
    persist(client, KEYED)


def left_in_the_log(client: fl.FlightClient) -> None:
    """Rows that are in no file when the daemon is killed, in several segments."""
    put(client, PLAIN, plain_batch(30, 10))
    sequences(client, 5, 6)
    delete(client, KEYED, pa.record_batch({"k": pa.array([1, 2], pa.int64())}))
    put(client, KEYED, keyed_batch([2, 21], None))
    put(client, NANOS, nanos_batch(20, 20))
    for first in range(40, 100, 10):
        put(client, PLAIN, plain_batch(first, 10))
    checkpoints(client, 4, 6, shared=b"of the log")
    put(client, PUSHED, plain_batch(100, 3))


def second_life(client: fl.FlightClient) -> None:
    """A later epoch: replayed rows keep waiting, more arrive, and some work is left unfinished."""
    sequences(client, 6, 8)
    put(client, KEYED, keyed_batch([5, 22], "three"))
    put(client, NANOS, nanos_batch(40, 3))
    north, south = (Source(client, COPY, name) for name in COPIES)
    north.send("a", changes(3), begin=True, transaction="three")
    north.send("b", [(1, 2, {"v": KEEP, "s": "two"})], sequence=3, transaction="three")
    south.send("b", [(None, 50, {"v": 5.0, "s": "five"}), (50, None, {})], sequence=10)
    north.send("a", changes(9), begin=True, transaction="never closed")
    checkpoints(client, 7, 7, shared=b"of the log")
    asked = {"namespace": CHECKED[0], "table": CHECKED[1], "partition": "without rows"}
    act(client, "checkpoint_put", state=text_of(b"given"), **asked)


def shipped(client: fl.FlightClient, table: Table, first: int, last: int) -> None:
    """Batches of the origin ``SHIP`` at level ``store``, each with its source's state."""
    numbered = range(first, last + 1)
    metadata = [{"sequence": number, "checkpoint": state_of(number)} for number in numbered]
    batches = [plain_batch(10 * number, 10) for number in numbered]
    answers = put(client, table, *batches, origin=SHIP, metadata=metadata)
    assert {answer["ack"] for answer in answers} == {"store"}


def sequences(client: fl.FlightClient, first: int, last: int) -> None:
    """Batches of the origin ``STATION``."""
    numbered = range(first, last + 1)
    metadata = [{"sequence": number} for number in numbered]
    batches = [event_batch(number) for number in numbered]
    put(client, EVENTS, *batches, origin=STATION, metadata=metadata)


def checkpoints(client: fl.FlightClient, first: int, last: int, *, shared: bytes) -> None:
    """Batches of the origin ``FEED``, each with its source's state; some of it is shared."""
    numbered = range(first, last + 1)
    metadata = [
        {"sequence": number, "checkpoint": {**state_of(number), "shared": text_of(shared)}}
        for number in numbered
    ]
    batches = [plain_batch(10 * number, 10) for number in numbered]
    put(client, CHECKED, *batches, origin=FEED, metadata=metadata)


def state_of(number: int) -> Json:
    """The state after a sequence of ``FEED``."""
    return {"partition": f"topic-{number % 2}", "state": text_of(f"after {number}".encode())}


def text_of(state: bytes) -> str:
    """A state in its wire form."""
    return base64.b64encode(state).decode()
