"""The sign of life of a daemon whose log objects have rows that are in no file.

    _log/<ingester id>/heartbeat.json      replaced every ``HEARTBEAT_S`` while there are such rows
                                           and no new object, and once more when there are none

Another daemon that looks after this log (``recovery.adopt = ["store:ID"]``) adopts it when nothing
below its folder has changed for ``recovery.adopt_after``. Adopting the log of a live process is
safe: it fences that process. The heartbeat only keeps it from happening.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec
import structlog
import trio

from ingester.store_log.cleaner import Cleaner
from persist.manifest import WriterIdentity
from persist.store import ObjectStore, StoreError
from wal.objects import ObjectName, object_folder

log = structlog.get_logger(__name__)

HEARTBEAT_S = 5.0
"""The interval; ``recovery.adopt_after`` should be several times as long."""


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the object.

    Every log object up to number ``in_files`` of ``epoch``, and all those of earlier epochs, have
    their rows in files. ``epoch`` is 0 while objects of earlier epochs have not.
    """

    epoch: int
    incarnation: str
    in_files: int = 0
    beat: int = 0
    """Rises with each one."""

    def covers(self, name: ObjectName) -> bool:
        """Whether all rows of a log object are in files."""
        return (name.epoch, name.number) <= (self.epoch, self.in_files)


def heartbeat_path(ingester_id: str) -> str:
    """The path of an ingester's heartbeat."""
    return f"{object_folder(ingester_id)}heartbeat.json"


def decode_heartbeat(data: bytes) -> Heartbeat | None:
    """The heartbeat; None if it is of another version, which says nothing."""
    try:
        return msgspec.json.decode(data, type=Heartbeat)
    except msgspec.DecodeError:
        return None


class Heart:
    """Writes the heartbeat of a running epoch. Loop only; requests run in threads.

    Args:
        first_needed: returns the oldest segment with rows or checkpoints that no file has.
    """

    def __init__(
        self,
        store: ObjectStore,
        writer: WriterIdentity,
        cleaner: Cleaner,
        first_needed: Callable[[], int],
    ) -> None:
        self._store = store
        self._first_needed = first_needed
        self._writer = writer
        self._cleaner = cleaner
        self._beat = 0
        self._newest = 0
        self._rests = False

    async def run(self) -> None:
        """Write one when it is due, until cancelled."""
        while True:
            await trio.sleep(HEARTBEAT_S)
            try:
                await self.look()
            except StoreError as exc:
                log.warning("heartbeat not written", error=str(exc), runbook="store-away")

    async def look(self) -> None:
        """Write the heartbeat if it is due now.

        Raises:
            StoreError: it may not have been written.
        """
        done = self._cleaner.progress(self._first_needed())
        is_new, self._newest = done.newest != self._newest, done.newest
        if done.all_in_files:
            if not done.newest or (self._rests and not is_new):
                return
        elif is_new:
            self._rests = False
            return  # the new object is a sign of life
        self._beat += 1
        heartbeat = Heartbeat(
            epoch=0 if done.earlier_left else self._writer.epoch,
            incarnation=self._writer.incarnation,
            in_files=done.in_files,
            beat=self._beat,
        )
        path = heartbeat_path(self._writer.ingester_id)
        put = partial(self._store.put, path, msgspec.json.encode(heartbeat))
        await trio.to_thread.run_sync(put, abandon_on_cancel=True)
        self._rests = done.all_in_files
