"""The replication stream over Flight: transactions, progress, repetitions, refusals."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from tests.drivers.syncing import KEEP, Change, Source, message
from tests.drivers.wire import Stream, act, command, create, numbers, persist, put, writing

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
    """Origin A in a namespace of its own."""
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
    # First without column `s`, then with it; a key moves twice in one transaction.
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
    # A new transaction discards the open one.
    source.send("t", [(None, 3, {"v": 3.0})], begin=True, sequence=2)
    assert source.state("t") == {1: (1.0, None), 3: (3.0, None)}
    with pytest.raises(pa.ArrowInvalid, match="no open transaction to close as 3"):
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
        """Write each key once."""
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


def test_a_transaction_changes_all_its_tables_at_once(source: Source) -> None:
    for table in ("t", "u"):
        source.send(table, [(None, 1, {"v": 0.0})], sequence=ord(table))
    for n in range(200, 260):
        source.send("t", [(1, 1, {"v": float(n)})])
        source.send("u", [(1, 1, {"v": float(n)})], sequence=n)
        assert source.state("t") == source.state("u") == {1: (float(n), None)}


def test_origins_that_write_one_table_keep_their_own_progress(source: Source) -> None:
    other = Source(source.client, source.namespace, f"B with {source.origin}")
    for n in range(1, 6):
        source.send("t", [(None, n, {"v": 1.0})], sequence=10 * n)
        other.send("t", [(None, -n, {"v": 2.0})], sequence=n)
    source.send("u", [(None, 1, {"v": 1.0})], sequence=60)
    persist(source.client, (source.namespace, "t"))
    assert source.standing() == (60, 50)
    assert other.standing() == (5, 5)
    # Origin A's transaction is open, which does not affect the other origin.
    source.send("t", [(None, 99, {"v": 1.0})])
    other.send("t", [(-1, None, {})], sequence=6)
    persist(source.client, (source.namespace, "t"))
    persist(source.client, (source.namespace, "u"))
    assert (source.standing(), other.standing()) == ((60, 60), (6, 6))
    assert set(source.state("t")) == {*range(1, 6), *range(-5, -1)}


def test_a_transaction_without_rows_counts(source: Source) -> None:
    source.send("t", [(None, 1, {"v": 1.0})], sequence=1)
    assert source.end(2, "t", begin=True)["memory_sequence"] == 2
    # It may name a table that does not exist: the origin has written to another.
    said = source.end(3, "missing", begin=True)
    assert (said["memory_sequence"], said["durable_sequence"], said["duplicate"]) == (
        3,
        None,
        False,
    )
    again = source.end(3, "missing", begin=True)
    assert (again["memory_sequence"], again["duplicate"]) == (3, True)
    persist(source.client, (source.namespace, "t"))
    assert source.standing() == (3, 3)
    assert source.end(4, "t", begin=True)["durable_sequence"] == 4
    assert source.state("t") == {1: (1.0, None)}
    with pytest.raises(KeyError, match="does not exist"):
        source.state("missing")


def test_a_transaction_without_rows_before_any_table_is_accepted(source: Source) -> None:
    said = source.end(1, "missing", begin=True)
    assert (said["accepted"], said["memory_sequence"]) == (True, None)


SWAPPED: list[list[Change]] = [
    [(1, 2, {"v": KEEP, "s": KEEP}), (2, 1, {"v": KEEP, "s": KEEP})],
    [(None, 5, {"v": 5.0}), (1, 5, {"v": KEEP}), (5, 6, {"v": KEEP})],
    [(1, 2, {"v": KEEP}), (2, None, {})],
    [(1, 2, {"v": KEEP}), (2, 2, {"v": 0.0})],
]


@pytest.mark.parametrize("changes", SWAPPED)
@pytest.mark.parametrize("persisted", [False, True])
@pytest.mark.parametrize("apart", [False, True])
def test_keys_that_two_rows_have_at_once_are_refused(
    source: Source, changes: list[Change], persisted: bool, apart: bool
) -> None:
    before = {1: (1.0, "one"), 2: (2.0, "two")}
    rows: list[Change] = [(None, key, {"v": v, "s": s}) for key, (v, s) in before.items()]
    source.send("t", rows, sequence=1)
    if persisted:
        persist(source.client, (source.namespace, "t"))
    last = changes
    if apart:
        for change in changes[:-1]:
            source.send("t", [change])
        last = changes[-1:]
    with pytest.raises(pa.ArrowInvalid, match=r"key \{'id': [25]\}, which another row has"):
        source.send("t", last, sequence=2)
    assert source.state("t") == before
    # The error's advice.
    deletes: list[Change] = [(key, None, {}) for key in before]
    inserts: list[Change] = [(None, 3 - key, {"v": v, "s": s}) for key, (v, s) in before.items()]
    assert source.send("t", [*deletes, *inserts], begin=True, sequence=2)["accepted"]
    assert source.state("t") == {2: (1.0, "one"), 1: (2.0, "two")}


def test_a_row_that_moves_there_and_back_is_accepted(source: Source) -> None:
    source.send("t", [(None, 1, {"v": 1.0, "s": "one"})], sequence=1)
    there: list[Change] = [(1, 2, {"v": KEEP}), (2, 3, {"v": 2.0}), (3, 1, {"v": KEEP})]
    assert source.send("t", there, sequence=2)["accepted"]
    assert source.state("t") == {1: (2.0, "one")}


def test_messages_of_a_transaction_have_one_sequence(source: Source) -> None:
    source.send("t", [(None, 1, {"v": 1.0})], begin=True, sequence=1, last=False)
    with pytest.raises(pa.ArrowInvalid, match=r"sequence 2, but an earlier .* has 1"):
        source.send("t", [(None, 2, {"v": 2.0})], sequence=2)
    with pytest.raises(KeyError, match="does not exist"):
        source.state("t")
    source.send("t", [(None, 1, {"v": 1.0})], begin=True, sequence=2, last=False)
    source.send("t", [(None, 2, {"v": 2.0})])
    with pytest.raises(pa.ArrowInvalid, match=r"sequence 3, but an earlier .* has 2"):
        source.send("t", [(None, 3, {"v": 2.0})], sequence=3, last=False)
    source.send("t", [(None, 1, {"v": 1.0})], begin=True, last=False)
    source.send("t", [(None, 2, {"v": 2.0})], sequence=2, last=False)
    assert source.end(2)["memory_sequence"] == 2
    assert set(source.state("t")) == {1, 2}


def test_the_largest_sequence_commits_a_transaction(source: Source) -> None:
    newest = 2**63 - 1
    for duplicate in (False, True):
        said = source.send("t", [(None, 1, {"v": 1.0})], begin=True, sequence=newest)
        assert (said["accepted"], said["duplicate"]) == (True, duplicate)
