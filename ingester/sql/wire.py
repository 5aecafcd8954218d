"""The messages between the daemon and a worker process, over a socket pair.

    frame   kind (1 byte) | size of the body (8 bytes, little-endian) | body

    daemon ─▶ worker                      worker ─▶ daemon
    Q  a query (Query)                    N  the names it reads (Names); answered by T or X
    T  the tables (TablesGiven)           O  open a scan (OpenScan); R  read on; C  close it
    B  batches of a scan                  S  the answer's schema (Answering)
    Z  the end of a scan                  D  a batch of the answer
    X  a failure (Failure)                E  the end of the answer; F  its failure (Failure)

The worker asks and the daemon answers, so the daemon needs no thread besides the one that waits for
the answer: while its client reads nothing, the worker stops at a full socket. Batches are Arrow IPC
messages without their schema; ``B`` has one or more. Everything else is MessagePack. Pure apart
from the socket.
"""

from __future__ import annotations

import os
import select
import socket
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal

import msgspec
import pyarrow as pa

_HEAD = struct.Struct("<cQ")
_SKIP_BYTES = 1 << 16
encode = msgspec.msgpack.encode
decode = msgspec.msgpack.decode
Wait = Callable[[int], None]
"""Returns once the socket is ready for ``select.POLLIN`` or ``POLLOUT``."""


class ChannelClosed(Exception):
    """The other process has ended."""


DATABASES = 3
"""Databases of a worker, each with its own threads: that of the query, and two made ahead."""
_STACK_BYTES = 8 << 20
_BEYOND_BYTES = 512 << 20
"""Memory of a worker besides DuckDB's limit and stacks: Python, libraries, Arrow batches."""


class WorkerLimits(msgspec.Struct, frozen=True):
    """What a worker process may use. An argument of its command line, as JSON.

    Attributes:
        memory: DuckDB's limit.
        threads: threads of a query; 0 for the number of processors.
    """

    memory: int
    spill: int
    threads: int
    spill_folder: str

    @property
    def process_bytes(self) -> int:
        """The limit of the process for private memory, address space of stacks included."""
        threads = self.threads or os.cpu_count() or 1
        return self.memory + _BEYOND_BYTES + DATABASES * threads * _STACK_BYTES

    @property
    def worn_bytes(self) -> int:
        """The private memory from which a process without a query is replaced.

        Allocators keep address space of earlier queries, which counts against the limit.
        """
        return self.process_bytes - _BEYOND_BYTES // 2


class Query(msgspec.Struct, frozen=True):
    """A statement to run, or to describe."""

    text: str
    namespace: str | None
    parameters: bytes | None
    """An Arrow IPC stream with one row."""
    describe: bool
    first_rows: int | None


class Names(msgspec.Struct, frozen=True):
    """The tables that a statement names, as (namespace, table); "" is no namespace."""

    tables: list[tuple[str, str]]
    everything: bool
    """Whether it reads the catalogue itself, such as ``information_schema``."""


class NativeFiles(msgspec.Struct, frozen=True):
    """Local Parquet files of one shape, which the worker reads itself.

    Attributes:
        missing: columns of the table that the files lack.
        narrower: columns that have a narrower type in the files.
    """

    paths: list[str]
    missing: list[str]
    narrower: list[str]


class TableGiven(msgspec.Struct, frozen=True):
    """A table as a query sees it.

    Attributes:
        name: the name in the statement's spelling.
        schema: its Arrow schema as an IPC message.
        key: the primary key; empty without one.
        files: files that the worker reads itself.
        rows: sources whose rows belong to the table.
        copies: the same, but they take no filter.
        changes: sources with ``_op`` that replace and delete rows of a keyed table's files. They
            take no filter either, as it would hide deletions.
    """

    namespace: str
    name: str
    schema: bytes
    key: list[str]
    files: list[NativeFiles]
    rows: list[int]
    copies: list[int]
    changes: list[int]


class TablesGiven(msgspec.Struct, frozen=True):
    """The answer to :class:`Names`; unknown names are left out."""

    tables: list[TableGiven]


class OpenScan(msgspec.Struct, frozen=True):
    """Begin to read a source. ``filter``: as in a ticket."""

    scan: int
    source: int
    columns: list[str]
    filter: list[list[list[object]]] | None


class Answering(msgspec.Struct, frozen=True):
    """The answer's schema, and for a described query its parameters, as IPC messages."""

    schema: bytes
    parameters: bytes


Reason = Literal["invalid", "memory", "files", "source", "internal"]


class Failure(msgspec.Struct, frozen=True):
    """Why a query or a scan failed.

    Attributes:
        reason: ``invalid``: the statement. ``memory``: a limit of memory or disk. ``files``: a file
            could not be read. ``source``: a scan failed at the daemon, which knows why.
    """

    reason: Reason
    message: str


class Channel:
    """One end of the socket pair. Thread-compatible: callers hold their own lock."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected

    def fileno(self) -> int:
        """Return the descriptor, to wait for."""
        return self._socket.fileno()

    def send(
        self, kind: bytes, bodies: Sequence[bytes | pa.Buffer] = (), wait: Wait | None = None
    ) -> None:
        """Send a frame whose body is made of these parts.

        Args:
            wait: waits for room in the socket, or raises; None to block.

        Raises:
            ChannelClosed
        """
        size = sum(len(memoryview(body)) for body in bodies)
        for part in (_HEAD.pack(kind, size), *bodies):
            view, at = memoryview(part).cast("B"), 0
            while at < len(view):
                at += self._send_some(view[at:], wait)

    def receive(self, wait: Wait | None = None) -> tuple[bytes, pa.Buffer]:
        """Receive a frame.

        Args:
            wait: waits for data, or raises; None to block.

        Raises:
            ChannelClosed
            MemoryError: the body does not fit; the frame was read all the same.
        """
        kind, size = _HEAD.unpack(memoryview(self._exactly(_HEAD.size, wait)))
        return kind, self._exactly(size, wait)

    def close(self) -> None:
        """Close this end."""
        self._socket.close()

    def _send_some(self, view: memoryview, wait: Wait | None) -> int:
        try:
            if wait is None:
                return self._socket.send(view)
            wait(select.POLLOUT)
            return self._socket.send(view, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0
        except OSError as exc:
            raise ChannelClosed(str(exc)) from exc

    def _exactly(self, size: int, wait: Wait | None) -> pa.Buffer:
        try:
            buffer = pa.allocate_buffer(size)
        except MemoryError:
            while size:
                size -= self._receive_some(memoryview(bytearray(min(size, _SKIP_BYTES))), wait)
            raise
        view, at = memoryview(buffer), 0
        while at < size:
            at += self._receive_some(view[at:], wait)
        return buffer

    def _receive_some(self, view: memoryview, wait: Wait | None) -> int:
        if wait is not None:
            wait(select.POLLIN)
        try:
            count = self._socket.recv_into(view)
        except OSError as exc:
            raise ChannelClosed(str(exc)) from exc
        if not count:
            raise ChannelClosed("the other process has ended")
        return count


def batches_of(body: pa.Buffer, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a frame, which are views of it."""
    reader = pa.BufferReader(body)
    while reader.tell() < body.size:
        yield pa.ipc.read_record_batch(pa.ipc.read_message(reader), schema)


def bodies_of(batches: Iterable[pa.RecordBatch]) -> list[pa.Buffer]:
    """Return the body of a frame with these batches, in parts."""
    return [batch.serialize() for batch in batches]
