"""The executors' part of a push: writes the rows of one task as files to all regions at once.

    rows ─▶ each key once ─▶ FileSink: encoded once ─▶ RegionStores ─┬▶ a thread ─▶ region a
                                                                     ├▶ a thread ─▶ region b
                                                                     └▶ a thread ─▶ region c

Written files belong to no generation until the data of the push is committed: a failed or duplicate
attempt leaves only garbage for clean-up. Every region gets the same bytes. A region that refuses a
file is skipped and receives its missing files later; a task fails only if every region refuses. The
answer of a task lists each file with the regions that have it, and the number of input rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple, Protocol

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from ingester.spark.errors import WriteRefused, plainly_each
from ingester.spark.sink.data_files import TARGET_FILE_BYTES, FileSink
from persist.manifest import Add
from persist.store import PutInfo, StoreError, StoreRetry, open_store, retry
from persist.table import TableDefinition

RESULT = pa.schema([pa.field("rows", pa.int64()), pa.field("file", pa.binary())])
"""One row per file, whose ``rows`` is null, and one row with the number of input rows."""
PATIENCE = StoreRetry(first_s=0.1, cap_s=2.0, for_s=15.0)
"""How long an unreachable region is retried while the other ones wait."""


class RegionFolder(NamedTuple):
    """The folder of a generation in the store of one region. Pickled for executors."""

    region: str
    url: str
    store_options: dict[str, Any]
    root: str


class WrittenFile(msgspec.Struct, frozen=True):
    """A file that a task has written.

    Attributes:
        taken: the regions that have it, each with the file's time as its store reports it.
    """

    add: Add
    taken: Mapping[str, str]


_encode = msgspec.msgpack.Encoder().encode
decode_file = msgspec.msgpack.Decoder(WrittenFile).decode


@dataclass(frozen=True, slots=True)
class WriteTask:
    """A task without its rows. Pickled for executors."""

    places: tuple[RegionFolder, ...]
    definition: TableDefinition
    target_bytes: int = TARGET_FILE_BYTES

    def write(self, batches: Iterable[pa.RecordBatch]) -> tuple[int, list[WrittenFile]]:
        """Write all rows of a task, and return their number and the files.

        Raises:
            WriteRefused: a value does not fit the table, or a key is duplicate.
            StoreError: every region refuses a file.
        """
        count = 0

        def counted() -> Iterator[pa.RecordBatch]:
            nonlocal count
            for batch in batches:
                count += batch.num_rows
                yield batch

        rows: Iterator[pa.RecordBatch] = counted()
        if self.definition.keyed:
            rows = each_key_once(rows, self.definition.primary_key)
        with RegionStores(self.places) as stores:
            sink = FileSink(stores, "", self.definition, "push", "spark", self.target_bytes)
            adds = sink.write(rows)
            return count, [WrittenFile(add, stores.taken[add.path]) for add in adds]

    def function(self) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
        """Return the function for ``mapInArrow``."""

        @plainly_each
        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            rows, files = self.write(batches)
            yield _answer(rows, files)

        return run


def _answer(rows: int, files: list[WrittenFile]) -> pa.RecordBatch:
    """Encode a task's answer. Not a closure: those are pickled, and an encoder cannot be."""
    counts = [rows, *([None] * len(files))]
    columns = [
        pa.array(counts, pa.int64()),
        pa.array([None, *(_encode(file) for file in files)], pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=RESULT)


class _Store(Protocol):
    def put(self, path: str, data: pa.Buffer) -> PutInfo: ...


class RegionStores:
    """The stores of several regions as one ``FileStore``. Not thread-safe."""

    def __init__(self, places: Sequence[RegionFolder], policy: StoreRetry = PATIENCE) -> None:
        self._open: dict[str, tuple[_Store, str]] = {
            place.region: (open_store(place.url, **place.store_options), place.root)
            for place in places
        }
        self._policy = policy
        self._threads = ThreadPoolExecutor(max(1, len(places)), thread_name_prefix="put")
        self.taken: dict[str, dict[str, str]] = {}
        """By path of a file: the regions that have it, each with its store's time (ISO 8601)."""
        self.skipped: dict[str, str] = {}
        """The regions that refused a file, each with the reason."""

    def __enter__(self) -> RegionStores:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._threads.shutdown()

    def put(self, path: str, data: pa.Buffer) -> PutInfo:
        """Put a file into each store that has not failed yet, and return one of their answers.

        Raises:
            StoreError: every store refuses it; another attempt of the task may succeed.
        """
        calls = {
            region: self._threads.submit(partial(self._put, store, f"{root}/{path}", data))
            for region, (store, root) in self._open.items()
        }
        infos: dict[str, PutInfo] = {}
        failed: StoreError | None = None
        for region, call in calls.items():
            try:
                infos[region] = call.result()
            except StoreError as exc:
                self._open.pop(region)
                self.skipped[region] = str(exc)
                failed = exc
        if not infos:
            reasons = "; ".join(f"{region}: {reason}" for region, reason in self.skipped.items())
            raise StoreError(f"every region refuses {path}: {reasons}") from failed
        self.taken[path] = _times(infos)
        return next(iter(infos.values()))

    def _put(self, store: _Store, path: str, data: pa.Buffer) -> PutInfo:
        return retry(lambda: store.put(path, data), self._policy)


def _times(infos: Mapping[str, PutInfo]) -> dict[str, str]:
    return {region: info.at.isoformat() for region, info in infos.items()}


def each_key_once(
    batches: Iterable[pa.RecordBatch], primary_key: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the batches unchanged. Rows come sorted by key, so duplicates are neighbours.

    Raises:
        WriteRefused: a duplicate key, or a null in a key. Rows of a data frame have no order, so
            neither of two rows with one key is the later one.
    """
    last: pa.RecordBatch | None = None
    for batch in batches:
        if batch.num_rows:
            keys = batch.select(list(primary_key))
            _check_nulls(keys)
            seen = keys if last is None else pa.concat_batches([last, keys])
            _check_neighbours(seen)
            last = keys.slice(keys.num_rows - 1)
        yield batch


def _check_nulls(keys: pa.RecordBatch) -> None:
    for name in keys.schema.names:
        if keys.column(name).null_count:
            raise WriteRefused(f"column {name!r} of the primary key is null in a row")


def _check_neighbours(keys: pa.RecordBatch) -> None:
    rows = keys.num_rows - 1
    if rows < 1:
        return
    same: pa.Array | None = None
    for column in keys.columns:
        equal = pc.equal(column.slice(1), column.slice(0, rows))
        same = equal if same is None else pc.and_(same, equal)
    place = pc.index(same, True).as_py()
    if place >= 0:
        key = ", ".join(
            f"{name} = {keys.column(name)[place].as_py()!r}" for name in keys.schema.names
        )
        raise WriteRefused(
            f"the frame has several rows with one primary key ({key}); keep one of each key, for"
            " example with dropDuplicates"
        )
