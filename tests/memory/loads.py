"""Clients that make a daemon use as much memory as it permits, each kind in its own process.

    python -m tests.memory.loads ENDPOINT THREADS KIND

The program runs until it is killed.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable
from functools import cache

import h2.config
import h2.connection
import numpy as np
import pyarrow as pa
import pyarrow.flight as fl

from tests.drivers.wire import ARROW_AND_FLIGHT, path, ticket
from tests.fuzz.raw_flight import SERVICE, NoAnswer, call, flight_data, ipc_stream, path_descriptor

MIB = 1 << 20
HOLD_S = 6.0
"""The time after which a client that holds a resource gives up."""
PAUSE_S = 0.05
"""The time between a failed request and the next one."""
STOP_S = 2.0
"""The time for which an idle client stays idle."""

Load = Callable[[str, int], None]
"""One request of the numbered client to an endpoint."""


def main(endpoint: str, threads: str, kind: str) -> None:
    """Run a number of clients of a kind."""

    def be(number: int) -> None:
        while True:
            try:
                LOADS[kind](endpoint, number)
            except (*ARROW_AND_FLIGHT, OSError, NoAnswer):
                time.sleep(PAUSE_S)

    for number in range(int(threads)):
        threading.Thread(target=be, args=(number,)).start()


def _put(
    endpoint: str, table: str, *batches: pa.RecordBatch, compression: str | None = None
) -> None:
    options = fl.FlightCallOptions(
        write_options=pa.ipc.IpcWriteOptions(compression=compression), timeout=60
    )
    with fl.connect(endpoint) as client:
        writer, reader = client.do_put(path(("load", table)), batches[0].schema, options)
        try:
            for batch in batches:
                writer.write_batch(batch)
                if reader.read() is None:
                    break
        finally:
            writer.close()


@cache
def _rows(nbytes: int) -> pa.RecordBatch:
    return pa.record_batch({"v": np.random.default_rng(7).random(nbytes // 8)})


def _writes(endpoint: str, number: int) -> None:
    _put(endpoint, f"w{number % 4}", *[_rows(8 * MIB)] * 8)


def _held_dictionaries(endpoint: str, number: int) -> None:
    """Dictionaries of many columns, without a batch that needs them."""
    with contextlib.suppress(NoAnswer):
        call(endpoint, "DoPut", _dictionary_messages(), timeout_s=HOLD_S, end=False)


@cache
def _dictionary_messages() -> list[bytes]:
    words = pa.array(["x" * (24 * MIB)])
    column = pa.DictionaryArray.from_arrays(pa.array([0], pa.int8()), words)
    messages = ipc_stream(pa.record_batch({f"d{n}": column for n in range(12)}))
    first = flight_data(*messages[0], path_descriptor("load", "held"))
    return [first, *(flight_data(*each) for each in messages[1:-1])]


def _compressed(endpoint: str, number: int) -> None:
    """A batch of 512 MiB that is sent in a few hundred kilobytes."""
    call(endpoint, "DoPut", _compressed_messages())


@cache
def _compressed_messages() -> list[bytes]:
    zeros = pa.array(np.zeros(16 * MIB // 8))
    batch = pa.record_batch({f"z{n}": zeros for n in range(32)})
    messages = ipc_stream(batch, compression="zstd")
    first = flight_data(*messages[0], path_descriptor("load", "zeros"))
    return [first, *(flight_data(*each) for each in messages[1:])]


def _half_a_message(endpoint: str, number: int) -> None:
    """A message of 120 MiB without its last byte."""
    address = urllib.parse.urlsplit(endpoint)
    config = h2.config.H2Configuration(header_encoding="utf-8", validate_inbound_headers=False)
    connection = h2.connection.H2Connection(config)
    with socket.create_connection((address.hostname, address.port), 10) as sock:
        connection.initiate_connection()
        headers = [(":method", "POST"), (":scheme", "http"), (":path", SERVICE + "DoPut")]
        headers += [(":authority", "x"), ("te", "trailers"), ("content-type", "application/grpc")]
        connection.send_headers(1, headers)
        sock.sendall(connection.data_to_send())
        nbytes = 120 * MIB
        connection.send_data(1, b"\0" + struct.pack(">I", nbytes))
        left, sock_ends = nbytes - 1, time.monotonic() + HOLD_S
        sock.settimeout(0.5)
        while time.monotonic() < sock_ends:
            room = min(
                left, connection.local_flow_control_window(1), connection.max_outbound_frame_size
            )
            if room > 0:
                connection.send_data(1, bytes(room))
                left -= room
                sock.sendall(connection.data_to_send())
                continue
            with contextlib.suppress(TimeoutError):
                data = sock.recv(1 << 16)
                if not data:
                    return
                connection.receive_data(data)
                sock.sendall(connection.data_to_send())


def _views(endpoint: str, number: int) -> None:
    """Rows that all refer to the same large text."""
    text = b"x" * (16 * MIB)
    one = struct.pack("<i4sii", len(text), text[:4], 0, 0)
    rows = 2000
    buffers = [None, pa.py_buffer(one * rows), pa.py_buffer(text)]
    column = pa.Array.from_buffers(pa.string_view(), rows, buffers)
    _put(endpoint, f"view{number}", pa.record_batch({"v": column}))


def _list_views(endpoint: str, number: int) -> None:
    """Rows that all refer to the same long list."""
    values = pa.array(np.zeros(2 * MIB))
    rows = 2000
    offsets = pa.array(np.zeros(rows, np.int32))
    sizes = pa.array(np.full(rows, 2 * MIB, np.int32))
    column = pa.ListViewArray.from_arrays(offsets, sizes, values)
    _put(endpoint, f"lists{number}", pa.record_batch({"v": column}))


def _run_ends(endpoint: str, number: int) -> None:
    """A run of two thousand million rows."""
    rows = 2**31 - 2
    column = pa.RunEndEncodedArray.from_arrays(pa.array([rows], pa.int32()), pa.array([1.5]))
    _put(endpoint, f"runs{number}", pa.record_batch({"v": column}))


def _slow_readers(endpoint: str, number: int) -> None:
    """Queries of all rows whose answers are never read."""
    with fl.connect(endpoint) as client:
        reader = client.do_get(ticket(("load", f"w{number % 4}")))
        reader.read_chunk()
        time.sleep(STOP_S)


def _many_streams(endpoint: str, number: int) -> None:
    """Many open streams with a row each."""
    row = pa.record_batch({"v": [1.5]})
    with fl.connect(endpoint) as client:
        held = []
        for _ in range(100):
            writer, reader = client.do_put(path(("load", "rows")), row.schema)
            writer.write_batch(row)
            held.append((writer, reader))
        for _, reader in held:
            if reader.read() is None:
                return
        time.sleep(STOP_S)
        for writer, _ in held:
            writer.close()


def _metrics(endpoint: str, number: int) -> None:
    """HTTP answers that are never read."""
    address = urllib.parse.urlsplit(endpoint)
    with contextlib.ExitStack() as held:
        for _ in range(20):
            sock = held.enter_context(socket.socket())
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect((address.hostname, address.port))
            sock.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        time.sleep(STOP_S)


LOADS: dict[str, Load] = {
    "writes": _writes,
    "compressed": _compressed,
    "held dictionaries": _held_dictionaries,
    "half a message": _half_a_message,
    "views": _views,
    "list views": _list_views,
    "run ends": _run_ends,
    "slow readers": _slow_readers,
    "many streams": _many_streams,
    "metrics": _metrics,
}

if __name__ == "__main__":
    main(*sys.argv[1:])
