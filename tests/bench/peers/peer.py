"""The interface of a peer: a system that users would pick instead of the ingester.

A peer states its durability promise next to the code that drives it, so that no number is read
without it. A batch counts when the peer has acknowledged it, each batch by itself: one
transaction, one commit or one request per batch. Batches are encoded before the clock starts.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from tests.bench.peers.installing import Installation


@dataclass(frozen=True, slots=True)
class WriteJob:
    """Batches of ``rows`` rows by ``writers`` writers into one table, each waiting for its answer.

    A writer has a bounded set of batches and writes them in turn, however long the job is.
    """

    table: str
    """A name of letters, digits and underscores; the table is created if it does not exist."""
    rows: int
    writers: int
    seconds: float
    max_rows: int
    """Of all writers together; the first limit that is reached ends the job."""


class Settle:
    """Asks a writing process to settle its store."""


@dataclass(frozen=True, slots=True)
class Promise:
    """The guarantees of an acknowledged batch."""

    holds: str
    """One line for the table."""
    durable: bool
    """Whether the batch survives a power cut: synced, not only handed to the operating system."""
    visible: str
    """When other clients can read the rows."""


class Writer(Protocol):
    """One writer's connection to one table; used by one thread."""

    def encode(self, batch: pa.RecordBatch) -> Any:
        """Encode the batch for the peer's client, before the clock starts."""

    def write(self, encoded: Any) -> None:
        """Write an encoded batch; return when the peer has acknowledged it."""

    def close(self) -> None:
        """Disconnect; acknowledged batches remain."""


class Store(Protocol):
    """A peer as one writing process sees it: opened in this process, or connected to."""

    version: str

    def create(self, table: str) -> None:
        """Create a table with the columns of :data:`tests.bench.rows.SCHEMA`, unless it exists."""

    def writer(self, table: str) -> Writer:
        """Return a new writer."""

    def settle(self) -> None:
        """Flush the peer's log to its files, which every peer must do at some time."""


@dataclass(frozen=True, slots=True)
class Peer:
    """One peer: its promise, its requirements, and how it is started and written to."""

    name: str
    promise: Promise
    open: Callable[[str], Store]
    """Opens the store at an address; a module-level class, because another process calls it."""
    packages: tuple[str, ...] = ()
    """Packages from PyPI, pinned in ``requirements.txt``."""
    serve: Callable[[Path, Installation], AbstractContextManager[str]] | None = None
    """Starts the server with its data in a folder and yields its address. Without a server the
    writing process opens the store itself, and the folder is its address."""
    processes: int = 1
    """Upper bound of the writing processes."""
