"""The versions that there are: the head, what follows a version, and what does not count.

Law of this file: only commits count, and they are contiguous from the oldest kept one to the head.
Clean-up deletes them in ascending order, so a commit below a gap was made by a writer that slept
through the clean-up of its parent; it does not count, and everything above the gap does.

The head is found in requests that grow with the logarithm of what is unknown: strides that double
over names that exist, then halve. What they end at may lie below a gap: one listing that starts
after it tells. A store that reads a whole folder for that is asked for the floor instead, of which
clean-up is below; and in case somebody else deleted a commit, for a few names behind it.

The floor is a small folder beside the manifest's: from its version on no commit has been deleted.
Clean-up raises it before it deletes the first commit below it, and the highest counts, so that of
two who raise it the lower does no harm. So a commit that is not below the floor, and that nothing
follows, is the head; and the commit at the floor is there. What is below it may be there again,
made by a writer that slept, or come back after a power loss.
"""

from __future__ import annotations

import posixpath

from persist.manifest.errors import ManifestDamaged
from persist.manifest.files import Commit, DamagedFile, decode_commit
from persist.manifest.paths import DIGITS, after_version, commit_path, parse_entry
from persist.store import NotFound, ObjectStore

_LOOK_AHEAD = 20
"""A hole is seen unless it is longer than what lies above it, or than a million versions."""
_FLOORS_KEPT = 8
"""A listing leaves out what goes while it is made: so many clean-ups have to end meanwhile."""


def read_commit(store: ObjectStore, folder: str, version: int) -> Commit | None:
    """The commit of ``version``, or None where there is none.

    Raises:
        ManifestDamaged: There is one that cannot be read.
    """
    path = commit_path(folder, version)
    try:
        data = store.get(path)
    except NotFound:
        return None
    try:
        commit = decode_commit(data)
        if commit.version != version:
            raise DamagedFile(f"it says version {commit.version}")
    except DamagedFile as exc:
        raise ManifestDamaged(path, version, "unknown", str(exc)) from exc
    return commit


def next_version(store: ObjectStore, folder: str, after: int) -> int | None:
    """The lowest committed version above ``after``; None where there is none."""
    for info in store.list(folder, after_version(folder, after)):
        entry = parse_entry(info.path)
        if entry is not None and entry.kind == "commit":
            return entry.version
    return None


def find_head(store: ObjectStore, folder: str, hint: int) -> int | None:
    """The newest committed version, or None where there is none at all.

    Args:
        hint: A version that was committed once, the nearer to the head the cheaper; 0 for none.
    """
    found: int | None = hint
    if hint == 0 or store.exists(commit_path(folder, hint)) is None:
        found = _first_known(store, folder, hint)
        if found is None:
            return None if hint == 0 else find_head(store, folder, 0)
    head = 0
    while found is not None:
        head = _end_of_run(store, folder, found)
        if not store.listing_seeks and _is_last(store, folder, head):
            break
        found = next_version(store, folder, head)
    return head


def _first_known(store: ObjectStore, folder: str, hint: int) -> int | None:
    """A version to search from, where that of the hint is not there."""
    if not store.listing_seeks:
        floor = max(1, read_floor(store, folder))
        if store.exists(commit_path(folder, floor)) is not None:
            return floor
    return next_version(store, folder, hint)


def _is_last(store: ObjectStore, folder: str, version: int) -> bool:
    """Whether certainly no commit is above ``version``; to be asked when none follows it.

    What was deleted by clean-up before that was seen was below the floor that is read now.
    """
    floor = read_floor(store, folder)
    if version < floor or store.exists(commit_path(folder, max(1, floor))) is None:
        return False
    strides = (1 << power for power in range(_LOOK_AHEAD))
    return all(
        store.exists(commit_path(folder, version + 1 + stride)) is None for stride in strides
    )


def _end_of_run(store: ObjectStore, folder: str, start: int) -> int:
    last = start
    stride = 1
    while store.exists(commit_path(folder, last + stride)) is not None:
        last += stride
        stride *= 2
    while stride > 1:
        stride //= 2
        if store.exists(commit_path(folder, last + stride)) is not None:
            last += stride
    return last


def counts(store: ObjectStore, folder: str, commit: Commit) -> bool:
    """Whether a commit that was read is part of the table's history, and not below a gap."""
    following = next_version(store, folder, commit.version)
    if following is None:
        return True
    return following == commit.version + 1 and is_parent(store, folder, commit)


def is_parent(store: ObjectStore, folder: str, commit: Commit) -> bool:
    """Whether there is a next version and it was made on top of ``commit``."""
    following = read_commit(store, folder, commit.version + 1)
    return following is not None and following.parent == commit.uid


def kept_range(store: ObjectStore, folder: str, head: int) -> tuple[int, int]:
    """The oldest and the newest version that can be asked for."""
    oldest = head
    found = next_version(store, folder, 0)
    while found is not None and found < head:
        end = _end_of_run(store, folder, found)
        if end >= head:
            oldest = found
            break
        found = next_version(store, folder, end)
    return oldest, head


def floor_folder(folder: str) -> str:
    """The folder of the floor of the manifest in ``folder``, with the final '/'."""
    return posixpath.dirname(folder.rstrip("/")) + "/_floor/"


def read_floor(store: ObjectStore, folder: str) -> int:
    """The floor; 0 where nothing was ever cleaned up."""
    return max((version for version, _ in _floors(store, folder)), default=0)


def raise_floor(store: ObjectStore, folder: str, version: int) -> None:
    """Say that commits below ``version`` will be deleted. Durable when it returns."""
    known = sorted(_floors(store, folder))
    # Again where it is there: whoever wrote it may not have lived to make it durable.
    highest = max([version, *(floor for floor, _ in known)])
    store.put(f"{floor_folder(folder)}{highest:0{DIGITS}d}", b"")
    for _, path in known[:-_FLOORS_KEPT]:
        store.delete(path)


def _floors(store: ObjectStore, folder: str) -> list[tuple[int, str]]:
    found = []
    for info in store.list(floor_folder(folder)):
        name = posixpath.basename(info.path)
        if len(name) == DIGITS and name.isascii() and name.isdigit():
            found.append((int(name), info.path))
    return found
