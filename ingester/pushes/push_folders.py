"""What the store has of each push, from one listing: its records, requests, and leader.

Law of this file: nothing but names and times is read. Times are the store's own, so that a
controller whose clock is wrong takes nobody for gone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime, timedelta

import msgspec

from ingester.pushes.push_store import FOLDER, PUSH_ID
from persist.store import ObjectInfo, ObjectStore

LEADER = "leader"
LEFT = "left"
_NUMBERED = re.compile(r"(requests/)?([0-9]{20})")


class PushFolder(msgspec.Struct, kw_only=True):
    """The objects of one push."""

    push_id: str
    paths: list[str] = []
    """All of them, in ascending order: the records come before anything else."""
    numbers: list[int] = []
    """The numbers of its records, in ascending order."""
    requests: int = 0
    """So many requests were made."""
    record_at: datetime | None = None
    """When the highest record was kept."""
    leader_at: datetime | None = None
    """When its leader was last heard of."""
    left: set[str] = set()
    """The regions in which what it had left behind was cleaned up after its end."""

    @property
    def highest(self) -> int:
        """The number of the record that counts; 0 where there is none."""
        return self.numbers[-1] if self.numbers else 0

    def abandoned(self, now: datetime, after: timedelta) -> bool:
        """Return whether no leader was heard of for so long; ``now`` is the store's."""
        heard_at = self.leader_at
        if heard_at is None and self.highest == 1:
            heard_at = self.record_at  # whoever has just begun it is not heard of yet
        return heard_at is None or now - heard_at > after


def push_folders(store: ObjectStore) -> list[PushFolder]:
    """Return what there is of all pushes, in the order of their names.

    A listing is no picture of one moment: what is created while it goes on may be missing.

    Raises:
        StoreError: the store cannot be listed.
    """
    return folders_of(store.list(f"{FOLDER}/"))


def folders_of(objects: Iterable[ObjectInfo]) -> list[PushFolder]:
    """Return what a listing has of pushes."""
    found: dict[str, PushFolder] = {}
    for info in objects:
        push_id, _, inside = info.path.removeprefix(f"{FOLDER}/").partition("/")
        if not PUSH_ID.fullmatch(push_id) or not inside:
            continue
        folder = found.setdefault(push_id, PushFolder(push_id=push_id))
        folder.paths.append(info.path)
        numbered = _NUMBERED.fullmatch(inside)
        if inside == LEADER:
            folder.leader_at = info.at
        elif inside.startswith(f"{LEFT}/"):
            folder.left.add(inside.removeprefix(f"{LEFT}/"))
        elif numbered and numbered[1]:
            folder.requests += 1
        elif numbered:
            folder.numbers.append(int(numbered[2]))
            folder.record_at = info.at
    return list(found.values())
