"""Reads the records of ended logs from the store, in order, several objects ahead.

Each object is checked as a whole, like a segment on disk. At most ``AHEAD`` requests and
``AHEAD_BYTES`` are under way or waiting, but always one object. Blocks.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from ingester.store_log.fencing import FencedEpoch
from persist.store import ObjectStore, StoreRetry, retry
from wal import Record, RecordKind, SegmentFacts
from wal.objects import LogObject, decode_object

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

AHEAD = 8
AHEAD_BYTES = 64 << 20
READ_RETRY = StoreRetry(first_s=0.2, cap_s=5.0)
_CONTROLS = (RecordKind.ORIGINS, RecordKind.OPENED)


class LeftObject(NamedTuple):
    """A log object that an earlier epoch left behind."""

    path: str
    epoch: int
    segment: int
    """Below 0: it is to be read, and this stands for its segment in replayed records. Else it is
    ``kept_for``."""
    kept_for: int
    """It is deleted after this segment: the newest one on disk of its epoch, if there is one."""


def left_objects(
    epochs: Sequence[FencedEpoch], segments: Sequence[SegmentFacts]
) -> list[LeftObject]:
    """All objects with acknowledged operations, oldest first.

    Those to be read are numbered -K to -1, below all segments on disk, so that no segment is
    deleted before them. The others belong to an epoch whose log is on disk and has all of them.
    """
    newest = {facts.epoch: facts for facts in segments}
    to_read = [epoch for epoch in epochs if not _is_on_disk(epoch, newest.get(epoch.epoch))]
    numbers = itertools.count(-sum(len(epoch.numbers) for epoch in to_read))
    found = []
    for epoch in epochs:
        facts = newest.get(epoch.epoch)
        for number in epoch.numbers:
            segment = next(numbers) if facts is None or epoch in to_read else facts.number
            # A buffer with rows of both counts for the segment that it began with.
            kept_for = segment if facts is None else facts.number
            found.append(LeftObject(epoch.path(number), epoch.epoch, segment, kept_for))
    return found


def _is_on_disk(epoch: FencedEpoch, newest: SegmentFacts | None) -> bool:
    """Whether the log on disk has all of an epoch's objects: it was synced before each."""
    # A folder restored from a backup may end earlier.
    return newest is not None and epoch.on_disk and epoch.last_seq <= newest.last_seq


class ObjectCursor:
    """The records of log objects that no local segment has; like `wal.replay.ReplayCursor`.

    Args:
        local: the segments on disk; an operation in one of them is left out.
        allocate: returns the buffer of one payload.
    """

    def __init__(
        self,
        store: ObjectStore,
        objects: Sequence[LeftObject],
        local: Sequence[SegmentFacts],
        allocate: Callable[[int], WriteableBuffer],
        policy: StoreRetry = READ_RETRY,
    ) -> None:
        self._store = store
        self._policy = policy
        self._left = deque(objects)
        self._local = [facts for facts in local if facts.operations]
        self._epochs = {facts.epoch for facts in local}
        self._allocate = allocate
        self._ahead: deque[tuple[LeftObject, Future[bytes]]] = deque()
        self._threads: ThreadPoolExecutor | None = None
        self._object_bytes = 0

    def next_chunk(self) -> list[Record] | None:
        """The records of one object, at least one; None at the end.

        Raises:
            ObjectDamaged, LogTooNew: an object fails its checks.
            ObjectNotFound: an object was deleted meanwhile.
        """
        while self._left or self._ahead:
            self._read_ahead()
            read, data = self._ahead.popleft()
            content = decode_object(data.result(), read.path)
            self._object_bytes = max(len(data.result()), self._object_bytes // 2)
            if records := list(self._records(read, content)):
                return records
        self.close()
        return None

    def close(self) -> None:
        """Stop reading ahead."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._threads = None

    def _read_ahead(self) -> None:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(AHEAD, "store-log-read")
        while self._left and len(self._ahead) < self._most_ahead:
            read = self._left.popleft()
            get = partial(self._store.get, read.path)
            self._ahead.append((read, self._threads.submit(retry, get, self._policy)))

    @property
    def _most_ahead(self) -> int:
        """How many objects of the size of the last ones fit."""
        fitting = AHEAD_BYTES // self._object_bytes if self._object_bytes else 2
        return max(1, min(AHEAD, fitting))

    def _records(self, read: LeftObject, content: LogObject) -> Iterator[Record]:
        for offset, header, payload in content.records:
            if header.kind in _CONTROLS and read.epoch in self._epochs:
                continue  # the log on disk says the same, and more
            if header.kind == RecordKind.OPERATION and self._is_local(read.epoch, header.first_seq):
                continue
            buffer = self._allocate(header.length)
            if header.length:
                memoryview(buffer).cast("B")[:] = payload
            yield Record(
                header.kind,
                header.first_seq,
                buffer,
                read.segment,
                offset,
                read.epoch,
                header.operations,
            )

    def _is_local(self, epoch: int, seq: int) -> bool:
        return any(
            facts.epoch == epoch and facts.first_seq <= seq <= facts.last_seq
            for facts in self._local
        )


def cursors(
    store: ObjectStore,
    objects: Sequence[LeftObject],
    local: Sequence[SegmentFacts],
    allocate: Callable[[int], WriteableBuffer],
) -> dict[int, ObjectCursor]:
    """A cursor for the objects of each epoch."""
    return {
        epoch: ObjectCursor(store, list(found), local, allocate)
        for epoch, found in groupby(objects, key=lambda each: each.epoch)
    }
