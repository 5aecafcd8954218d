"""Adoption of a log in the store: the log objects of a daemon whose machine or disk is lost.

    epoch claimed ─▶ earlier epochs fenced ─▶ their objects read ─▶ rows in files ─▶ objects deleted

The claim and the fences come first: a process of this id that still runs can acknowledge nothing
more at the store, and ends. The rows are then committed as those of a log on disk, under the
identity that wrote them, so each is added once, however often and by however many processes.

An object that vanishes while it is read was deleted because its rows are in files: by another
adoption, or by a daemon of this id. Everything is then looked at again. Blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import structlog

from ingester.observability.status import LostOperations
from ingester.recovery.adopt import (
    AT_ONCE_BYTES,
    Adoption,
    CannotAdopt,
    Identities,
    adopt_log,
    claim_adoption,
    claimed_by,
)
from ingester.recovery.adopt_table import ADOPTION_RETRY, patiently
from ingester.recovery.adoption_rules import ADOPTION
from ingester.recovery.orphan_log import store_log
from ingester.store_log.fencing import (
    LOOKS,
    FencedEpoch,
    epochs_with_objects,
    fence_epochs,
    look_at,
)
from persist.manifest import Manifest, TableNotFound, TableState, WriterIdentity, newest_epoch
from persist.store import ObjectNotFound, ObjectStore, StoreUnavailable
from persist.switching import load_current
from wal.objects import parse_object

log = structlog.get_logger(__name__)

NEWEST = 1 << 62
"""Above all epochs."""


def adopt_from_store(
    ingester_id: str,
    store: ObjectStore,
    *,
    target_file_bytes: int = 128 << 20,
    at_once_bytes: int = AT_ONCE_BYTES,
) -> Adoption:
    """Commit what an ingester's log objects have and no file contains, and delete them. Idempotent.

    Objects with rows that were refused are kept, with all others; fences always.

    Raises:
        ObjectDamaged, LogTooNew, DamagedRecord: the log cannot be read.
        CannotAdopt: the store has no claim of an epoch, or not a table.
        StoreUnavailable, CommitUnclear: the store is unreachable; run it again.
    """
    limits = (target_file_bytes, at_once_bytes)
    for _ in range(LOOKS):
        try:
            return _adopt_once(ingester_id, store, limits)
        except ObjectNotFound as exc:
            if parse_object(exc.path) is None:
                raise
    raise StoreUnavailable(f"{store.url}: the log objects of {ingester_id!r} kept changing")


def _adopt_once(ingester_id: str, store: ObjectStore, limits: tuple[int, int]) -> Adoption:
    name = f"store:{ingester_id}"
    if not has_objects_to_read(store, ingester_id):
        return Adoption(directory=name, store=store.url, epochs={}, tables=[])
    successor = _successor(store, ingester_id)
    ended = patiently(partial(fence_epochs, store, successor))
    writers = writers_of(store, ended)
    identities = Identities(store, list(writers.values()), {ingester_id: successor})
    left = store_log(store, ended, writers, ADOPTION_RETRY)
    tables = adopt_log(left, store, identities, limits)
    done = Adoption(
        directory=name,
        store=store.url,
        epochs=identities.epochs(),
        tables=tables,
        lost=lost_operations(ended, partial(state_of, store)),
    )
    if not done.refused:
        delete_objects(store, ended)
    return done


def has_objects_to_read(store: ObjectStore, ingester_id: str) -> bool:
    """Whether there are log objects that no fence precedes."""
    for epoch in patiently(partial(epochs_with_objects, store, ingester_id, NEWEST)):
        found = patiently(partial(look_at, store, ingester_id, epoch))
        if not isinstance(found, FencedEpoch) or found.numbers:
            return True
    return False


def _successor(store: ObjectStore, ingester_id: str) -> WriterIdentity:
    """The newest claimed epoch if it is an adoption's, otherwise a new one."""
    newest = patiently(partial(newest_epoch, store, ingester_id))
    found = claimed_by(store, ingester_id, newest)
    if found is not None and found.incarnation.startswith(ADOPTION):
        return found
    return claim_adoption(store, ingester_id, newest + 1)


def writers_of(store: ObjectStore, ended: Iterable[FencedEpoch]) -> dict[int, WriterIdentity]:
    """The writers of epochs with objects, by epoch.

    Raises:
        CannotAdopt: the store has no claim of one of them.
    """
    found = {}
    for each in ended:
        if not each.numbers:
            continue
        writer = claimed_by(store, each.ingester_id, each.epoch)
        if writer is None:
            raise CannotAdopt(
                f"{store.url} has log objects of ingester {each.ingester_id!r}, epoch {each.epoch},"
                " and no claim of that epoch: was the store restored from a copy?"
            )
        found[each.epoch] = writer
    return found


def delete_objects(store: ObjectStore, ended: Iterable[FencedEpoch]) -> int:
    """Delete the objects of ended epochs but their fences; return their number.

    One after another, oldest first: after a crash no object is missing between two others, and the
    newest one, which tells how far the others were acknowledged, goes last.
    """
    deleted = 0
    for epoch in ended:
        for number in (*epoch.numbers, *epoch.behind):
            patiently(partial(store.delete, epoch.path(number)))
            deleted += 1
    return deleted


def lost_operations(
    ended: Sequence[FencedEpoch], state_of: Callable[[str, str], TableState | None]
) -> list[LostOperations]:
    """What ended epochs acknowledged on their disk only, unless it is in files by now.

    Args:
        state_of: a table's newest version; None if it does not exist.
    """
    found = []
    for epoch in ended:
        for each in epoch.disk_only:
            state = state_of(each.namespace, each.table)
            if state is not None and _last_applied(state, epoch) >= each.last_seq:
                continue
            found.append(epoch.lost(each))
    return found


def tell_lost(lost: Iterable[LostOperations]) -> None:
    """Log a warning for each table."""
    for each in lost:
        log.warning(
            "operations lost with the disk",
            table=f"{each.namespace}/{each.table}",
            operations=each.operations,
            epoch=each.epoch,
            runbook="operations-lost",
        )


def _last_applied(state: TableState, epoch: FencedEpoch) -> int:
    process = (epoch.ingester_id, epoch.epoch)
    if process in state.epochs_complete:
        return NEWEST
    found = (seq for (*writer, _, _), seq in state.applied.items() if tuple(writer) == process)
    return max(found, default=0)


def state_of(store: ObjectStore, namespace: str, table: str) -> TableState | None:
    """A table's newest version; None if the table does not exist."""
    try:
        current = patiently(partial(load_current, store, namespace, table))
        return patiently(Manifest(store, namespace, table, current.table_version).load)
    except TableNotFound:
        return None
