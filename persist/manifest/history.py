"""The versions of a table one after another, each with its state.

Law of this file: reads only, and each changelog once: the state of a version is that of the one
before with its actions on it.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple

from persist.manifest.actions import Add, Remove
from persist.manifest.errors import ManifestDamaged, MomentNotKept, VersionNotKept
from persist.manifest.files import Changelog, Commit
from persist.manifest.head import kept_range, read_commit
from persist.manifest.lineage import read_changelogs, replay
from persist.manifest.reading import Manifest
from persist.manifest.removals import committed_lineage
from persist.manifest.state import TableState
from persist.manifest.times import parse_time


class Step(NamedTuple):
    """One version: who committed it, what it did, and the table after it.

    ``rows_removed`` counts the rows of the files that it took out; None where those are known only
    to the version before, and that is not kept.
    """

    commit: Commit
    changelog: Changelog
    state: TableState
    rows_removed: int | None


def kept_versions(manifest: Manifest) -> tuple[int, int]:
    """The oldest and the newest version that can be asked for.

    Raises:
        TableNotFound: There is none.
    """
    head = manifest.head()
    oldest, _ = kept_range(manifest.store, manifest.folder, head)
    while oldest < head and not _counts(manifest, oldest):
        oldest += 1
    return oldest, head


def _counts(manifest: Manifest, version: int) -> bool:
    # A writer that slept through a clean-up may have made a commit right below what is kept.
    commit = read_commit(manifest.store, manifest.folder, version)
    following = read_commit(manifest.store, manifest.folder, version + 1)
    return commit is not None and following is not None and following.parent == commit.uid


def version_as_of(manifest: Manifest, moment: datetime) -> int:
    """The newest kept version that was committed at a moment or before it, by the store's clock.

    Where that clock went back, it may be another one of the versions around that point. Reads a few
    commits, however many are kept.

    Args:
        moment: with a time zone.

    Raises:
        MomentNotKept: The oldest kept one is newer.
        TableNotFound: There is none.
        ValueError: The moment has no time zone.
    """
    if moment.tzinfo is None:
        raise ValueError(f"{moment.isoformat()} has no time zone")
    oldest, newest = kept_versions(manifest)
    if (committed := _committed_at(manifest, oldest)) > moment:
        raise MomentNotKept(moment.isoformat(), oldest, committed.isoformat())
    while oldest < newest:
        middle = (oldest + newest + 1) // 2
        if _committed_at(manifest, middle) > moment:
            newest = middle - 1
        else:
            oldest = middle
    return oldest


def _committed_at(manifest: Manifest, version: int) -> datetime:
    commit = read_commit(manifest.store, manifest.folder, version)
    if commit is None:  # cleaned up since
        raise VersionNotKept(version, *kept_versions(manifest))
    at = parse_time(commit.at)
    if at is None:
        raise ManifestDamaged(
            manifest.folder, version, commit.uid, f"{commit.at!r} is no time of a commit"
        )
    return at


def walk(manifest: Manifest, from_version: int, to_version: int) -> Iterator[Step]:
    """The versions from one to another, in order, both included.

    Raises:
        VersionNotKept: One of them is not kept, or does not exist.
        ManifestDamaged: One of them cannot be read.
    """
    newest = manifest.load(to_version)
    lineage = committed_lineage(manifest, from_version, newest)
    state = manifest.load(from_version)
    rows_before: int | None = None
    for place in lineage:
        version, uid = place
        commit = read_commit(manifest.store, manifest.folder, version)
        if commit is None or commit.uid != uid:
            raise VersionNotKept(version, version + 1, to_version)
        (changelog,) = read_changelogs(manifest.store, manifest.folder, (place,))
        if version > from_version:
            state = replay(state, manifest.folder, (place,), [changelog])
        added = sum(action.rows for action in changelog.actions if isinstance(action, Add))
        removed = None if rows_before is None else rows_before + added - state.rows
        if not any(isinstance(action, Remove) for action in changelog.actions):
            removed = 0
        yield Step(commit, changelog, state, removed)
        rows_before = state.rows
