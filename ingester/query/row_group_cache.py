"""Parquet files read by row group, through one bounded cache shared by all answers.

Decoded row groups belong to the cache. A reader holds a position and asks again for each part. One
thread decodes a row group while others that need it wait. Asking takes a lease, which ends with
:meth:`RowGroupCache.done` or after :data:`LEASE_S`; leased groups are not evicted unless a new
one has waited for :data:`ROOM_PATIENCE_S` (tests/query/test_row_group_cache.py). Threads only.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import structlog

from ingester.errors import InternalFailure, StoreUnreachable
from ingester.query.fair_scheduler import CpuAccount, FairScheduler
from ingester.query.parts import Views
from ingester.query.spill import ResultSpill
from persist.parquet.reading import (
    DataFile,
    FileDamaged,
    columns_with_values,
    damage_errors,
    decoded_bytes,
    read_footer,
)
from persist.parquet.sparse_rows import rows_alone
from persist.store import ObjectNotFound, ObjectStore, StoreError

log = structlog.get_logger(__name__)

CACHE_BYTES = 128 << 20
MAX_FOOTERS = 4096
LEASE_S = 0.5
"""Lease duration, in seconds. A reader that takes longer has stalled or disconnected."""
ROOM_PATIENCE_S = 1.0
"""How long a new group waits for leased ones, in seconds."""
IDLE_S = 5.0
"""Time after which an unused group is dropped even if there is room, in seconds."""

AHEAD_THREADS = 2
MAX_AHEAD = 3
"""Limit on groups that wait to be decoded ahead."""
MAX_WAITING = 1
"""With more answers waiting for a turn, all processors are busy and nothing is decoded ahead."""

GroupKey = tuple[str, int, tuple[str, ...]]


class Decoded(NamedTuple):
    """A decoded row group."""

    batch: pa.RecordBatch
    nbytes: int


class _Entry:
    """A cached row group with the expiry of each reader's lease."""

    __slots__ = ("batch", "leases", "nbytes", "used_at")

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.batch = batch
        self.nbytes = int(batch.nbytes)
        self.used_at = 0.0
        self.leases: dict[int, float] = {}

    def lease(self, reader: int, now: float) -> None:
        self.used_at = now
        self.leases[reader] = now + LEASE_S

    def leased_until(self) -> float:
        return max(self.leases.values(), default=0.0)


class RowGroupCache:
    """Reads and caches the footers and row groups of one store."""

    def __init__(
        self,
        store: ObjectStore,
        *,
        cache_bytes: int = CACHE_BYTES,
        result_spill: ResultSpill | None = None,
    ) -> None:
        self.scheduler = FairScheduler()
        """Gives turns to the answers that read here."""
        self.views = Views()
        """Counts what the parts of these answers are views of."""
        self.result_spill = result_spill or ResultSpill()
        """Keeps merged rows that these answers send later."""
        self.nbytes = 0
        """Bytes of all decoded row groups, including those being decoded."""
        self._store = store
        self._cache_bytes = cache_bytes
        # Reentrant: garbage collection inside it may free a stream, which calls `done`.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._entries: OrderedDict[GroupKey, _Entry] = OrderedDict()
        """Decoded groups, least recently used first."""
        self._footers: OrderedDict[str, pq.FileMetaData] = OrderedDict()
        self._loading: dict[GroupKey, threading.Lock] = {}
        self._under_way = 0
        self._ahead: set[GroupKey] = set()
        self._threads = ThreadPoolExecutor(AHEAD_THREADS, "row-groups")

    def shrink(self) -> None:
        """Drop all decoded row groups to free memory."""
        self.forget_idle(-1.0)

    def forget_idle(self, idle_s: float = IDLE_S) -> None:
        """Drop groups that were not used for this long."""
        before = time.monotonic() - idle_s
        with self._changed:
            for key in [key for key, entry in self._entries.items() if entry.used_at < before]:
                self._forget(key)

    def footer(self, file: DataFile) -> pq.FileMetaData:
        """Return a file's metadata, checked and cached.

        Raises:
            StoreUnreachable: the file cannot be read now.
            InternalFailure: the file is damaged.
        """
        path = file.path
        with self._lock:
            footer = self._footers.get(path)
            if footer is not None:
                self._footers.move_to_end(path)
                return footer
        with self.scheduler.given_back():
            footer = self._reading(path, lambda: read_footer(self._store.open(path), file))
        with self._lock:
            self._footers[path] = footer
            while len(self._footers) > MAX_FOOTERS:
                self._footers.popitem(last=False)
        return footer

    def group(
        self, file: DataFile, index: int, columns: tuple[str, ...], reader: int = 0
    ) -> Decoded:
        """Return a decoded row group without the columns that have no values in it.

        ``reader`` holds a lease on it until :meth:`done`, or for :data:`LEASE_S`.

        Raises:
            StoreUnreachable: the file cannot be read now.
            InternalFailure: the file is damaged.
        """
        key = (file.path, index, columns)
        while True:
            group = self._cached(key, reader)
            if group is not None:
                return group
            footer, account = self.footer(file), self.scheduler.account()
            # No reference is kept while waiting for the next turn, so that only the cache holds the
            # group.
            with self.scheduler.given_back():
                self._load(key, footer, reader, account)

    def prefetch(self, file: DataFile, index: int, columns: tuple[str, ...], reader: int) -> bool:
        """Start decoding a group in another thread for a reader that will soon need it.

        Returns False if there is no room or too much to do already; the caller may ask again.
        """
        if self.scheduler.waiting > MAX_WAITING:
            return False
        key = (file.path, index, columns)
        footer = self.footer(file)
        nbytes = _decoded_bytes(footer, index, columns)
        with self._lock:
            if key in self._entries or key in self._loading:
                return True
            if len(self._ahead) >= MAX_AHEAD or self._leased() + nbytes > self._cache_bytes // 2:
                return False
            self._ahead.add(key)
        self._threads.submit(self._load_ahead, key, footer, reader, self.scheduler.account())
        return True

    def _leased(self) -> int:
        """Return the bytes that cannot be evicted now."""
        now = time.monotonic()
        free = (entry.nbytes for entry in self._entries.values() if entry.leased_until() <= now)
        return self.nbytes - sum(free)

    def _load_ahead(
        self, key: GroupKey, footer: pq.FileMetaData, reader: int, account: CpuAccount | None
    ) -> None:
        began = time.thread_time()
        try:
            self._load(key, footer, reader, account)
        except (StoreUnreachable, InternalFailure):
            pass  # reported to the reader that asks for the group
        finally:
            if account is not None:
                self.scheduler.count(account, time.thread_time() - began)
            with self._lock:
                self._ahead.discard(key)

    def done(self, path: str, index: int, columns: tuple[str, ...], reader: int) -> None:
        """End a reader's lease: it has read the whole group."""
        with self._changed:
            entry = self._entries.get((path, index, columns))
            if entry is not None and entry.leases.pop(reader, None) is not None:
                self._changed.notify_all()

    def _cached(self, key: GroupKey, reader: int) -> Decoded | None:
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            entry.lease(reader, time.monotonic())
            self._entries.move_to_end(key)
            return Decoded(entry.batch, entry.nbytes)

    def _load(
        self, key: GroupKey, footer: pq.FileMetaData, reader: int, account: CpuAccount | None
    ) -> None:
        """Decode a group into the cache unless another thread already did."""
        path, index, columns = key
        with self._lock:
            loading = self._loading.setdefault(key, threading.Lock())
        try:
            with loading:
                if self._cached(key, reader) is None:
                    turn = nullcontext() if account is None else self.scheduler.aside(account)
                    with self._room(_decoded_bytes(footer, index, columns)) as held, turn:
                        batch = self._reading(path, lambda: self.decode(footer, key))
                        self._keep(key, batch, reader, held)
        finally:
            with self._lock:
                self._loading.pop(key, None)

    @contextmanager
    def _room(self, nbytes: int) -> Iterator[list[int]]:
        """Reserve room inside the block, waiting up to :data:`ROOM_PATIENCE_S`.

        After that, one group at a time is admitted anyway. Yields a list with the bytes reserved.
        """
        deadline = time.monotonic() + ROOM_PATIENCE_S
        with self._changed:
            while self.nbytes and self.nbytes + nbytes > self._cache_bytes:
                now = time.monotonic()
                free_at = self._forget_unleased(now)
                if free_at <= now:
                    continue
                if now < deadline:
                    self._changed.wait(min(free_at, deadline) - now)
                elif self._under_way:
                    self._changed.wait(LEASE_S)
                elif self._entries:
                    self._forget(next(iter(self._entries)))
            self.nbytes += nbytes
            self._under_way += 1
        held = [nbytes]
        try:
            yield held
        finally:
            with self._changed:
                self.nbytes -= sum(held)
                self._under_way -= 1
                self._changed.notify_all()

    def _keep(self, key: GroupKey, batch: pa.RecordBatch, reader: int, held: list[int]) -> None:
        """Replace the reserved bytes by the decoded group."""
        with self._changed:
            entry = _Entry(batch)
            self.nbytes += entry.nbytes - held.pop()
            if key in self._entries:
                self._forget(key)
            self._entries[key] = entry
            entry.lease(reader, time.monotonic())
            while self.nbytes > self._cache_bytes and self._forget_unleased(time.monotonic()) == 0:
                pass

    def _forget_unleased(self, now: float) -> float:
        """Drop the oldest unleased group and return 0, or return when the next lease ends."""
        free_at = float("inf")
        for key, entry in self._entries.items():
            until = entry.leased_until()
            if until <= now:
                self._forget(key)
                return 0.0
            free_at = min(free_at, until)
        return free_at

    def _forget(self, key: GroupKey) -> None:
        self.nbytes -= self._entries.pop(key).nbytes
        self._changed.notify_all()

    def decode(self, footer: pq.FileMetaData, key: GroupKey) -> pa.RecordBatch:
        """Return a row group's rows from the store, bypassing the cache."""
        path, index, columns = key
        with pq.ParquetFile(
            self._store.open(path),
            metadata=footer,
            pre_buffer=True,
            page_checksum_verification=True,
        ) as file:
            there = columns_with_values(footer, index, columns)
            if not there:
                return rows_alone(footer.row_group(index).num_rows)
            table = file.read_row_group(index, columns=there, use_threads=False)
        return table.combine_chunks().to_batches()[0]

    def _reading(self, path: str, read: Callable[[], Any]) -> Any:
        try:
            with damage_errors(path):
                return read()
        except ObjectNotFound as exc:
            raise StoreUnreachable(f"file {path} is gone from the object store: {exc}") from exc
        except (StoreError, OSError) as exc:
            raise StoreUnreachable(f"file {path} cannot be read: {exc}", retry_after_s=2.0) from exc
        except FileDamaged as exc:
            log.error("data file damaged", path=path, error=str(exc), runbook="damaged-file")
            raise InternalFailure(str(exc)) from exc


def _decoded_bytes(footer: pq.FileMetaData, index: int, columns: tuple[str, ...]) -> int:
    return decoded_bytes(footer, index, tuple(columns_with_values(footer, index, columns)))
