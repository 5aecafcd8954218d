"""Garbage collection of log objects that nobody deletes any more.

    behind a fence            never acknowledged
    rows all in files         their daemon, or an adoption of their log, died before deleting them

A daemon deletes its own objects, and a start or an adoption those of earlier epochs. This is for
ingesters that do not come back. Nothing is deleted that is younger than the grace, or whose
ingester has claimed an epoch within it: a start or an adoption may be reading. (One that meets a
deleted object looks again, as its rows are in files.) An epoch without a fence, a fence, and the
log of a keyed table that nobody has released are left to ``ingester wal adopt``. Blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import cache, partial

import msgspec

from ingester.recovery.adopt import CannotAdopt
from ingester.recovery.adopt_store import delete_objects, state_of, writers_of
from ingester.recovery.adopt_table import ADOPTION_RETRY
from ingester.recovery.adoption_rules import (
    OrphanCheckpoint,
    OrphanKey,
    OrphanPart,
    checkpoints_of,
    left_of,
)
from ingester.recovery.orphan_log import OrphanOperation, store_log
from ingester.store_log.fencing import FencedEpoch, epochs_with_objects, look_at
from persist.manifest import TableState, WriterIdentity, newest_epoch
from persist.manifest.paths import claims_folder
from persist.store import ObjectNotFound, ObjectStore, folders
from persist.table import TableDefinition
from wal import LogError
from wal.objects import FOLDER, epoch_folder


class CollectedLog(msgspec.Struct, frozen=True, kw_only=True):
    """What was deleted of an ingester's log, or would be."""

    ingester_id: str
    objects: int
    problem: str | None = None
    """Why an epoch was left alone: it is damaged, or its store was restored."""


def collect_logs(store: ObjectStore, grace_s: float, *, dry_run: bool) -> list[CollectedLog]:
    """Delete leftovers of all ingesters; those with nothing to delete are left out.

    Raises:
        StoreError: the rest is deleted by the next run.
    """
    before = store.now() - timedelta(seconds=grace_s)
    found = []
    for ingester_id in list(folders(store, FOLDER)):
        objects, problem = 0, None
        try:
            for garbage in _garbage(store, ingester_id, before):
                objects += len(garbage.numbers) + len(garbage.behind)
                if not dry_run:
                    delete_objects(store, [garbage])
        except ObjectNotFound:
            pass  # another process deletes them
        except (LogError, CannotAdopt) as exc:
            problem = str(exc)
        if objects or problem:
            found.append(CollectedLog(ingester_id=ingester_id, objects=objects, problem=problem))
    return found


def _garbage(store: ObjectStore, ingester_id: str, before: datetime) -> Iterator[FencedEpoch]:
    claims = store.list(claims_folder(ingester_id))
    if any(info.at > before for info in claims):
        return
    for epoch in epochs_with_objects(store, ingester_id, newest_epoch(store, ingester_id)):
        if any(info.at > before for info in store.list(epoch_folder(ingester_id, epoch))):
            continue
        found = look_at(store, ingester_id, epoch)
        if not isinstance(found, FencedEpoch) or found.missing is not None:
            continue
        if not _is_in_files(store, found):
            found = found._replace(numbers=())
        if found.numbers or found.behind:
            yield found


def _is_in_files(store: ObjectStore, ended: FencedEpoch) -> bool:
    """Whether an adoption of this epoch would change nothing."""
    states = cache(partial(state_of, store))
    log = store_log(store, [ended], writers_of(store, [ended]), ADOPTION_RETRY)
    return all(_is_done(operation, states(*_table(operation))) for operation in log.operations())


def _table(operation: OrphanOperation) -> tuple[str, str]:
    header = operation.logged.header
    return header.namespace, header.table


def _is_done(operation: OrphanOperation, state: TableState | None) -> bool:
    if state is None or _is_held(state, operation.writer):
        return False
    header = operation.logged.header
    origin = (header.origin, header.origin_sequence)
    share = {
        OrphanKey(operation.writer, header.spec_id, part.values): [
            OrphanPart(operation.seq, part.batch, *origin, part.row_counts)
        ]
        for part in operation.logged.parts
    }
    if left_of(state, share):
        return False
    if operation.checkpoint is None:
        return True
    found = OrphanCheckpoint(operation.writer, operation.seq, *origin, operation.checkpoint)
    return not checkpoints_of(state, [found])[0]


def _is_held(state: TableState, writer: WriterIdentity) -> bool:
    """Whether an adoption would release the table."""
    known = state.writers.get(writer.ingester_id)
    is_open = known is not None and known.state == "open"
    return is_open and TableDefinition.of_state(state).keyed
