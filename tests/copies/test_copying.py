"""A copy becomes the table when it is finished, with its state; until then it is invisible."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as fl
import pytest
import trio

from ingester.client import Client, InvalidRequest, NotFound, SyncColumn, Unavailable
from ingester.client.trio_client import TrioClient
from persist.manifest import SwitchRefused, list_versions
from persist.store import open_store
from persist.switching import roll_back
from tests.drivers.daemon import Daemon
from tests.drivers.syncing import Source
from tests.drivers.waiting import until
from tests.drivers.wire import Stream, Table, act, extra, writing

PARTITION = "postgres:copy"
FILE_BYTES = 64 << 10
"""The limit is small, so that copies in these tests have many files."""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("copies") / "d"
    with Daemon.start(
        folder,
        persist__target_file_bytes=FILE_BYTES,
        persist__max_age="1h",
        manifest__refresh="10ms",
    ) as started:
        yield started


@pytest.fixture
def here(daemon: Daemon) -> Iterator[Client]:
    with Client(daemon.flight) as made:
        yield made


@pytest.fixture
def wire(daemon: Daemon) -> Iterator[fl.FlightClient]:
    with fl.connect(daemon.flight) as made:
        yield made


def numbered(first: int, count: int, text: str = "x") -> pa.RecordBatch:
    """Return rows with the keys from ``first`` on."""
    ids = range(first, first + count)
    return pa.record_batch({"id": pa.array(ids), "v": pa.array([f"{text}{i:09}" for i in ids])})


def keys(client: Client, table: Table, column: str = "id") -> list[object]:
    """Return one column of the table, sorted."""
    return sorted(client.query(*table)[column].to_pylist())


def state_of(client: Client, table: Table) -> bytes | None:
    """Return the source's state, which must be durable."""
    found = client.checkpoint(*table, PARTITION)
    assert found.durable
    return found.state


def copied(
    client: Client, table: Table, *batches: pa.RecordBatch, key: Sequence[str] = ("id",)
) -> int:
    """Copy rows and return the table's version."""
    with client.copy(*table, key) as copy:
        for batch in batches:
            copy.write(batch)
        return copy.finish(PARTITION, b"a state")


def store_of(daemon: Daemon) -> Path:
    return daemon.data_dir / "store"


def test_a_table_is_there_with_all_rows_and_its_state_at_once(
    here: Client, daemon: Daemon, table: Table
) -> None:
    copy = here.copy(*table, ["id"], "a copy")
    copy.write(numbered(0, 30_000))
    beside = here.copy(*table, ["id"], "a copy")  # a second stream of the same copy
    beside.write(pa.table(numbered(30_000, 10_000).to_pydict()))
    beside._end_sending()
    with pytest.raises(NotFound):
        here.describe(*table)
    copy.rows += 10_000
    assert copy.finish(PARTITION, b"1") == 1
    assert keys(here, table) == list(range(40_000))
    assert state_of(here, table) == b"1"
    described = here.describe(*table)
    assert described.primary_key == ["id"]
    assert described.persisted.files > 10
    assert (described.buffered.rows, described.manifest_version) == (0, 1)
    # This daemon owns the table and accepts writes to it.
    here.write(*table, numbered(39_999, 2, "changed"))
    assert len(keys(here, table)) == 40_001
    # A repeated finish gets the same answer; a finish with another number of rows is refused.
    asked = {"namespace": table[0], "table": table[1], "copy": "a copy", "rows": 40_000}
    asked["checkpoint"] = {"partition": PARTITION, "state": "MQ=="}
    assert here.action("copy_finish", asked)[0]["table_version"] == 1
    with pytest.raises(InvalidRequest, match="40000 rows, not 3"):
        here.action("copy_finish", asked | {"rows": 3})


def test_a_table_gets_other_columns_and_another_key(
    here: Client, daemon: Daemon, table: Table
) -> None:
    schema = pa.schema({"id": pa.int64(), "v": pa.string(), "n": pa.int64()})
    here.create_table(*table, schema, primary_key=["id"], partition_by=["bucket(4, id)"])
    here.write(*table, numbered(0, 100))
    here.put_checkpoint(*table, PARTITION, b"of before")
    here.put_checkpoint(*table, "another", b"kept")
    with here.query_stream(*table, columns=["id", "n"]) as stream:
        began = [stream.read()]
        other = pa.record_batch({"v": ["a", "b"], "id": [1.5, None], "new": [[1], None]})
        assert copied(here, table, other, key=["v"]) == 2
        # A running query continues on the table that it started with.
        while (part := stream.read()) is not None:
            began.append(part)
    assert sum(part[0].num_rows for part in began if part is not None) == 100
    assert sorted(here.query(*table).to_pylist(), key=str) == sorted(other.to_pylist(), key=str)
    described = here.describe(*table)
    assert (described.primary_key, described.partition_by) == (["v"], [])
    assert state_of(here, table) == b"a state"
    assert here.checkpoint(*table, "another").state == b"kept"
    # The old table is readable by its version, but a rollback is refused.
    assert here.query(*table, table_version=1).num_rows == 100
    with pytest.raises(SwitchRefused, match="define"):
        roll_back(open_store(f"file://{store_of(daemon)}"), *table)
    here.write(*table, pa.record_batch({"v": ["b", "c"], "id": [2.5, 3.5]}))
    assert keys(here, table, "v") == ["a", "b", "c"]
    # A third copy with the first columns is a new version too.
    assert copied(here, table, numbered(5, 5)) == 3
    assert keys(here, table) == list(range(5, 10))


def test_what_a_table_was_laid_out_by_stays_where_it_can(here: Client, table: Table) -> None:
    schema = pa.schema({"id": pa.int64(), "v": pa.string(), "t": pa.timestamp("ns")})
    here.create_table(
        *table,
        schema,
        primary_key=["id", "v"],
        partition_by=["bucket(3, id)"],
        sort_by=["v"],
        timestamp_unit="ns",
    )
    with here.copy(*table, ["v", "id"], schema=schema) as copy:
        none = pa.nulls(100, pa.timestamp("ns"))
        copy.write(pa.table({"id": range(100), "v": ["x"] * 100, "t": none}, schema))
        copy.finish(PARTITION, b"1")
    described = here.describe(*table)
    assert described.partition_by == ["bucket(3, id)"]
    assert (described.sort_by, described.timestamp_unit) == (["v"], "ns")
    assert described.persisted.files == 3
    with here.copy(*table, ["id"], schema=schema) as copy:
        assert copy.finish(PARTITION, b"2") == 3  # the copy has no rows
    assert here.query(*table).num_rows == 0
    assert here.describe(*table).partition_by == ["bucket(3, id)"]


@pytest.mark.parametrize("spread", [False, True])
def test_a_key_that_stands_twice_is_named(here: Client, table: Table, spread: bool) -> None:
    first = numbered(0, 20_000)
    again = numbered(7_777, 1) if not spread else numbered(7_777, 20_000).slice(0, 1)
    others = [numbered(20_000 + 500 * i, 500) for i in range(60)] if spread else []
    for there in (False, True):
        with pytest.raises(InvalidRequest, match="id = 7777"):
            copied(here, table, *([again, *others, first] if spread else [first, again]))
        assert there or table[1] not in [each.table for each in here.tables()]
        if not there:
            copied(here, table, numbered(0, 3))
    assert keys(here, table) == [0, 1, 2]
    assert state_of(here, table) == b"a state"


def test_a_copy_that_cannot_be_says_why_and_leaves_nothing(
    here: Client, daemon: Daemon, table: Table
) -> None:
    batch = numbered(0, 3)
    refused: list[tuple[list[str], list[pa.RecordBatch], str]] = [
        ([], [batch], "needs a primary key"),
        (["nope"], [batch], "no column 'nope'"),
        (["id", "id"], [batch], "twice"),
        (["id"], [pa.record_batch({"id": pa.array([1, None])})], "1 nulls"),
        (["id"], [pa.record_batch({"id": [1], "_v": ["a"]})], "reserved"),
        (["id"], [batch, batch.select(["id"])], "has the columns"),
        (["id"], [], "needs its columns"),
    ]
    for key, batches, what in refused:
        with pytest.raises(InvalidRequest, match=what):
            copied(here, table, *batches, key=key)
    with here.copy(*table, ["id"], "told wrong") as copy:
        copy.write(batch)
        copy.rows += 1
        with pytest.raises(InvalidRequest, match="has 3 rows here, not 4"):
            copy.finish(PARTITION, b"")
        with pytest.raises(NotFound, match="is unknown here"):
            copy.finish(PARTITION, b"")
    assert [each for each in here.tables() if each.table == table[1]] == []
    here.write(*table, batch)  # the table has no key
    with pytest.raises(InvalidRequest, match="has no primary key"):
        copied(here, table, batch)
    folder = store_of(daemon) / table[0] / table[1]
    assert not [file for file in folder.rglob("*.parquet") if "data" in file.parts]


def test_who_was_faster_keeps_the_table(here: Client, daemon: Daemon, table: Table) -> None:
    with here.copy(*table, ["id"]) as late, here.copy(*table, ["id"]) as lost:
        late.write(numbered(0, 10))
        lost.write(numbered(0, 10))
        assert copied(here, table, numbered(5, 3)) == 1
        with pytest.raises(InvalidRequest, match="created by another writer"):
            late.finish(PARTITION, b"")
        lost.abort()
    assert keys(here, table) == [5, 6, 7]
    # Of two copies of an existing table, each replaces it, in the order of their finishes.
    with here.copy(*table, ["id"]) as first, here.copy(*table, ["id"]) as second:
        first.write(numbered(0, 1))
        second.write(numbered(1, 1))
        assert second.finish(PARTITION, b"2") > 1
        assert first.finish(PARTITION, b"1") > 1
    assert keys(here, table) == [0]
    assert state_of(here, table) == b"1"
    # An aborted copy gives up its version; an open copy keeps it.
    here.copy(*table, ["id"], "left").write(numbered(0, 1))
    with here.copy(*table, ["id"], "aborted") as copy:
        copy.write(numbered(0, 1))
    store = open_store(f"file://{store_of(daemon)}")

    def gone() -> dict[str, bool]:
        return {
            each.claim.push_id.split("/")[1]: each.gone is not None
            for each in list_versions(store, *table)
            if each.claim is not None
        }

    until(lambda: gone()["aborted"], "the version of the copy that was aborted is given up")
    assert not gone()["left"]


def test_an_open_stream_of_before_is_refused_and_a_new_one_goes_on(
    here: Client, wire: fl.FlightClient, table: Table
) -> None:
    copied(here, table, numbered(0, 10))
    batch = numbered(100, 1)
    stream = Stream(wire, writing(table), batch.schema)
    assert stream.write(batch)["accepted"]
    copied(here, table, pa.record_batch({"id": ["a"], "other": [1]}))
    with pytest.raises(fl.FlightUnavailableError) as refused:
        stream.write(batch)
    assert extra(refused.value)["code"] == "made_anew"
    # The open writer is refused even if its rows fit the new columns, so that its user learns of
    # it.
    writer = here.writer(*table, pa.schema({"id": pa.string()}), exactly_once=False)
    writer.write(pa.record_batch({"id": ["b"]})).result()
    copied(here, table, pa.record_batch({"id": ["a"]}))
    with pytest.raises(Unavailable, match="replaced by a copy") as told:
        writer.write(pa.record_batch({"id": ["c"]})).result()
    assert told.value.code == "made_anew"
    writer.abort()
    here.write(*table, pa.record_batch({"id": ["d"]}))
    assert keys(here, table) == ["a", "d"]


def test_an_open_transaction_of_before_is_gone_and_begins_anew(
    here: Client, wire: fl.FlightClient, table: Table
) -> None:
    copied(here, table, pa.record_batch({"id": [1], "v": [0.5]}))
    source = Source(wire, table[0], f"origin-{table[1]}")
    source.send(table[1], [(None, 2, {"v": 2.0, "s": "new"})], begin=True)
    copied(here, table, pa.record_batch({"id": [1, 7], "w": [True, False]}))
    with pytest.raises(fl.FlightUnavailableError) as refused:
        source.end(17, table[1])
    assert extra(refused.value)["code"] == "made_anew"
    assert "retry_after_s" not in extra(refused.value)
    # The transaction added no columns to the table, and its sequence can be used again.
    assert here.query(*table).schema.names == ["id", "w"]
    source.send(table[1], [(7, 8, {}), (None, 9, {"v": 9.0})], begin=True, sequence=17)
    rows = {row["id"]: (row["w"], row["v"]) for row in here.query(*table).to_pylist()}
    assert rows == {1: (True, None), 8: (False, None), 9: (None, 9.0)}


def test_writers_beside_copies_lose_and_double_nothing(here: Client, table: Table) -> None:
    """A copy replaces the rows acknowledged before its finish; later rows stay."""
    shapes = [
        lambda: pa.record_batch({"id": pa.array([-1]), "v": pa.array(["text"])}),
        lambda: pa.record_batch({"id": pa.array([-1]), "v": pa.array([1.5]), "w": [True]}),
    ]
    copied(here, table, shapes[0]())
    acknowledged: list[int] = []
    before: set[int] = set()
    after = 0
    stop = threading.Event()
    failures: list[BaseException] = []

    def write(own: Client, number: int) -> None:
        own.write(*table, pa.record_batch({"id": pa.array([number])}))

    def change(own: Client, number: int) -> None:
        """Insert a row, and update a row of every copy without changing its values."""
        olds, news = pa.array([-1, None], pa.int64()), pa.array([-1, number])
        none, kept = pa.nulls(2, pa.int64()), pa.array([False, False])
        columns = [SyncColumn(role, "id") for role in ("old_pk", "new_pk")]
        columns += [SyncColumn(role, "n") for role in ("value", "changed")]
        batch = pa.record_batch([olds, news, none, kept], names=list("abcd"))
        stream = own.sync(table[0], f"changes-{table[1]}")
        stream.send(table[1], columns, batch, begin=True, sequence=number)

    def go_on(work: Callable[[Client, int], None], number: int) -> None:
        try:
            with Client(here.endpoint) as own:
                while not stop.is_set():
                    number += 10
                    try:
                        work(own, number)
                    except Unavailable as exc:
                        if exc.code != "made_anew":
                            raise
                    else:
                        acknowledged.append(number)
        except BaseException as exc:
            failures.append(exc)

    def is_past(count: int) -> bool:
        return len(acknowledged) > count or bool(failures)

    works = [(write, 0), (write, 1), (change, 2)]
    threads = [threading.Thread(target=go_on, args=work) for work in works]
    for thread in threads:
        thread.start()
    try:
        for turn in range(1, 7):
            until(partial(is_past, len(acknowledged) + 20), "more")
            before = set(acknowledged)
            copied(here, table, shapes[turn % 2]())
            after = len(acknowledged)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert failures == []
    there = keys(here, table)
    assert len(there) == len(set(there))
    assert not before & set(there)
    assert set(acknowledged[after:]) | {-1} <= set(there)


def test_a_loop_copies_as_well(daemon: Daemon, table: Table) -> None:
    async def copy() -> int:
        async with TrioClient(daemon.flight) as client:
            async with await client.copy(*table, ["id"]) as copying:
                await copying.write(numbered(0, 10))
                assert copying.rows == 10
                version = await copying.finish(PARTITION, b"1")
            async with await client.copy(*table, ["id"]) as copying:
                await copying.write(numbered(10, 10))
            return version

    assert trio.run(copy) == 1
    with Client(daemon.flight) as client:
        assert keys(client, table) == list(range(10))


def test_a_name_of_a_copy_that_cannot_be_is_refused(wire: fl.FlightClient, table: Table) -> None:
    for name in ("", "x" * 129, "a\nb"):
        with pytest.raises(pa.ArrowInvalid, match="copy"):
            act(wire, "copy_abort", namespace=table[0], table=table[1], copy=name)


def test_whoever_sends_in_order_is_told_where_to_go_on_behind_a_copy(tmp_path: Path) -> None:
    table = ("ns", "goes_on")
    columns = [SyncColumn("old_pk", "id"), SyncColumn("new_pk", "id"), SyncColumn("value", "v")]

    def send(client: Client, key: int, sequence: int) -> None:
        row = {"0": pa.array([None], pa.int64()), "1": [key], "2": ["x"]}
        stream = client.sync("ns", "in order")
        stream.send("goes_on", columns, pa.record_batch(row), begin=True, sequence=sequence)

    daemon = Daemon.start(tmp_path / "d", replication__max_lag="1h")
    with daemon, Client(daemon.flight) as client:
        copied(client, table, numbered(0, 3))
        send(client, 5, 20)
        copied(client, table, numbered(0, 3))
        send(client, 6, 40)
        daemon.kill()
    # The sequences between the two copies are unknown after the restart.
    with daemon.again() as again, Client(again.flight) as client:
        [told] = client.origins("in order", table)
        assert told.table_newest == 40
