"""Walks the versions of a table with their states, and tracks which version removed which file.

Each changelog is read once: a version's state is the previous one with its actions applied. A file
that the head does not list is listed by a version from ``oldest`` on if and only if it was removed
after ``oldest``.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple

from persist.manifest.actions import Add, Remove, parse_time
from persist.manifest.errors import ManifestDamaged, MomentNotKept, VersionNotKept
from persist.manifest.files import Changelog, CommitRecord
from persist.manifest.lineage import (
    is_parent,
    kept_range,
    read_changelog,
    read_changelogs,
    read_commit,
    replay,
)
from persist.manifest.reading import Manifest
from persist.manifest.state import Lineage, TableState

_AT_ONCE = 256


class VersionStep(NamedTuple):
    """One version: its commit, its changes, and the table after it.

    ``rows_removed`` counts the rows of removed files; None if only a version that is not kept knows
    it.
    """

    commit: CommitRecord
    changelog: Changelog
    state: TableState
    rows_removed: int | None


def kept_versions(manifest: Manifest) -> tuple[int, int]:
    """The oldest and the newest readable version.

    Raises:
        TableNotFound: There is none.
    """
    head = manifest.head()
    oldest, _ = kept_range(manifest.store, manifest.folder, head)
    while oldest < head:
        commit = read_commit(manifest.store, manifest.folder, oldest)
        # A writer that was paused during a collection may have made the commit right below.
        if commit is not None and is_parent(manifest.store, manifest.folder, commit):
            break
        oldest += 1
    return oldest, head


def version_as_of(manifest: Manifest, moment: datetime) -> int:
    """The newest kept version committed at or before a moment, by the store's clock.

    If that clock went back, it may be a neighbouring version. Reads few commits, however many are
    kept.

    Args:
        moment: with a time zone.

    Raises:
        MomentNotKept: The oldest kept version is newer.
        TableNotFound: There is no version.
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
        raise ManifestDamaged(manifest.folder, version, commit.uid, f"{commit.at!r} is not a time")
    return at


def walk(manifest: Manifest, from_version: int, to_version: int) -> Iterator[VersionStep]:
    """The versions from one to another, in order, both inclusive.

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
        yield VersionStep(commit, changelog, state, removed)
        rows_before = state.rows


def committed_lineage(manifest: Manifest, from_version: int, state: TableState) -> Lineage:
    """The (version, uid) of all versions from ``from_version`` up to that of ``state``.

    Reads one changelog for each snapshot written in between.

    Raises:
        ManifestDamaged: A changelog is missing or broken.
    """
    places = state.lineage
    while places[0][0] > from_version:
        earlier = read_changelog(manifest.store, manifest.folder, *places[0]).lineage
        places = earlier[:-1] + places
    return tuple(place for place in places if place[0] >= from_version)


class Removals:
    """The removed files, and when they were removed. Used by one thread at a time."""

    def __init__(self) -> None:
        self._removed_in: dict[str, int] = {}
        self._read: dict[int, str] = {}

    def follow(self, manifest: Manifest, lineage: Lineage) -> None:
        """Read all versions after the first in ``lineage``, and forget those before it.

        Raises:
            ManifestDamaged: A changelog is missing or broken.
        """
        oldest = lineage[0][0]
        if any(self._read.get(version, uid) != uid for version, uid in lineage):
            self._removed_in, self._read = {}, {}  # it was another history
        self._read = {version: uid for version, uid in self._read.items() if version > oldest}
        self._removed_in = {path: v for path, v in self._removed_in.items() if v > oldest}
        if self._read and min(self._read) > oldest + 1:
            self._removed_in, self._read = {}, {}  # more is kept than last time
        unread = [place for place in lineage[1:] if place[0] not in self._read]
        for start in range(0, len(unread), _AT_ONCE):
            part = tuple(unread[start : start + _AT_ONCE])
            logs = read_changelogs(manifest.store, manifest.folder, part)
            for (version, uid), changelog in zip(part, logs, strict=True):
                for action in changelog.actions:
                    if isinstance(action, Remove):
                        self._removed_in[action.path] = version
                self._read[version] = uid

    def __contains__(self, path: object) -> bool:
        """Whether the file was removed after the oldest version of :meth:`follow`."""
        return path in self._removed_in
