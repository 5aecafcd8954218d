"""Turns the log of a daemon that was killed into log objects, as if its rows had been shipped."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from persist.store import ObjectStore
from wal import Disk, Entry, Preamble, RecordKind
from wal.format import LogIdentity
from wal.objects import DiskOnly, ObjectNote, encode_object, object_path
from wal.recovery import facts_of, survey
from wal.replay import ReplayCursor


def operations_of(wal: Path) -> dict[LogIdentity, list[Entry]]:
    """The operations of a log's epochs, with their sequences and preambles."""
    disk = Disk()
    found = survey(disk, wal)
    facts = [facts_of(*each) for each in zip(found.verdicts, found.states(), strict=True)]
    cursor = ReplayCursor(disk, wal, facts, bytearray)
    by_number = {each.number: each for each in facts}
    preambles: dict[int, list[Preamble]] = defaultdict(list)
    entries: dict[LogIdentity, list[Entry]] = defaultdict(list)
    while (records := cursor.next_chunk()) is not None:
        for record in records:
            of = by_number[record.segment]
            if record.kind == RecordKind.OPERATION:
                entry = Entry(
                    record.kind,
                    (bytes(record.payload),),
                    preambles=tuple(preambles[record.segment]),
                    operations=record.operations,
                )
                entry.seq = record.first_seq
                entries[LogIdentity(of.ingester_id, of.incarnation, of.epoch)].append(entry)
            elif record.kind not in (RecordKind.ORIGINS, RecordKind.OPENED):
                preambles[record.segment].append(Preamble(record.kind, (bytes(record.payload),)))
    return entries


def ship(
    wal: Path,
    store: ObjectStore,
    *,
    disk_only: tuple[DiskOnly, ...] = (),
    behind: int = 0,
    first: int = 1,
) -> list[str]:
    """Put each operation of a log into a log object of its own; return their paths.

    Args:
        behind: the last so many are stored with a gap before them: never acknowledged.
        first: the number of the first object, as if earlier ones had been deleted.
    """
    paths = []
    for identity, entries in operations_of(wal).items():
        for number, entry in enumerate(entries, first):
            gap = int(number - first >= len(entries) - behind)
            note = ObjectNote(acknowledged=number - 1, disk_only=disk_only)
            path = object_path(identity.ingester_id, identity.epoch, number + gap)
            store.create(path, encode_object(number + gap, identity, (entry,), note))
            paths.append(path)
    return paths
