"""A repeat is judged by its rows: not by how Arrow holds them, nor by a number or name alone.

The cases are taken from reports about other systems with numbered messages.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from ingester.client import Client, InvalidRequest
from tests.drivers.daemon import Daemon
from tests.drivers.wire import Table, act, create, put, rows

FIRST = [{"sequence": 1}]
COUNT = 300


def readings(last: str | None = "h9") -> pa.RecordBatch:
    began = datetime(2026, 11, 1, tzinfo=UTC)
    columns = {
        "time": pa.array(
            [began + timedelta(minutes=n) for n in range(COUNT)], pa.timestamp("us", "UTC")
        ),
        "host": pa.array([*(f"h{n % 7}" for n in range(COUNT - 1)), last]),
        "v": pa.array([None if n % 11 == 0 else n / 3 for n in range(COUNT - 1)] + [float("nan")]),
        "i": pa.array(range(COUNT), pa.int64()),
    }
    return pa.record_batch(columns)


def with_host(batch: pa.RecordBatch, host: pa.Array) -> pa.RecordBatch:
    return batch.set_column(1, pa.field("host", host.type), host)


def dictionary(batch: pa.RecordBatch) -> pa.RecordBatch:
    return with_host(batch, batch.column("host").dictionary_encode())


def large(batch: pa.RecordBatch) -> pa.RecordBatch:
    return with_host(batch, batch.column("host").cast(pa.large_string()))


def view(batch: pa.RecordBatch) -> pa.RecordBatch:
    return with_host(batch, batch.column("host").cast(pa.string_view()))


def sliced(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.concat_batches([batch.slice(5, 13), batch, batch.slice(0, 7)]).slice(13, COUNT)


def exact_nanoseconds(batch: pa.RecordBatch) -> pa.RecordBatch:
    time = batch.column("time").cast(pa.timestamp("ns", "UTC"))
    return batch.set_column(0, pa.field("time", time.type), time)


def in_another_order(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.select(["i", "v", "host", "time"])


def with_a_column_of_nulls(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.append_column(pa.field("later", pa.string()), pa.nulls(COUNT, pa.string()))


def narrower(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.set_column(3, pa.field("i", pa.int16()), batch.column("i").cast(pa.int16()))


Form = Callable[[pa.RecordBatch], pa.RecordBatch]
FORMS: list[Form] = [
    dictionary,
    large,
    view,
    sliced,
    exact_nanoseconds,
    in_another_order,
    with_a_column_of_nulls,
    narrower,
]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_the_same_rows_in_another_form_are_a_repeat_and_others_are_not(
    client: fl.FlightClient, table: Table, origin: str, form: Form
) -> None:
    create(client, table, readings().schema)
    put(client, table, readings(), origin=origin, metadata=FIRST)
    (again,) = put(client, table, form(readings()), origin=origin, metadata=FIRST)
    assert again["duplicate"]
    for last in ("h8", None):
        with pytest.raises(pa.ArrowInvalid, match="300 rows then, 300 now"):
            put(client, table, form(readings(last)), origin=origin, metadata=FIRST)
    assert rows(client, table) == list(range(COUNT))


def test_origins_whose_names_look_alike_are_different_ones(
    client: fl.FlightClient, table: Table, origin: str
) -> None:
    names = [origin, origin.upper(), f"x-{origin}", f"{origin}-x", f"{origin}é", f"{origin}e\u0301"]
    for place, name in enumerate(names):
        part = readings().slice(place, 1)
        (answer,) = put(client, table, part, origin=name, metadata=FIRST)
        assert not answer["duplicate"]
    assert rows(client, table) == list(range(len(names)))
    told = {each["origin"] for each in act(client, "origins")}
    assert set(names) <= told


def test_rows_that_are_cut_otherwise_after_a_crash_are_refused(
    shared: Daemon, table: Table, origin: str
) -> None:
    """Half of a file was sent as batches of 30 rows; the next run sends it in batches of 50."""
    with Client(shared.flight) as client:
        schema = readings().schema
        with client.writer(*table, schema, origin=origin, first_sequence=1) as writer:
            for start in range(0, COUNT // 2, 30):
                writer.write(readings().slice(start, 30)).result()
        with (
            pytest.raises(InvalidRequest, match="30 rows then, 50 now"),
            client.writer(*table, schema, origin=origin, first_sequence=1) as writer,
        ):
            writer.write(readings().slice(0, 50)).result()
        assert client.query(*table).num_rows == COUNT // 2
