"""A real daemon passes batches through the transformers of their table."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from ingester.client import Client, InvalidRequest
from tests.drivers.daemon import Daemon
from tests.drivers.syncing import Source
from tests.drivers.wire import (
    Stream,
    Table,
    act,
    create,
    delete,
    describe,
    http,
    numbers,
    origin_of,
    persist,
    put,
    query,
    rows,
    writing,
)
from tests.write.transform.acme import MODULE

_numbers = itertools.count(1)
NUMBERS = pa.schema({"i": pa.int64()})
NAMED = pa.schema({"i": pa.int64(), "until": pa.string()})


def named(first: int, count: int, until: object = "") -> pa.RecordBatch:
    return numbers(first, count, until=pa.array([str(until)] * count))


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("transform")
    tables = {
        "set/doubled": {"transformers": [f"{MODULE}:Double"]},
        "set/unknown": {"transformers": [f"{MODULE}:Nobody"]},
        "set/no_module": {"transformers": ["acme_is_not_there:Class"]},
        "set/off": {"transformers": []},
    }
    with Daemon.start(
        folder / "data",
        transform__allowed=MODULE,
        flight__max_batch_bytes="1MiB",
        tables=json.dumps(tables),
    ) as started:
        yield started


@pytest.fixture
def client(daemon: Daemon) -> Iterator[fl.FlightClient]:
    with fl.connect(daemon.flight) as client:
        yield client


@pytest.fixture
def table() -> Table:
    return ("tr", f"t{next(_numbers)}")


def made(
    client: fl.FlightClient,
    table: Table,
    *classes: str,
    schema: pa.Schema = NUMBERS,
    **fields: object,
) -> Table:
    create(client, table, schema, transformers=[f"{MODULE}:{name}" for name in classes], **fields)
    return table


def refusal(client: fl.FlightClient, table: Table, batch: pa.RecordBatch) -> Exception:
    with pytest.raises((pa.ArrowException, fl.FlightError)) as caught:
        put(client, table, batch)
    error: Exception = caught.value
    return error


# Stored rows


def test_a_batch_is_written_as_its_class_makes_it(client: fl.FlightClient, table: Table) -> None:
    put(client, made(client, table, "Double"), numbers(1, 3))
    assert rows(client, table) == [2, 4, 6]


def test_classes_follow_each_other(client: fl.FlightClient, table: Table) -> None:
    made(client, table, "Evens", "Double", "Described")
    put(client, table, numbers(1, 4, raw=pa.array(["a", "bb", "ccc", "dddd"])))
    assert rows(client, table) == [4, 8]
    assert rows(client, table, "length") == [2, 4]


def test_settings_name_classes_for_a_table_that_its_first_write_makes(
    client: fl.FlightClient,
) -> None:
    put(client, ("set", "doubled"), numbers(5, 2))
    assert rows(client, ("set", "doubled")) == [10, 12]
    (used,) = describe(client, ("set", "doubled"))["transformers"]
    assert used == {"class": f"{MODULE}:Double", "version": "1", "previous": None}


def test_an_empty_list_in_the_settings_wins_over_create_table(client: fl.FlightClient) -> None:
    table = made(client, ("set", "off"), "Double")
    put(client, table, numbers(5, 1))
    assert rows(client, table) == [5]
    assert describe(client, table)["transformers"] == []


def test_columns_come_and_go(client: fl.FlightClient, table: Table) -> None:
    schema = pa.schema({"i": pa.int64(), "length": pa.int32()})
    made(client, table, "Described", schema=schema)
    put(client, table, numbers(0, 2, raw=pa.array(["ab", "c"])))
    assert query(client, table).schema.names == ["i", "length"]
    assert rows(client, table, "length") == [1, 2]


def test_more_columns_come_than_the_table_could_have(client: fl.FlightClient, table: Table) -> None:
    made(client, table, "Sums", schema=pa.schema({"i": pa.int64()}))
    wide = {f"c{n}": [n] for n in range(2_100)}
    put(client, table, pa.record_batch(wide))
    assert rows(client, table) == [sum(range(2_100))]


def test_a_new_column_that_a_class_makes_is_added(client: fl.FlightClient, table: Table) -> None:
    made(client, table, "Described")
    put(client, table, numbers(0, 1, raw=pa.array(["abc"])))
    assert rows(client, table, "length") == [3]
    assert "raw" not in query(client, table).schema.names


def test_rows_go_one_by_one(client: fl.FlightClient, table: Table) -> None:
    put(client, made(client, table, "Squares"), numbers(1, 11))
    assert rows(client, table) == [4, 10, 16, 36, 64]


def test_each_stream_has_its_own_instance(client: fl.FlightClient, table: Table) -> None:
    made(client, table, "Numbered")
    put(client, table, numbers(0, 1), numbers(0, 1), numbers(0, 1))
    put(client, table, numbers(0, 1))
    assert rows(client, table) == [1, 1, 2, 3]


def test_batches_sent_ahead_keep_their_order(client: fl.FlightClient, table: Table) -> None:
    made(client, table, "Numbered")
    with Stream(client, writing(table, "ahead"), NUMBERS) as stream:
        for sequence in range(200):
            stream.send(numbers(0, 1), {"sequence": sequence})
        answers = stream.rest()
    assert [answer["accepted"] for answer in answers] == [True] * 200
    found = query(client, table)["i"].to_pylist()
    assert found == list(range(1, 201))


def test_compressed_batches_are_transformed_too(client: fl.FlightClient, table: Table) -> None:
    made(client, table, "Described", schema=pa.schema({"i": pa.int64(), "length": pa.int32()}))
    texts = pa.array(["a" * (n % 5) for n in range(50)])
    batch = numbers(0, 50, raw=texts, kind=pa.array(["k", "l"] * 25).dictionary_encode())
    options = fl.FlightCallOptions(write_options=pa.ipc.IpcWriteOptions(compression="zstd"))
    writer, reader = client.do_put(writing(table), batch.schema, options=options)
    for _ in range(3):
        writer.write_batch(batch)
        assert reader.read() is not None
    writer.close()
    assert rows(client, table, "length") == sorted(3 * [n % 5 for n in range(50)])
    assert rows(client, table, "kind") == ["k"] * 75 + ["l"] * 75


def test_an_instance_is_closed_with_its_stream(
    client: fl.FlightClient, table: Table, tmp_path: Path
) -> None:
    said = tmp_path / "closed"
    put(client, made(client, table, "Closes", schema=NAMED), named(0, 1, said))
    assert said.read_text() == "closed\n"


def test_a_class_that_does_not_close_costs_no_batch(
    client: fl.FlightClient, table: Table, daemon: Daemon
) -> None:
    put(client, made(client, table, "ClosesBadly"), numbers(0, 1))
    assert rows(client, table) == [0]
    assert "it does not close" in daemon.stderr_file.read_text()


def test_deletes_are_not_transformed(client: fl.FlightClient, table: Table) -> None:
    made(client, table, "Double", primary_key=["i"])
    put(client, table, numbers(1, 3))
    delete(client, table, numbers(2, 1))
    assert rows(client, table) == [4, 6]


def test_a_slice_costs_what_it_shows(client: fl.FlightClient, table: Table) -> None:
    made(client, table, "Grows")
    put(client, table, numbers(0, 100))
    assert len(rows(client, table)) == 100_000


# Skipped rows


@pytest.mark.parametrize("origin", [None, "skips"])
def test_a_skipped_batch_is_answered_and_writes_nothing(
    client: fl.FlightClient, table: Table, origin: str | None
) -> None:
    made(client, table, "Evens")
    metadata = None if origin is None else [{"sequence": n} for n in (1, 2, 3)]
    answers = put(
        client, table, numbers(1, 1), numbers(2, 2), numbers(3, 1), origin=origin, metadata=metadata
    )
    assert [answer["accepted"] for answer in answers] == [True] * 3
    assert rows(client, table) == [2]
    assert answers[0]["sequence"] < answers[1]["sequence"] < answers[2]["sequence"]


def test_a_skipped_batch_moves_its_origin_and_lets_it_become_durable(
    client: fl.FlightClient, table: Table
) -> None:
    origin = f"skipped-{table[1]}"
    made(client, table, "Evens")
    batches = [numbers(1, 1), numbers(2, 1), numbers(3, 1)]
    answers = put(
        client, table, *batches, origin=origin, metadata=[{"sequence": n} for n in (7, 8, 9)]
    )
    assert [answer["memory_sequence"] for answer in answers] == [7, 8, 9]
    again = put(client, table, numbers(3, 1), origin=origin, metadata=[{"sequence": 9}])
    assert again[0]["duplicate"]
    persist(client, table)
    assert origin_of(client, origin)["durable_sequence"] == 9


def test_a_table_can_begin_with_a_skipped_batch(client: fl.FlightClient, table: Table) -> None:
    made(client, table, "Evens")
    put(client, table, numbers(1, 1))
    assert rows(client, table) == []


def test_an_empty_batch_is_shown_to_no_class(client: fl.FlightClient, table: Table) -> None:
    made(client, table, "Refuses")  # computing the minimum of no rows would fail
    (answer,) = put(client, table, numbers(0, 0), origin="empty", metadata=[{"sequence": 1}])
    assert answer["memory_sequence"] == 1


def test_a_batch_that_is_sent_again_is_judged_by_its_sequence(
    client: fl.FlightClient, table: Table
) -> None:
    made(client, table, "Numbered")
    for again in (False, True):
        answers = put(
            client,
            table,
            numbers(0, 1),
            numbers(0, 1),
            origin="again",
            metadata=[{"sequence": 1}, {"sequence": 2}],
        )
        assert [answer["duplicate"] for answer in answers] == [again] * 2
    assert rows(client, table) == [1, 2]


# Refused batches


@pytest.mark.parametrize(
    ("name", "batch", "words"),
    [
        ("Refuses", numbers(-3, 1), "Refuses: ValueError: negative: -3"),
        ("Exits", numbers(0, 1), "Exits: SystemExit: 3"),
        ("Returns", numbers(0, 1), "Returns: transform returned NoneType, not a"),
        ("ReturnsTable", numbers(0, 1), "ReturnsTable: transform returned Table, not a"),
        ("ReturnsOthers", numbers(0, 1), "other columns than output_schema says: i int64, where"),
        ("ReturnsRubbish", pa.record_batch({"until": ["x"]}), "made a batch that is not valid"),
        ("Grows", numbers(0, 1000), "Grows: made a batch of 8000000 B; flight.max_batch_bytes is"),
        ("NoSchema", numbers(0, 1), "NoSchema: output_schema returned list, not a pyarrow.Schema"),
        ("NoSuchColumn", numbers(0, 1), "NoSuchColumn: KeyError: 'price'"),
        ("NotMade", numbers(0, 1), "NotMade: FileNotFoundError: model.bin"),
        (
            "UnchangedThough",
            numbers(0, 1, raw=pa.array(["a"])),
            "returned UNCHANGED, but output_schema says length int32, where the batch has raw",
        ),
        ("Double", pa.record_batch({"j": [1]}), "Double: KeyError"),
    ],
)
def test_a_bad_class_or_batch_is_refused_with_the_name_of_the_class(
    client: fl.FlightClient, table: Table, name: str, batch: pa.RecordBatch, words: str
) -> None:
    made(client, table, name, schema=NAMED)
    error = refusal(client, table, batch)
    assert isinstance(error, pa.ArrowInvalid)
    assert f"{MODULE}:{name}" in str(error)
    assert words in str(error)
    assert "Traceback" not in str(error)
    assert ".py" not in str(error)
    assert rows(client, table) == []


def test_what_a_class_makes_has_to_fit_the_table(client: fl.FlightClient, table: Table) -> None:
    made(client, table, "Described", schema=pa.schema({"i": pa.int64(), "length": pa.string()}))
    error = refusal(client, table, numbers(0, 1, raw=pa.array(["a"])))
    assert "column 'length': table has string, batch has int32" in str(error)
    assert f"as {MODULE}:Described made it" in str(error)


def test_a_column_name_that_comes_twice_is_refused_before_any_class(
    client: fl.FlightClient, table: Table
) -> None:
    made(client, table, "Squares")
    twice = pa.RecordBatch.from_arrays([pa.array([2]), pa.array([4])], names=["i", "i"])
    assert isinstance(refusal(client, table, twice), pa.ArrowInvalid)


def test_only_the_bad_batch_and_what_comes_behind_it_is_refused(
    client: fl.FlightClient, table: Table
) -> None:
    made(client, table, "Refuses")
    batches = [numbers(first, 1) for first in (1, 2, -1, 4)]
    metadata = [{"sequence": sequence} for sequence in range(4)]
    with pytest.raises(pa.ArrowInvalid, match="negative: -1"):
        put(client, table, *batches, origin="bad", metadata=metadata)
    assert rows(client, table) == [1, 2]
    put(client, table, numbers(4, 1), origin="bad", metadata=[{"sequence": 3}])
    assert rows(client, table) == [1, 2, 4]


@pytest.mark.parametrize("origin", [None, "ahead-and-bad"])
def test_of_batches_sent_ahead_none_is_written_behind_the_bad_one(
    client: fl.FlightClient, table: Table, origin: str | None
) -> None:
    made(client, table, "Refuses")
    stream = Stream(client, writing(table, origin), NUMBERS)
    for first in (*range(40), -1, *range(41, 80)):
        stream.send(
            numbers(first, 1), None if origin is None else {"sequence": first if first >= 0 else 40}
        )
    with pytest.raises(pa.ArrowInvalid, match="negative: -1"):
        stream.close()
    assert rows(client, table) == list(range(40))


def test_a_refused_first_batch_makes_no_table(client: fl.FlightClient) -> None:
    error = refusal(client, ("set", "doubled_not"), pa.record_batch({"i": [None]}))
    assert isinstance(error, pa.ArrowInvalid)
    put(client, ("set", "doubled"), numbers(0, 1))
    with pytest.raises(pa.ArrowInvalid, match="KeyError"):
        put(client, ("set", "doubled"), pa.record_batch({"other": [1]}))
    assert "other" not in query(client, ("set", "doubled")).schema.names


# Classes that cannot be loaded


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("unknown", "has no 'Nobody'"),
        ("no_module", "ModuleNotFoundError: No module named 'acme_is_not_there'"),
    ],
)
def test_a_class_of_the_settings_that_is_not_there_is_unimplemented(
    client: fl.FlightClient, table: str, words: str
) -> None:
    error = refusal(client, ("set", table), numbers(0, 1))
    assert isinstance(error, pa.ArrowNotImplementedError)
    assert words in str(error)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (f"{MODULE}:Nobody", "has no 'Nobody'"),
        ("os:system", "this daemon does not allow it; module os is not in transform.allowed"),
        (f"{MODULE}.deeper:Double", "does not allow it"),
        ("nonsense", "is not package.module:Class"),
        ("a..b:C", "is not package.module:Class"),
        (f"{MODULE}:NOT_A_CLASS", "not a subclass of ingester.transform.Transformer"),
        (f"{MODULE}:Plain", "not a subclass of ingester.transform.Transformer"),
        (f"{MODULE}:Transformer", "it has no transform"),
        (f"{MODULE}:Abstract", "it has no transform"),
        (f"{MODULE}:WantsArguments", "the constructor has the wrong signature (path: "),
        (f"{MODULE}:TakesNothing", "it is called with 1 argument (too many"),
        (f"{MODULE}:Asynchronous", "transform must be a plain function"),
        (f"{MODULE}:BadVersion", "version 3 is not a text"),
    ],
)
def test_create_table_refuses_a_class_that_cannot_be(
    client: fl.FlightClient, table: Table, name: str, words: str
) -> None:
    with pytest.raises(pa.ArrowInvalid) as caught:
        create(client, table, NUMBERS, transformers=[name])
    assert words in str(caught.value)
    with pytest.raises(KeyError):
        describe(client, table)


def test_the_client_library_names_classes_and_shows_them(daemon: Daemon, table: Table) -> None:
    with Client(daemon.flight) as client:
        made = client.create_table(*table, NUMBERS, transformers=[f"{MODULE}:Evens"])
        assert [(each.name, each.version) for each in made.transformers] == [
            (f"{MODULE}:Evens", "1")
        ]
        client.write(*table, numbers(1, 4))
        with client.writer(*table, NUMBERS, keep_until_durable=True) as writer:
            for first in (11, 13, 15):
                writer.write(numbers(first, 1))
            assert writer.close().batches == 3
        assert client.query(*table)["i"].to_pylist() == [2, 4]
        with pytest.raises(InvalidRequest, match="does not allow it"):
            client.create_table("tr", "never", NUMBERS, transformers=["os:system"])


def test_what_a_class_prints_fills_no_pipe_and_is_beside_the_log(
    client: fl.FlightClient, table: Table, daemon: Daemon
) -> None:
    made(client, table, "Prints")  # an unread pipe would fill at 64 KiB
    put(client, table, *[numbers(0, 1)] * 20)
    assert daemon.stderr_file.read_text().count("printed printed") >= 20


def test_classes_of_the_settings_that_cannot_be_loaded_are_told_at_the_start(
    daemon: Daemon,
) -> None:
    told = daemon.stderr_file.read_text()
    assert told.count("transformer not loaded") == 2
    assert "transformer-missing" in told


def test_create_table_again_is_fine_with_the_same_classes_only(
    client: fl.FlightClient, table: Table
) -> None:
    made(client, table, "Double")
    made(client, table, "Double")
    create(client, table, NUMBERS)  # does not mention transformers
    with pytest.raises(pa.ArrowInvalid, match=r"exists with transformers .*Double.*asked for"):
        made(client, table, "Evens")
    with pytest.raises(pa.ArrowInvalid, match="exists with transformers"):
        create(client, table, NUMBERS, transformers=[])
    with pytest.raises(pa.ArrowInvalid, match="names a class twice"):
        made(client, table, "Evens", "Evens")


def test_replication_into_a_transformed_table_is_refused(
    client: fl.FlightClient, table: Table
) -> None:
    made(client, table, "Double", schema=pa.schema({"id": pa.int64()}), primary_key=["id"])
    source = Source(client, table[0], f"source-{table[1]}")
    for name in (table[1], "doubled"):
        source.namespace = table[0] if name == table[1] else "set"
        with pytest.raises(pa.ArrowNotImplementedError, match=r"has transformers .*Double"):
            source.send(name, [(None, 1, {"v": 2.0})], sequence=1)


# Status and metrics


def test_calls_are_counted_by_class_and_outcome(
    client: fl.FlightClient, table: Table, daemon: Daemon
) -> None:
    def counted() -> dict[str, float]:
        page = http(daemon.http + "/metrics")[2].decode()
        lines = [line for line in page.splitlines() if f'class="{MODULE}:Evens"' in line]
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}

    made(client, table, "Evens")
    before = counted()
    put(client, table, numbers(1, 1), numbers(2, 1), numbers(2, 4))
    after = counted()
    grown = {name: value - before.get(name, 0) for name, value in after.items()}
    label = f'class="{MODULE}:Evens"'
    for outcome, count in {"skipped": 1, "unchanged": 1, "changed": 1}.items():
        name = f'ingester_transformer_batches_total{{{label},outcome="{outcome}"}}'
        assert grown[name] == count
    assert grown[f"ingester_transformer_rows_in_total{{{label}}}"] == 6
    assert grown[f"ingester_transformer_rows_out_total{{{label}}}"] == 3
    assert grown[f"ingester_transformer_seconds_count{{{label}}}"] == 3


def test_the_status_names_the_classes_of_a_table(client: fl.FlightClient, table: Table) -> None:
    made(client, table, "Double", "Evens")
    (page,) = act(client, "status_list", list="tables", limit=1000)
    (told,) = [each for each in page["items"] if each["table"] == table[1]]
    assert told["transformers"] == [
        {"class": f"{MODULE}:Double", "version": "1", "previous": None},
        {"class": f"{MODULE}:Evens", "version": "1", "previous": None},
    ]
