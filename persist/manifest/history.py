"""The versions of a table one after another, each with its state, and which took which file out.

Law of this file: reads only, and each changelog once: the state of a version is that of the one
before with its actions on it. A file that the head does not list is listed by a version from
``oldest`` on if, and only if, it was removed after ``oldest``.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple

from persist.manifest.actions import Add, Remove, parse_time
from persist.manifest.errors import ManifestDamaged, MomentNotKept, VersionNotKept
from persist.manifest.files import Changelog, Commit
from persist.manifest.head import is_parent, kept_range, read_commit
from persist.manifest.lineage import read_changelog, read_changelogs, replay
from persist.manifest.reading import Manifest
from persist.manifest.state import Lineage, TableState

_AT_ONCE = 256


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
    while oldest < head:
        commit = read_commit(manifest.store, manifest.folder, oldest)
        # A writer that slept through a clean-up may have made a commit right below what is kept.
        if commit is not None and is_parent(manifest.store, manifest.folder, commit):
            break
        oldest += 1
    return oldest, head


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


def committed_lineage(manifest: Manifest, from_version: int, state: TableState) -> Lineage:
    """The (version, uid) of all versions from ``from_version`` up to that of ``state``.

    Takes one read for each snapshot that was written in between, and none below it.

    Raises:
        ManifestDamaged: A changelog on the way is missing or broken.
    """
    places = state.lineage
    while places[0][0] > from_version:
        earlier = read_changelog(manifest.store, manifest.folder, *places[0]).lineage
        places = earlier[:-1] + places
    return tuple(place for place in places if place[0] >= from_version)


class Removals:
    """The files that were removed, and when. Used by one thread at a time."""

    def __init__(self) -> None:
        self._removed_in: dict[str, int] = {}
        self._read: dict[int, str] = {}

    def follow(self, manifest: Manifest, lineage: Lineage) -> None:
        """Learn of all versions after the first in ``lineage``, and forget those before it.

        Raises:
            ManifestDamaged: A changelog is missing or broken.
        """
        oldest = lineage[0][0]
        if any(self._read.get(version, uid) != uid for version, uid in lineage):
            self._removed_in, self._read = {}, {}  # of another history
        self._read = {version: uid for version, uid in self._read.items() if version > oldest}
        self._removed_in = {path: v for path, v in self._removed_in.items() if v > oldest}
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
        """Whether the file left the table after the oldest version that was asked about."""
        return path in self._removed_in
