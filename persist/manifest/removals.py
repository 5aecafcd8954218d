"""Which version took which file out of a table.

Law of this file: a file that the head does not list is listed by a version from ``oldest`` on if,
and only if, it was removed after ``oldest``. What is known is kept, so that the next question reads
only the changelogs that came since.
"""

from __future__ import annotations

from persist.manifest.actions import Remove
from persist.manifest.lineage import read_changelog, read_changelogs
from persist.manifest.reading import Manifest
from persist.manifest.state import Lineage, TableState

_AT_ONCE = 256


def committed_lineage(manifest: Manifest, from_version: int, state: TableState) -> Lineage:
    """(version, uid) of all versions from ``from_version`` up to that of ``state``.

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
    """What was removed, and when. Used by one thread at a time."""

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
