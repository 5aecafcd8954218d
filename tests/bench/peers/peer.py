"""What a peer is: a system that users would pick instead, as this program drives it.

Law of this file: a peer says what it promises where it is driven, so that no number is read without
it. A batch counts when the peer has acknowledged it, each batch by itself: one transaction, one
commit or one request per batch. What a peer's client sends is encoded before the clock starts.
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
    """A name of letters, digits and underscores; made if it is not there."""
    rows: int
    writers: int
    seconds: float
    max_rows: int
    """Of all writers together; whatever ends first."""


class Settle:
    """Asks a writing process to settle its store."""


@dataclass(frozen=True, slots=True)
class Promise:
    """What holds when a batch is acknowledged."""

    holds: str
    """In one line, as the table shows it."""
    durable: bool
    """Whether the batch outlives a power cut: synced, not only handed to the operating system."""
    visible: str
    """When others read the rows."""


class Writer(Protocol):
    """One writer's connection to one table; used by one thread."""

    def encode(self, batch: pa.RecordBatch) -> Any:
        """The batch as the peer's client takes it; before the clock starts."""

    def write(self, encoded: Any) -> None:
        """Write a batch that was encoded; returns when the peer has acknowledged it."""

    def close(self) -> None:
        """Leave; what was acknowledged stays."""


class Store(Protocol):
    """A peer as one writing process sees it: opened in this process, or connected to."""

    version: str

    def create(self, table: str) -> None:
        """Make a table of the columns of :data:`tests.bench.rows.SCHEMA`, if it is not there."""

    def writer(self, table: str) -> Writer:
        """One more writer."""

    def settle(self) -> None:
        """Bring what only its log has into its files, as it must be done some time."""


@dataclass(frozen=True, slots=True)
class Peer:
    """One peer: what it promises, what it needs, how it is started and written to."""

    name: str
    promise: Promise
    open: Callable[[str], Store]
    """The store at an address; a module's class, because another process calls it."""
    packages: tuple[str, ...] = ()
    """From PyPI, pinned in ``requirements.txt``."""
    serve: Callable[[Path, Installation], AbstractContextManager[str]] | None = None
    """Starts the server with its data in a folder and yields its address. Without one the store is
    opened by the writing process itself, and the folder is its address."""
    processes: int = 1
    """That write at most."""
