"""A daemon whose table is switched to another version and back: queries, writes, followers."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from ingester.recovery.adopt import adopt
from persist.manifest import Manifest
from persist.store import ObjectStore, open_store
from persist.switching import (
    VersionRetention,
    clean_up_versions,
    finish_switch,
    roll_back,
    switch_version,
)
from tests.drivers.daemon import Daemon
from tests.drivers.pushing import Killed, KillingStore, push_some
from tests.drivers.waiting import until
from tests.drivers.wire import (
    Table,
    create,
    describe,
    extra,
    numbers,
    persist,
    put,
    query,
    rows,
    ticket,
)

TABLE: Table = ("n", "t")
KEYED: Table = ("n", "k")
BEFORE_CURRENT = 5
"""The change of a switch that makes the version current, after two commits of two changes each."""


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    """A daemon that flushes on request and looks for other processes' commits at each query."""
    with Daemon.start(tmp_path / "data", persist__max_age="1h", manifest__refresh="10ms") as daemon:
        yield daemon


@pytest.fixture
def client(daemon: Daemon) -> Iterator[fl.FlightClient]:
    with fl.connect(daemon.flight) as client:
        yield client


@pytest.fixture
def store(daemon: Daemon) -> ObjectStore:
    """The daemon's store, as a push opens it."""
    return open_store(f"file://{daemon.data_dir / 'store'}")


def write(client: fl.FlightClient, first: int, count: int = 10) -> None:
    """Write rows that stay in the buffer."""
    put(client, TABLE, numbers(first, count))


def pushed(store: ObjectStore, table: Table = TABLE, push_id: str = "push") -> int:
    """Another version of the table, with its rows in files."""
    return push_some(store, table, push_id)


def at_table_version(client: fl.FlightClient, number: int, table: Table = TABLE) -> None:
    """Wait until the daemon answers from that version of the table."""
    until(lambda: describe(client, table)["table_version"] == number, "the daemon follows")


def test_queries_go_to_the_new_version_and_buffers_along(
    client: fl.FlightClient, store: ObjectStore
) -> None:
    write(client, 0)
    persist(client, TABLE)
    version = push_some(store, TABLE, wanted=lambda add: False)
    write(client, 10)
    assert sorted(rows(client, TABLE)) == list(range(20))
    switch_version(store, *TABLE, version)
    at_table_version(client, 2)
    assert sorted(rows(client, TABLE)) == list(range(10, 20)), "files of 2, and the buffer"
    persist(client, TABLE)
    write(client, 20)
    assert sorted(rows(client, TABLE)) == list(range(10, 30))
    assert sorted(rows(client, TABLE, table_version=1)) == list(range(10)), "its files"
    assert sorted(rows(client, TABLE, table_version=2)) == list(range(10, 30))
    newest = Manifest(store, *TABLE).load()
    found = query(client, TABLE, scope="version", version=newest.version, table_version=2)
    assert sorted(found.column("i").to_pylist()) == list(range(10, 20))
    with pytest.raises(pa.ArrowInvalid, match="no table version 7; existing versions: 1, 2"):
        rows(client, TABLE, table_version=7)
    assert all(add.path in newest.files for add in newest.files.values())


def test_a_rollback_shows_all_that_was_acknowledged_meanwhile(
    client: fl.FlightClient, store: ObjectStore
) -> None:
    write(client, 0)
    persist(client, TABLE)
    switch_version(store, *TABLE, push_some(store, TABLE, wanted=lambda add: False))
    at_table_version(client, 2)
    write(client, 10)
    persist(client, TABLE)
    write(client, 20)
    roll_back(store, *TABLE)
    at_table_version(client, 1)
    assert sorted(rows(client, TABLE)) == list(range(30))
    persist(client, TABLE)
    assert sorted(rows(client, TABLE)) == list(range(30))
    assert Manifest(store, *TABLE).load().rows == 30


def test_a_flush_that_meets_the_seal_goes_to_the_new_version(
    client: fl.FlightClient, store: ObjectStore
) -> None:
    """The daemon learns of the switch when it commits, and completes the interrupted switch."""
    write(client, 0)
    persist(client, TABLE)
    version = pushed(store)
    write(client, 10)
    half_switch(store, version)
    assert Manifest(open_store(store.url), *TABLE).table_version == 1
    persist(client, TABLE)
    fresh = open_store(store.url)
    assert Manifest(fresh, *TABLE).table_version == 2, "the daemon has done the rest"
    state = Manifest(fresh, *TABLE).load()
    assert state.rows == 20
    assert all(fresh.exists(f"n/t/v2/{path}") for path in state.files)
    assert finish_switch(fresh, *TABLE).table_version == 2
    assert sorted(rows(client, TABLE)) == list(range(20))


def half_switch(store: ObjectStore, version: int) -> None:
    """A switch whose last step is left to other processes."""
    stopping: Any = KillingStore(store, BEFORE_CURRENT, done=False)
    with pytest.raises(Killed):
        switch_version(stopping, *TABLE, version)


def test_a_query_under_way_ends_with_the_version_that_it_began_with(
    client: fl.FlightClient, store: ObjectStore
) -> None:
    """The same holds for rows of a buffer that is flushed into the new version meanwhile."""
    for first in range(0, 200_000, 20_000):
        write(client, first, 20_000)
        if first < 100_000:
            persist(client, TABLE)
    reader = client.do_get(ticket(TABLE))
    batch = reader.read_chunk().data
    switch_version(store, *TABLE, push_some(store, TABLE, wanted=lambda add: False))
    at_table_version(client, 2)
    persist(client, TABLE)
    found = Counter(batch.column("i").to_pylist())
    found.update(reader.read_all().column("i").to_pylist())
    assert found == Counter(range(200_000))
    assert sorted(rows(client, TABLE)) == list(range(100_000, 200_000))


def test_a_batch_that_is_sent_again_after_a_switch_is_a_duplicate(
    client: fl.FlightClient, store: ObjectStore
) -> None:
    put(client, TABLE, numbers(0, 10), origin="o", metadata=[{"sequence": 1}])
    persist(client, TABLE)
    put(client, TABLE, numbers(10, 10), origin="o", metadata=[{"sequence": 2}])
    switch_version(store, *TABLE, pushed(store))
    at_table_version(client, 2)
    for sequence in (1, 2):
        put(
            client,
            TABLE,
            numbers((sequence - 1) * 10, 10),
            origin="o",
            metadata=[{"sequence": sequence}],
        )
    persist(client, TABLE)
    put(client, TABLE, numbers(10, 10), origin="o", metadata=[{"sequence": 2}])
    assert sorted(rows(client, TABLE)) == list(range(20))


def values(client: fl.FlightClient) -> dict[int, int]:
    """The keyed table's rows."""
    columns = query(client, KEYED).to_pydict()
    return dict(zip(columns["i"], columns["v"], strict=True))


def test_a_keyed_table_is_switched_under_its_writes(
    client: fl.FlightClient, store: ObjectStore
) -> None:
    schema = pa.schema([("i", pa.int64()), ("v", pa.int64())])
    create(client, KEYED, schema, primary_key=["i"])

    def upsert(first: int, count: int, value: int) -> None:
        put(client, KEYED, numbers(first, count, v=pa.array([value] * count, pa.int64())))

    upsert(0, 20, 1)
    persist(client, KEYED)
    version = pushed(store, KEYED)
    upsert(10, 20, 2)
    switch_version(store, *KEYED, version)
    persist(client, KEYED)
    upsert(0, 5, 3)
    found = values(client)
    assert found == {i: 3 if i < 5 else 1 if i < 10 else 2 for i in range(30)}
    persist(client, KEYED)
    assert describe(client, KEYED)["table_version"] == 2
    assert values(client) == found
    state = Manifest(store, *KEYED).load()
    assert all(store.exists(f"n/k/v2/{path}") for path in state.files)


def test_writers_and_readers_notice_nothing_of_switches_and_rollbacks(
    client: fl.FlightClient, daemon: Daemon, store: ObjectStore
) -> None:
    """Each acknowledged row is stored once, through swaps of a complete version, and rollbacks."""
    write(client, 0)
    persist(client, TABLE)
    written, done = [10], threading.Event()
    wrong: list[str] = []

    def write_on() -> None:
        with fl.connect(daemon.flight) as own:
            while not done.is_set():
                put(own, TABLE, numbers(written[0], 10))
                written[0] += 10
                if written[0] % 50 == 0:
                    persist(own, TABLE)

    def read_on() -> None:
        with fl.connect(daemon.flight) as own:
            while not done.is_set():
                known = written[0]
                found = Counter(rows(own, TABLE))
                if any(count > 1 for count in found.values()):
                    wrong.append(f"twice: {[i for i, n in found.items() if n > 1][:5]}")
                if missing := set(range(10)) - set(found):
                    wrong.append(f"missing of {known}: {sorted(missing)[:5]}")

    def is_past(count: int) -> bool:
        return written[0] > count

    threads = [threading.Thread(target=work) for work in (write_on, read_on)]
    for thread in threads:
        thread.start()
    try:
        for number in range(4):
            version = push_some(
                store, TABLE, f"push-{number}", lambda add: add.rows == 10 and add.first_seq <= 2
            )
            switch_version(store, *TABLE, version)
            count = written[0]
            until(partial(is_past, count + 60), "more is written")
            roll_back(store, *TABLE)
            count = written[0]
            until(partial(is_past, count + 60), "more is written")
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert wrong == []
    persist(client, TABLE)
    assert Counter(rows(client, TABLE)) == Counter(range(written[0]))
    assert Manifest(store, *TABLE).load().rows == written[0]


def test_a_daemon_that_is_killed_between_the_steps_comes_back_in_the_new_version(
    tmp_path: Path,
) -> None:
    with Daemon.start(tmp_path / "data", persist__max_age="1h") as daemon:
        with fl.connect(daemon.flight) as client:
            write(client, 0)
            persist(client, TABLE)
            put(client, TABLE, numbers(10, 10), origin="o", metadata=[{"sequence": 1}])
            store = open_store(f"file://{daemon.data_dir / 'store'}")
            version = pushed(store)
            daemon.kill()
        half_switch(store, version)
    with Daemon.start(tmp_path / "data", persist__max_age="1h") as daemon:
        with fl.connect(daemon.flight) as client:
            assert sorted(rows(client, TABLE)) == list(range(20))
            assert describe(client, TABLE)["table_version"] == 2
            put(client, TABLE, numbers(10, 10), origin="o", metadata=[{"sequence": 1}])
            persist(client, TABLE)
            assert sorted(rows(client, TABLE)) == list(range(20))
        assert daemon.terminate() == 0


@pytest.mark.parametrize("half", [True, False])
def test_a_log_is_adopted_into_the_version_that_counts(tmp_path: Path, half: bool) -> None:
    with Daemon.start(tmp_path / "data", persist__max_age="1h") as daemon:
        with fl.connect(daemon.flight) as client:
            write(client, 0)
            persist(client, TABLE)
            write(client, 10)
        store = open_store(f"file://{daemon.data_dir / 'store'}")
        daemon.kill()
    version = push_some(store, TABLE, wanted=lambda add: False)
    if half:
        half_switch(store, version)
    else:
        switch_version(store, *TABLE, version)
    done = adopt(tmp_path / "data", store)
    assert [(table.rows, table.refused) for table in done.tables] == [(10, None)]
    manifest = Manifest(store, *TABLE)
    state = manifest.load()
    assert (state.table_version, state.rows) == (2, 10)
    assert all(store.exists(manifest.object_path(path)) for path in state.files)
    assert sum(table.rows for table in adopt(tmp_path / "data", store).tables) == 0


def test_a_daemon_that_slept_until_its_version_was_deleted_goes_on_in_the_new_one(
    tmp_path: Path,
) -> None:
    """The daemon is not notified, and has the old version in memory."""
    told: dict[str, Any] = {
        "persist__max_age": "1h",
        "manifest__refresh": "1h",
        "manifest__retain": "1h",
    }
    schema = pa.schema([("i", pa.int64()), ("v", pa.int64())])
    with Daemon.start(tmp_path / "data", **told) as daemon, fl.connect(daemon.flight) as client:
        create(client, KEYED, schema, primary_key=["i"])
        put(client, TABLE, numbers(0, 10), origin="o", metadata=[{"sequence": 1}])
        put(client, KEYED, numbers(0, 10, v=pa.nulls(10, pa.int64())))
        persist(client, TABLE)
        persist(client, KEYED)
        store = open_store(f"file://{daemon.data_dir / 'store'}")
        for table in (TABLE, KEYED):
            switch_version(store, *table, pushed(store, table))
            for _ in range(2):
                clean_up_versions(store, *table, VersionRetention(keep=0, grace_s=-1.0))
            assert not list(store.list(f"{table[0]}/{table[1]}/v1/"))
        put(client, TABLE, numbers(10, 10), origin="o", metadata=[{"sequence": 2}])
        persist(client, TABLE)
        assert sorted(rows(client, TABLE)) == list(range(20))
        assert Manifest(store, *TABLE).load().rows == 20
        assert describe(client, TABLE)["table_version"] == 2
        put(client, KEYED, numbers(5, 10, v=pa.nulls(10, pa.int64())))
        persist(client, KEYED)
        assert Manifest(store, *KEYED).load().rows == 15
        assert rows(client, KEYED) == list(range(15))
        assert daemon.terminate() == 0


def test_what_is_about_versions_is_refused_after_a_switch_unless_it_names_the_table_version(
    client: fl.FlightClient, store: ObjectStore
) -> None:
    write(client, 0)
    persist(client, TABLE)
    before = describe(client, TABLE)["manifest_version"]
    switch_version(store, *TABLE, pushed(store))
    at_table_version(client, 2)
    now = describe(client, TABLE)["manifest_version"]
    with pytest.raises(fl.FlightUnavailableError, match="is at table version 2") as stale:
        query(client, TABLE, scope="buffered", version=before)
    assert extra(stale.value)["table_version"] == 2
    write(client, 10)
    tail = query(client, TABLE, scope="buffered", version=now, table_version=2)
    assert sorted(tail.column("i").to_pylist()) == list(range(10, 20))
    with pytest.raises(pa.ArrowInvalid, match="is at table version 2"):
        query(client, TABLE, scope="live", version=now, wait_s=0)
    live = query(client, TABLE, scope="live", version=now, wait_s=0, table_version=2)
    assert sorted(live.column("i").to_pylist()) == list(range(10, 20))
    metadata = live.schema.metadata or {}
    assert metadata[b"table_version"] == b"2"
