"""Parquet files read by row group, through one cache that all answers share.

Law of this file: decoded row groups belong to the cache, which is bounded in bytes; a reader holds
a position and asks again. One thread decodes a row group while the others that want it wait for it.
A reader that asks has a lease on the group until it says that it is done, or does not come back: a
leased group is not pushed out by the next one, which waits instead, but not for ever. (A group
decoded anew for every part of it would cost a hundred times as much.) Threads only; no loop.
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

from ingester.errors import InternalFailure, StoreAway
from ingester.query.cpu_account import CpuAccount
from ingester.query.fair_scheduler import FairScheduler
from ingester.query.result_spill import ResultSpill
from ingester.query.slicer import Views
from persist.parquet.reading import (
    DataFile,
    FileDamaged,
    columns_with_values,
    decoded_bytes,
    read_footer,
    told,
)
from persist.parquet.sparse_rows import rows_alone
from persist.store import NotFound, ObjectStore, StoreError

log = structlog.get_logger(__name__)

CACHE_BYTES = 128 << 20
MAX_FOOTERS = 4096
LEASE_S = 0.5
"""The time after which a reader that does not come back has stalled, or has left."""
ROOM_PATIENCE_S = 1.0
"""The time that a group waits for those that are being read."""
IDLE_S = 5.0
"""The time after which a group that nobody asked for is forgotten, whatever room there is."""

AHEAD_THREADS = 2
MAX_AHEAD = 3
"""The most groups that wait to be decoded ahead."""
MAX_WAITING = 1
"""All processors are busy as it is where more answers wait for their turn."""

GroupKey = tuple[str, int, tuple[str, ...]]


class Decoded(NamedTuple):
    """A row group in memory."""

    batch: pa.RecordBatch
    nbytes: int


class _Entry:
    """A decoded row group, and until when each of its readers has a lease on it."""

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
    """Reads and caches footers and row groups of one store."""

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
        """Keeps what these answers have merged and send later."""
        self.nbytes = 0
        """Bytes of all decoded row groups, and of those that are being decoded."""
        self._store = store
        self._cache_bytes = cache_bytes
        # Reentrant: a collection inside it may free a stream, whose reader is done then.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._entries: OrderedDict[GroupKey, _Entry] = OrderedDict()
        """Decoded groups, the least recently used first."""
        self._footers: OrderedDict[str, pq.FileMetaData] = OrderedDict()
        self._loading: dict[GroupKey, threading.Lock] = {}
        self._under_way = 0
        self._ahead: set[GroupKey] = set()
        self._threads = ThreadPoolExecutor(AHEAD_THREADS, "row-groups")

    def shrink(self) -> None:
        """Forget all decoded row groups: their memory is needed elsewhere."""
        self.forget_idle(-1.0)

    def forget_idle(self, idle_s: float = IDLE_S) -> None:
        """Forget groups that nobody has asked for in this time."""
        before = time.monotonic() - idle_s
        with self._changed:
            for key in [key for key, entry in self._entries.items() if entry.used_at < before]:
                self._forget(key)

    def footer(self, file: DataFile) -> pq.FileMetaData:
        """Return the file's metadata, checked; read once while it stays in the cache.

        Raises:
            StoreAway: the file cannot be read now.
            InternalFailure: it is damaged.
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
        """Return a decoded row group; columns that have no values in it are left out.

        ``reader`` has a lease on it until :meth:`done`, or for :data:`LEASE_S`.

        Raises:
            StoreAway: the file cannot be read now.
            InternalFailure: it is damaged.
        """
        key = (file.path, index, columns)
        while True:
            group = self._cached(key, reader)
            if group is not None:
                return group
            footer, account = self.footer(file), self.scheduler.account()
            # No reference is kept while the next turn is waited for: the cache alone holds it.
            with self.scheduler.given_back():
                self._load(key, footer, reader, account)

    def prefetch(self, file: DataFile, index: int, columns: tuple[str, ...], reader: int) -> bool:
        """Have a group decoded by another thread, for a reader that will ask for it soon.

        False where there is no room for it, or too much to do already; it may be asked again.
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
        """Return the bytes that no other group can take the place of now."""
        now = time.monotonic()
        free = (entry.nbytes for entry in self._entries.values() if entry.leased_until() <= now)
        return self.nbytes - sum(free)

    def _load_ahead(
        self, key: GroupKey, footer: pq.FileMetaData, reader: int, account: CpuAccount | None
    ) -> None:
        began = time.thread_time()
        try:
            self._load(key, footer, reader, account)
        except (StoreAway, InternalFailure):
            pass  # whoever asks for the group is told
        finally:
            if account is not None:
                self.scheduler.count(account, time.thread_time() - began)
            with self._lock:
                self._ahead.discard(key)

    def done(self, path: str, index: int, columns: tuple[str, ...], reader: int) -> None:
        """End a reader's lease: it has read the group to its end."""
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
        """Decode a group into the cache, unless somebody else has done it meanwhile."""
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
        """Wait for room, but not for ever, and hold it inside the block, which gets the bytes held.

        When patience ends, one group at a time goes in all the same.
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
        """Put a group in the place of the bytes that were held for it."""
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
        """Forget the oldest group that nobody reads, and return 0; else when a lease ends."""
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
        """The rows of one group, read from the store; the cache is not asked."""
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
            with told(path):
                return read()
        except NotFound as exc:
            raise StoreAway(f"file {path} is gone from the object store: {exc}") from exc
        except (StoreError, OSError) as exc:
            raise StoreAway(f"file {path} cannot be read: {exc}", retry_after_s=2.0) from exc
        except FileDamaged as exc:
            log.error("data file damaged", path=path, error=str(exc), runbook="damaged-file")
            raise InternalFailure(str(exc)) from exc


def _decoded_bytes(footer: pq.FileMetaData, index: int, columns: tuple[str, ...]) -> int:
    return decoded_bytes(footer, index, tuple(columns_with_values(footer, index, columns)))
