"""The replication stream with little memory, or after the loss of a process or disk."""

from __future__ import annotations

import re
import shutil
import struct
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from ingester.client import Client, InvalidRequest, Restarted, SyncColumn
from tests.drivers.daemon import Daemon
from tests.drivers.syncing import KEEP, Change, Source
from tests.drivers.waiting import until
from tests.drivers.wire import Json, describe, http, numbers, persist, put, query
from tests.postgres.replicating import steady_daemon


@pytest.mark.parametrize("begin", [False, True])
def test_a_transaction_that_a_crash_cut_in_two_is_sent_again_whole(
    tmp_path: Path, begin: bool
) -> None:
    def part(source: Source, key: int, **fields: object) -> Json:
        return source.send("t", [(None, key, {"v": 1.0})], **fields)

    with Daemon.start(tmp_path / "d", wal__segment_bytes="64KiB") as daemon:
        source = Source(fl.connect(daemon.flight), "ns", "A")
        assert part(source, 1)["first"]
        # Log segments are deleted, but the rows of open transactions stay.
        for n in range(20):
            rows = numbers(n * 1000, 1000)
            put(source.client, ("ns", "other"), rows)
        persist(source.client, ("ns", "other"))
        daemon.kill()
        daemon = daemon.again()
        with daemon:
            source = Source(fl.connect(daemon.flight), "ns", "A")
            if begin:
                assert part(source, 1, begin=True)["first"]
            else:
                said = part(source, 2, sequence=1)
                assert (said["accepted"], said["first"]) == (False, True)
                assert "from its first message" in said["message"]
                assert part(source, 1)["accepted"]
            assert part(source, 2, sequence=1)["accepted"]
            assert set(source.state("t")) == {1, 2}
            # Transactions committed before the kill need no repetition.
            daemon.kill()
            with daemon.again() as third:
                source = Source(fl.connect(third.flight), "ns", "A")
                said = part(source, 3, sequence=2)
                assert (said["accepted"], said["first"]) == (True, True)
                assert set(source.state("t")) == {1, 2, 3}


def test_what_counts_on_a_process_whose_disk_is_lost_is_not_taken(tmp_path: Path) -> None:
    store = f"file://{tmp_path}/store"
    with Daemon.start(tmp_path / "d", store=store, persist__max_age="1h") as daemon:
        source = Source(fl.connect(daemon.flight), "ns", "A")
        epoch = source.send("t", [(None, 1, {"v": 1.0})], sequence=1)["epoch"]
        persist(source.client, ("ns", "t"))
        more = source.send("t", [(None, 2, {"v": 2.0})], sequence=2, epoch=epoch)
        assert (more["accepted"], more["memory_sequence"]) == (True, 2)
        daemon.kill()
        shutil.rmtree(daemon.data_dir)
        with daemon.again(recovery__accept_lost_log="true") as second:
            source = Source(fl.connect(second.flight), "ns", "A")
            source.ask()  # another client has already asked
            for begin in (True, False):
                third = [(None, 3, {"v": 3.0})]
                said = source.send("t", third, begin=begin, sequence=3, epoch=epoch)
                assert (said["accepted"], said["first"], said["memory_sequence"]) == (
                    False,
                    True,
                    1,
                )
                assert "ask for the origin's progress" in said["message"]
            told = source.ask()
            again = source.send("t", [(None, 2, {"v": 2.0})], sequence=2, epoch=told["epoch"])
            assert again["accepted"]
            assert set(source.state("t")) == {1, 2}


def test_a_client_goes_on_with_a_daemon_that_has_restarted_once_it_has_asked(
    tmp_path: Path,
) -> None:
    columns = [SyncColumn("old_pk", "id"), SyncColumn("new_pk", "id")]

    def row(key: int) -> pa.RecordBatch:
        return pa.record_batch([pa.nulls(1, pa.int64()), pa.array([key])], names=["0", "1"])

    daemon = steady_daemon(tmp_path / "d")
    try:
        with Client(daemon.flight) as client:
            stream = client.sync("ns", "A")
            assert stream.send("t", columns, row(1), begin=True, sequence=1).accepted
            daemon.kill()
            daemon = daemon.again()
            until(lambda: client.query("ns", "t").num_rows == 1, "the daemon", 30)
            for _ in range(2):
                with pytest.raises(Restarted, match="the daemon has restarted"):
                    stream.send("t", columns, row(2), begin=True, sequence=2)
            assert stream.standing().memory_sequence == 1
            assert stream.send("t", columns, row(2), begin=True, sequence=2).accepted
            assert client.query("ns", "t").num_rows == 2
    finally:
        daemon.kill()


def test_a_transaction_that_is_too_large_is_refused_whole(tmp_path: Path) -> None:
    limit = "64KiB"
    with (
        Daemon.start(tmp_path / "d", replication__max_transaction_bytes=limit) as daemon,
        fl.connect(daemon.flight) as client,
    ):
        source = Source(client, "ns", "A")
        rows: list[Change] = [(None, n, {"s": "x" * 100}) for n in range(200)]
        assert source.send("t", rows, last=False, sequence=1)["accepted"]
        assert source.send("t", rows)["accepted"]
        with pytest.raises(pa.ArrowInvalid, match="max_transaction_bytes is 65536"):
            source.send("t", rows)
        with pytest.raises(pa.ArrowInvalid, match="no open transaction to close"):
            source.end(1)
        with pytest.raises(KeyError):
            query(client, ("ns", "t"))
        assert source.send("t", rows[:5], sequence=1)["accepted"]
        assert len(source.state("t")) == 5


def test_views_that_all_show_one_text_are_refused_before_it_is_looked_at(tmp_path: Path) -> None:
    text, rows = b"\xff" * (1 << 20), 300  # reading it fails, because it is not UTF-8
    views = pa.py_buffer(struct.pack("<i4sii", len(text), text[:4], 0, 0) * rows)
    shown = pa.Array.from_buffers(pa.string_view(), rows, [None, views, pa.py_buffer(text)])
    columns = [
        SyncColumn(role, name)
        for role, name in (("old_pk", "id"), ("new_pk", "id"), ("value", "s"))
    ]
    keys = [pa.nulls(rows, pa.int64()), pa.array(range(rows))]
    with steady_daemon(tmp_path / "d") as daemon, Client(daemon.flight) as client:
        stream = client.sync("ns", "A")
        batch = pa.record_batch([*keys, shown], names=["0", "1", "2"])
        with pytest.raises(
            InvalidRequest, match=f"message has {rows * len(text)} B.*send smaller ones"
        ):
            stream.send("t", columns, batch, begin=True, sequence=1)
        assert client.tables() == []


@pytest.mark.parametrize(
    ("why", "settings_"),
    [
        ("lag", {"replication__max_lag": "300ms"}),
        ("messages", {"replication__max_messages": 3}),
        ("bytes", {"persist__max_partition_bytes": "64KiB"}),
    ],
)
def test_replicated_rows_go_to_files_without_further_traffic(
    tmp_path: Path, why: str, settings_: dict[str, Any]
) -> None:
    """`persist.max_age` does not apply to replicated rows."""
    kept: dict[str, Any] = {"persist__max_age": "100ms", "replication__max_lag": "1h"}
    with Daemon.start(tmp_path / "d", **{**kept, **settings_}) as daemon:
        source = Source(fl.connect(daemon.flight), "ns", "A")
        source.send("t", [(None, 1, {"s": "x"})], sequence=1)
        until(lambda: source.standing() == (1, 1 if why == "lag" else None), "its place")
        source.send("t", [(None, 2, {"s": "x" * 100_000})])
        source.send("t", [(None, 3, {"s": "y"})], sequence=2)
        until(lambda: source.standing() == (2, 2), "all of it in files")
        _, _, page = http(daemon.http + "/metrics")
        counted = {
            line.split(" ")[0]: float(line.split(" ")[1])
            for line in page.decode().splitlines()
            if line.startswith(("ingester_buffers_frozen_total", "ingester_replication_"))
        }
        frozen = 'ingester_buffers_frozen_total{{why="{}"}}'
        assert counted[frozen.format(why)] >= 1
        assert counted[frozen.format("age")] == 0
        assert counted["ingester_replication_transactions_total"] == 2
        assert counted["ingester_replication_messages_total"] == 3


def _taken(source: Source, changes: list[Change], sequence: int) -> bool:
    return bool(source.send("t", changes, begin=True, sequence=sequence)["accepted"])


def test_where_memory_is_short_changes_are_folded_into_files(tmp_path: Path) -> None:
    """The changes of a few keys exceed the memory, and no other flush is due."""
    large = "x" * 1000
    limits: dict[str, Any] = {"persist__max_age": "1h", "replication__max_lag": "1h"}
    limits |= {"memory__limit": "160MiB", "persist__max_partition_bytes": "1GiB"}
    with Daemon.start(tmp_path / "d", **limits) as daemon:
        source = Source(fl.connect(daemon.flight), "ns", "A")
        for n in range(150):
            changes: list[Change] = [
                (key if n else None, key, {"v": float(n), "s": f"{n} {large}"})
                for key in range(1500)
            ]
            until(partial(_taken, source, changes, n), "room")
        _, _, page = http(daemon.http + "/metrics")
        frozen = re.findall(r'ingester_buffers_frozen_total\{why="(\w+)"\} (\S+)', page.decode())
        assert [why for why, count in frozen if float(count)] == ["memory"]
        assert source.state("t") == dict.fromkeys(range(1500), (149.0, f"149 {large}"))
        persisted = describe(source.client, ("ns", "t"))["persisted"]
        assert persisted["rows"] == 1500
        assert persisted["bytes"] < 150 * 1500 * 1000 / 100


def test_after_the_loss_of_a_disk_what_is_sent_again_is_there_once(tmp_path: Path) -> None:
    """This also holds if only one table of a transaction was in files."""

    def transactions(source: Source, first: int) -> None:
        for n in range(first, 7):
            source.send("t", [(None, n, {"v": float(n), "s": "new"})], begin=True)
            if n % 2:
                source.send("u", [(n - 1, n, {"v": KEEP}), (None, n + 100, {"v": 1.0})])
            source.end(n)

    place: dict[str, Any] = {
        "store": f"file://{tmp_path}/store",
        "persist__max_age": "1h",
        "recovery__accept_lost_log": "true",
    }
    with Daemon.start(tmp_path / "one", **place) as daemon:
        source = Source(fl.connect(daemon.flight), "ns", "A")
        source.send("u", [(None, 0, {"v": 7.0})], sequence=0)
        persist(source.client, ("ns", "u"))
        transactions(source, 1)
        persist(source.client, ("ns", "t"))
        assert source.standing() == (6, 0)
        expected = source.state("t"), source.state("u")
    with Daemon.start(tmp_path / "two", **place) as daemon:
        source = Source(fl.connect(daemon.flight), "ns", "A")
        assert source.standing() == (0, 0)
        transactions(source, 1)
        assert (source.state("t"), source.state("u")) == expected
        persist(source.client, ("ns", "u"))
        assert source.standing() == (6, 6)
        transactions(source, 1)
        persist(source.client, ("ns", "t"))
        assert (source.state("t"), source.state("u")) == expected


def test_a_transaction_whose_tables_all_have_it_in_files_is_a_duplicate(tmp_path: Path) -> None:
    """Table `t` was flushed while `u` was not, so its version does not say that it has all."""
    place: dict[str, Any] = {
        "store": f"file://{tmp_path}/store",
        "persist__max_age": "1h",
        "recovery__accept_lost_log": "true",
    }

    def transaction(source: Source, sequence: int) -> Json:
        source.send("t", [(None, sequence, {"v": 1.0})], begin=True)
        return source.send("u", [(None, sequence, {"v": 1.0})], sequence=sequence)

    with Daemon.start(tmp_path / "one", **place) as daemon:
        source = Source(fl.connect(daemon.flight), "ns", "A")
        transaction(source, 1)
        for table in ("t", "u"):
            persist(source.client, ("ns", table))
    with Daemon.start(tmp_path / "two", **place) as daemon:
        source = Source(fl.connect(daemon.flight), "ns", "A")
        assert [transaction(source, 1)["duplicate"] for _ in range(2)] == [True, True]
        assert not transaction(source, 2)["duplicate"]
        assert set(source.state("t")) == set(source.state("u")) == {1, 2}


def test_what_is_refused_for_now_says_so_and_changes_nothing(tmp_path: Path) -> None:
    limits: dict[str, Any] = {
        "memory__limit": "160MiB",
        "memory__low": "1MiB",
        "memory__high": "150MiB",
    }
    store = tmp_path / "store"
    with Daemon.start(tmp_path / "d", store=f"file://{store}", **limits) as daemon:
        source = Source(fl.connect(daemon.flight), "ns", "A")
        source.send("t", [(None, 1, {"s": "x"})], sequence=1)
        persist(source.client, ("ns", "t"))
        # Flushes now fail, so rows stay in memory.
        away = tmp_path / "away"
        store.rename(away)
        store.write_text("in the way")
        big: list[Change] = [(None, n, {"s": "y" * 100_000}) for n in range(100)]
        said: Json = {"accepted": True}
        sequence = 1
        while said["accepted"]:
            sequence += 1
            assert sequence < 100
            said = source.send("t", big, sequence=sequence)
        assert said["code"] in ("memory", "saturated")
        assert said["retry_after_s"] > 0
        assert said["memory_sequence"] == sequence - 1
        store.unlink()
        away.rename(store)
        until(lambda: source.send("t", big, sequence=sequence)["accepted"], "room")
        assert source.standing()[0] == sequence
        assert len(source.state("t")) == 100
