"""What a table version takes over from the one that it takes the place of.

Law of this file: it reads only. The version that takes over may know more (a new column, a file of
its own), never something else: ids of schemas and specs mean in both what they mean in one, so that
rows that were laid out for the old one fit into the new one. Where the table is made anew, all ids
of the new version are above those of the old one: what was laid out for that is known by its ids,
and never taken for something of this.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

import msgspec

from persist.manifest.actions import (
    TRANSFORMERS,
    Action,
    Add,
    Applied,
    EpochComplete,
    Origin,
    OriginExpired,
    Properties,
    Sealed,
    Txn,
    is_push_mark,
)
from persist.manifest.errors import MomentNotKept, VersionNotKept
from persist.manifest.head import read_floor
from persist.manifest.history import kept_versions, version_as_of
from persist.manifest.reading import Manifest
from persist.manifest.state import TableState


def clash(old: TableState, new: TableState, *, reshape: bool = False) -> str | None:
    """Why ``new`` cannot take the place of ``old``; None where it can.

    Args:
        reshape: Whether it makes the table anew, with ids of its own.
    """
    if reshape:
        return _not_anew(old, new)
    if not any(number in new.schemas for number in old.schemas):
        return "the table was made anew between it and the version that counts"
    for what, olds, news in (
        ("schema", old.schemas, new.schemas),
        ("partition spec", old.specs, new.specs),
    ):
        for number, one in olds.items():
            if number in news and news[number] != one:
                return f"its {what} {number} is another than that of the version that counts"
    mine, other = _lasting(new.properties), _lasting(old.properties)
    for name in sorted(mine.keys() | other.keys()):
        if mine.get(name) != other.get(name):
            return (
                f"its {name} is {mine.get(name)}, that of the version that counts {other.get(name)}"
            )
    return None


def _not_anew(old: TableState, new: TableState) -> str | None:
    for what, olds, news in (
        ("schema", old.schemas, new.schemas),
        ("partition spec", old.specs, new.specs),
    ):
        if min(news, default=0) <= max(olds, default=0):
            return (
                f"its {what} {min(news, default=0)} is not above {max(olds, default=0)}, the newest"
                " of the version that counts"
            )
    if new.imports or new.sealed is not None:
        return "it has counted before, and the table can be made anew by a new version only"
    return None


def imported_actions(
    old: TableState, new: TableState, *, reshape: bool = False
) -> Iterator[Action]:
    """The actions that make known in ``new`` what ``old`` knows of its writers.

    ``new`` may have been current before, and then knows less of each, not more.

    Args:
        reshape: The table is made anew: ``new`` has its own schemas, specs and properties, and of
            the states of sources those that came with its rows.
    """
    if not reshape:
        yield from (one for number, one in sorted(old.schemas.items()) if number not in new.schemas)
        yield from (one for number, one in sorted(old.specs.items()) if number not in new.specs)
        if dict(old.properties) != dict(new.properties):
            yield Properties(values=dict(old.properties))
    for writer in old.writers.values():
        known = new.writers.get(writer.ingester_id)
        if writer != known and (known is None or known.epoch <= writer.epoch):
            yield writer
    if old.owner is not None and old.owner != new.owner:
        yield old.owner
    yield from _applied(old, new)
    for name, origin in new.origins.items():
        if name not in old.origins:
            yield OriginExpired(name=name, at=origin.at)
    for name, origin in old.origins.items():
        one = _without_partitions(origin) if reshape else origin
        if new.origins.get(name) != one:
            yield one
    changed = [
        one
        for name, one in old.checkpoints.items()
        if new.checkpoints.get(name) != one and not (reshape and name in new.checkpoints)
    ]
    needed = {one.shared for one in changed}
    yield from (one for name, one in old.shared_states.items() if name in needed)
    yield from changed
    for app_id, version in old.txns.items():
        # What pushes say of the old version stays with it, and goes with it.
        if not is_push_mark(app_id) and new.txns.get(app_id, -1) < version:
            yield Txn(app_id=app_id, version=version)


def _without_partitions(origin: Origin) -> Origin:
    """An origin without what single partitions have of it: there are others now.

    No buffer has rows of it then, so nothing of it is in a partition and not in all.
    """
    runs = tuple(msgspec.structs.replace(run, ahead=()) for run in origin.runs)
    return msgspec.structs.replace(origin, ahead=(), runs=runs)


def _applied(old: TableState, new: TableState) -> Iterator[Action]:
    for ingester_id, epoch in sorted(old.epochs_complete - new.epochs_complete):
        yield EpochComplete(ingester_id=ingester_id, epoch=epoch)
    for key, seq in old.applied.items():
        if new.applied_to(*key) < seq:
            ingester_id, epoch, spec_id, values = key
            yield Applied(
                ingester_id=ingester_id, epoch=epoch, spec_id=spec_id, values=values, seq=seq
            )


def carried_after(sealed: Sealed, state: TableState) -> int | None:
    """The manifest version of a sealed state from which on its rows go along; None: none do.

    Raises:
        LookupError: It did not take over from the version that it goes back to.
    """
    if sealed.since is not None or not sealed.carry:
        return sealed.since
    imported = state.imports.get(sealed.next)
    if imported is None:
        raise LookupError(f"the version that counts never took over from version {sealed.next}")
    return imported.into


def check_since(manifest: Manifest, state: TableState, after: int) -> None:
    """See that it can be told what came into a version after that version of its manifest.

    Raises:
        LookupError: There is no such version, or it is not kept.
    """
    if not 0 <= after <= state.version:
        raise LookupError(f"its manifest has no version {after}: the newest is {state.version}")
    # Asked at each try of a seal, beside others who commit: from the floor on nothing is deleted,
    # and to look for what is kept below it takes dozens of requests.
    if read_floor(manifest.store, manifest.folder) <= max(after, 1):
        return
    oldest, _ = kept_versions(manifest)
    if oldest > max(after, 1):
        raise _untold(after, VersionNotKept(after, oldest, state.version))


def carried(manifest: Manifest, state: TableState, after: int) -> list[Add]:
    """The files of rows that came into a version after that version of its manifest.

    Also those that a compaction has made into others since: the rows of both are the same.

    Raises:
        LookupError: It was too long ago.
    """
    check_since(manifest, state, after)
    try:
        changes = manifest.changes(after, state.version)
    except VersionNotKept as exc:
        raise _untold(after, exc) from exc
    return [
        action
        for one in changes
        for action in one.actions
        if isinstance(action, Add) and action.kind != "rewrite"
    ]


def version_at(manifest: Manifest, moment: datetime) -> int:
    """The last version of a manifest that was committed at a moment or before it; 0: none was.

    It is for ``since`` of a switch: what came after that moment came after that version.

    Raises:
        MomentNotKept: It is older than what is kept.
        TableNotFound: There is no such table version.
        ValueError: The moment has no time zone.
    """
    try:
        return version_as_of(manifest, moment)
    except MomentNotKept:
        if kept_versions(manifest)[0] > 1:
            raise
        return 0


def _untold(after: int, exc: VersionNotKept) -> LookupError:
    return LookupError(
        f"what was written since manifest version {after} cannot be told any more: {exc}"
    )


def _lasting(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in properties.items() if name != TRANSFORMERS}
