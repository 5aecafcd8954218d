"""Some names of columns, tables and namespaces are refused; all others work everywhere."""

from __future__ import annotations

import re
from collections.abc import Callable

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from tests.drivers.wire import Stream, Table, command, create, numbers, persist, put, query


@pytest.mark.parametrize("name", ["_x", "_", "", "time_day", "TIME_DAY", "Host", "ü" * 128])
def test_a_column_name_that_cannot_be_is_refused(
    client: fl.FlightClient, table: Table, name: str
) -> None:
    columns = {
        "time": pa.nulls(1, pa.timestamp("us")),
        "host": pa.array(["h"]),
        name: pa.array([1]),
    }
    with pytest.raises(pa.ArrowInvalid, match="column"):
        put(client, table, pa.record_batch(columns))
    # The same in a table that exists.
    put(client, table, pa.record_batch({name_: columns[name_] for name_ in ("time", "host")}))
    with pytest.raises(pa.ArrowInvalid, match="column"):
        put(client, table, pa.record_batch(columns))
    assert query(client, table).num_rows == 1


HIDDEN = [
    "a\x1b[2J",
    "a\x00",
    "a\n",
    "a\x7f",
    "a\x9bm",
    "a\u202eb",
    "a\u2066b",
    "a\u200bb",
    "\ufeffa",
]


@pytest.mark.parametrize("name", HIDDEN)
def test_a_new_name_with_a_character_that_acts_or_does_not_show_is_refused_escaped(
    client: fl.FlightClient, table: Table, name: str
) -> None:
    shown = re.escape(repr(name)[1:-1])
    batches = [
        pa.record_batch({name: [1]}),
        pa.record_batch({"s": pa.array([[{name: 1}]])}),
        pa.record_batch({name: ["m"]}),
    ]
    for batch in batches:
        with pytest.raises(pa.ArrowInvalid, match=shown + ".*has control characters"):
            put(client, table, batch)
        with pytest.raises(pa.ArrowInvalid, match=shown + ".*has control characters"):
            create(client, table, batch.schema)
    put(client, table, numbers(0, 1))
    with pytest.raises(pa.ArrowInvalid, match=shown + ".*has control characters"):
        put(client, table, numbers(0, 1, **{name: pa.array([1])}))
    for fields in (
        {"type": "write", "origin": name},
        {"type": "copy", "copy": name, "primary_key": ["i"]},
        {"type": "sync", "origin": name, "sequence": 1, "columns": []},
    ):
        descriptor = command(namespace=table[0], table=table[1], **fields)
        with (
            pytest.raises(pa.ArrowInvalid, match=shown + ".*has control characters"),
            Stream(client, descriptor, numbers(0, 1).schema) as stream,
        ):
            stream.write(numbers(0, 1))
    assert query(client, table).num_rows == 1


def test_an_over_long_name_is_not_echoed_whole(client: fl.FlightClient, table: Table) -> None:
    long = "x" * 5_000
    put(client, table, numbers(0, 1))
    asked: list[Callable[[], object]] = [
        lambda: put(client, (long, "t"), numbers(0, 1)),
        lambda: query(client, ("n", long)),
        lambda: put(client, table, numbers(0, 1, **{long: pa.array([1])})),
        lambda: query(client, table, columns=[long]),
    ]
    for call in asked:
        with pytest.raises(pa.ArrowInvalid, match=r"'x{128}'… \(5,000 characters\)") as refused:
            call()
        assert "x" * 129 not in str(refused.value)


def test_a_column_name_sent_twice_is_refused(client: fl.FlightClient, table: Table) -> None:
    batch = pa.record_batch([pa.array([1]), pa.array([2])], names=["a", "a"])
    with pytest.raises(pa.ArrowInvalid, match="'a'"):
        put(client, table, batch)


@pytest.mark.parametrize(
    "name", ["ü" * 127, "with space", "a/b", "日本", "time-day", "=", "a.b", "می\u200cشود"]
)
def test_any_other_column_name_survives_buffer_file_filter_and_projection(
    client: fl.FlightClient, table: Table, name: str
) -> None:
    put(client, table, numbers(0, 3, **{name: pa.array(["x", "y", None])}))
    for _ in range(2):
        found = query(client, table, columns=[name], filter=[[[name, "=", "y"]]])
        assert found.to_pydict() == {name: ["y"]}
        persist(client, table)


@pytest.mark.parametrize(
    "name", ["", "-a", ".a", "_a", "a/b", "a b", "ü", "a" * 129, "..", "a\n", "a%", "a\0b"]
)
def test_a_table_or_namespace_name_that_cannot_be_is_refused(
    client: fl.FlightClient, name: str
) -> None:
    for table in ((name, "t"), ("n", name)):
        with pytest.raises(pa.ArrowInvalid, match="is not a name"):
            put(client, table, numbers(0, 1))
        with pytest.raises(pa.ArrowInvalid, match="is not a name"):
            query(client, table)
        with pytest.raises(pa.ArrowInvalid, match="is not a name"):
            create(client, table, numbers(0, 1).schema)


@pytest.mark.parametrize("name", ["a", "0", "a" * 128, "A-b_c.d", "9.."])
def test_any_other_table_name_is_taken(client: fl.FlightClient, name: str) -> None:
    table = (f"names-{name}"[:128], name)
    put(client, table, numbers(0, 1))
    persist(client, table)
    assert query(client, table)["i"].to_pylist() == [0]
