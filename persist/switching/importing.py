"""What a table version takes over from the one that it takes the place of.

Law of this file: it reads only. The version that takes over may know more (a new column, a file of
its own), never something else: ids of schemas and specs mean in both what they mean in one, so that
rows that were laid out for the old one fit into the new one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from persist.manifest.actions import (
    TRANSFORMERS,
    Action,
    Add,
    Applied,
    EpochComplete,
    Imported,
    OriginExpired,
    Properties,
    Txn,
)
from persist.manifest.errors import VersionNotKept
from persist.manifest.history import kept_versions
from persist.manifest.reading import Manifest
from persist.manifest.state import TableState


def clash(old: TableState, new: TableState) -> str | None:
    """Why ``new`` cannot take the place of ``old``; None where it can."""
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


def imported_actions(old: TableState, new: TableState) -> Iterator[Action]:
    """The actions that make known in ``new`` what ``old`` knows of its writers.

    ``new`` may have been current before, and then knows less of each, not more.
    """
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
    yield from (one for name, one in old.origins.items() if new.origins.get(name) != one)
    changed = [one for name, one in old.checkpoints.items() if new.checkpoints.get(name) != one]
    needed = {one.shared for one in changed}
    yield from (one for name, one in old.shared_states.items() if name in needed)
    yield from changed
    for app_id, version in old.txns.items():
        if new.txns.get(app_id, -1) < version:
            yield Txn(app_id=app_id, version=version)


def _applied(old: TableState, new: TableState) -> Iterator[Action]:
    for ingester_id, epoch in sorted(old.epochs_complete - new.epochs_complete):
        yield EpochComplete(ingester_id=ingester_id, epoch=epoch)
    for key, seq in old.applied.items():
        if new.applied_to(*key) < seq:
            ingester_id, epoch, spec_id, values = key
            yield Applied(
                ingester_id=ingester_id, epoch=epoch, spec_id=spec_id, values=values, seq=seq
            )


def carried(manifest: Manifest, state: TableState, back_to: int) -> list[Add]:
    """The files of rows that came into a version since it took over from ``back_to``.

    Also those that a compaction has made into others since: the rows of both are the same.

    Raises:
        LookupError: It did not take over from that version, or it was too long ago.
    """
    imported = state.imports.get(back_to)
    if imported is None:
        raise LookupError(f"the version that counts never took over from version {back_to}")
    versions = _since(manifest, imported, state)
    return [
        action
        for one in versions
        for action in one
        if isinstance(action, Add) and action.kind != "rewrite"
    ]


def _since(
    manifest: Manifest, imported: Imported, state: TableState
) -> Iterator[tuple[Action, ...]]:
    try:
        oldest, _ = kept_versions(manifest)
        if oldest > imported.into:
            raise VersionNotKept(imported.into, oldest, state.version)
        changes = manifest.changes(imported.into, state.version)
    except VersionNotKept as exc:
        raise LookupError(
            f"what was written since the switch of manifest version {imported.into} cannot be told"
            f" any more ({exc}); without carry it stays behind"
        ) from exc
    yield from (one.actions for one in changes)


def _lasting(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in properties.items() if name != TRANSFORMERS}
