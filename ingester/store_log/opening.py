"""Opens the room for one epoch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from msgspec.structs import replace

from ingester.config.settings import Settings
from ingester.observability.status import LostOperations, StoreLogStatus
from ingester.store_log.cleaner import Cleaner
from ingester.store_log.fencing import FencedEpoch
from ingester.store_log.reading import LeftObject, left_objects
from ingester.store_log.shipper import ShipHooks, ShipLimits, Shipper
from persist.manifest import WriterIdentity
from persist.store import ObjectStore
from wal import SegmentFacts

WAITING_BYTES = 128 << 20
NEVER_READ = -(1 << 63)
"""The segment of objects behind a fence, which the first clean-up deletes."""
MEMORY_PART = 4
"""At most this part of the daemon's memory waits for the store."""


class Left(NamedTuple):
    """What earlier epochs left behind."""

    ended: list[FencedEpoch]
    """The epochs whose logs in the store have ended."""
    segments: Sequence[SegmentFacts]
    """These are in the log on disk."""
    has_objects: bool
    """Whether log objects were there before this epoch was claimed."""


@dataclass(frozen=True, slots=True)
class StoreLogParts:
    """The parts that other rooms use."""

    shipper: Shipper
    cleaner: Cleaner
    to_read: list[LeftObject]
    """The objects of earlier epochs, which replay reads."""
    lost: list[LostOperations]
    """What earlier epochs acknowledged on disks that are not here."""
    settings: Settings

    def first_segment(self, default: int) -> int:
        """The oldest segment with an operation that waits for the store."""
        first = self.shipper.first_segment
        return default if first is None else min(first, default)

    def status(self) -> StoreLogStatus:
        """Return the state and the counts."""
        settings, cleaner = self.settings, self.cleaner
        return replace(
            self.shipper.statistics(),
            ack=settings.default_ack,
            disk=settings.wal.disk == "on",
            objects=cleaner.objects,
            bytes=cleaner.nbytes,
            lost=self.lost,
        )


def open_store_log(
    store: ObjectStore,
    writer: WriterIdentity,
    settings: Settings,
    left: Left,
    hooks: ShipHooks,
) -> StoreLogParts:
    """Return the parts of an epoch that has shipped nothing."""
    cleaner = Cleaner(store, writer.ingester_id, writer.epoch)
    objects = left_objects(left.ended, left.segments)
    behind = [(each.path(number), each.epoch) for each in left.ended for number in each.behind]
    cleaner.note_left([LeftObject(*each, NEVER_READ, NEVER_READ) for each in behind])
    cleaner.note_left(objects)
    to_read = [each for each in objects if each.segment < 0]
    shipping = settings.wal.store
    limits = ShipLimits(
        shipping.interval,
        shipping.max_bytes,
        min(WAITING_BYTES, settings.memory.limit // MEMORY_PART),
        everything=settings.wal.disk == "off",
        on_disk=settings.wal.disk == "on" and settings.wal.fsync == "commit",
        opens=left.has_objects or bool(to_read) or settings.default_ack == "store",
    )
    return StoreLogParts(Shipper(store, writer, limits, hooks), cleaner, to_read, [], settings)
