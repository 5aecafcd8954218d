"""The rules of adoption: which operations of an old log are committed, and which cannot be.

An operation is in files if ``applied`` says so for its writer, or if its origin is further. It
belongs to another process if that has taken over the origin. Of two rows with one primary key the
last write wins; between a log and a newer epoch of its id the order is unknown, so the older rows
are refused and never put over the newer ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import pyarrow as pa

from ingester.origins.checkpoint_state import SourceCheckpoint, shared_actions
from persist.manifest import Action, OriginAction, PartitionKey, TableState, Values, WriterIdentity
from persist.manifest import CheckpointAction as CheckpointAction
from persist.manifest.origins import OriginVerdict, completed, fresh, further, runs_of, verdict_of

ADOPTION = "adoption-"
"""The prefix of the incarnations of adoptions. Nothing is written under their epochs."""


class OrderUnknown(Exception):
    """Rows with a primary key may be older or newer than those of a newer epoch."""


class OrphanKey(NamedTuple):
    """Operations with one order: of one epoch and partition."""

    writer: WriterIdentity
    spec_id: int
    values: Values


class OrphanPart(NamedTuple):
    """The rows of one operation, or of a coalesced batch, in one partition."""

    seq: int
    """The sequence of the first operation of a coalesced batch."""
    batch: pa.RecordBatch
    origin: str | None
    origin_sequence: int | None
    row_counts: tuple[tuple[int, int], ...] | None = None
    """The rows of each operation of a coalesced batch; see :class:`ingester.dml.operation.Part`."""

    @property
    def last_seq(self) -> int:
        """The sequence of the last operation with rows here, as a daemon commits it."""
        return self.seq + (self.row_counts[-1][0] if self.row_counts else 0)


class OrphanSequence(NamedTuple):
    """An operation of the log with a sequence of its origin."""

    writer: WriterIdentity
    seq: int
    origin: str
    origin_sequence: int


class OrphanCheckpoint(NamedTuple):
    """A source's state that was logged with an operation."""

    writer: WriterIdentity
    seq: int
    origin: str | None
    origin_sequence: int | None
    checkpoint: SourceCheckpoint

    @property
    def stamp(self) -> CheckpointAction:
        """The action's stamp for the operation that brought it."""
        process = (self.writer.ingester_id, self.writer.epoch)
        return self.checkpoint.stamp(process, self.seq, self.origin, self.origin_sequence)


Pending = Mapping[OrphanKey, list[OrphanPart]]


def check_made(state: TableState, parts: Iterable[OrphanKey]) -> None:
    """Raise :class:`OrderUnknown` for rows of a table that a copy has replaced."""
    if any(spec_id not in state.specs for _, spec_id, _ in parts):
        raise OrderUnknown(
            "a copy has replaced it since, perhaps with other columns: these rows belong to an"
            f" earlier version of the table than {state.table_version}"
        )


def check_order(state: TableState, parts: Iterable[OrphanKey]) -> None:
    """Raise :class:`OrderUnknown` if a newer epoch may have rows with the same keys.

    An open writer may hold rows of any partition in memory. For one that closed the table cleanly,
    ``applied`` tells its partitions.
    """
    for writer, spec_id, values in parts:
        owner = state.owner
        if owner is not None and owner.ingester_id != writer.ingester_id:
            raise OrderUnknown(
                f"it has a primary key, and {owner.ingester_id!r} owns its writes now: which of"
                " two rows of a key is newer cannot be known"
            )
        known = state.writers.get(writer.ingester_id)
        if (
            known is not None
            and known.epoch > writer.epoch
            and known.state == "open"
            and not known.incarnation.startswith(ADOPTION)  # an adoption only holds the table
        ):
            raise OrderUnknown(
                f"it has a primary key, and epoch {known.epoch} of {known.ingester_id!r} writes to"
                " it: which of two rows of a key is newer cannot be known. Stop that daemon cleanly"
                " (SIGTERM) and adopt again: partitions that it has not changed are adopted then"
            )
        newer = [
            epoch
            for (ingester_id, epoch, *partition), _ in state.applied.items()
            if ingester_id == writer.ingester_id
            and epoch > writer.epoch
            and tuple(partition) == (spec_id, values)
        ]
        newer += [
            epoch
            for ingester_id, epoch in state.epochs_complete
            if ingester_id == writer.ingester_id and epoch > writer.epoch
        ]
        if newer:
            raise OrderUnknown(
                f"it has a primary key, and epoch {max(newer)} of {writer.ingester_id!r} has"
                f" written to partition {list(values)}: which of two rows of a key is newer"
                " cannot be known"
            )


def left_of(state: TableState, share: Pending) -> dict[OrphanKey, list[OrphanPart]]:
    """The operations of a share that the version's files lack."""
    left = {}
    for key, parts in share.items():
        writer, spec_id, values = key
        upto = state.applied_to(writer.ingester_id, writer.epoch, spec_id, values)
        kept = [p for p in parts if p.seq > upto and _is_to_adopt(state, key, p)]
        if kept:
            left[key] = kept
    return left


def _is_to_adopt(state: TableState, key: OrphanKey, part: OrphanPart) -> bool:
    """Whether the part is in no file, and no other process will commit it.

    Another process does if it took over the origin at this sequence or below: the client sends the
    operation to that process.
    """
    return _standing(state, key, part) is OriginVerdict.NEW


def taken_over(state: TableState, share: Pending) -> list[list[OrphanPart]]:
    """The operations of a share that another process took over before they were in files."""
    taken = []
    for key, parts in share.items():
        upto = state.applied_to(key.writer.ingester_id, key.writer.epoch, key.spec_id, key.values)
        taken.append(
            [
                part
                for part in parts
                if (verdict := _standing(state, key, part)) is OriginVerdict.FOREIGN
                or (part.seq > upto and not verdict.own)
            ]
        )
    return taken


def _standing(state: TableState, key: OrphanKey, part: OrphanPart) -> OriginVerdict:
    if part.origin is None or part.origin_sequence is None:
        return OriginVerdict.NEW
    runs = runs_of(state.origins.get(part.origin))
    process = (key.writer.ingester_id, key.writer.epoch)
    return verdict_of(runs, part.origin_sequence, process, (key.spec_id, key.values))


def origins_of(
    state: TableState, left: Pending
) -> tuple[list[OriginAction], dict[str, OriginAction | None]]:
    """The origins that a commit of these operations claims, and their previous entries."""
    changed: dict[str, OriginAction] = {}
    seen: dict[str, OriginAction | None] = {}
    for key, parts in left.items():
        process = (key.writer.ingester_id, key.writer.epoch)
        last = {p.origin: p.origin_sequence for p in parts if p.origin_sequence is not None}
        for name, sequence in last.items():
            assert name is not None
            assert sequence is not None
            seen[name] = state.origins.get(name)
            known = changed.get(name) or seen[name] or fresh(name, process)
            changed[name] = further(known, sequence, (key.spec_id, key.values))
    return list(changed.values()), seen


def is_brought(
    state: TableState, found: OrphanSequence, partitions: Iterable[PartitionKey]
) -> bool:
    """Whether an operation with a sequence is in files, or will be by this adoption.

    ``applied`` may cover an operation that a flush skipped because its origin was elsewhere.

    Args:
        partitions: the partitions of its rows.
    """
    runs = runs_of(state.origins.get(found.origin))
    process = (found.writer.ingester_id, found.writer.epoch)
    for partition in partitions:
        verdict = verdict_of(runs, found.origin_sequence, process, partition)
        upto = state.applied_to(*process, *partition)
        if not verdict.durable and (verdict is not OriginVerdict.NEW or found.seq <= upto):
            return False
    return True


def checkpoints_of(
    state: TableState, found: Iterable[OrphanCheckpoint]
) -> tuple[list[Action], dict[str, OriginAction | None]]:
    """The actions that commit a log's newest state of each partition, once all rows are in files.

    A state is skipped if another process has taken over its sequence. Its origin is complete up to
    it, as the whole log is in files.

    Returns:
        The actions, and the previous entries of the origins.
    """
    newest: dict[str, OrphanCheckpoint] = {}
    for each in found:
        older = newest.get(each.checkpoint.partition)
        if _is_own(state, each) and (older is None or each.stamp.replaces(older.stamp)):
            newest[each.checkpoint.partition] = each
    seen: dict[str, OriginAction | None] = {}
    complete: dict[str, OriginAction] = {}
    actions: list[Action] = []
    for each in newest.values():
        writer, _, name, sequence, checkpoint = each
        process = (writer.ingester_id, writer.epoch)
        action = checkpoint.filled(each.stamp)
        if not action.replaces(state.checkpoints.get(checkpoint.partition)):
            continue
        if name is not None and sequence is not None:
            seen[name] = state.origins.get(name)
            known = complete.get(name) or seen[name] or fresh(name, process)
            complete[name] = completed(known, sequence)
        actions.append(action)
    shared = shared_actions(each.checkpoint for each in newest.values())
    return [*complete.values(), *shared, *actions] if actions else [], seen


def _is_own(state: TableState, found: OrphanCheckpoint) -> bool:
    """Whether the state's sequence still belongs to its writer, or is in files."""
    if found.origin is None or found.origin_sequence is None:
        return True
    runs = runs_of(state.origins.get(found.origin))
    process = (found.writer.ingester_id, found.writer.epoch)
    return verdict_of(runs, found.origin_sequence, process).own


def rows_of(parts: Iterable[list[OrphanPart]]) -> int:
    """The number of rows."""
    return sum(part.batch.num_rows for run in parts for part in run)
