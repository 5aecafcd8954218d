"""Hostile clients that send expensive requests concurrently, in a process of their own.

    python -m tests.server.flight.hostile ENDPOINT SECONDS THREADS KIND…

Prints one JSON object: for each kind, how often each outcome came: ``ok``, or the words of a
refusal up to its first number.
"""

from __future__ import annotations

import json
import re
import resource
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.flight as fl

from tests.drivers.wire import ARROW_AND_FLIGHT, Stream, query

MIB = 1 << 20
WIDE = 1_000
"""Number of columns of the table that receives narrow batches."""
CLIENT_BYTES = 12 << 30
GZIP = 2
"""gRPC's compression of whole messages, as opposed to Arrow's of buffers."""

Send = Callable[[str, int], None]
"""Sends one request of the numbered client to an endpoint; raises the refusal."""


def main(endpoint: str, seconds: str, threads: str, *kinds: str) -> None:
    """Run this many clients of each kind for this long."""
    resource.setrlimit(resource.RLIMIT_AS, (CLIENT_BYTES, CLIENT_BYTES))
    outcomes: dict[str, Counter[str]] = {kind: Counter() for kind in kinds}
    give_up_at = time.monotonic() + float(seconds)

    def be(kind: str, number: int) -> None:
        while time.monotonic() < give_up_at:
            try:
                KINDS[kind](endpoint, number)
                outcome = "ok"
            except ARROW_AND_FLIGHT as error:
                outcome = _words(error)
            outcomes[kind][outcome] += 1

    clients = [
        threading.Thread(target=be, args=(kind, number))
        for kind in kinds
        for number in range(int(threads))
    ]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    print(json.dumps(outcomes))


def _words(error: BaseException) -> str:
    text = re.sub(r"^Flight returned[^:]*: |^gRPC returned", "", str(error))
    return re.split(r"\d|: ", text, maxsplit=1)[0][:80]


def _put(
    endpoint: str,
    table: str,
    batch: pa.RecordBatch,
    compression: str | None = None,
    metadata: bytes | None = None,
) -> None:
    options = fl.FlightCallOptions(
        write_options=pa.ipc.IpcWriteOptions(compression=compression), timeout=60
    )
    with fl.connect(endpoint) as client:
        descriptor = fl.FlightDescriptor.for_path("hostile", table)
        stream = Stream.__new__(Stream)
        stream.writer, stream.reader = client.do_put(descriptor, batch.schema, options)
        with stream:
            stream.write(batch, metadata)


@cache
def _zeros(nbytes: int, columns: int = 1) -> pa.RecordBatch:
    zeros = pa.array(np.zeros(nbytes // 8))
    return pa.record_batch({f"c{number}": zeros for number in range(columns)})


@cache
def _lists_of_nulls() -> pa.RecordBatch:
    kind = pa.list_(pa.struct([("a", pa.int64()), ("b", pa.list_(pa.null(), 1000))]), 1000)
    return pa.record_batch({"n": pa.nulls(200, kind)})


@cache
def _expanding() -> pa.RecordBatch:
    words = pa.array(["x" * MIB])
    return pa.record_batch(
        {"d": pa.DictionaryArray.from_arrays(pa.array(np.zeros(2_000, np.int8)), words)}
    )


def _metadata(endpoint: str, number: int) -> None:
    rows = pa.record_batch({"a": [1]})
    large = b"x" * (4 * MIB)
    match number % 4:
        case 0:
            checkpoint = {"partition": "p", "state": "A" * (4 * MIB)}
            _put(endpoint, "m", rows, metadata=json.dumps({"checkpoint": checkpoint}).encode())
        case 1:
            _put(endpoint, "m", rows.replace_schema_metadata({b"k": large}))
        case 2:
            _put(endpoint, large.decode(), rows)
        case _:
            with fl.connect(endpoint) as client:
                query(client, ("hostile", 3 * large.decode()))


def _whole_message(endpoint: str, number: int) -> None:
    options: list[Any] = [("grpc.default_compression_algorithm", GZIP)]
    with fl.connect(endpoint, generic_options=options) as client:
        list(client.do_action(fl.Action("status", pa.py_buffer(bytes(96 * MIB)))))


def _narrow(endpoint: str, number: int) -> None:
    values = pa.array(np.arange(100_000))
    _put(endpoint, "wide", pa.record_batch({f"c{number}": values}))
    time.sleep(2.0)  # the daemon needs time to write a thousand columns of them


KINDS: dict[str, Send] = {
    "one buffer": lambda to, n: _put(to, f"b{n}", _zeros(128 * MIB), ("zstd", "lz4")[n % 2]),
    "many buffers": lambda to, n: _put(to, f"m{n}", _zeros(50 * MIB, 8), ("zstd", "lz4")[n % 2]),
    "as large as may be": lambda to, n: _put(to, f"f{n}", _zeros(60 * MIB), "zstd"),
    "dictionaries": lambda to, n: _put(to, f"d{n}", _expanding(), ("zstd", None)[n % 2]),
    "nested nulls": lambda to, n: _put(to, f"n{n}", _lists_of_nulls(), "zstd"),
    "metadata": _metadata,
    "whole message": _whole_message,
    "narrow": _narrow,
}

if __name__ == "__main__":
    main(*sys.argv[1:])
