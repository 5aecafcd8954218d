"""A program that forks with an open client, writer and answer; calls in the child raise Forked."""

import asyncio
import gc
import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable

import pyarrow as pa
import pytest
import trio

from ingester.client import Client, Forked
from ingester.client.aio import AsyncClient
from ingester.client.trio_client import TrioClient

SCHEMA = pa.schema([("v", pa.int64())])
BATCH = pa.record_batch([pa.array([1], pa.int64())], schema=SCHEMA)


def write(endpoint: str) -> int:
    """Write one row with a new client and return the number of rows."""
    with Client(endpoint) as client:
        return client.write("ns", "t", BATCH).rows


def refused(call: Callable[[], object]) -> None:
    """Expect that ``call`` raises at once with a message that suggests ``spawn``."""
    with pytest.raises(Forked, match="spawn"):
        call()


def child(endpoint: str) -> None:
    """Check objects made before the fork, and new clients."""
    for call in (
        lambda: client.write("ns", "t", BATCH),
        lambda: client.query("ns", "t"),
        lambda: client.query_stream("ns", "t"),
        lambda: client.sync("ns", "o").standing(),
        lambda: client.writer("ns", "t", SCHEMA),
        lambda: writer.write(BATCH),
        lambda: writer.try_write(BATCH),
        writer.flush,
        writer.close,
        unanswered.result,
        lambda: unanswered.add_done_callback(print),
        stream.read,
        lambda: pa.table(stream),
        lambda: Client(endpoint),
        lambda: trio.run(trio_client.tables),
        lambda: asyncio.run(async_client.tables()),
    ):
        refused(call)
    assert answered.result().accepted
    writer.abort()
    stream.close()
    client.close()
    with client, stream:
        pass
    for name in ("client", "writer", "stream", "trio_client", "async_client"):
        del globals()[name]
    gc.collect()


def run(body: Callable[[], None]) -> int:
    """Return the exit code of a forked child that ends like any program."""
    pid = os.fork()
    if pid == 0:
        try:
            body()
        except BaseException:
            traceback.print_exc()
            sys.exit(1)
        sys.exit(7)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


if __name__ == "__main__":
    endpoint = sys.argv[1]
    # A fork before the first client is harmless.
    assert run(lambda: sys.exit(write(endpoint))) == 1
    client = Client(endpoint)
    trio_client, async_client = TrioClient(endpoint), AsyncClient(endpoint)
    writer = client.writer("ns", "t", SCHEMA)
    answered = writer.write(BATCH)
    answered.result()
    stream = client.query_stream("ns", "t")
    unanswered = writer.write(BATCH)  # the daemon withholds the answer
    assert run(lambda: child(endpoint)) == 7
    for method, outcome in (("fork", "refused"), ("spawn", 1)):
        with multiprocessing.get_context(method).Pool(1) as pool:
            try:
                assert pool.apply(write, (endpoint,)) == outcome
            except Forked:
                assert outcome == "refused"
    print("go on", flush=True)
    assert unanswered.result(30).accepted
    assert writer.write(BATCH).result(30).accepted
    assert len(list(stream)) >= 1
    assert writer.close().rows == 3
    client.close()
