"""Checkpoints at a real daemon, through the client library."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import trio

from ingester.client import (
    Checkpoint,
    Client,
    InvalidRequest,
    NotFound,
    RetryPolicy,
    StoredCheckpoint,
)
from ingester.client.checkpoints import CheckpointStore, DaemonCheckpointStore, PartitionKey
from ingester.client.connection import Connection
from ingester.client.trio_client import TrioClient
from ingester.followers.place import DaemonStates
from persist.store import open_store
from persist.switching import switch_version
from tests.client.wire_cutter import WireCutter
from tests.drivers.daemon import Daemon
from tests.drivers.pushing import push_some
from tests.drivers.waiting import until

SCHEMA = pa.schema([("v", pa.int64())])
TABLE = ("shop", "visits")
RETRY = RetryPolicy(for_s=60, first_delay_s=0.02, max_delay_s=0.2)
BULK = b"a dictionary that all partitions have in common " * 100


def batch(*values: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values, pa.int64())], schema=SCHEMA)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with Daemon.start(tmp_path / "data") as running:
        yield running


@pytest.fixture
def client(daemon: Daemon) -> Iterator[Client]:
    with Client(daemon.flight, retry=RETRY) as connected:
        connected.create_table(*TABLE, SCHEMA)
        yield connected


def test_a_state_becomes_visible_and_durable_with_its_rows(client: Client) -> None:
    nothing = StoredCheckpoint(partition="p")
    assert client.checkpoint(*TABLE, "p") == nothing
    with client.writer(*TABLE, SCHEMA, origin="o", first_sequence=1) as writer:
        writer.write(batch(1), ("p", b"one")).result()
        stored = client.checkpoint(*TABLE, "p")
        assert (stored.state, stored.durable, stored.durable_state) == (b"one", False, None)
        client.persist(*TABLE)
        stored = client.checkpoint(*TABLE, "p")
        assert (stored.state, stored.durable, stored.durable_state) == (b"one", True, b"one")
        writer.write(batch(2), Checkpoint("p", b"", BULK)).result()
    stored = client.checkpoint(*TABLE, "p")
    assert (stored.state, stored.shared, stored.durable) == (b"", BULK, False)
    assert (stored.durable_state, stored.durable_shared) == (b"one", None)
    [listed] = client.checkpoints()
    assert (listed.partition, listed.bytes, listed.shared_bytes) == ("p", 0, len(BULK))
    assert (listed.durable, listed.origin) == (False, "o")
    assert client.checkpoints("shop", "visits") == client.checkpoints("shop") == [listed]
    assert client.delete_checkpoint(*TABLE, "p").state is None
    assert client.checkpoints(*TABLE) == []


def test_a_refused_or_duplicate_batch_does_not_change_the_state(client: Client) -> None:
    with client.writer(*TABLE, SCHEMA, origin="o", first_sequence=1) as writer:
        for n in range(1, 4):
            writer.write(batch(n), ("p", b"%d" % n))
    with client.writer(*TABLE, SCHEMA, origin="o", first_sequence=1) as writer:
        assert writer.write(batch(1), ("p", b"1")).result().duplicate
    assert client.checkpoint(*TABLE, "p").state == b"3"
    other = pa.record_batch({"v": ["text"]})
    refused = client.writer(*TABLE, other.schema, origin="o")
    with pytest.raises(InvalidRequest, match="column 'v'"):
        refused.write(other, ("p", b"4")).result()
    assert client.checkpoint(*TABLE, "p").state == b"3"
    assert client.query(*TABLE).num_rows == 3


def test_a_duplicate_from_an_earlier_run_does_not_reset_the_state(
    tmp_path: Path,
) -> None:
    """The rows are flushed, but the origin's share never became complete: the repeat is logged."""

    def send(client: Client, table: str, sequence: int) -> bool:
        with client.writer("shop", table, SCHEMA, origin="o", first_sequence=sequence) as writer:
            said = writer.write(batch(sequence), ("p", b"%d" % sequence)).result()
        return said.duplicate

    daemon = Daemon.start(tmp_path / "d")
    with Client(daemon.flight) as client:
        for table in ("visits", "other"):
            client.create_table("shop", table, SCHEMA)
        send(client, "other", 10)
        send(client, "visits", 11)
        client.persist(*TABLE)  # only this table
    daemon.kill()
    daemon = daemon.again()
    with Client(daemon.flight) as client:
        send(client, "visits", 12)
        client.persist()
        assert client.checkpoint(*TABLE, "p").durable_state == b"12"
    for _ in range(2):
        daemon.kill()
        daemon = daemon.again()
        with Client(daemon.flight) as client:
            assert send(client, "visits", 11)
            stored = client.checkpoint(*TABLE, "p")
            assert (stored.state, stored.durable_state) == (b"12", b"12")
            assert client.query(*TABLE).num_rows == 2
    daemon.kill()


def test_a_state_reset_manually_doubles_no_row(client: Client) -> None:
    """This happens when an operator restores an older savepoint of a job."""
    with client.writer(*TABLE, SCHEMA, origin="o", first_sequence=1) as writer:
        for n in range(1, 6):
            writer.write(batch(n), ("p", b"%d" % n))
    assert client.put_checkpoint(*TABLE, "p", b"2").state == b"2"
    start = int(client.checkpoint(*TABLE, "p").state or b"0")
    with client.writer(*TABLE, SCHEMA, origin="o", first_sequence=start + 1) as writer:
        for n in range(start + 1, 8):
            writer.write(batch(n), ("p", b"%d" % n))
    assert sorted(client.query(*TABLE)["v"].to_pylist()) == list(range(1, 8))
    assert client.checkpoint(*TABLE, "p").state == b"7"


def test_shared_bytes_reach_a_restarted_daemon(tmp_path: Path) -> None:
    daemon = Daemon.start(tmp_path / "d")
    port = int(daemon.flight.rpartition(":")[2])
    with WireCutter(port) as wire, Client(wire.endpoint, retry=RETRY) as client:
        client.create_table(*TABLE, SCHEMA)
        with client.writer(*TABLE, SCHEMA, origin="o", first_sequence=1) as writer:
            for n in range(10):
                if n == 5:
                    writer.flush()
                    daemon.kill()
                    daemon = daemon.again()
                    wire.cut(int(daemon.flight.rpartition(":")[2]))
                writer.write(batch(n), Checkpoint(f"p{n}", b"%d" % n, BULK))
        with daemon:
            found = [client.checkpoint(*TABLE, f"p{n}") for n in range(10)]
            assert [(each.state, each.shared) for each in found] == [
                (b"%d" % n, BULK) for n in range(10)
            ]
            assert {each.shared_id for each in client.checkpoints()} == {
                client.checkpoints()[0].shared_id
            }


def test_more_shared_bytes_than_a_daemon_keeps_per_stream(client: Client) -> None:
    many = [bytes([n]) * 1000 for n in range(40)]
    with client.writer(*TABLE, SCHEMA, origin="o", first_sequence=1) as writer:
        for turn in range(3):
            for n, shared in enumerate(many):
                writer.write(batch(n), Checkpoint(f"p{n}", b"%d" % turn, shared))
    found = [client.checkpoint(*TABLE, f"p{n}") for n in range(40)]
    assert [(each.state, each.shared) for each in found] == [(b"2", shared) for shared in many]


def test_a_listed_state_has_its_time(client: Client) -> None:
    for n in range(3):
        before = datetime.datetime.now(datetime.UTC)
        client.put_checkpoint(*TABLE, f"p{n}", b"")
        [*_, listed] = client.checkpoints()
        assert listed.at is not None
        past = datetime.datetime.now(datetime.UTC)
        assert before - datetime.timedelta(milliseconds=1) <= listed.at <= past


def test_the_states_of_a_namespace_are_listed_with_those_of_tables_that_are_not_open(
    tmp_path: Path,
) -> None:
    with Daemon.start(tmp_path / "d") as first:
        with Client(first.flight) as client:
            for table in ("a", "b"):
                client.write("ns", table, pa.table({"i": [1]}))
                client.put_checkpoint("ns", table, "p", b"state")
                client.persist("ns", table)
        assert first.terminate() == 0
        with first.again() as again, Client(again.flight) as client:
            client.write("ns", "b", pa.table({"i": [2]}))
            assert [each.table for each in client.checkpoints("ns")] == ["a", "b"]


def test_the_largest_states_are_accepted(client: Client) -> None:
    full = bytes(range(256)) * 4096
    with client.writer(*TABLE, SCHEMA, origin="o", first_sequence=1) as writer:
        for n in range(3):
            writer.write(batch(n), Checkpoint(f"p{n}", full, full[::-1]))
    stored = client.put_checkpoint(*TABLE, "é" * 128, full, full[::-1])
    assert (stored.state, stored.shared) == (full, full[::-1])
    assert client.checkpoint(*TABLE, "p2").state == full


def test_invalid_checkpoints_are_refused_by_name(client: Client) -> None:
    with pytest.raises(NotFound, match="nowhere"):
        client.checkpoint("shop", "nowhere", "p")
    with pytest.raises(NotFound, match="nowhere"):
        client.put_checkpoint("shop", "nowhere", "p", b"")
    put = {"namespace": "shop", "table": "visits", "partition": "p"}
    for body, says in (
        ({**put, "state": "no base64"}, "base64"),
        ({**put, "state": "", "shared_id": "ab" * 32}, "abab"),
        ({**put, "partition": "\n", "state": ""}, "control characters"),
    ):
        with pytest.raises(InvalidRequest, match=says):
            client.action("checkpoint_put", body)
    assert client.checkpoints() == []


def test_a_table_holds_at_most_64_mib_of_states_including_pending_ones(client: Client) -> None:
    """The limit once ignored states in the log, and shared bytes."""
    mib = 1 << 20
    for n in range(31):
        client.put_checkpoint(*TABLE, f"p{n}", bytes(mib), n.to_bytes() * mib)
    client.put_checkpoint(*TABLE, "same", bytes(mib), bytes(mib))
    assert client.status()["checkpoints"] == {"count": 32, "bytes": 63 * mib, "pending": 32}
    client.put_checkpoint(*TABLE, "p0", b"x" * mib, b"another" * 100)
    for committed in (False, True):
        with pytest.raises(InvalidRequest, match="keeps 66060988 B of checkpoints"):
            client.put_checkpoint(*TABLE, "more", bytes(mib))
        with pytest.raises(InvalidRequest, match="keeps 66060988 B of checkpoints"):
            client.put_checkpoint(*TABLE, "more", b"", b"another" * (mib // 7))
        if not committed:
            client.persist(*TABLE)
    client.put_checkpoint(*TABLE, "p1", b"less", bytes(mib))
    client.put_checkpoint(*TABLE, "p2", b"less")
    client.put_checkpoint(*TABLE, "more", bytes(mib))
    assert client.checkpoint(*TABLE, "more").state == bytes(mib)


def test_the_daemon_is_a_key_value_store_of_states(client: Client) -> None:
    client.create_table("shop", "other", SCHEMA)
    store: CheckpointStore = DaemonCheckpointStore(client.action)
    keys = [PartitionKey("shop", table, 1, p) for table in ("visits", "other") for p in ("a", "b")]
    for key in keys:
        assert store.get(key) is None
        store.put(key, repr(key).encode())
    assert [store.get(key) for key in keys] == [repr(key).encode() for key in keys]
    later = keys[0]._replace(table_version=2)
    assert store.get(later) is None
    with pytest.raises(InvalidRequest, match=r"shop/visits is at table version 1, .* version 2"):
        store.put(later, b"")
    store.delete(later)
    store.delete(keys[0])
    store.delete(keys[0])
    assert [store.get(key) is None for key in keys] == [True, False, False, False]
    followers = DaemonCheckpointStore(client.action, "follower/")
    followers.put(keys[1], b"its own")
    assert store.get(keys[1]) == repr(keys[1]).encode()
    assert client.checkpoint("shop", "visits", "follower/b").state == b"its own"


def test_a_state_key_belongs_to_the_current_table_version(client: Client, daemon: Daemon) -> None:
    """The store once assumed table version 1, whatever version the daemon's table had."""
    store = DaemonCheckpointStore(client.action)
    first = PartitionKey(*TABLE, 1, "p")
    second = first._replace(table_version=2)
    store.put(first, b"one")
    objects = open_store(f"file://{daemon.data_dir / 'store'}")
    switch_version(objects, *TABLE, push_some(objects, TABLE))
    until(lambda: client.describe(*TABLE).table_version == 2, "the daemon follows")
    # The state moves to the new version.
    assert (store.get(first), store.get(second)) == (None, b"one")
    with pytest.raises(InvalidRequest, match=r"shop/visits is at table version 2, .* version 1"):
        store.put(first, b"late")
    store.delete(first)
    assert store.get(second) == b"one"
    store.put(second, b"two")
    assert store.get(second) == client.checkpoint(*TABLE, "p").state == b"two"
    store.delete(second)
    assert store.get(second) is None


def test_states_through_the_trio_client(client: Client, daemon: Daemon) -> None:
    async def run() -> None:
        async with TrioClient(daemon.flight) as awaited:
            async with await awaited.writer(*TABLE, SCHEMA, origin="o") as writer:
                await (await writer.write(batch(1), Checkpoint("p", b"1", BULK)))
            stored = await awaited.put_checkpoint(*TABLE, "q", b"2")
            assert stored.state == b"2"
            assert [each.partition for each in await awaited.checkpoints()] == ["p", "q"]
            await awaited.delete_checkpoint(*TABLE, "q")
            assert (await awaited.checkpoint(*TABLE, "p")).shared == BULK

    trio.run(run)


def test_a_follower_lists_the_versions_of_its_states_in_one_call(
    daemon: Daemon, client: Client
) -> None:
    """A table replaced each night has hundreds of versions; each question costs a store call."""
    calls: list[str] = []

    class Counting(Connection):
        def act(self, kind: str, *arguments: Any, **named: Any) -> list[dict[str, Any]]:
            calls.append(kind)
            return super().act(kind, *arguments, **named)

    connection = Counting(daemon.flight, 30.0, RETRY)
    try:
        states, others = DaemonStates(connection, "reports"), DaemonStates(connection, "other")
        for version in (1, 5, 300):
            states.put(PartitionKey(*TABLE, version, "reports"), b"state")
        others.put(PartitionKey(*TABLE, 6, "other"), b"state")
        states.delete(PartitionKey(*TABLE, 5, "reports"))
        calls.clear()
        asked = PartitionKey(*TABLE, 400, "reports")
        assert states.versions(asked, 400) == [1, 300]
        assert states.versions(asked, 299) == [1]
        assert calls == ["checkpoints"] * 2
    finally:
        connection.close()
