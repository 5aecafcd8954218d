"""Every size limit refuses before it creates anything, is named and counted, and keeps old data."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from tests.drivers.daemon import Daemon
from tests.drivers.syncing import Source
from tests.drivers.wire import (
    Stream,
    Table,
    act,
    create,
    extra,
    http,
    persist,
    put,
    query,
    rows,
    writing,
)

LIMITS = {
    "columns": 20,
    "nesting": 4,
    "dictionaries": 3,
    "name_bytes": 32,
    "metadata_bytes": "4KiB",
    "partitions": 5,
    "tables": 12,
    "namespaces": 3,
    "origins": 6,
    "checkpoints": 3,
    "transactions": 2,
}
SETTINGS: dict[str, Any] = {f"limits__{name}": value for name, value in LIMITS.items()}
NUMBERS = pa.schema({"i": pa.int64()})


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon.start(tmp_path_factory.mktemp("limits") / "d", **SETTINGS) as running:
        yield running


@pytest.fixture
def client(daemon: Daemon) -> Iterator[fl.FlightClient]:
    with fl.connect(daemon.flight) as connected:
        yield connected


def columns(count: int) -> pa.RecordBatch:
    return pa.record_batch({f"c{n}": [n] for n in range(count)})


def nested(depth: int) -> pa.RecordBatch:
    kind: pa.DataType = pa.int64()
    for _ in range(depth):
        kind = pa.list_(kind)
    return pa.record_batch({"deep": pa.array([None], kind)})


def dictionaries(count: int) -> pa.RecordBatch:
    """All but one of the dictionaries are nested in a struct; nested ones count too."""
    word = pa.array(["a"]).dictionary_encode()
    inside = pa.StructArray.from_arrays([word] * (count - 1), [f"d{n}" for n in range(count - 1)])
    return pa.record_batch({"s": inside, "d": word})


def named(nbytes: int) -> pa.RecordBatch:
    """A nested field whose name has two-byte characters."""
    return pa.record_batch({"s": pa.array([{"é" * (nbytes // 2): 1}])})


def described(nbytes: int) -> pa.RecordBatch:
    field = pa.field("i", pa.int64(), metadata={"k": "v" * (nbytes - 1)})
    return pa.record_batch([pa.array([1])], schema=pa.schema([field]))


SHAPES: dict[str, tuple[Callable[[int], pa.RecordBatch], int]] = {
    "columns": (columns, 20),
    "nesting": (nested, 4),
    "dictionaries": (dictionaries, 3),
    "name_bytes": (named, 32),
    "metadata_bytes": (described, 4096),
}


def tables(client: fl.FlightClient) -> set[tuple[str, ...]]:
    return {tuple(part.decode() for part in info.descriptor.path) for info in client.list_flights()}


def wrote(client: fl.FlightClient, table: Table, origin: str) -> bool:
    """Whether an origin's first batch was accepted; False if the limit on origins refused it."""
    try:
        put(client, table, pa.record_batch({"i": [1]}), origin=origin, metadata=[{"sequence": 1}])
    except fl.FlightUnavailableError as exc:
        return "limits.origins is 6" not in str(exc)
    return True


def refused(daemon: Daemon, limit: str) -> int:
    """How often this limit has refused, from its metric."""
    text = http(f"{daemon.http}/metrics")[2].decode()
    found = re.search(rf'ingester_limit_refused_total{{limit="{limit}"}} ([\d.]+)', text)
    assert found is not None
    return int(float(found[1]))


@pytest.mark.parametrize("limit", SHAPES)
def test_a_schema_of_the_largest_shape_is_taken_and_a_larger_one_makes_nothing(
    daemon: Daemon, client: fl.FlightClient, limit: str
) -> None:
    make, most = SHAPES[limit]
    before = refused(daemon, limit)
    for table, count in (("fits", most), ("over", most + 1 + (limit == "name_bytes"))):
        batch = make(count)
        sent = base64.b64encode(batch.schema.serialize().to_pybytes()).decode()
        if table == "fits":
            put(client, ("shapes", limit), batch)
            continue
        said = rf"limits\.{limit} is {most}"
        with pytest.raises(pa.ArrowInvalid, match=said):
            put(client, ("shapes", "over"), batch)
        with pytest.raises(pa.ArrowInvalid, match=said):
            act(client, "create_table", namespace="shapes", table="over", schema=sent)
    assert refused(daemon, limit) == before + 2
    assert ("shapes", "over") not in tables(client)


def test_too_many_columns_are_refused_before_anything_else_is_looked_at(
    client: fl.FlightClient,
) -> None:
    batch = nested(5).append_column("n" * 33, pa.array([1]))
    many = pa.record_batch({**{f"c{n}": [n] for n in range(20)}, "n" * 33: [1]})
    with pytest.raises(pa.ArrowInvalid, match=r"limits\.nesting is 4"):
        put(client, ("shapes", "many"), batch)
    with pytest.raises(pa.ArrowInvalid, match="would have 21 columns"):
        put(client, ("shapes", "many"), many)


def test_a_table_does_not_grow_beyond_its_columns_and_takes_what_fits(
    client: fl.FlightClient,
) -> None:
    table = ("shapes", "grown")
    put(client, table, columns(15))
    more = pa.record_batch({f"d{n}": [n] for n in range(6)})
    with pytest.raises(pa.ArrowInvalid, match="would have 21 columns"):
        put(client, table, more)
    put(client, table, more.select(range(5)))
    # A column without a type is not added to the table.
    put(client, table, pa.record_batch({"c0": [1], **{f"e{n}": pa.nulls(1) for n in range(30)}}))
    assert len(query(client, table).schema) == 20


def test_the_metadata_of_a_batch_is_bounded_beside_its_states(client: fl.FlightClient) -> None:
    state = base64.b64encode(b"s" * (1 << 20)).decode()
    other = base64.b64encode(b"o" * (1 << 20)).decode()
    states = {"checkpoint": {"partition": "p", "state": state, "shared": other}}
    table = ("shapes", "states")
    put(client, table, pa.record_batch({"i": [1]}), metadata=[states])
    bomb = json.dumps(states).encode() + b" " * 4096
    with pytest.raises(pa.ArrowInvalid, match=r"limits\.metadata_bytes, which is 4096"):
        put(client, table, pa.record_batch({"i": [2]}), metadata=[bomb])
    assert rows(client, table) == [1]


def test_a_flood_of_partitions_is_refused_in_each_way_into_the_log(
    daemon: Daemon, client: fl.FlightClient
) -> None:
    table = ("shapes", "flood")
    create(client, table, NUMBERS, partition_by=["identity(i)"])
    wide = pa.record_batch({"i": range(6)})
    with pytest.raises(pa.ArrowInvalid, match="opens 6 partitions"):
        put(client, table, wide)  # small, so it is coalesced
    with pytest.raises(pa.ArrowInvalid, match="opens 6 partitions"):
        put(client, table, wide, origin="flood", metadata=[{"sequence": 1}])
    put(client, table, pa.record_batch({"i": range(5)}))
    large = pa.record_batch({"i": [*range(4), *[5] * 60_000]})  # large, so it is passed on
    for origin in (None, "flood"):
        metadata = None if origin is None else [{"sequence": 1}]
        with pytest.raises(fl.FlightUnavailableError, match=r"limits\.partitions is 5") as error:
            put(client, table, large, origin=origin, metadata=metadata)
        assert extra(error.value)["code"] == "limit"
        assert extra(error.value)["limit"] == "limits.partitions"
        # The refusal triggers a flush of the oldest partitions; afterwards there is room for all.
        persist(client, table)
        put(client, table, pa.record_batch({"i": range(5)}))
    assert refused(daemon, "partitions") >= 4
    assert max(rows(client, table)) == 4


def test_tables_and_namespaces_origins_states_and_transactions_have_an_end(
    daemon: Daemon, client: fl.FlightClient
) -> None:
    one = pa.record_batch({"i": [1]})
    table = ("ends", "t")
    put(client, table, one)
    put(client, ("second", "t"), one)
    keyed = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.float64())])
    create(client, ("ends", "keyed"), keyed, primary_key=["id"])
    with pytest.raises(pa.ArrowInvalid, match=r"3 namespaces open; limits\.namespaces is 3"):
        put(client, ("third", "t"), one)
    for number in range(12 - len(tables(client))):
        put(client, ("ends", f"t{number}"), one)
    with pytest.raises(pa.ArrowInvalid, match=r"limits\.tables is 12"):
        put(client, ("ends", "over"), one)
    assert len(tables(client)) == 12

    for name in ("a", "b", "c"):
        partition = {"partition": name, "state": ""}
        put(client, table, one, metadata=[{"checkpoint": partition}])
    put(client, table, one, metadata=[{"checkpoint": {"partition": "a", "state": "YQ=="}}])
    with pytest.raises(pa.ArrowInvalid, match=r"limits\.checkpoints is 3"):
        put(client, table, one, metadata=[{"checkpoint": {"partition": "d", "state": ""}}])
    act(client, "checkpoint_delete", namespace="ends", table="t", partition="b")
    put(client, table, one, metadata=[{"checkpoint": {"partition": "d", "state": ""}}])

    for number in range(30):  # a stream that wrote nothing leaves no origin
        with Stream(client, writing(table, f"idle-{number}"), one.schema) as stream:
            stream.writer.done_writing()
    sources = [Source(client, "ends", name) for name in ("x", "y", "z")]
    changes = [(None, 1, {"v": 1.0})]
    for source in sources[:2]:
        assert source.send("keyed", changes, last=False)["accepted"]
    answer = sources[2].send("keyed", changes, last=False)
    assert (answer["accepted"], answer["code"]) == (False, "limit")
    assert "limits.transactions is 2" in answer["message"]
    taken = [wrote(client, table, f"o{number}") for number in range(7)]
    assert taken == sorted(taken, reverse=True)
    assert 2 <= sum(taken) <= 3  # one more if z, which has written nothing, was already dropped
    assert wrote(client, table, "o0")
    assert refused(daemon, "transactions") == 1
    assert refused(daemon, "origins") == 7 - sum(taken)


def test_what_was_taken_before_a_limit_was_lowered_is_replayed_read_and_written(
    tmp_path: Path,
) -> None:
    table, batch = ("ns", "t"), columns(10)
    with Daemon.start(tmp_path / "d") as daemon:
        with fl.connect(daemon.flight) as client:
            create(client, table, batch.schema, partition_by=["identity(c0)"])
            for number in range(6):
                changed = [pa.array([number]), *batch.columns[1:]]
                put(
                    client,
                    table,
                    pa.record_batch(changed, schema=batch.schema),
                    origin=f"o{number}",
                    metadata=[
                        {"sequence": 1, "checkpoint": {"partition": f"p{number}", "state": ""}}
                    ],
                )
            put(client, ("other", "t"), batch)
        daemon.kill()
        lowered = dict.fromkeys(SETTINGS, 2) | {"limits__metadata_bytes": "1KiB"}
        with daemon.again(**lowered) as again, fl.connect(again.flight) as client:
            assert rows(client, table, "c0") == list(range(6))
            put(client, table, batch)
            assert query(client, ("other", "t")).num_columns == 10
            with pytest.raises(pa.ArrowInvalid, match=r"limits\.columns is 2"):
                put(client, table, batch.append_column("d0", pa.array([1])))
            assert again.terminate() == 0
