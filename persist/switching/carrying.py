"""Files of streamed rows, on their way from one table version to another.

Law of this file: a file keeps its name, so that whoever copies it again does the same again, and
one that is there is not copied twice. Copies that no version lists are garbage as any other.
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
    source: Manifest, target: Manifest, adds: Iterable[Add], *, anew: bool = False
) -> Iterator[Add]:
    """The files, in the folder of the table version that they go to; two at a time in memory.

    Args:
        anew: Also those that are there: clean-up may be about to take them.

    Raises:
        StoreError: Repeat it.
    """
    yield from two_at_once(partial(_copied, source, target, add, anew) for add in adds)


def _copied(source: Manifest, target: Manifest, add: Add, anew: bool) -> Add:
    path = target.object_path(add.path)
    there = None if anew else target.store.exists(path)
    if there is not None and there.bytes == add.bytes:
        return msgspec.structs.replace(add, at=there.at.isoformat())
    put = target.store.put(path, source.store.get(source.object_path(add.path)))
    return msgspec.structs.replace(add, at=put.at.isoformat())


PASSES = 3
"""So often, at most, is copied what has come meanwhile, before the seal."""
FEW = 8
"""So few copies may be left to the time behind it."""


class Along(NamedTuple):
    """Removals and additions that take along what came up to a state.

    Attributes:
        until: Of the version that is left.
        onto: The state of the version that takes over, which they are made for.
        copies: Files, of a table without a key.
        changes: The actions by partition, of a keyed one.
    """

    until: TableState
    onto: TableState
    copies: tuple[Add, ...] = ()
    changes: Mapping[PartitionKey, tuple[Action, ...]] = {}

    @property
    def actions(self) -> tuple[Action, ...]:
        """All of it, as one commit has it."""
        return (*self.copies, *chain.from_iterable(self.changes.values()))

    @property
    def adds(self) -> tuple[Add, ...]:
        """The files that were made."""
        return tuple(action for action in self.actions if isinstance(action, Add))

    def disturbed(self, state: TableState) -> list[PartitionKey]:
        """The partitions that have other files in a state by now than those that it replaces."""
        return [key for key in self.changes if _other(key, state, self.onto)]


def made_ahead(move: Move) -> Along | None:
    """What is made before the seal, so that little is left while nobody can commit.

    Raises:
        FileDamaged: A file of a keyed table is not what was written: nothing is sealed.
        StoreError: Call it again.
    """
    done: Along | None = None
    for _ in range(PASSES):
        old, new = move.manifest(move.old).load(), move.manifest(move.sealed.next).load()
        if old.sealed is not None or hindrance(move, old, new) is not None:
            return done  # the seal tells
        known = len(done.copies) if done is not None else 0
        try:
            done = made(move, old, new, done)
        except ManifestDamaged:
            return done
        if done.changes or len(done.copies) - known <= FEW:
            return done
    return done


def made(
    move: Move, old: TableState, new: TableState, done: Along | None = None, *, anew: bool = False
) -> Along:
    """Make what goes along up to a state, onto another.

    Args:
        done: What was made already, up to an earlier state.
        anew: Also copies that are there.

    Raises:
        ManifestDamaged: It cannot be told any more.
        FileDamaged, StoreError: As files are read and written.
    """
    source, target = move.manifest(move.old), move.manifest(move.sealed.next)
    try:
        after = carried_after(move.sealed, old)
        if after is None:
            return Along(old, new)
        if not old.properties.get("primary_key"):
            known = (after, ()) if done is None else (done.until.version, done.copies)
            more = copied(source, target, carried(source, old, known[0]), anew=anew)
            return Along(old, new, (*known[1], *more))
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
    return Along(old, new, changes=changes)


def _still_so(
    done: Along, old: TableState, new: TableState
) -> dict[PartitionKey, tuple[Action, ...]]:
    """What was made of partitions that are on both sides as they were."""
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
    target: Manifest, done: Along, changes: Mapping[PartitionKey, tuple[Action, ...]]
) -> None:
    """Delete files that were made in vain: nobody lists them."""
    for key, actions in done.changes.items():
        if changes.get(key) != actions:
            for each in actions:
                if isinstance(each, Add) and each.path not in done.onto.files:
                    target.store.delete(target.object_path(each.path))
