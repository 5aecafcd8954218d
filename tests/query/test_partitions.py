"""Partitions of a query: pruned by filters, named by transforms, complete together."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from tests.drivers.mixed_rows import WHEN
from tests.drivers.wire import Table, chunks, create, events, numbers, persist, put, rows


def test_partitions_are_pruned_by_a_filter_on_their_column(
    client: fl.FlightClient, table: Table
) -> None:
    put(client, table, events(0, 100, days=10))
    persist(client, table)
    day = [[["time", ">=", "2026-11-24"], ["time", "<", "2026-11-25"]]]
    found = list(chunks(client, table, filter=day))
    assert [metadata["partition"] for _, metadata in found] == ["time_day=2026-11-24"]
    assert sorted(found[0][0]["i"].to_pylist()) == list(range(3, 100, 10))


@pytest.mark.parametrize(
    ("spec", "folders"),
    [
        (["identity(s)"], {"s_key=a%2Fb", "s_key=007", "s_key=__HIVE_DEFAULT_PARTITION__"}),
        (
            ["month(t)"],
            {"t_month=2026-11", "t_month=1969-12", "t_month=__HIVE_DEFAULT_PARTITION__"},
        ),
        (["year(t)"], {"t_year=2026", "t_year=1969", "t_year=__HIVE_DEFAULT_PARTITION__"}),
        (
            ["hour(t)"],
            {"t_hour=2026-11-21-12", "t_hour=1969-12-31-23", "t_hour=__HIVE_DEFAULT_PARTITION__"},
        ),
        (["day(t)"], {"t_day=2026-11-21", "t_day=1969-12-31", "t_day=__HIVE_DEFAULT_PARTITION__"}),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_every_transform_names_its_folders_and_loses_no_row(
    client: fl.FlightClient, table: Table, spec: list[str], folders: set[str]
) -> None:
    kind = pa.timestamp("us", "UTC")
    create(
        client, table, pa.schema({"i": pa.int64(), "s": pa.string(), "t": kind}), partition_by=spec
    )
    times = pa.array([WHEN, dt.datetime(1969, 12, 31, 23, 59, tzinfo=dt.UTC), None], kind)
    put(client, table, numbers(0, 3, s=pa.array(["a/b", "007", None]), t=times))
    for _ in range(2):
        assert {metadata["partition"] for _, metadata in chunks(client, table)} == folders
        assert rows(client, table) == [0, 1, 2]
        assert rows(client, table, filter=[[["s", "=", "007"]]]) == [1]
        assert rows(client, table, filter=[[["t", "<", "2000-01-01"]]]) == [1]
        assert rows(client, table, filter=[[["t", "is null"]]]) == [2]
        assert rows(client, table, filter=[[["s", "!=", "007"]]]) == [0]
        persist(client, table)


def test_buckets_lose_no_row(client: fl.FlightClient, table: Table) -> None:
    create(client, table, numbers(0, 1).schema, partition_by=["bucket(4, i)"])
    put(client, table, numbers(0, 1000))
    for _ in range(2):
        names = {metadata["partition"] for _, metadata in chunks(client, table)}
        assert names == {f"i_bucket={n}" for n in range(4)}
        assert rows(client, table) == list(range(1000))
        assert rows(client, table, filter=[[["i", "=", 77]]]) == [77]
        persist(client, table)
