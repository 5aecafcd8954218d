"""Names of columns, tables and namespaces: which are refused, and that all others survive."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from tests.drivers.wire import Table, create, numbers, persist, put, query


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
    # In a table that exists, too.
    put(client, table, pa.record_batch({name_: columns[name_] for name_ in ("time", "host")}))
    with pytest.raises(pa.ArrowInvalid, match="column"):
        put(client, table, pa.record_batch(columns))
    assert query(client, table).num_rows == 1


def test_a_column_name_sent_twice_is_refused(client: fl.FlightClient, table: Table) -> None:
    batch = pa.record_batch([pa.array([1]), pa.array([2])], names=["a", "a"])
    with pytest.raises(pa.ArrowInvalid, match="'a'"):
        put(client, table, batch)


@pytest.mark.parametrize("name", ["ü" * 127, "with space", "a/b", "日本", "time-day", "=", "a.b"])
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
