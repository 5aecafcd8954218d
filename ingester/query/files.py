"""Parquet files read by row group, through one cache that all answers share.

Law of this file: decoded row groups belong to the cache, which is bounded in bytes; a reader holds
a position and asks again. One thread decodes a row group while the others that want it wait for it.
A group that is being read is not pushed out by the next one, which waits for a moment instead: a
group decoded anew for every part of it would cost a hundred times as much. Threads only; no loop.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ingester.errors import StoreAway
from ingester.query.turns import Turns
from persist.manifest import ColumnStats
from persist.stats import stat_value
from persist.store import NotFound, ObjectStore, StoreError

CACHE_BYTES = 128 << 20
MAX_FOOTERS = 4096
IN_USE_S = 0.25
"""A group that was asked for so recently is being read."""
ROOM_PATIENCE_S = 1.0
"""How long a group waits for those that are being read."""
IDLE_S = 1.0
"""What nobody has asked for in this time is forgotten, however much room there is."""

GroupKey = tuple[str, int, tuple[str, ...]]


class _Entry:
    __slots__ = ("batch", "used_at")

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.batch = batch
        self.used_at = time.monotonic()


class RowGroups:
    """Reads and caches footers and row groups of one store."""

    def __init__(
        self, store: ObjectStore, *, cache_bytes: int = CACHE_BYTES, turns: Turns | None = None
    ) -> None:
        self._store = store
        self._cache_bytes = cache_bytes
        self._turns = turns or Turns()
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._entries: OrderedDict[GroupKey, _Entry] = OrderedDict()
        """The least recently used first."""
        self._footers: OrderedDict[str, pq.FileMetaData] = OrderedDict()
        self._loading: dict[GroupKey, threading.Lock] = {}
        self._reserved = 0
        self.nbytes = 0

    def shrink(self) -> None:
        """Forget all decoded row groups: their memory is wanted elsewhere."""
        self.forget_idle(-1.0)

    def forget_idle(self, idle_s: float = IDLE_S) -> None:
        """Forget what nobody has asked for in this time."""
        before = time.monotonic() - idle_s
        with self._changed:
            while self._entries and next(iter(self._entries.values())).used_at < before:
                self._forget_oldest()

    def footer(self, path: str) -> pq.FileMetaData:
        """The file's metadata; read once while it stays in the cache.

        Raises:
            StoreAway: the file cannot be read now.
        """
        with self._lock:
            footer = self._footers.get(path)
            if footer is not None:
                self._footers.move_to_end(path)
                return footer
        with self._turns.given_back():
            footer = self._reading(path, lambda: pq.read_metadata(self._store.open(path)))
        with self._lock:
            self._footers[path] = footer
            while len(self._footers) > MAX_FOOTERS:
                self._footers.popitem(last=False)
        return footer

    def bounds(self, path: str, group: int, schema: pa.Schema) -> dict[str, ColumnStats]:
        """Bounds of the columns of one row group, from the footer."""
        footer = self.footer(path)
        return _bounds(footer, group, schema)

    def group(self, path: str, index: int, columns: tuple[str, ...]) -> pa.RecordBatch:
        """One decoded row group; columns that the file lacks are left out.

        Raises:
            StoreAway: the file cannot be read now.
        """
        key = (path, index, columns)
        batch = self._cached(key)
        if batch is not None:
            return batch
        footer = self.footer(path)
        with self._lock:
            loading = self._loading.setdefault(key, threading.Lock())
        try:
            with self._turns.given_back(), loading:
                batch = self._cached(key)
                if batch is None:
                    with self._room(footer.row_group(index).total_byte_size):
                        batch = self._reading(path, lambda: self._decode(path, index, columns))
                        self._keep(key, batch)
            return batch
        finally:
            with self._lock:
                self._loading.pop(key, None)

    def _cached(self, key: GroupKey) -> pa.RecordBatch | None:
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            entry.used_at = time.monotonic()
            self._entries.move_to_end(key)
            return entry.batch

    @contextmanager
    def _room(self, nbytes: int) -> Iterator[None]:
        """Wait for room, but not for ever, and hold it inside the block."""
        deadline = time.monotonic() + ROOM_PATIENCE_S
        with self._changed:
            while (
                self.nbytes + self._reserved
                and self.nbytes + self._reserved + nbytes > self._cache_bytes
            ):
                now = time.monotonic()
                oldest = next(iter(self._entries.values()), None)
                free_at = deadline if oldest is None else min(deadline, oldest.used_at + IN_USE_S)
                if now < free_at:
                    self._changed.wait(free_at - now)
                elif oldest is not None:
                    self._forget_oldest()
                else:
                    break
            self._reserved += nbytes
        try:
            yield
        finally:
            with self._changed:
                self._reserved -= nbytes
                self._changed.notify_all()

    def _decode(self, path: str, index: int, columns: tuple[str, ...]) -> pa.RecordBatch:
        footer = self.footer(path)
        with pq.ParquetFile(self._store.open(path), metadata=footer, pre_buffer=True) as file:
            have = set(file.schema_arrow.names)
            table = file.read_row_group(
                index, columns=[name for name in columns if name in have], use_threads=False
            )
        batches = table.combine_chunks().to_batches()
        if batches:
            return batches[0]
        return pa.RecordBatch.from_struct_array(
            pa.array([{}] * footer.row_group(index).num_rows, pa.struct([]))
        )

    def _keep(self, key: GroupKey, batch: pa.RecordBatch) -> None:
        with self._changed:
            old = self._entries.pop(key, None)
            self.nbytes -= 0 if old is None else old.batch.nbytes
            self._entries[key] = _Entry(batch)
            self.nbytes += batch.nbytes
            # The newest stays whatever its size: its reader comes back for each part of it.
            while self.nbytes > self._cache_bytes and len(self._entries) > 1:
                self._forget_oldest()

    def _forget_oldest(self) -> None:
        _, entry = self._entries.popitem(last=False)
        self.nbytes -= entry.batch.nbytes
        self._changed.notify_all()

    def _reading(self, path: str, read: Callable[[], Any]) -> Any:
        try:
            return read()
        except NotFound as exc:
            raise StoreAway(f"file {path} is gone from the object store: {exc}") from exc
        except (StoreError, OSError) as exc:
            raise StoreAway(f"file {path} cannot be read: {exc}", retry_after_s=2.0) from exc


def _bounds(footer: Any, index: int, schema: pa.Schema) -> dict[str, ColumnStats]:
    found = {}
    group = footer.row_group(index)
    # A leaf inside ``s`` has the path ``s.x``, as a plain column of that name has.
    whole = {f.name for f in footer.schema.to_arrow_schema() if not pa.types.is_nested(f.type)}
    paths = Counter(footer.schema.column(leaf).path for leaf in range(group.num_columns))
    for leaf in range(group.num_columns):
        column = group.column(leaf)
        path = column.path_in_schema
        position = schema.get_field_index(path)
        stats = column.statistics
        if position < 0 or stats is None or path not in whole or paths[path] > 1:
            continue
        kind = schema.field(position).type
        nulls = stats.null_count if stats.has_null_count else None
        low = high = None
        if stats.has_min_max and (pa.types.is_timestamp(kind) or pa.types.is_date32(kind)):
            # The logical values pass through Python's datetime, which has no nanoseconds.
            low, high = stats.min_raw, stats.max_raw
        elif stats.has_min_max:
            low, high = _stat(stats.min, kind), _stat(stats.max, kind)
        found[column.path_in_schema] = ColumnStats(min=low, max=high, nulls=nulls)
    return found


def _stat(value: Any, kind: pa.DataType) -> Any:
    try:
        return stat_value(pa.scalar(value, kind))
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        return None
