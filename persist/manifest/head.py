"""Finds the versions of a table: the head, what follows a version, and which commits count.

Commits are contiguous from the oldest kept version to the head. They are deleted in ascending
order, so a commit below a gap was made by a writer that was paused during the deletion of its
parent; it does not count.

The head is found with a logarithmic number of requests: strides over existing names double, then
halve. The result may lie below a gap, which one listing that starts after it shows. On a store that
reads a whole folder for a listing, the floor is read instead, and a few names above are looked up
in case a commit was deleted by another program.

The floor is a small folder beside the manifest's: from its version on no commit has been deleted.
Garbage collection raises it before it deletes the first commit below it. The highest value counts,
so two concurrent raises do no harm. A commit at or above the floor that nothing follows is
therefore the head, and the commit at the floor exists. Commits below the floor may reappear, made
by a paused writer or after a power loss (tests/persist/manifest/test_floor.py).
"""

from __future__ import annotations

import posixpath

from persist.manifest.errors import ManifestDamaged
from persist.manifest.files import CommitRecord, DamagedFile, decode_commit
from persist.manifest.paths import DIGITS, after_version, commit_path, parse_entry
from persist.store import ObjectNotFound, ObjectStore

_LOOK_AHEAD = 20
"""A gap is seen unless it is longer than the commits above it, or than a million versions."""
_FLOORS_KEPT = 8
"""A listing omits objects deleted while it runs; this many collections would have to end
meanwhile.
"""


def read_commit(store: ObjectStore, folder: str, version: int) -> CommitRecord | None:
    """The commit of ``version``, or None.

    Raises:
        ManifestDamaged: It exists but cannot be read.
    """
    path = commit_path(folder, version)
    try:
        data = store.get(path)
    except ObjectNotFound:
        return None
    try:
        commit = decode_commit(data)
        if commit.version != version:
            raise DamagedFile(f"it says version {commit.version}")
    except DamagedFile as exc:
        raise ManifestDamaged(path, version, "unknown", str(exc)) from exc
    return commit


def next_version(store: ObjectStore, folder: str, after: int) -> int | None:
    """The lowest committed version above ``after``, or None."""
    for info in store.list(folder, after_version(folder, after)):
        entry = parse_entry(info.path)
        if entry is not None and entry.kind == "commit":
            return entry.version
    return None


def find_head(store: ObjectStore, folder: str, hint: int) -> int | None:
    """The newest committed version, or None.

    Args:
        hint: A version that was committed once; cheaper the nearer it is to the head. 0 for none.
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
    """A version to search from if that of the hint does not exist."""
    if not store.listing_seeks:
        floor = max(1, read_floor(store, folder))
        if store.exists(commit_path(folder, floor)) is not None:
            return floor
    return next_version(store, folder, hint)


def _is_last(store: ObjectStore, folder: str, version: int) -> bool:
    """Whether certainly no commit is above ``version``, if none follows it.

    Everything deleted before that was seen lies below the floor read now.
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


def counts(store: ObjectStore, folder: str, commit: CommitRecord) -> bool:
    """Whether a commit that was read is part of the table's history, and not below a gap."""
    following = next_version(store, folder, commit.version)
    if following is None:
        return True
    return following == commit.version + 1 and is_parent(store, folder, commit)


def is_parent(store: ObjectStore, folder: str, commit: CommitRecord) -> bool:
    """Whether the next version exists and was made on top of ``commit``."""
    following = read_commit(store, folder, commit.version + 1)
    return following is not None and following.parent == commit.uid


def kept_range(store: ObjectStore, folder: str, head: int) -> tuple[int, int]:
    """The oldest and the newest readable version."""
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
    """The floor; 0 if nothing was ever deleted."""
    return max((version for version, _ in _floors(store, folder)), default=0)


def raise_floor(store: ObjectStore, folder: str, version: int) -> None:
    """Record that commits below ``version`` will be deleted. Durable when it returns."""
    known = sorted(_floors(store, folder))
    # Written again if it exists: its writer may have died before it was durable.
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
