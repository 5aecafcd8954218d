"""Deleted keys: in buffers, in files, in the tails of older versions, and after a crash."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from ingester.client import Client
from persist.manifest import Action, Manifest, Proposal, Remove, WriterIdentity, commit
from persist.store import open_store
from tests.drivers.daemon import Daemon
from tests.drivers.wire import (
    Table,
    create,
    delete,
    numbers,
    persist,
    put,
    query,
)

SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("v", pa.int64())])
KEYS = pa.schema({"id": pa.int64()})
State = dict[int, int]
COMPACTOR = WriterIdentity("compactor", "1" * 16, 1)


def upsert(client: fl.FlightClient, table: Table, rows: State) -> None:
    arrays = [pa.array(list(rows), pa.int64()), pa.array(list(rows.values()), pa.int64())]
    put(client, table, pa.record_batch(arrays, schema=SCHEMA))


@pytest.fixture
def store(shared: Daemon) -> Path:
    """The folder of the shared daemon's store."""
    return shared.data_dir / "store"


def keys(*ids: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(ids, pa.int64())], schema=KEYS)


def state(client: fl.FlightClient, table: Table, **fields: object) -> State:
    found = query(client, table, **fields)
    pairs = list(zip(found["id"].to_pylist(), found["v"].to_pylist(), strict=True))
    assert len(dict(pairs)) == len(pairs), "a key stands twice"
    return dict(pairs)


def files_of(store: Path, table: Table) -> State:
    """The rows that a plain Parquet reader finds in the files of the newest version."""
    head = Manifest(open_store(f"file://{store}"), *table).load()
    found: State = {}
    for path in head.files:
        read = pq.read_table(store / table[0] / table[1] / "v1" / path)
        assert read.column_names == ["id", "v"]
        assert read.num_rows
        found |= zip(read["id"].to_pylist(), read["v"].to_pylist(), strict=True)
    return found


def rewritten(store: Path, table: Table) -> int:
    """Commit a compaction that replaces every file of the newest version."""
    objects = open_store(f"file://{store}")
    manifest = Manifest(objects, *table)
    head = manifest.load()
    actions: list[Action] = []
    for old in head.files.values():
        path = f"{old.path.rpartition('/')[0]}/{uuid.uuid4().hex}.parquet".lstrip("/")
        objects.put(f"{manifest.root}/{path}", objects.get(f"{manifest.root}/{old.path}"))
        actions.append(Remove(old.path, "compaction"))
        actions.append(structs.replace(old, path=path, kind="rewrite", writer="compactor"))
    if not actions:
        return head.version
    return commit(manifest, head, Proposal(actions), COMPACTOR).version


def merged(client: fl.FlightClient, table: Table, version: int, *tails: fl.FlightClient) -> State:
    """The files of a version, merged with these daemons' tails in order."""
    whole = state(client, table, scope="version", version=version)
    for daemon in tails:
        for row in query(daemon, table, scope="buffered", version=version).to_pylist():
            if row["_op"] == "delete":
                whole.pop(row["id"], None)
            else:
                whole[row["id"]] = row["v"]
    return whole


def test_a_tail_has_rows_whose_file_was_rewritten_since(
    client: fl.FlightClient, table: Table, store: Path
) -> None:
    create(client, table, SCHEMA, primary_key=["id"], partition_by=["bucket(2, id)"])
    upsert(client, table, dict.fromkeys(range(10), 1))
    version = persist(client, table)
    upsert(client, table, {1: 2, 20: 2})
    delete(client, table, keys(3))
    persist(client, table)
    newest = rewritten(store, table)
    expected = state(client, table)
    assert expected[20] == 2
    for asked in (newest, version):
        assert merged(client, table, asked, client) == expected
    # Rewritten rows are not new.
    again = rewritten(store, table)
    assert query(client, table, scope="buffered", version=newest).num_rows == 0
    assert query(client, table, scope="buffered", version=again).num_rows == 0


def test_a_tail_has_what_the_owner_before_has_persisted(tmp_path: Path, table: Table) -> None:
    url = f"file://{tmp_path / 'store'}"
    first = Daemon.start(tmp_path / "a", id="a", store=url)
    with (
        Daemon.start(tmp_path / "b", id="b", store=url) as second,
        fl.connect(second.flight) as two,
    ):
        with fl.connect(first.flight) as one:
            create(one, table, SCHEMA, primary_key=["id"])
            upsert(one, table, {1: 1, 2: 1})
            version = persist(one, table)
            assert merged(two, table, version, one, two) == {1: 1, 2: 1}
            upsert(one, table, {1: 2})
        assert first.terminate() == 0
        # The table has no owner, so any daemon may report its files.
        assert merged(two, table, version, two) == {1: 2, 2: 1}
        upsert(two, table, {2: 3})
        assert merged(two, table, version, two) == {1: 2, 2: 3}
        with first.again() as restarted, fl.connect(restarted.flight) as one:
            for order in ((one, two), (two, one)):
                assert merged(two, table, version, *order) == {1: 2, 2: 3}


@pytest.mark.parametrize("spec", [[], ["bucket(3, id)"]])
def test_a_deleted_key_is_gone_from_answers_and_files(
    client: fl.FlightClient, table: Table, store: Path, spec: list[str]
) -> None:
    create(client, table, SCHEMA, primary_key=["id"], partition_by=spec)
    upsert(client, table, dict.fromkeys(range(10), 1))
    # Deleting a key that never existed is allowed.
    [answer] = delete(client, table, keys(3, 5, 77))
    assert answer["accepted"]
    assert not answer["duplicate"]
    left = {id_: 1 for id_ in range(10) if id_ not in (3, 5)}
    assert state(client, table) == left
    version = persist(client, table)
    assert state(client, table, scope="version", version=version) == left
    assert files_of(store, table) == left
    # Deletes of flushed keys, and of a key that is written again in the same buffer.
    delete(client, table, keys(0, 1), keys(2))
    upsert(client, table, {1: 2, 5: 2})
    left = {1: 2, 4: 1, 5: 2, 6: 1, 7: 1, 8: 1, 9: 1}
    assert state(client, table) == left
    assert state(client, table, filter=[[["v", "=", 1]]]) == {4: 1, 6: 1, 7: 1, 8: 1, 9: 1}
    assert state(client, table, filter=[[["id", "<", 3]]]) == {1: 2}
    persist(client, table)
    assert files_of(store, table) == state(client, table) == left


def test_a_table_can_become_empty_and_fill_again(
    client: fl.FlightClient, table: Table, store: Path
) -> None:
    create(client, table, SCHEMA, primary_key=["id"])
    for round_ in range(3):
        upsert(client, table, dict.fromkeys(range(100), round_))
        if round_ != 1:
            persist(client, table)
        delete(client, table, keys(*range(100)))
        assert state(client, table) == {}
        version = persist(client, table)
        assert state(client, table, scope="version", version=version) == {}
        assert files_of(store, table) == {}
    upsert(client, table, {1: 9})
    assert state(client, table) == {1: 9}


_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("upsert"), st.dictionaries(st.integers(0, 7), st.integers(0, 3))),
        st.tuples(st.just("delete"), st.sets(st.integers(0, 7))),
        st.tuples(st.just("persist"), st.none()),
        st.tuples(st.just("rewrite"), st.none()),
    ),
    min_size=1,
    max_size=14,
)
_count = iter(range(1_000_000))


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=_STEPS, spec=st.sampled_from([[], ["bucket(2, id)"]]))
def test_every_kept_version_and_its_tail_are_the_last_state(
    client: fl.FlightClient, store: Path, steps: list[tuple[str, Any]], spec: list[str]
) -> None:
    table = ("deletes", f"t{next(_count)}")
    create(client, table, SCHEMA, primary_key=["id"], partition_by=spec)
    model: State = {}
    versions = [1]
    for kind, what in steps:
        if kind == "upsert" and what:
            upsert(client, table, what)
            model |= what
        elif kind == "delete" and what:
            delete(client, table, keys(*what))
            model = {id_: v for id_, v in model.items() if id_ not in what}
        elif kind == "persist":
            versions.append(persist(client, table))
            assert files_of(store, table) == model
        elif kind == "rewrite":
            versions.append(rewritten(store, table))
        assert state(client, table) == model
    for filter_, matches in (
        (None, lambda id_, v: True),
        ([[["v", ">", 1]]], lambda id_, v: v > 1),
        ([[["id", "<", 4]]], lambda id_, v: id_ < 4),
        ([[["id", "=", 2], ["v", "=", 0]]], lambda id_, v: id_ == 2 and v == 0),
    ):
        asked = {} if filter_ is None else {"filter": filter_}
        wanted = {id_: v for id_, v in model.items() if matches(id_, v)}
        assert state(client, table, **asked) == wanted
        for version in versions:
            whole = state(client, table, scope="version", version=version, **asked)
            tail = query(client, table, scope="buffered", version=version, **asked)
            told: dict[int, str] = {}
            for row in tail.to_pylist():
                # A reader merges by key, in the order of the answer.
                assert row["id"] not in told or told[row["id"]] == row["_op"] == "upsert"
                told[row["id"]] = row["_op"]
                if row["_op"] == "delete":
                    assert row["v"] is None
                    whole.pop(row["id"], None)
                else:
                    assert row["_op"] == "upsert"
                    whole[row["id"]] = row["v"]
            assert whole == wanted, (version, filter_)


def test_what_cannot_be_deleted_is_refused_by_name(client: fl.FlightClient, table: Table) -> None:
    with pytest.raises(KeyError, match="does not exist"):
        delete(client, table, keys(1))
    put(client, table, numbers(0, 3))
    with pytest.raises(pa.ArrowInvalid, match="no primary key"):
        delete(client, table, pa.record_batch({"i": pa.array([1])}))
    keyed = (table[0], "keyed")
    two = pa.schema({"a": pa.int64(), "b": pa.string(), "v": pa.int64()})
    create(client, keyed, two, primary_key=["a", "b"])
    a, b = pa.array([1, 2]), pa.array(["x", "y"])
    put(client, keyed, pa.record_batch([a, b, a], schema=two))
    for columns, said in (
        ({"a": a}, "'b'.*primary key"),
        ({"a": a, "b": b, "v": a}, "'v' is not in the primary key"),
        ({"a": pa.array([1, None]), "b": b}, "'a'.*1 nulls"),
        ({"a": b, "b": b}, "'a': table has int64, batch has string"),
        ({"a": a, "b": b, "_deleted": a}, "_deleted"),
    ):
        with pytest.raises(pa.ArrowInvalid, match=said):
            delete(client, keyed, pa.record_batch(columns))
    assert query(client, keyed).num_rows == 2
    # Narrower types and another column order are accepted.
    delete(client, keyed, pa.record_batch({"b": b, "a": a.cast(pa.int8())}))
    assert query(client, keyed).num_rows == 0


def test_no_batch_can_bring_a_mark_of_its_own(client: fl.FlightClient, table: Table) -> None:
    create(client, table, SCHEMA, primary_key=["id"])
    marked = pa.record_batch({"id": pa.array([1]), "_deleted": pa.array([True])})
    with pytest.raises(pa.ArrowInvalid, match="_deleted"):
        put(client, table, marked)


def test_a_delete_with_a_sequence_counts_once(client: fl.FlightClient, table: Table) -> None:
    create(client, table, SCHEMA, primary_key=["id"])
    rows = pa.record_batch([pa.array([1, 2]), pa.array([1, 1])], schema=SCHEMA)
    put(client, table, rows, origin="deletes-once", metadata=[{"sequence": 1}])
    [first] = delete(client, table, keys(1), origin="deletes-once", metadata={"sequence": 2})
    assert (first["memory_sequence"], first["duplicate"]) == (2, False)
    put(client, table, rows, origin="deletes-once", metadata=[{"sequence": 3}])
    [again] = delete(client, table, keys(1), origin="deletes-once", metadata={"sequence": 2})
    assert (again["memory_sequence"], again["duplicate"]) == (3, True)
    assert state(client, table) == {1: 1, 2: 1}


def test_deletes_survive_kills_and_stops(tmp_path: Path, table: Table) -> None:
    model: State = {}
    daemon = Daemon.start(tmp_path / "data")
    with fl.connect(daemon.flight) as client:
        create(client, table, SCHEMA, primary_key=["id"])
    for step in range(6):
        with fl.connect(daemon.flight) as client:
            assert state(client, table) == model
            changed = dict.fromkeys(range(step, 40, 3), step)
            upsert(client, table, changed)
            if step % 2:
                persist(client, table)
            gone = range(step, 40, 4)
            delete(client, table, keys(*gone))
            model = {id_: v for id_, v in (model | changed).items() if id_ not in gone}
            assert state(client, table) == model
        if step % 3 == 2:
            assert daemon.terminate() == 0
        else:
            daemon.kill()
        daemon = daemon.again()
    with fl.connect(daemon.flight) as client:
        assert state(client, table) == model
    assert daemon.terminate() == 0
    assert files_of(tmp_path / "data" / "store", table) == model


def test_the_client_deletes_and_says_what_was_acknowledged(shared: Daemon, table: Table) -> None:
    with Client(shared.flight) as client:
        client.create_table(*table, SCHEMA, primary_key=["id"])
        client.write(*table, pa.table({"id": [1, 2, 3], "v": [1, 1, 1]}))
        result = client.delete(*table, pa.table({"id": [1, 3, 4]}))
        assert (result.rows, result.batches) == (3, 1)
        assert client.query(*table).to_pylist() == [{"id": 2, "v": 1}]
        with client.writer(*table, KEYS, deletes=True) as writer:
            writer.write(keys(2))
        assert client.query(*table).num_rows == 0
        assert client.delete(*table, []).rows == 0


def test_a_tail_can_be_asked_for_by_a_column_that_older_files_lack(
    client: fl.FlightClient, table: Table
) -> None:
    create(client, table, SCHEMA, primary_key=["id"])
    upsert(client, table, {1: 1, 2: 1})
    version = persist(client, table)
    upsert(client, table, {2: 2, 3: 2})
    persist(client, table)
    wider = pa.record_batch({"id": pa.array([4]), "v": pa.array([3]), "n": pa.array([1])})
    put(client, table, wider)
    for _ in range(2):
        for filter_, found in (([[["n", "=", 1]]], {4}), ([[["n", "is null"]]], {1, 2, 3})):
            assert set(state(client, table, filter=filter_)) == found
            tail = query(client, table, scope="buffered", version=version, filter=filter_)
            marks = dict(zip(tail["id"].to_pylist(), tail["_op"].to_pylist(), strict=True))
            # Key 1 is in the version already, and again in the file that replaced it.
            assert found - {1} <= {id_ for id_, mark in marks.items() if mark == "upsert"}
            assert all(marks[id_] == "delete" for id_ in marks.keys() - found)
        persist(client, table)
