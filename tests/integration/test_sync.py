"""The replication stream over Flight: transactions, progress, repeats, and what is refused."""

from __future__ import annotations

import itertools
import re
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from tests.daemon import Daemon
from tests.integration.syncing import KEEP, Change, Source, message
from tests.integration.wire import (
    Json,
    Stream,
    act,
    command,
    create,
    describe,
    http,
    numbers,
    persist,
    put,
    query,
    writing,
)
from tests.waiting import until

CASES: dict[str, tuple[list[str], dict[str, list[int | None]]]] = {
    "one table after another": (
        ["1A:100", "2A:200", "1A:300", "F1", "F2"],
        {"A": [100, 300]},
    ),
    "a table holds back what spans it": (
        ["1A:-", "2A:1", "3A:2", "1A:-", "2A:3", "F1", "F2", "F3"],
        {"A": [None, 1, 3]},
    ),
    "all tables of a transaction": (
        ["1A:-", "2A:-", "3A:1", "1A:-", "2A:-", "3A:2", "F1", "F2", "F3"],
        {"A": [None, None, 2]},
    ),
    "origins by themselves": (
        ["1A:1", "2B:1001", "1A:3", "F1", "F2"],
        {"A": [3, 3], "B": [None, 1001]},
    ),
}


@pytest.fixture
def source(client: fl.FlightClient, table: tuple[str, str]) -> Source:
    """Origin A of a namespace of its own."""
    return Source(client, f"of-{table[1]}", f"A of {table[1]}")


@pytest.mark.parametrize("case", CASES)
def test_an_origin_is_durable_up_to_what_is_committed_in_every_table(
    client: fl.FlightClient, table: tuple[str, str], case: str
) -> None:
    steps, expected = CASES[case]
    namespace = table[0]
    sources = {name: Source(client, namespace, f"{name} of {table[1]}") for name in expected}
    seen: dict[str, list[int | None]] = {name: [] for name in expected}
    for number, step in enumerate(steps):
        if step.startswith("F"):
            persist(client, (namespace, f"{table[1]}-{step[1:]}"))
            for name, source in sources.items():
                seen[name].append(source.standing()[1])
            continue
        where, sequence = step.split(":")
        said = sources[where[1]].send(
            f"{table[1]}-{where[0]}",
            [(None, number, {"v": 1.0})],
            **({} if sequence == "-" else {"sequence": int(sequence)}),
        )
        assert said["accepted"]
    assert seen == expected


def test_rows_of_a_message_apply_in_their_order(source: Source) -> None:
    said = source.send(
        "t",
        [
            (None, 1, {"v": 1.0, "s": "one"}),
            (1, 2, {"v": KEEP, "s": "two"}),
            (None, 1, {"v": 5.0, "s": KEEP}),
            (2, None, {"v": KEEP, "s": KEEP}),
            (None, 7, {"v": 7.0, "s": "x"}),
            (7, None, {}),
        ],
        sequence=1,
    )
    assert said["accepted"]
    assert said["memory_sequence"] == 1
    assert source.state("t") == {1: (5.0, None)}


def test_a_chain_of_moves_keeps_what_no_message_has_changed(source: Source) -> None:
    source.send(
        "t", [(None, 1, {"v": 1.0, "s": "one"}), (None, 9, {"v": 9.0, "s": "n"})], sequence=1
    )
    persist(source.client, (source.namespace, "t"))
    source.send("t", [(9, 8, {"v": KEEP})], sequence=2)
    # Without `s` at all, then with; moved twice, in messages of one transaction.
    source.send("t", [(1, 2, {"v": KEEP})])
    source.send("t", [(2, 3, {"v": 3.0, "s": KEEP})])
    source.send("t", [(8, 1, {"s": KEEP})])
    assert source.state("t") == {1: (1.0, "one"), 8: (9.0, "n")}
    source.end(3)
    assert source.state("t") == {1: (9.0, "n"), 3: (3.0, "one")}
    persist(source.client, (source.namespace, "t"))
    assert source.state("t") == {1: (9.0, "n"), 3: (3.0, "one")}


def test_what_is_born_and_gone_in_a_message_leaves_nothing(source: Source) -> None:
    source.send("t", [(None, 1, {"v": 1.0}), (1, None, {})], sequence=1)
    assert source.state("t") == {}
    source.send("t", [(None, 2, {"v": 2.0, "s": KEEP})], sequence=2, last=False)
    source.send("t", [(2, -2, {"v": 2.1, "s": KEEP})])
    source.send("t", [(-2, 3, {"v": 3.0, "s": "two"})], sequence=2)
    assert source.state("t") == {3: (3.0, "two")}


def test_a_message_is_answered_before_its_call_ends_and_a_second_is_refused(
    source: Source,
) -> None:
    columns, batch = message([(None, 1, {"v": 1.0})])
    about = {"namespace": source.namespace, "table": "t", "origin": source.origin}
    descriptor = command(type="sync", **about, sequence=1, columns=columns)
    with Stream(source.client, descriptor, batch.schema) as stream:
        assert stream.write(batch)["accepted"]
    second = Stream(source.client, descriptor, batch.schema)
    assert second.write(batch)["duplicate"]
    second.send(batch)
    with pytest.raises(pa.ArrowInvalid, match="a call has one message"):
        second.close()
    assert set(source.state("t")) == {1}


def test_an_open_transaction_is_nobodys(source: Source) -> None:
    source.send("t", [(None, 1, {"v": 1.0})], sequence=1)
    source.send("t", [(None, 2, {"v": 2.0})])
    source.send("u", [(None, 2, {"v": 2.0, "s": "new column"})], sequence=2, last=False)
    assert source.state("t") == {1: (1.0, None)}
    with pytest.raises(KeyError, match="does not exist"):
        source.state("u")
    assert source.standing() == (1, None)
    # Begun anew: what was open is gone.
    source.send("t", [(None, 3, {"v": 3.0})], begin=True, sequence=2)
    assert source.state("t") == {1: (1.0, None), 3: (3.0, None)}
    with pytest.raises(pa.ArrowInvalid, match="no open transaction that 3 could close"):
        source.end(3)
    [facts] = act(source.client, "origins", origin=source.origin)
    assert not facts["open"]


def test_repeats_change_nothing(source: Source, table: tuple[str, str]) -> None:
    def again(flush: bool) -> None:
        for sequence in (1, 2):
            source.send("t", [(None, sequence, {"v": 1.0, "s": "x"})], begin=True)
            said = source.send("u", [(1, sequence, {"v": KEEP})], sequence=sequence)
            assert said["accepted"]
            if flush:
                persist(source.client, (source.namespace, "tu"[sequence - 1]))

    source.send("u", [(None, 1, {"v": 5.0, "s": "kept"})], sequence=0)
    again(flush=False)
    expected = {1: (1.0, "x"), 2: (1.0, "x")}, {2: (5.0, "kept")}
    for flush in (False, True, False):
        again(flush)
        assert (source.state("t"), source.state("u")) == expected
    assert source.end(2)["duplicate"]
    assert source.standing() == (2, 2)


def test_what_is_refused_is_named_and_ends_the_transaction(
    source: Source, table: tuple[str, str]
) -> None:
    create(source.client, (source.namespace, "plain"), numbers(0, 1).schema)
    ids = [{"role": "old_pk", "name": "id"}, {"role": "new_pk", "name": "id"}]
    one = pa.array([1])
    nothing = pa.nulls(1, pa.int64())
    wrong: list[tuple[str, list[dict[str, str]], list[pa.Array], str]] = [
        ("t", ids, [one, pa.array(["x"])], "id.* is int64 in old_pk and string in new_pk"),
        ("t", ids[1:], [one], "new_pk 'id' has no old_pk"),
        (
            "t",
            [*ids, {"role": "changed", "name": "v"}],
            [nothing, one, pa.array([True])],
            "no value",
        ),
        (
            "t",
            [*ids, {"role": "value", "name": "v"}, {"role": "changed", "name": "v"}],
            [nothing, one, one, one],
            "changed 'v' is int64, not boolean",
        ),
        ("t", ids, [nothing, nothing], "neither an old nor a new key"),
        ("t", ids, [one], "2 columns are described, the batch has 1"),
        ("t", [*ids, {"role": "value", "name": "_x"}], [nothing, one, one], "_x"),
        ("t", [{**c, "name": "other"} for c in ids], [nothing, one], r"key \['other'\].*\['id'\]"),
        ("t", [*ids, {"role": "value", "name": "v"}], [nothing, one, pa.array(["x"])], "'v'"),
        ("plain", ids, [nothing, one], "has none"),
        ("t", [{"role": "key", "name": "id"}, ids[1]], [one, one], "role"),
    ]
    source.send("t", [(None, 5, {"v": 5.0})], sequence=5)
    for name, columns, arrays, said in wrong:
        source.send("t", [(None, 6, {"v": 6.0})])
        batch = pa.record_batch(arrays, names=[f"c{n}" for n in range(len(arrays))])
        with pytest.raises(pa.ArrowInvalid, match=said):
            source.raw(name, columns, batch, sequence=6)
    assert source.state("t") == {5: (5.0, None)}


def test_writes_and_transactions_have_one_order(source: Source) -> None:
    source.send("t", [(None, n, {"v": 0.0, "s": "first"}) for n in range(50)], sequence=0)
    table = (source.namespace, "t")
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("s", pa.string())])
    for n in range(1, 20):
        rows = pa.record_batch([pa.array(range(50)), pa.array([f"s{n}"] * 50)], schema=schema)
        put(source.client, table, rows)
        source.send("t", [(k, k, {"v": float(n), "s": KEEP}) for k in range(50)], sequence=n)
        assert source.state("t") == {k: (float(n), f"s{n}") for k in range(50)}


def test_no_write_is_lost_to_a_transaction_that_keeps_what_was_there(source: Source) -> None:
    keys = range(400)
    source.send("t", [(None, k, {"v": 0.0, "s": "first"}) for k in keys], sequence=0)
    table = (source.namespace, "t")
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("s", pa.string())])

    def write() -> None:
        """Each key once."""
        with Stream(source.client, writing(table), schema) as stream:
            for key in keys:
                stream.write(pa.record_batch([pa.array([key]), pa.array(["second"])], schema))

    with ThreadPoolExecutor(1) as threads:
        writes = threads.submit(write)
        for sequence in itertools.count(1):
            source.send("t", [(k, k, {"v": 1.0, "s": KEEP}) for k in keys], sequence=sequence)
            if writes.done():
                break
        writes.result()
    assert sequence > 10
    assert {s for _, s in source.state("t").values()} == {"second"}


@pytest.mark.parametrize("begin", [False, True])
def test_a_transaction_that_a_crash_cut_in_two_is_sent_again_whole(
    tmp_path: Path, begin: bool
) -> None:
    def part(source: Source, key: int, **fields: object) -> Json:
        return source.send("t", [(None, key, {"v": 1.0})], **fields)

    with Daemon.start(tmp_path / "d", wal__segment_bytes="64KiB") as daemon:
        source = Source(fl.connect(daemon.flight), "ns", "A")
        assert part(source, 1)["first"]
        # The log's segments go, what they say of open transactions stays.
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
            # What was whole when the process ended needs no repeat.
            daemon.kill()
            with daemon.again() as third:
                source = Source(fl.connect(third.flight), "ns", "A")
                said = part(source, 3, sequence=2)
                assert (said["accepted"], said["first"]) == (True, True)
                assert set(source.state("t")) == {1, 2, 3}


def test_a_transaction_changes_all_its_tables_at_once(source: Source) -> None:
    for table in ("t", "u"):
        source.send(table, [(None, 1, {"v": 0.0})], sequence=ord(table))
    for n in range(200, 260):
        source.send("t", [(1, 1, {"v": float(n)})])
        source.send("u", [(1, 1, {"v": float(n)})], sequence=n)
        assert source.state("t") == source.state("u") == {1: (float(n), None)}


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
        with pytest.raises(pa.ArrowInvalid, match="no open transaction"):
            source.end(1)
        with pytest.raises(KeyError):
            query(client, ("ns", "t"))
        assert source.send("t", rows[:5], sequence=1)["accepted"]
        assert len(source.state("t")) == 5


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
    """And `persist.max_age` is of no account to them."""
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
    """Far more changes than there is memory for, of few keys; nothing else is due."""
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
    """Also where one table of a transaction was in files and the other was not."""

    def transactions(source: Source, first: int) -> None:
        for n in range(first, 7):
            source.send("t", [(None, n, {"v": float(n), "s": "new"})], begin=True)
            if n % 2:
                source.send("u", [(n - 1, n, {"v": KEEP}), (None, n + 100, {"v": 1.0})])
            source.end(n)

    place: dict[str, Any] = {"store": f"file://{tmp_path}/store", "persist__max_age": "1h"}
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


def test_origins_that_write_one_table_keep_their_own_progress(source: Source) -> None:
    other = Source(source.client, source.namespace, f"B with {source.origin}")
    for n in range(1, 6):
        source.send("t", [(None, n, {"v": 1.0})], sequence=10 * n)
        other.send("t", [(None, -n, {"v": 2.0})], sequence=n)
    source.send("u", [(None, 1, {"v": 1.0})], sequence=60)
    persist(source.client, (source.namespace, "t"))
    assert source.standing() == (60, 50)
    assert other.standing() == (5, 5)
    # Open, and of no account to the other.
    source.send("t", [(None, 99, {"v": 1.0})])
    other.send("t", [(-1, None, {})], sequence=6)
    persist(source.client, (source.namespace, "t"))
    persist(source.client, (source.namespace, "u"))
    assert (source.standing(), other.standing()) == ((60, 60), (6, 6))
    assert set(source.state("t")) == {*range(1, 6), *range(-5, -1)}


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
        # Files cannot be made any more: rows stay in memory.
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
