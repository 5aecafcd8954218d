"""Makes the files of the rows that a switch carries from the old version to the new one.

    before the seal   what has come so far; for a table without a key again what came meanwhile
    after the seal    the rest

Files are made but listed by no version yet. A copy keeps its name, so repeating it has the same
result, and an existing copy is not made again. A partition of a keyed table in which more has
changed since is made again, from its original files. Unlisted files are garbage like any other.
Blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import chain
from typing import NamedTuple

import msgspec

from persist.manifest import (
    EMPTY,
    Action,
    Add,
    Manifest,
    ManifestDamaged,
    PartitionKey,
    TableState,
    VersionNotKept,
    apply,
)
from persist.prefetch import two_at_once
from persist.switching.keyed import apply_changes, changed_partitions
from persist.switching.sealing import Move, carried, carried_after, hindrance, imported_actions


def copied(
    source: Manifest, target: Manifest, adds: Iterable[Add], *, again: bool = False
) -> Iterator[Add]:
    """The files, copied into the folder of the target version; two at a time in memory.

    Args:
        again: Also copy existing files, because garbage collection may be about to delete them.

    Raises:
        StoreError: Repeat it.
    """
    yield from two_at_once(partial(_copied, source, target, add, again) for add in adds)


def _copied(source: Manifest, target: Manifest, add: Add, again: bool) -> Add:
    path = target.object_path(add.path)
    there = None if again else target.store.exists(path)
    if there is not None and there.bytes == add.bytes:
        return msgspec.structs.replace(add, at=there.at.isoformat())
    put = target.store.put(path, source.store.get(source.object_path(add.path)))
    return msgspec.structs.replace(add, at=put.at.isoformat())


PASSES = 3
"""The most passes of copying before the seal."""
FEW = 8
"""This few copies may be left for after the seal."""


class CarriedRows(NamedTuple):
    """Removals and additions that carry the rows up to a state.

    Attributes:
        until: Of the old version.
        onto: The state of the new version that they are made for.
        copies: Files, of a table without a key.
        changes: The actions by partition, of a keyed table.
    """

    until: TableState
    onto: TableState
    copies: tuple[Add, ...] = ()
    changes: Mapping[PartitionKey, tuple[Action, ...]] = {}

    @property
    def actions(self) -> tuple[Action, ...]:
        """All actions, for one commit."""
        return (*self.copies, *chain.from_iterable(self.changes.values()))

    @property
    def adds(self) -> tuple[Add, ...]:
        """The files that were made."""
        return tuple(action for action in self.actions if isinstance(action, Add))

    def disturbed(self, state: TableState) -> list[PartitionKey]:
        """The partitions whose files in a state differ from those that it replaces."""
        return [key for key in self.changes if _other(key, state, self.onto)]


def made_ahead(move: Move) -> CarriedRows | None:
    """Prepared before the seal, so that the time without commits is short.

    Raises:
        FileDamaged: A file of a keyed table is damaged; nothing is sealed.
        StoreError: Call it again.
    """
    done: CarriedRows | None = None
    for _ in range(PASSES):
        old, new = move.manifest(move.old).load(), move.manifest(move.sealed.next).load()
        if old.sealed is not None or hindrance(move, old, new) is not None:
            return done  # the seal raises the error
        known = len(done.copies) if done is not None else 0
        try:
            done = made(move, old, new, done)
        except ManifestDamaged:
            return done
        if done.changes or len(done.copies) - known <= FEW:
            return done
    return done


def made(
    move: Move,
    old: TableState,
    new: TableState,
    done: CarriedRows | None = None,
    *,
    again: bool = False,
) -> CarriedRows:
    """Make the files for the rows up to a state, on top of another.

    Args:
        done: What was made earlier, up to an earlier state.
        again: Also make existing copies again.

    Raises:
        ManifestDamaged: It is no longer known what came.
        FileDamaged, StoreError: from reading and writing files.
    """
    source, target = move.manifest(move.old), move.manifest(move.sealed.next)
    try:
        after = carried_after(move.sealed, old)
        if after is None:
            return CarriedRows(old, new)
        if not old.properties.get("primary_key"):
            known = (after, ()) if done is None else (done.until.version, done.copies)
            more = copied(source, target, carried(source, old, known[0]), again=again)
            return CarriedRows(old, new, (*known[1], *more))
        before = source.load(after) if after else EMPTY
    except (LookupError, VersionNotKept) as exc:
        raise ManifestDamaged(source.folder, old.version, old.uid, str(exc)) from exc
    changed = changed_partitions(before, old)
    kept = {} if done is None else _still_so(done, old, new)
    left = {key: files for key, files in changed.items() if key not in kept}
    onto = apply(new, imported_actions(old, new))
    changes = kept | apply_changes(source, left, target, onto)
    if done is not None:
        _delete(target, done, changes)
    return CarriedRows(old, new, changes=changes)


def _still_so(
    done: CarriedRows, old: TableState, new: TableState
) -> dict[PartitionKey, tuple[Action, ...]]:
    """The part made for partitions that are unchanged on both sides."""
    if old.current_schema != done.until.current_schema:
        return {}
    return {
        key: actions
        for key, actions in done.changes.items()
        if not (_other(key, old, done.until) or _other(key, new, done.onto))
    }


def _other(key: PartitionKey, one: TableState, other: TableState) -> bool:
    return one.partitions.get(key) != other.partitions.get(key)


def _delete(
    target: Manifest, done: CarriedRows, changes: Mapping[PartitionKey, tuple[Action, ...]]
) -> None:
    """Delete files that are no longer needed; no version lists them."""
    for key, actions in done.changes.items():
        if changes.get(key) != actions:
            for each in actions:
                if isinstance(each, Add) and each.path not in done.onto.files:
                    target.store.delete(target.object_path(each.path))
