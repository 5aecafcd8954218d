"""From which version on no commit has been deleted: a small folder beside the manifest's.

Clean-up raises the floor before it deletes the first commit below it. So a commit that is not
below the floor, and that nothing follows, is the head; and the commit at the floor is there. What
is below the floor may be there again, made by a writer that slept, or come back after a power loss.

Law of this file: the highest counts, so that of two who raise it the lower does no harm.
"""

from __future__ import annotations

import posixpath

from persist.manifest.paths import DIGITS
from persist.store import ObjectStore

_KEPT = 8
"""A listing leaves out what goes while it is made: so many clean-ups have to end meanwhile."""


def floor_folder(folder: str) -> str:
    """Where the floor of the manifest in ``folder`` stands, with the final '/'."""
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
    for _, path in known[:-_KEPT]:
        store.delete(path)


def _floors(store: ObjectStore, folder: str) -> list[tuple[int, str]]:
    found = []
    for info in store.list(floor_folder(folder)):
        name = posixpath.basename(info.path)
        if len(name) == DIGITS and name.isascii() and name.isdigit():
            found.append((int(name), info.path))
    return found
