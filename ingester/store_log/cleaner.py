"""Deletes log objects that are no longer needed, by the rule of segments.

    acknowledged or replayed ─▶ kept until the log's segments of its operations are deleted
                                └─▶ deleted, oldest first, by rising number in each epoch

Of the running epoch the newest acknowledged object is kept, and with it everything above the number
that it calls acknowledged (`ingester.store_log.fencing` says why). Below the number from which it
says that objects are kept, they are deleted together: a busy daemon makes several at a time. What a
crash leaves here is deleted by the next start, which replays it first. Fences are never deleted.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from itertools import islice
from typing import NamedTuple

import structlog
import trio

from ingester.store_log.reading import LeftObject
from persist.store import ObjectStore, StoreError, delete_all
from wal.objects import object_path

log = structlog.get_logger(__name__)

RETRY_S = 10.0
TOGETHER = 100
"""At most this many deletions hold up a stop."""


class KeptObject(NamedTuple):
    """An acknowledged object of the running epoch."""

    number: int
    acknowledged: int
    """The newest object that it calls acknowledged."""
    segment: int
    """The newest segment of the log that has one of its operations."""
    nbytes: int
    kept_from: int = 0
    """The oldest object that it calls kept. No start asks for an earlier one."""


class CleaningProgress(NamedTuple):
    """Which acknowledged objects have their rows in files."""

    newest: int
    """The running epoch's newest object; 0 before the first."""
    in_files: int
    """It and all before it have their rows in files."""
    earlier_left: bool
    """Whether rows of an earlier epoch's object are in no file."""

    @property
    def all_in_files(self) -> bool:
        return not self.earlier_left and self.in_files == self.newest


class Cleaner:
    """Deletes the log objects of one ingester. Loop only; requests run in threads."""

    def __init__(self, store: ObjectStore, ingester_id: str, epoch: int) -> None:
        self._store = store
        self._ingester_id = ingester_id
        self._epoch = epoch
        self._left: list[LeftObject] = []
        self._kept: deque[KeptObject] = deque()
        self._keep_from = -(1 << 62)
        self._newest = 0
        self._wake = trio.Event()
        self._cleaning = trio.Lock()

    @property
    def objects(self) -> int:
        """The number of objects with acknowledged operations."""
        return len(self._kept) + len(self._left)

    @property
    def kept_from(self) -> int:
        """The number of the running epoch's oldest object with rows that are in no file, or of its
        newest one; 0 without one. It never falls.
        """
        needed = (each.number for each in self._kept if each.segment >= self._keep_from)
        return next(needed, self._newest)

    @property
    def nbytes(self) -> int:
        """The bytes of the running epoch's objects."""
        return sum(each.nbytes for each in self._kept)

    def note_left(self, objects: list[LeftObject]) -> None:
        """Take over the objects of earlier epochs, oldest first."""
        self._left.extend(objects)

    def note_acknowledged(self, made: KeptObject) -> None:
        """Take over an object of the running epoch, in the order of numbers."""
        self._kept.append(made)
        self._newest = made.number

    def progress(self, first_needed: int) -> CleaningProgress:
        """Return which objects have their rows in files.

        Args:
            first_needed: the oldest segment with rows or checkpoints that no file has.
        """
        needed = (each.number for each in self._kept if each.segment >= first_needed)
        first = next(needed, self._newest + 1)
        is_left = any(each.kept_for >= first_needed for each in self._left)
        return CleaningProgress(self._newest, first - 1, is_left)

    def keep_from(self, segment: int) -> None:
        """Delete what has only operations of earlier segments."""
        if segment > self._keep_from:
            self._keep_from = segment
            self._wake.set()

    async def run(self) -> None:
        """Delete until cancelled."""
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            try:
                await self.clean()
            except StoreError as exc:
                log.warning("log objects not deleted", error=str(exc), runbook="store-away")
                with trio.move_on_after(RETRY_S):
                    await self._wake.wait()
                self._wake.set()

    async def clean(self) -> None:
        """Delete what is not needed now.

        Raises:
            StoreError: the rest is deleted later.
        """
        async with self._cleaning:
            for each in [each for each in self._left if each.kept_for < self._keep_from]:
                await self._delete(each.path)
                self._left.remove(each)
            await self._delete_known()
            while self._kept and self._may_go(self._kept[0]):
                await self._delete(self._path(self._kept[0]))
                self._kept.popleft()
                await self._delete_known()  # objects made meanwhile may call less kept

    async def clean_up(self) -> None:
        """Delete every object of the running epoch. It must be recorded as stopped: then a start
        needs none of them, and objects may be missing between others.

        Raises:
            StoreError: the next start deletes the rest.
        """
        async with self._cleaning:
            paths = [self._path(each) for each in self._kept]
            await trio.to_thread.run_sync(delete_all, self._store, paths, abandon_on_cancel=True)
            self._kept.clear()

    async def _delete_known(self) -> None:
        """Delete what the newest object does not call kept, in any order."""
        # Invariant: later objects call no earlier one kept, so a start misses none of these.
        while known := [
            each for each in islice(self._kept, TOGETHER) if each.number < self._kept[-1].kept_from
        ]:
            paths = [self._path(each) for each in known]
            await trio.to_thread.run_sync(delete_all, self._store, paths)
            for _ in known:
                self._kept.popleft()

    def _path(self, kept: KeptObject) -> str:
        return object_path(self._ingester_id, self._epoch, kept.number)

    def _may_go(self, oldest: KeptObject) -> bool:
        proven = oldest.number <= self._kept[-1].acknowledged
        return proven and oldest.segment < self._keep_from

    async def _delete(self, path: str) -> None:
        await trio.to_thread.run_sync(partial(self._store.delete, path))
