"""Creates the log objects of one epoch, and repeats each request until the store answers it.

    create ─┬─ created
            ├─ "exists", with our bytes: only the answer to an earlier request was lost
            ├─ "exists", with others: another process has ended this epoch's log ──▶ Fenced
            └─ failed: repeated

The first object counts only if no later epoch was claimed before it was there
(`ingester.store_log.fencing`). Loop only; the requests run in threads.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import trio

from ingester.observability.logs import store_away
from persist.manifest import Fenced, WriterIdentity, newest_epoch
from persist.store import AlreadyExists, ObjectStore, StoreError, StoreRetry, retry_async
from wal import LogError, LogIdentity
from wal.objects import FencedBy, decode_object, object_path

PUT_RETRY = StoreRetry(first_s=0.05, cap_s=2.0, unreachable=(StoreError,))


@dataclass(slots=True)
class PutCounts:
    """Counts since the start; see :class:`ingester.observability.status.StoreLogStatus`."""

    puts: int = 0
    put_bytes: int = 0
    put_s: float = 0.0
    failed: int = 0
    failing: bool = False
    last_error: str | None = None


class ObjectCreator:
    """Creates one epoch's objects."""

    def __init__(self, store: ObjectStore, writer: WriterIdentity) -> None:
        self.identity = LogIdentity(writer.ingester_id, writer.incarnation, writer.epoch)
        self.counts = PutCounts()
        self._store = store
        self._writer = writer
        self._tell = store_away("log object not stored, trying again")

    async def create(self, number: int, data: bytes) -> None:
        """Return when the store has the object.

        Raises:
            Fenced: another process has taken over.
        """
        path = object_path(self._writer.ingester_id, self._writer.epoch, number)
        await self._until_answered(partial(self._create, path, data))
        self.counts.puts += 1
        self.counts.put_bytes += len(data)
        if number == 1:
            await self._until_answered(self.check_epoch)

    async def _until_answered(self, request: Callable[[], None]) -> None:
        counts = self.counts

        async def once() -> None:
            began = time.monotonic()
            await trio.to_thread.run_sync(request, abandon_on_cancel=True)
            counts.put_s += time.monotonic() - began
            counts.failing = False

        def tell(error: Exception, wait_s: float) -> None:
            if not counts.failing:  # once per outage: eight objects are tried again and again
                self._tell(error, wait_s)
            counts.failed += 1
            counts.failing = True
            counts.last_error = str(error)

        await retry_async(once, PUT_RETRY, tell, sleep=trio.sleep)

    def _create(self, path: str, data: bytes) -> None:
        try:
            self._store.create(path, data)
        except AlreadyExists:
            found = self._store.get(path)
            if found != data:  # otherwise only the answer to an earlier request was lost
                raise self._fenced_by(_maker(found, path)) from None

    def check_epoch(self) -> None:
        """Raise :class:`Fenced` if a later epoch was claimed. Blocks."""
        writer = self._writer
        if newest := newest_epoch(self._store, writer.ingester_id, writer.epoch + 1):
            raise self._fenced_by(FencedBy(newest, "unknown"))

    def _fenced_by(self, by: FencedBy | None) -> Fenced:
        writer, by = self._writer, by or FencedBy(self._writer.epoch, "unknown")
        return Fenced(writer.ingester_id, writer.epoch, by.epoch, by.incarnation)


def _maker(data: bytes, path: str) -> FencedBy | None:
    """The process that made a fence; None if the bytes do not say."""
    try:
        return decode_object(data, path).note.fenced_by
    except LogError:
        return None  # whatever it is, this process did not make it
