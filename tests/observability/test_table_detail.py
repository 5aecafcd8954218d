"""Partitions and files of one table over HTTP, from a real daemon, and permission to see them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlencode

import pyarrow as pa
import pyarrow.flight as fl

from tests.drivers.daemon import Daemon
from tests.drivers.wire import Table, create, http, persist, put

SCHEMA = pa.schema({"day": pa.string(), "v": pa.int64()})


def get(daemon: Daemon, table: Table, path: str = "", **query: str | int) -> tuple[int, Any]:
    """Status code and JSON of a route of this table."""
    where = "/".join(quote(part, safe="") for part in table)
    found = http(f"{daemon.http}/api/tables/{where}{path}?{urlencode(query)}")
    return found[0], json.loads(found[2])


def pages(daemon: Daemon, table: Table, name: str, **query: str | int) -> Iterator[dict[str, Any]]:
    """All items of a list, requested in pages of three."""
    after: str | None = ""
    while after is not None:
        status, page = get(daemon, table, f"/{name}", after=after, limit=3, **query)
        assert status == 200
        assert len(page["items"]) <= 3
        yield from page["items"]
        after = page["next"]


def rows(*days: str | None) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"day": day, "v": 1} for day in days], SCHEMA)


def test_a_tables_partitions_and_files_are_told_by_pages_and_add_up(
    shared: Daemon, client: fl.FlightClient, table: Table
) -> None:
    create(client, table, SCHEMA, partition_by=["identity(day)"])
    days = [f"d{number}" for number in range(5)]
    put(client, table, rows(*days, *days, None, ""))
    persist(client, table)
    put(client, table, rows("d3", "d9"))

    status, detail = get(shared, table)
    assert status == 200
    assert [column["name"] for column in detail["columns"]] == ["day", "v"]
    assert detail["partition_by"] == ["identity(day)"]
    assert (detail["buffered"]["rows"], detail["persisted"]["rows"]) == (2, 12)
    assert detail["partitions"] == 8

    found = list(pages(shared, table, "partitions"))
    assert [each["key"] for each in found] == sorted({each["key"] for each in found})
    assert len(found) == 8, "null and an empty text are two partitions in one folder"
    assert sum(each["persisted"]["rows"] for each in found) == 12
    (both,) = [each for each in found if each["folder"] == "day_key=d3"]
    assert (both["buffered"]["rows"], both["persisted"]["rows"]) == (1, 2)
    assert both["buffered"]["oldest_s"] >= 0
    (new,) = [each for each in found if each["folder"] == "day_key=d9"]
    assert (new["buffered"]["rows"], new["persisted"]["files"]) == (1, 0)
    assert [each["folder"] for each in pages(shared, table, "partitions", match="D9")] == [
        "day_key=d9"
    ]

    files = list(pages(shared, table, "files"))
    assert len(files) == len({each["path"] for each in files}) == detail["persisted"]["files"]
    (its,) = pages(shared, table, "files", partition=both["key"])
    assert (its["folder"], its["rows"], its["writer"]) == (
        "day_key=d3",
        2,
        shared.ready["ingester_id"],
    )
    assert list(pages(shared, table, "files", partition=new["key"])) == []


def test_what_is_not_there_is_named(shared: Daemon, client: fl.FlightClient, table: Table) -> None:
    status, told = get(shared, table)
    assert (status, told["code"]) == (404, "not_found")
    assert "/".join(table) in told["message"]
    put(client, table, rows("d"))
    for path, query, expected in (
        ("/rows", {}, "list 'rows' is not one of partitions, files"),
        ("/files", {"partition": "day=x"}, "no partition 'day=x' now"),
        ("/files", {"limit": "many"}, "limit 'many' is not a number"),
        ("/partitions", {"match": "x" * 2049}, "match has more than 2048 B"),
    ):
        status, told = get(shared, table, path, **query)
        assert (status, told["code"]) == (400, "invalid")
        assert expected in told["message"]
    status, told = get(shared, ("a b/..", "t"))
    assert (status, told["code"]) in ((400, "invalid"), (404, "not_found"))
