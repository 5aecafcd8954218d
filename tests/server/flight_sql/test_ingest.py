"""Rows written in bulk by ADBC are like all others: durable, readable, checked and limited."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import adbc_driver_flightsql.dbapi as dbapi
import adbc_driver_manager
import polars as pl
import pyarrow as pa
import pyarrow.flight as fl
import pytest
from adbc_driver_flightsql import DatabaseOptions

from ingester.errors import BadRequest, NotAvailable
from ingester.protobuf import bytes_field, varint_field
from ingester.server.flight_sql.ingest import IngestCommand, parse_ingest
from ingester.server.flight_sql.messages import Message, packed
from tests.drivers.all_types import all_types, check_same
from tests.drivers.daemon import Daemon
from tests.drivers.secured import Secured
from tests.drivers.waiting import until
from tests.drivers.wire import Table, create, http, numbers, persist, put, query, rows
from tests.write.transform import acme

MAX_BATCH = 256 << 10
BUFFER = 1 << 20
Refused = adbc_driver_manager.Error


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon with a small limit of batches and a small quota of buffers."""
    folder = tmp_path_factory.mktemp("ingest") / "d"
    with Daemon.start(
        folder,
        flight__max_batch_bytes=MAX_BATCH,
        quotas__buffer_bytes=BUFFER,
        transform__allowed=f"{acme.MODULE.rpartition('.')[0]}.*",
    ) as daemon:
        yield daemon


def connected(daemon: Daemon, **options: str) -> Any:
    """Open an ADBC connection that sends messages of any size."""
    sends = {DatabaseOptions.WITH_MAX_MSG_SIZE.value: str((1 << 31) - 1)}
    return dbapi.connect(daemon.flight, db_kwargs=sends | options, autocommit=True)


def ingest(daemon: Daemon, table: Table, data: Any, mode: str = "create", **options: Any) -> int:
    """Write by ``adbc_ingest``; return the number of rows that the driver reports."""
    with connected(daemon) as connection, connection.cursor() as cursor:
        done: int = cursor.adbc_ingest(
            table[1], data, mode=mode, db_schema_name=table[0], **options
        )
        return done


def stream(*batches: pa.RecordBatch) -> pa.RecordBatchReader:
    return pa.RecordBatchReader.from_batches(batches[0].schema, batches)


def test_rows_are_there_once_after_a_kill_and_every_type_keeps_its_values(tmp_path: Path) -> None:
    table, wanted = ("shop", "types"), all_types("us")
    daemon = Daemon.start(tmp_path / "d", persist__max_age="1h")
    with daemon:
        with ThreadPoolExecutor(4) as threads:
            each = [threads.submit(ingest, daemon, ("n", f"t{i}"), many(i)) for i in range(4)]
            assert [done.result() for done in each] == [1000 * (i + 1) for i in range(4)]
        assert ingest(daemon, table, wanted) == wanted.num_rows
        daemon.kill()
    with daemon.again() as daemon, fl.connect(daemon.flight) as client:
        check_same(query(client, table), wanted)
        for i in range(4):
            assert rows(client, ("n", f"t{i}")) == list(range(1000 * (i + 1)))
        persist(client, table)
        check_same(query(client, table), wanted)


def many(number: int) -> pa.RecordBatchReader:
    """Return a stream of ten batches per thousand rows."""
    return stream(*(numbers(100 * i, 100) for i in range(10 * (number + 1))))


def test_modes_create_and_append_as_their_names_say(
    shared: Daemon, client: fl.FlightClient, table: Table
) -> None:
    batch = numbers(0, 3)
    with pytest.raises(Refused, match=r"NOT_FOUND.*does not exist: mode='create_append'"):
        ingest(shared, table, batch, "append")
    assert ingest(shared, table, batch, "create") == 3
    with pytest.raises(Refused, match=r"INVALID_ARGUMENT.*exists: mode='append'"):
        ingest(shared, table, batch, "create")
    with pytest.raises(Refused, match=r"NOT_IMPLEMENTED.*cannot be replaced.*push"):
        ingest(shared, table, batch, "replace")
    assert ingest(shared, table, numbers(3, 2), "append") == 2
    assert ingest(shared, table, numbers(5, 2), "create_append") == 2
    assert rows(client, table) == list(range(7))


def test_a_batch_without_rows_creates_the_table(
    shared: Daemon, client: fl.FlightClient, table: Table
) -> None:
    assert ingest(shared, table, numbers(0, 0)) == 0
    assert query(client, table).schema.names == ["i"]
    with pytest.raises(Refused, match="exists"):
        ingest(shared, table, numbers(0, 0))


def test_a_stream_without_a_batch_creates_the_table_where_the_client_sends_one(
    client: fl.FlightClient, table: Table
) -> None:
    """Arrow's Go client, and so ADBC, sends nothing at all; C++ sends the schema."""
    assert put_ingest(client, table, numbers(0, 0).schema) == 0
    assert rows(client, table) == []


def put_ingest(client: fl.FlightClient, table: Table, schema: pa.Schema, *batches: Any) -> int:
    """Write as Arrow's C++ client does; return the number of rows."""
    command = packed("CommandStatementIngest", message(table))
    writer, answers = client.do_put(fl.FlightDescriptor.for_command(command), schema)
    with writer:
        for batch in batches:
            writer.write_batch(batch)
        writer.done_writing()
        answer = answers.read()
        assert answer is not None
        assert answers.read() is None
        return Message("DoPutUpdateResult", answer.to_pybytes()).number(1)


def message(table: Table, creates: int = 1, appends: int = 2, more: bytes = b"") -> bytes:
    options = varint_field(1, creates) + varint_field(2, appends)
    named = bytes_field(2, table[1]) + bytes_field(3, table[0])
    return bytes_field(1, options) + named + more


def parsed(message: bytes, default: str | None = None) -> IngestCommand:
    return parse_ingest(Message("CommandStatementIngest", message), default)


def test_options_that_are_not_supported_are_refused_by_name() -> None:
    assert parsed(message(("n", "t"))) == IngestCommand(("n", "t"), True, True)
    assert parsed(message(("n", "t"), 2, 1)) == IngestCommand(("n", "t"), False, False)
    assert parsed(message(("", "t")), "own").table == ("own", "t")
    assert parsed(message(("n", "t"), more=bytes_field(4, "ingester"))).table == ("n", "t")
    option = bytes_field(1000, bytes_field(1, "speed") + bytes_field(2, "high"))
    for said, error, more in [
        ("catalog 'other' does not exist", BadRequest, bytes_field(4, "other")),
        ("temporary tables", NotAvailable, varint_field(5, 1)),
        ("transactions", NotAvailable, bytes_field(6, b"t1")),
        ("option 'speed'", NotAvailable, option),
    ]:
        with pytest.raises(error, match=said):
            parsed(message(("n", "t"), more=more))
    with pytest.raises(BadRequest, match=r"no namespace.*db_schema_name"):
        parsed(message(("", "t")))
    for creates, appends, said in [
        (0, 2, "if_not_exist is 0"),
        (1, 0, "if_exists 0"),
        (3, 1, "if_not_exist is 3"),
    ]:
        with pytest.raises(BadRequest, match=said):
            parsed(message(("n", "t"), creates, appends))


def test_columns_are_matched_by_name_and_may_be_missing(
    shared: Daemon, client: fl.FlightClient, table: Table
) -> None:
    first = pa.record_batch({"a": ["a1"], "b": ["b1"]})
    ingest(shared, table, first)
    ingest(shared, table, pa.record_batch({"b": ["b2"], "a": ["a2"]}), "append")
    ingest(shared, table, pa.record_batch({"b": ["b3"]}), "append")
    found = query(client, table).sort_by("b").select(["a", "b"])
    assert found.to_pydict() == {"a": ["a1", "a2", None], "b": ["b1", "b2", "b3"]}


BAD: dict[str, pa.RecordBatch] = {
    "another type": pa.record_batch({"i": ["x"]}),
    "a null in the key": pa.record_batch({"i": pa.array([None], pa.int64())}),
    "no key": pa.record_batch({"j": [1]}),
    "only another case": pa.record_batch({"I": [1], "i": [1]}),
    "a type that no table has": pa.record_batch({"i": [1], "t": pa.array([1], pa.time32("s"))}),
    "run-end encoded": pa.record_batch(
        {"i": [1], "r": pa.RunEndEncodedArray.from_arrays([1], ["x"])}
    ),
    "a union": pa.record_batch(
        {"i": [1], "u": pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])])}
    ),
}


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_batch_is_refused_as_it_is_without_sql(
    client: fl.FlightClient, table: Table, bad: str
) -> None:
    create(client, table, numbers(0, 0).schema, primary_key=["i"])
    batch = BAD[bad]
    with pytest.raises((OSError, pa.ArrowException, fl.FlightError)) as plainly:
        put(client, table, batch)
    with pytest.raises((OSError, pa.ArrowException, fl.FlightError)) as found:
        put_ingest(client, table, batch.schema, batch)
    said = str(plainly.value).partition(". Detail")[0]
    assert str(found.value).startswith(f"{said} (no row is written)")
    assert type(found.value) is type(plainly.value)


@pytest.mark.parametrize(
    "texts",
    [
        pa.array(["x", None], pa.large_string()),
        pa.array(["x", None], pa.string_view()),
        pa.array(["x", None]).dictionary_encode(),
        pa.ExtensionArray.from_storage(pa.json_(), pa.array(["x", None])),
    ],
    ids=lambda array: str(array.type),
)
def test_encodings_are_written_in_plain_form(
    shared: Daemon, client: fl.FlightClient, table: Table, texts: pa.Array
) -> None:
    ingest(shared, table, pa.record_batch({"s": texts}))
    found = query(client, table)["s"]
    assert found.type == pa.string()
    assert found.to_pylist() == ["x", None]


def test_a_refusal_in_the_middle_says_how_many_rows_stay(
    shared: Daemon, client: fl.FlightClient, table: Table
) -> None:
    offsets = pa.array([0, 2], pa.int32()).buffers()[1]
    not_utf8 = pa.Array.from_buffers(pa.string(), 1, [None, offsets, pa.py_buffer(b"\xff\xff")])
    good = pa.record_batch({"s": ["x"]})
    bad = pa.RecordBatch.from_arrays([not_utf8], schema=good.schema)
    with pytest.raises(Refused, match=r"UTF8.*7 rows before them are written and stay"):
        ingest(shared, table, stream(*[good] * 7, bad, *[good] * 500))
    assert query(client, table).num_rows == 7


def test_rows_of_a_source_that_fails_stay(
    shared: Daemon, client: fl.FlightClient, table: Table
) -> None:
    put(client, table, numbers(0, 1))

    def failing() -> Iterator[pa.RecordBatch]:
        yield numbers(1, 1)
        deadline = time.monotonic() + 10
        while len(rows(client, table)) < 2 and time.monotonic() < deadline:
            pass
        raise ValueError("the source has failed")

    reader = pa.RecordBatchReader.from_batches(numbers(0, 1).schema, failing())
    with pytest.raises(Refused, match="the source has failed"):
        ingest(shared, table, reader, "append")
    assert rows(client, table) == [0, 1]


KINDS = {
    "string": pa.string(),
    "string_view": pa.string_view(),
    "dictionary": pa.dictionary(pa.int32(), pa.string()),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_of_any_size_is_divided_and_waits_for_room(small: Daemon, kind: str) -> None:
    """The quota of buffers is smaller than the batch: the daemon persists what it has meanwhile."""
    count, table = 25_000, ("big", kind)
    texts = pa.array([f"a text of the row {i % 1000:050}" for i in range(count)]).cast(KINDS[kind])
    batch = numbers(0, count, s=texts)
    assert batch.get_total_buffer_size() > MAX_BATCH
    assert ingest(small, table, batch) == count
    with fl.connect(small.flight) as client:
        assert rows(client, table) == list(range(count))
        assert query(client, table).sort_by("i")["s"].to_pylist() == texts.to_pylist()


def test_transformers_see_each_row_once_also_if_it_had_to_wait(small: Daemon) -> None:
    table, count = ("big", "doubled"), 25_000
    batch = numbers(0, count, s=pa.array([f"{i:060}" for i in range(count)]))
    with fl.connect(small.flight) as client:
        create(client, table, batch.schema, transformers=[f"{acme.MODULE}:Double"])
        assert ingest(small, table, batch, "append") == count
        assert rows(client, table) == list(range(0, 2 * count, 2))


def test_a_row_that_is_too_large_is_refused(small: Daemon) -> None:
    table = ("big", "row")
    batch = pa.record_batch({"s": ["x", "y" * 3 * MAX_BATCH, "z"]})
    with pytest.raises(Refused, match=r"flight.max_batch_bytes is .*1 rows before"):
        ingest(small, table, batch)


def test_a_client_that_leaves_while_its_batch_waits_is_let_go(tmp_path: Path) -> None:
    with (
        Daemon.start(tmp_path / "d", quotas__bytes_per_s=2000) as daemon,
        fl.connect(daemon.flight) as client,
    ):
        command = packed("CommandStatementIngest", message(("slow", "t")))
        writer, answers = client.do_put(
            fl.FlightDescriptor.for_command(command),
            numbers(0, 1).schema,
            options=fl.FlightCallOptions(timeout=1.0),
        )
        for i in range(3):
            writer.write_batch(numbers(i * 10_000, 10_000))
        writer.done_writing()
        assert answers.read() is None
        with pytest.raises(fl.FlightTimedOutError):
            writer.close()
        # The next batch would have had to wait for 40 seconds.
        until(lambda: gone(daemon) == 1, "the daemon to notice")


def gone(daemon: Daemon) -> float:
    lines = http(f"{daemon.http}/metrics")[2].decode().splitlines()
    name = "ingester_clients_gone_total "
    return sum(float(line.removeprefix(name)) for line in lines if line.startswith(name))


def test_rights_are_those_of_a_write(tmp_path: Path) -> None:
    secured = Secured(tmp_path, {"writer": "shop:write", "reader": "shop:read"})
    with Daemon.start(tmp_path / "d", environment=None, arguments=(), **secured.settings) as daemon:

        def ingest_as(name: str, namespace: str) -> int:
            options = {
                DatabaseOptions.TLS_ROOT_CERTS.value: secured.ca.read_text(),
                DatabaseOptions.AUTHORIZATION_HEADER.value: f"Bearer {secured.tokens[name]}",
            }
            with connected(daemon, **options) as connection, connection.cursor() as cursor:
                done: int = cursor.adbc_ingest("t", numbers(0, 3), db_schema_name=namespace)
                return done

        assert ingest_as("writer", "shop") == 3
        for name, namespace in ("reader", "shop"), ("writer", "other"):
            with pytest.raises(Refused, match="UNAUTHORIZED"):
                ingest_as(name, namespace)


def test_polars_writes_a_frame(shared: Daemon, client: fl.FlightClient, table: Table) -> None:
    frame = pl.DataFrame(
        {
            "i": range(1000),
            "s": [f"a text that is longer than a view {i}" for i in range(1000)],
            "c": pl.Series(["u", None] * 500, dtype=pl.Categorical),
            "d": pl.Series([1, None] * 500).cast(pl.Duration("us")).dt.total_seconds(),
        }
    )
    with connected(shared) as connection:
        for how in "fail", "append":
            done = frame.write_database(
                ".".join(table), connection, engine="adbc", if_table_exists=how
            )
            assert done == 1000
        with pytest.raises(Refused, match="exists"):
            frame.write_database(".".join(table), connection, engine="adbc")
        with pytest.raises(Refused, match="cannot be replaced"):
            frame.write_database(
                ".".join(table), connection, engine="adbc", if_table_exists="replace"
            )
    found = pl.DataFrame(query(client, table)).sort("i")
    assert found["s"].to_list() == [text for text in frame["s"] for _ in range(2)]
    assert found["c"].to_list() == [text for text in frame["c"] for _ in range(2)]
