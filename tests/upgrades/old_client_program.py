"""Runs the client library of an earlier release through all its requests to a daemon.

    python old_client_program.py ARCHIVE ENDPOINT NAMESPACE

It is a standalone program: ``ingester`` is imported from ``ARCHIVE``, which comes first on the
path.
"""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from typing import Any

archive, endpoint, NAMESPACE = sys.argv[1:]
sys.path.insert(0, archive)

import pyarrow as pa  # noqa: E402
import trio  # noqa: E402

import ingester.client  # noqa: E402
from ingester.client import Client, InvalidRequest, NotFound  # noqa: E402
from ingester.client.aio import AsyncClient  # noqa: E402
from ingester.client.trio_client import TrioClient  # noqa: E402

assert str(ingester.client.__file__).startswith(archive), ingester.client.__file__


def named(name: str, *modules: str) -> Any:
    """The object of that name in one of these modules, which later releases renamed."""
    for module in modules:
        if importlib.util.find_spec(module) is not None:
            return getattr(importlib.import_module(module), name)
    raise AssertionError(f"no {name}")


parse_filter = named("parse_filter", "ingester.client.filter_text", "ingester.client.filter_parser")
SyncColumn = named("SyncColumn", "ingester.client.sync", "ingester.client.sync_stream")

ORIGIN = f"{NAMESPACE} origin"
SCHEMA = pa.schema({"i": pa.int64(), "s": pa.string()})


def batch(first: int, count: int = 10) -> pa.RecordBatch:
    """The rows from ``first``."""
    numbers = range(first, first + count)
    return pa.RecordBatch.from_pylist([{"i": i, "s": f"s{i}"} for i in numbers], SCHEMA)


def found(client: Client, table: str, **asked: object) -> list[int]:
    """The numbers that a query returns."""
    return sorted(client.query(NAMESPACE, table, **asked)["i"].to_pylist())  # type: ignore[arg-type]


def writes_and_reads(client: Client) -> None:
    """Single and pipelined appends, also by an origin, and queries of each kind."""
    made = client.create_table(NAMESPACE, "t", SCHEMA, sort_by=["i"], partition_by=["bucket(2, s)"])
    assert made == client.describe(NAMESPACE, "t")
    client.write(NAMESPACE, "t", batch(0))
    client.write(NAMESPACE, "t", {"i": [10, 11], "later": [1.5, None]})
    with client.writer(NAMESPACE, "t", SCHEMA, origin=ORIGIN, first_sequence=1) as writer:
        acks = [writer.write(batch(100 * n)) for n in range(1, 21)]
        assert acks[-1].result().memory_sequence == 20
        assert not any(ack.result().duplicate for ack in acks)
    again = client.write(NAMESPACE, "t", batch(2000), origin=ORIGIN, first_sequence=20)
    assert again.memory_sequence == 20
    (persisted,) = client.persist(NAMESPACE, "t")
    assert found(client, "t", version=persisted.manifest_version) == found(client, "t")
    assert len(found(client, "t")) == 212
    assert found(client, "t", scope="buffered") == []
    assert found(client, "t", filter=parse_filter("i > 1995 and s is not null")) == [
        *range(2000, 2010)
    ]
    with client.query_stream(NAMESPACE, "t", columns=["i"], limit=7) as stream:
        assert sum(part.num_rows for part, _ in iter(stream.read, None)) == 7
    assert client.schema(NAMESPACE, "t").names == ["i", "s", "later"]
    (origin,) = client.origins(ORIGIN, (NAMESPACE, "t"))
    assert (origin.memory_sequence, origin.durable_sequence) == (20, 20)
    assert "t" in [one.table for one in client.tables()]
    assert client.status()["identity"]["ingester_id"]


def refusals(client: Client) -> None:
    """Each refusal raises the same error as before."""
    for error, asked in ((NotFound, {"table": "none"}), (InvalidRequest, {"columns": ["x"]})):
        try:
            client.query(**{"namespace": NAMESPACE, "table": "t", **asked})  # type: ignore[arg-type]
        except error:
            continue
        raise AssertionError(f"{asked}: no {error}")


def keys(client: Client) -> None:
    """Upserts and deletes."""
    client.create_table(NAMESPACE, "k", SCHEMA, primary_key=["i"])
    client.write(NAMESPACE, "k", batch(0))
    client.delete(NAMESPACE, "k", {"i": [3, 4, 99]})
    client.write(NAMESPACE, "k", batch(4, 2))
    assert found(client, "k") == [0, 1, 2, *range(4, 10)]


def transactions(client: Client) -> None:
    """A transaction of two messages, one that a newer one supersedes, and a repeated one."""
    columns = [SyncColumn("old_pk", "i"), SyncColumn("new_pk", "i"), SyncColumn("value", "s")]

    def change(old: int | None, new: int | None, s: str | None) -> pa.RecordBatch:
        arrays = [pa.array([old], pa.int64()), pa.array([new], pa.int64()), pa.array([s])]
        return pa.record_batch(arrays, names=["o", "n", "s"])

    client.create_table(NAMESPACE, "r", SCHEMA, primary_key=["i"])
    stream = client.sync(NAMESPACE, f"{ORIGIN} replica")
    assert stream.standing().memory_sequence is None
    stream.send("r", columns, change(None, 7, "dropped"), begin=True)
    stream.send("r", columns, change(None, 1, "one"), begin=True)
    answer = stream.send("r", columns, change(1, 2, "two"), sequence=5)
    assert (answer.accepted, answer.memory_sequence) == (True, 5)
    assert stream.send("r", columns, change(None, 3, "repeated"), sequence=5).duplicate
    assert client.query(NAMESPACE, "r").to_pylist() == [{"i": 2, "s": "two"}]


async def awaited(client: AsyncClient | TrioClient, table: str) -> None:
    """The same requests with the asynchronous clients."""
    async with await client.writer(NAMESPACE, table, SCHEMA) as writer:
        acks = [await writer.write(batch(10 * n)) for n in range(5)]
        for ack in acks:
            assert (await ack.wait()).accepted
    async with await client.query_stream(NAMESPACE, table) as stream:
        assert sum([part.num_rows async for part, _ in stream]) == 50


async def on_asyncio() -> None:
    async with AsyncClient(endpoint) as client:
        await awaited(client, "asyncio")


async def on_trio() -> None:
    async with TrioClient(endpoint) as client:
        await awaited(client, "trio")


if __name__ == "__main__":
    with Client(endpoint) as blocking:
        writes_and_reads(blocking)
        refusals(blocking)
        keys(blocking)
        transactions(blocking)
    asyncio.run(on_asyncio())
    trio.run(on_trio)
    print("done")
