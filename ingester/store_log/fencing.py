"""Ends the logs of earlier epochs: their processes can acknowledge nothing more at the store.

    epoch's folder listed ─┬─ has a fence that counts ──────────────────────▶ ended there
          ▲                └─ fence created at the first number that is missing
          └──────────────────────────────────────────┘ looked at again

The epoch's own process creates objects by rising number and acknowledges them in that order. What
follows the first missing number was therefore not acknowledged. When that process creates the
missing one, it finds the fence.

The process also deletes its oldest objects. A slow successor may put a fence at a number that was
used and deleted since it looked. So the process deletes only up to the number that its newest
acknowledged object calls acknowledged, and keeps that object: a fence at such a number does not
count. Fences are never deleted: the process may wake up at any time.

An epoch without objects needs no fence. Its process counts its first object, which has no
operations, only if it finds no claim of a later epoch afterwards (`ingester.store_log.creating`).
No clock decides anything (tests/store_log/test_fencing.py). Blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from ingester.observability.status import LostOperations
from persist.manifest import WriterIdentity
from persist.manifest.paths import stopped_path
from persist.store import AlreadyExists, ObjectNotFound, ObjectStore, StoreUnavailable
from wal.format import LogIdentity
from wal.objects import (
    DiskOnly,
    FencedBy,
    LogObject,
    ObjectDamaged,
    ObjectNote,
    decode_object,
    encode_object,
    epoch_folder,
    object_folder,
    object_path,
    parse_object,
)

LOOKS = 100
"""Each further look follows another process's change."""


class FencedEpoch(NamedTuple):
    """An epoch whose log has ended."""

    ingester_id: str
    epoch: int
    numbers: tuple[int, ...] = ()
    """The objects with acknowledged operations that exist, ascending."""
    behind: tuple[int, ...] = ()
    """Objects behind the fence, and all of an epoch that has stopped cleanly: none is needed."""
    disk_only: tuple[DiskOnly, ...] = ()
    """What was acknowledged on its disk only, by its newest object."""
    last_seq: int = 0
    """The newest operation in its newest objects."""
    on_disk: bool = False
    """Whether its operations were synced to its disk before they were shipped."""
    missing: int | None = None
    """The number of an object that must exist and does not."""

    def path(self, number: int) -> str:
        """The path of one of its objects."""
        return object_path(self.ingester_id, self.epoch, number)

    def lost(self, what: DiskOnly) -> LostOperations:
        """The report that its disk is lost with these operations."""
        return LostOperations(
            namespace=what.namespace,
            table=what.table,
            epoch=self.epoch,
            operations=what.operations,
        )


def epochs_with_objects(store: ObjectStore, ingester_id: str, below: int) -> list[int]:
    """The epochs below a number that have log objects, ascending."""
    names = (parse_object(info.path) for info in store.list(object_folder(ingester_id)))
    return sorted({name.epoch for name in names if name is not None and name.epoch < below})


def fence_epochs(store: ObjectStore, by: WriterIdentity) -> list[FencedEpoch]:
    """End the logs of all epochs before the one of ``by``, ascending. May be repeated.

    Raises:
        ObjectDamaged, LogTooNew: an object cannot be read.
        StoreUnavailable: try again.
    """
    epochs = epochs_with_objects(store, by.ingester_id, by.epoch)
    return [fence_epoch(store, epoch, by) for epoch in epochs]


def fence_epoch(store: ObjectStore, epoch: int, by: WriterIdentity) -> FencedEpoch:
    """End the log of one epoch; see :func:`fence_epochs`."""
    place = (by.ingester_id, epoch)
    if store.exists(stopped_path(by.ingester_id, epoch)) is not None:
        # Its process has ended with all rows in files, perhaps before it had deleted its objects.
        return FencedEpoch(*place, behind=tuple(_listed(store, *place)))
    read = _reader(store, *place)
    for _ in range(LOOKS):
        try:
            found = judge(place, _listed(store, *place), read)
        except ObjectNotFound:
            continue  # its process, or another successor, has deleted objects meanwhile
        if isinstance(found, FencedEpoch):
            if found.missing is not None:
                raise ObjectDamaged(found.path(found.missing), 0, "a log object", "none")
            return found
        note = ObjectNote(fenced_by=FencedBy(by.epoch, by.incarnation))
        identity = LogIdentity(by.ingester_id, by.incarnation, epoch)
        try:
            store.create(object_path(*place, found), encode_object(found, identity, (), note))
        except AlreadyExists:
            read = _reader(store, *place)
    raise StoreUnavailable(
        f"{store.url}: the log objects of ingester {by.ingester_id!r}, epoch {epoch}, kept changing"
    )


def look_at(store: ObjectStore, ingester_id: str, epoch: int) -> FencedEpoch | int:
    """How an epoch's log has ended, or the number at which a fence would end it. Read-only.

    Raises:
        ObjectDamaged, LogTooNew: an object cannot be read.
        ObjectNotFound: one was deleted meanwhile.
    """
    place = (ingester_id, epoch)
    return judge(place, _listed(store, *place), _reader(store, *place))


def _reader(store: ObjectStore, ingester_id: str, epoch: int) -> Callable[[int], LogObject]:
    """A function that returns an epoch's object by number, and reads each once."""

    @cache
    def read(number: int) -> LogObject:
        path = object_path(ingester_id, epoch, number)
        return decode_object(store.get(path), path)

    return read


def _listed(store: ObjectStore, ingester_id: str, epoch: int) -> list[int]:
    """The numbers of an epoch's objects, ascending."""
    names = (parse_object(info.path) for info in store.list(epoch_folder(ingester_id, epoch)))
    return sorted(name.number for name in names if name is not None)


def judge(
    place: tuple[str, int], numbers: list[int], read: Callable[[int], LogObject]
) -> FencedEpoch | int:
    """The end of a log, or the number at which to create a fence. Pure, but for reading.

    Only the newest objects are read: later ones never call less acknowledged than earlier ones.

    Args:
        place: the ingester id and the epoch.
    """
    newest = next((n for n in reversed(numbers) if read(n).note.fenced_by is None), None)
    acknowledged = 0 if newest is None else read(newest).note.acknowledged
    unsure = [number for number in numbers if number > acknowledged]
    fence = next((n for n in unsure if read(n).note.fenced_by is not None), None)
    if fence is None:
        number = acknowledged + 1
        while number in unsure:
            number += 1
        return number
    # What was deleted may be there again: a request that timed out can be carried out late.
    kept_from = 0 if newest is None else read(newest).note.kept_from
    settled = [n for n in numbers if kept_from <= n < fence]
    # Fences up to `acknowledged` do not count. They are few, and only where a start was very slow.
    first = next((n for n in settled if n > acknowledged or _is_data(n, read)), fence)
    data = tuple(n for n in settled if n >= first)
    missing = min(set(range(first, fence)) - set(data), default=None)
    behind = tuple(n for n in numbers if (n < kept_from or n > fence) and _is_data(n, read))
    if not data:
        return FencedEpoch(*place, behind=behind, missing=missing)
    said = read(data[-1]).note
    return FencedEpoch(*place, data, behind, said.disk_only, said.last_seq, said.on_disk, missing)


def _is_data(number: int, read: Callable[[int], LogObject]) -> bool:
    return read(number).note.fenced_by is None
