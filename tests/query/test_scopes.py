"""Query scopes: one manifest version, and the buffered tail that completes it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pyarrow.parquet as pq
import pytest

from tests.drivers.daemon import Daemon
from tests.drivers.wire import (
    Table,
    chunks,
    create,
    describe,
    events,
    extra,
    numbers,
    persist,
    put,
    query,
    rows,
)


def test_a_version_is_exactly_its_files_for_ever(client: fl.FlightClient, table: Table) -> None:
    expected: dict[int, int] = {}
    for step in range(4):
        put(client, table, events(step * 10, 10, days=3))
        expected[persist(client, table)] = (step + 1) * 10
        put(client, table, events(1000 + step, 1))
        for version, count in expected.items():
            found = rows(client, table, scope="version", version=version)
            assert [i for i in found if i < 1000] == list(range(count))
    newest = max(expected)
    sources = {m["source"] for _, m in chunks(client, table, scope="version", version=newest)}
    assert sources == {"file"}


def test_the_first_version_has_no_rows(client: fl.FlightClient, table: Table) -> None:
    put(client, table, numbers(0, 1))
    persist(client, table)
    assert query(client, table, scope="version", version=1).num_rows == 0


def test_a_version_beyond_the_newest_is_refused_with_the_oldest_kept(
    client: fl.FlightClient, table: Table
) -> None:
    put(client, table, numbers(0, 1))
    newest = persist(client, table)
    with pytest.raises(pa.ArrowInvalid, match=rf"{newest + 1}.*oldest kept is 1"):
        query(client, table, scope="version", version=newest + 1)
    with pytest.raises(pa.ArrowInvalid, match=str(newest + 7)):
        query(client, table, scope="buffered", version=newest + 7)
    # Longer than an object name may be.
    with pytest.raises(pa.ArrowInvalid, match="is not kept: the oldest kept is 1"):
        query(client, table, scope="version", version=10**300)


def test_an_older_version_answers_with_its_own_columns(
    client: fl.FlightClient, table: Table
) -> None:
    put(client, table, numbers(0, 1))
    old = persist(client, table)
    put(client, table, numbers(1, 1, more=pa.array([1])))
    new = persist(client, table)
    assert query(client, table, scope="version", version=old).column_names == ["i"]
    assert query(client, table, scope="version", version=new).column_names == ["i", "more"]
    with pytest.raises(pa.ArrowInvalid, match="more"):
        query(client, table, scope="version", version=old, columns=["more"])


def test_the_buffered_tail_completes_any_recent_version(
    client: fl.FlightClient, table: Table
) -> None:
    versions = [describe_after(client, table, 0)]
    for step in range(1, 5):
        put(client, table, events(step * 10, 10, days=3))
        versions.append(persist(client, table))
        put(client, table, events(step * 10 + 100, 5, days=2))
        everything = rows(client, table)
        for version in versions:
            files = rows(client, table, scope="version", version=version)
            tail = rows(client, table, scope="buffered", version=version)
            assert sorted(files + tail) == everything
    assert rows(client, table, scope="buffered") == list(range(140, 145))


def describe_after(client: fl.FlightClient, table: Table, first: int) -> int:
    put(client, table, events(first, 10, days=3))
    version = describe(client, table)["manifest_version"]
    assert isinstance(version, int)
    return version


def test_the_tail_names_the_version_that_it_completes(
    client: fl.FlightClient, table: Table
) -> None:
    put(client, table, numbers(0, 3))
    version = persist(client, table)
    put(client, table, numbers(3, 3))
    tail = query(client, table, scope="buffered")
    assert tail["i"].to_pylist() == [3, 4, 5]
    assert int(tail.schema.metadata[b"manifest_version"]) == version
    older = query(client, table, scope="buffered", version=version)
    assert int(older.schema.metadata[b"manifest_version"]) == version


def test_the_tail_takes_columns_filter_and_limit(client: fl.FlightClient, table: Table) -> None:
    version = describe_after(client, table, 0)
    persist(client, table)
    put(client, table, events(10, 10, days=3))
    asked: dict[str, Any] = {"scope": "buffered", "version": version}
    assert rows(client, table, filter=[[["i", ">", 7]]], **asked) == list(range(8, 20))
    assert query(client, table, columns=["host"], limit=12, **asked).shape == (12, 1)


def test_files_and_tail_are_what_any_parquet_reader_finds(
    shared: Daemon, client: fl.FlightClient, table: Table
) -> None:
    put(client, table, events(0, 50, days=3))
    persist(client, table)
    put(client, table, events(50, 50, days=3))
    folder = shared.data_dir / "store" / table[0] / table[1] / "v1" / "data"
    files = [pq.ParquetFile(path).read() for path in folder.rglob("*.parquet")]
    found = [i for file in files for i in file["i"].to_pylist()]
    assert sorted(found + rows(client, table, scope="buffered")) == list(range(100))
    assert sorted({path.parent.name for path in folder.rglob("*.parquet")}) == [
        f"time_day=2026-11-{day}" for day in (21, 22, 23)
    ]


@pytest.fixture(scope="module")
def forgetful(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon that retains no tails of replaced versions."""
    folder: Path = tmp_path_factory.mktemp("forgetful")
    with Daemon.start(folder / "data", query__tail_retain="0s") as daemon:
        yield daemon


def test_a_version_too_old_for_a_tail_is_stale_and_names_the_newest(
    forgetful: Daemon, table: Table
) -> None:
    with fl.connect(forgetful.flight) as client:
        put(client, table, numbers(0, 1))
        old = persist(client, table)
        put(client, table, numbers(1, 1))
        new = persist(client, table)
        with pytest.raises(fl.FlightUnavailableError) as error:
            query(client, table, scope="buffered", version=old)
        info = extra(error.value)
        assert info["code"] == "stale"
        assert new in info.values()
        # A stale error asks the client to load the newest version and retry.
        assert query(client, table, scope="buffered", version=new).num_rows == 0
        assert rows(client, table, scope="version", version=new) == [0, 1]
        # Only tails expire; the version itself is kept.
        assert rows(client, table, scope="version", version=old) == [0]


KEYED = pa.schema({"id": pa.int64(), "v": pa.string()})


def _upsert(client: fl.FlightClient, table: Table, rows_: dict[int, str]) -> None:
    put(
        client,
        table,
        pa.record_batch([pa.array(list(rows_)), pa.array(list(rows_.values()))], schema=KEYED),
    )


def _state(client: fl.FlightClient, table: Table, **fields: object) -> dict[int, str]:
    found = query(client, table, **fields)
    pairs = list(zip(found["id"].to_pylist(), found["v"].to_pylist(), strict=True))
    assert len(dict(pairs)) == len(pairs), "a key stands twice"
    return dict(pairs)


@pytest.mark.parametrize("spec", [[], ["bucket(3, id)"]])
def test_a_keyed_table_has_the_last_row_of_each_key(
    client: fl.FlightClient, table: Table, spec: list[str]
) -> None:
    create(client, table, KEYED, primary_key=["id"], partition_by=spec)
    model: dict[int, str] = {}
    for step in range(12):
        changed = {id_: f"{id_}@{step}" for id_ in range(step % 5, 30, 1 + step % 4)}
        _upsert(client, table, changed)
        model |= changed
        assert _state(client, table) == model
        if step % 3 == 2:
            version = persist(client, table)
            assert _state(client, table, scope="version", version=version) == model
            assert _state(client, table) == model
    assert _state(client, table, filter=[[["v", "=", model[7]]]]) == {7: model[7]}
    assert _state(client, table, filter=[[["v", "=", "7@0"]]]) == {}
    assert query(client, table, columns=["v"], filter=[[["id", "=", 7]]]).to_pydict() == {
        "v": [model[7]]
    }
    assert query(client, table, limit=4).num_rows == 4


def test_the_last_row_of_a_key_in_one_batch_counts(client: fl.FlightClient, table: Table) -> None:
    create(client, table, KEYED, primary_key=["id"])
    doubled = pa.record_batch([pa.array([1, 2, 1]), pa.array(["a", "b", "c"])], schema=KEYED)
    put(client, table, doubled)
    for _ in range(2):
        assert _state(client, table) == {1: "c", 2: "b"}
        persist(client, table)


def test_a_filter_does_not_bring_replaced_rows_back(client: fl.FlightClient, table: Table) -> None:
    create(client, table, KEYED, primary_key=["id"])
    _upsert(client, table, {1: "old", 2: "old"})
    persist(client, table)
    _upsert(client, table, {1: "new"})
    assert _state(client, table, filter=[[["v", "=", "old"]]]) == {2: "old"}
    persist(client, table)
    assert _state(client, table, filter=[[["v", "=", "old"]]]) == {2: "old"}
    assert _state(client, table) == {1: "new", 2: "old"}


def test_the_tail_of_a_keyed_table_merges_by_key(client: fl.FlightClient, table: Table) -> None:
    create(client, table, KEYED, primary_key=["id"])
    versions = []
    for step in range(3):
        _upsert(client, table, {id_: f"{id_}@{step}" for id_ in range(step, 10, step + 1)})
        versions.append(persist(client, table))
    _upsert(client, table, {3: "3@last", 99: "new"})
    whole = _state(client, table)
    for version in versions:
        tail = query(client, table, scope="buffered", version=version)
        assert tail.column_names == ["id", "v", "_op"]
        assert set(tail["_op"].to_pylist()) == {"upsert"}
        merged = _state(client, table, scope="version", version=version)
        for id_, v in zip(tail["id"].to_pylist(), tail["v"].to_pylist(), strict=True):
            merged[id_] = v
        assert merged == whole


def test_a_keyed_row_without_its_key_is_refused(client: fl.FlightClient, table: Table) -> None:
    create(client, table, KEYED, primary_key=["id"])
    with pytest.raises(pa.ArrowInvalid, match=r"'id'.*primary key"):
        put(client, table, pa.record_batch({"v": pa.array(["x"])}))
    with pytest.raises(pa.ArrowInvalid, match=r"'id'.*1 nulls.*primary key"):
        put(client, table, pa.record_batch({"id": pa.array([1, None]), "v": pa.array(["x", "y"])}))
    assert query(client, table).num_rows == 0


def test_a_keyed_table_survives_kills_and_stops(tmp_path: Path, table: Table) -> None:
    model: dict[int, str] = {}
    daemon = Daemon.start(tmp_path / "data")
    with fl.connect(daemon.flight) as client:
        create(client, table, KEYED, primary_key=["id"])
    for step in range(6):
        with fl.connect(daemon.flight) as client:
            assert _state(client, table) == model
            for part in range(3):
                changed = dict.fromkeys(range(step + part, 40, part + 2), f"{step}.{part}")
                _upsert(client, table, changed)
                model |= changed
                if part == 0 and step % 2:
                    persist(client, table)
            assert _state(client, table) == model
        if step % 3 == 2:
            assert daemon.terminate() == 0
        else:
            daemon.kill()
        daemon = daemon.again()
    with daemon, fl.connect(daemon.flight) as client:
        assert _state(client, table) == model
        version = persist(client, table)
        assert _state(client, table, scope="version", version=version) == model


def test_a_ticket_of_flight_info_is_good_for_a_query(client: fl.FlightClient, table: Table) -> None:
    put(client, table, numbers(0, 5))
    body = {"namespace": table[0], "table": table[1], "filter": [[["i", ">", 2]]]}
    info = client.get_flight_info(fl.FlightDescriptor.for_command(json.dumps(body).encode()))
    (endpoint,) = info.endpoints
    assert client.do_get(endpoint.ticket).read_all().to_pydict() == {"i": [3, 4]}
