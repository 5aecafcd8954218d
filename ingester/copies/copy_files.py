"""The rows of a copy become files of an invisible table version.

    add ─▶ held by partition ─▶ enough for a file, or memory short ─▶ a thread: sorted, encoded, put

A file has a unique name, and no manifest lists it before the copy's single commit. A repeated key
fails the copy; after a failure it takes no more rows. :class:`Encoders` runs a few threads for all
copies together, which bounds their memory. Any thread; a client that sends faster than files are
written waits.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import structlog

from ingester.errors import BadRequest, IngesterError, InternalFailure, MemoryFull, StoreUnreachable
from ingester.memory.ledger import MemoryLedger
from persist.manifest import Add, WriterIdentity
from persist.parquet.copy_on_write import stretch_of
from persist.parquet.encode import encode_ordered
from persist.parquet.key_spans import first_repeated, repeated_key
from persist.parquet.put import FileOrigin, put_file
from persist.parquet.sparse_rows import PartitionedRows, SparseRows, SplitRows
from persist.partitioning import PartitionValues
from persist.store import ObjectStore, StoreError, StoreRetry, retry
from persist.table import TableDefinition

THREADS = 2
"""Sorting and encoding mostly run without the interpreter's lock."""
SHARE = 16
"""A copy holds at most this fraction of the memory limit."""
HELD_BYTES = 64 << 20
"""The bytes that a copy holds before it makes a file of the largest partition."""
PATIENCE_S = 600.0
"""How long a batch waits for memory before the whole copy fails."""
LOOK_S = 0.05
PUT_RETRY = StoreRetry(first_s=0.2, cap_s=5.0, for_s=120.0)


class Encoders:
    """Threads that make files, and the memory of all copies.

    Args:
        ledger: Accounts for memory; copies are one of its kinds.
    """

    def __init__(self, ledger: MemoryLedger, threads: int = THREADS) -> None:
        self._ledger = ledger
        self._free = threading.Semaphore(threads)
        self._lock = threading.Lock()
        self.nbytes = 0
        """Bytes of held rows, and of files that are being made."""
        self.most_held = ledger.watermarks.limit // SHARE
        ledger.gauge("copies", lambda: self.nbytes)

    def submit(self, work: Callable[[], None]) -> None:
        """Run work in a thread; waits until one is free.

        Args:
            work: must not raise.
        """
        self._free.acquire()

        def run() -> None:
            try:
                work()
            finally:
                self._free.release()

        # Daemon threads: the store may block for long at the process's end.
        threading.Thread(target=run, name="copy-encoder", daemon=True).start()

    def hold(self, nbytes: int) -> None:
        """Add to the bytes held; may be negative."""
        with self._lock:
            self.nbytes += nbytes

    def take_room(self, nbytes: int) -> bool:
        """Add to the bytes held, if the total stays below the high watermark."""
        with self._lock:
            if self._ledger.used + nbytes > self._ledger.watermarks.high:
                return False
            self.nbytes += nbytes
            return True


log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class CopyPlace:
    """The destination of a copy's files.

    Attributes:
        root: The folder of the table version in the store.
        target_bytes: The most bytes in memory of a file's rows.
    """

    store: ObjectStore
    root: str
    definition: TableDefinition
    writer: WriterIdentity
    target_bytes: int = HELD_BYTES


class CopyFiles:
    """Takes rows and makes files of them."""

    def __init__(self, place: CopyPlace, encoders: Encoders) -> None:
        self.place = place
        self.rows = 0
        self.adds: list[Add] = []
        """The files to commit."""
        self.touched_at = time.monotonic()
        """When rows last arrived."""
        self._encoders = encoders
        self._held = PartitionedRows(place.definition.schema)
        self._changed = threading.Condition()
        self._waiting = 0
        """Files whose rows wait for a thread."""
        self._encoding = 0
        """Files that wait or are being made."""
        self._error: IngesterError | None = None
        self._whole = False

    def add(self, split: SplitRows) -> int:
        """Take all of these rows or none; return the copy's total.

        Args:
            split: Rows in the table's columns, by partition.

        Raises:
            IngesterError: why the copy takes no more rows.
            MemoryFull: no memory for a while; nothing was taken.
        """
        nbytes = sum(int(rows.nbytes) for _, rows in split)
        self._wait_for_room(nbytes)
        self.touched_at = time.monotonic()
        with self._changed:
            before = self._held.nbytes
            try:
                self._check()
                for values, rows in split:
                    if rows.num_rows:
                        self._held.add(values, rows, whole=len(split) == 1)
                        self.rows += rows.num_rows
                count = self.rows
            finally:
                self._encoders.hold(self._held.nbytes - before - nbytes)
        while self._held.nbytes >= self.place.target_bytes:
            self._make_file()
        return count

    def complete(self) -> None:
        """Take no more rows, and return when all are in files.

        Raises:
            IngesterError: why the copy failed.
        """
        with self._changed:
            self._check(whole=True)
            self._whole = True
        while self._make_file():
            pass
        with self._changed:
            while self._encoding:
                self._changed.wait()
            self._check(whole=True)

    def check_keys(self) -> None:
        """Check that no key is in two files.

        Raises:
            BadRequest: one is.
            StoreError, FileDamaged
        """
        place = self.place
        by_partition: dict[PartitionValues, list[Add]] = {}
        for add in self.adds:
            by_partition.setdefault(add.values, []).append(add)
        for files in by_partition.values():
            key = repeated_key(place.store, place.root, files, place.definition)
            if key is not None:
                raise _twice(key)

    def end(self, error: IngesterError, *, keep: bool = False) -> None:
        """Take no more rows and free everything; files are deleted, including those in progress.

        Args:
            keep: keep the files, as a commit may list them.
        """
        with self._changed:
            self._error = self._error or error
            self._encoders.hold(-self._held.nbytes)
            self._held = PartitionedRows(self.place.definition.schema)
            adds, self.adds = ([] if keep else self.adds), []
            self._changed.notify_all()
        for add in adds:
            self._delete(add)

    def _check(self, *, whole: bool = False) -> None:
        if self._error is not None:
            raise self._error
        if self._whole and not whole:
            raise BadRequest("copy: it is being finished and takes no more rows")

    def _wait_for_room(self, nbytes: int) -> None:
        """Wait until the bytes can be counted as held."""
        give_up_at = time.monotonic() + PATIENCE_S
        while not self._encoders.take_room(nbytes):
            with self._changed:
                self._check()
                idle = not self._encoding
                if not (idle and self._held):
                    self._changed.wait(LOOK_S)
            # The rows held here may be what others wait for.
            if idle and self._make_file():
                continue
            if time.monotonic() > give_up_at:
                raise MemoryFull(
                    f"memory: no room for a batch of {nbytes} bytes of a copy; rows are being"
                    " persisted",
                    retry_after_s=1.0,
                )

    def _make_file(self) -> bool:
        """Submit a file of the largest partition's rows; False if none are held."""
        with self._changed:
            while self._waiting:  # one at a time, or each stream would hold another file's rows
                self._changed.wait()
            if not self._held:
                return False
            values = self._held.largest()
            rows = self._held.take(values)
            self._waiting += 1
            self._encoding += 1
        self._encoders.submit(partial(self._encode, rows, values, rows.nbytes))
        with self._changed:
            self._waiting -= 1
            self._changed.notify_all()
        return True

    def _encode(self, rows: SparseRows, values: PartitionValues, nbytes: int) -> None:
        """Make files of a partition's rows; a failure is that of the copy."""
        error: IngesterError | None = None
        adds: list[Add] = []
        self._encoders.hold(nbytes)  # sorted or encoded, beside the original
        try:
            if self._error is None:
                self._put(rows, values, adds)
        except IngesterError as exc:
            error = exc
        except StoreError as exc:
            error = StoreUnreachable(f"copy: the store refuses a file: {exc}", retry_after_s=2.0)
        except Exception as exc:
            log.error("copy not encoded", exc_info=exc, runbook="internal-error")
            error = InternalFailure("copy: no file could be made of rows; the log has the details")
        del rows
        with self._changed:
            self._error = self._error or error
            gone = adds if self._error is not None else []
            if not gone:
                self.adds += adds
            self._encoding -= 1
            self._encoders.hold(-2 * nbytes)
            self._changed.notify_all()
        for add in gone:
            self._delete(add)

    def _put(self, rows: SparseRows, values: PartitionValues, adds: list[Add]) -> None:
        place, definition = self.place, self.place.definition
        partition = (definition.spec_id, values)
        origin = FileOrigin(
            "push", place.writer.ingester_id, definition, partition, place.writer.epoch
        )
        stretch = stretch_of(rows, definition, place.target_bytes, None)
        if stretch.order.rows < rows.num_rows:
            key = first_repeated(rows, definition.primary_key)
            raise _twice(key or {})
        files = encode_ordered(
            stretch.rows, stretch.order, definition, metadata=origin.facts(), files=stretch.files
        )
        for file in files:
            put = partial(put_file, place.store, place.root, file, origin)
            adds.append(retry(put, PUT_RETRY))

    def _delete(self, add: Add) -> None:
        with suppress(StoreError, OSError):  # a remaining file is unlisted garbage
            self.place.store.delete(f"{self.place.root}/{add.path}")


def _twice(key: dict[str, object]) -> BadRequest:
    named = ", ".join(f"{name} = {value!r}" for name, value in key.items())
    return BadRequest(f"copy: the key {named} is repeated; keys must be unique")
