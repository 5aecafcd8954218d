"""Epochs: each start of an ingester claims one that is higher than all before.

Law of this file: a claim is an object that only one process can create, so no epoch is ever given
out twice. Epochs may have gaps: a claim whose answer was lost is simply never used. A claim with
``tells_stop`` is of a daemon that says so here once it has stopped with all of its rows in files;
where that word is missing, its log may have rows that are nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from persist.manifest.paths import claim_path, claims_folder, parse_claim, stopped_path
from persist.store import AlreadyExists, NotFound, ObjectStore


class EpochClaim(msgspec.Struct, frozen=True, kw_only=True):
    """An epoch as its claim has it. Claims of before marks, and of adoptions, tell no stop."""

    epoch: int = 0
    incarnation: str = ""
    at: str = ""
    host: str = ""
    tells_stop: bool = False
    stopped: bool = False
    """Whether it has told that it stopped cleanly. Not in the claim itself."""

    @property
    def left_open(self) -> bool:
        """Whether its log may have rows that are in no file: it runs, or has died."""
        return self.tells_stop and not self.stopped


def claim_epoch(
    store: ObjectStore, ingester_id: str, at_least: int, body: Mapping[str, object]
) -> int:
    """EpochClaim a new epoch of ``ingester_id``, at least ``at_least`` (and 1), above any claimed.

    Args:
        body: What to keep in the claim, for an operator who looks (incarnation, host, time, …).

    Raises:
        ValueError: The id cannot be part of a path.
        StoreUnavailable: Try again; the next epoch may be one higher.
    """
    data = msgspec.json.encode(body)
    epoch = max(at_least, 1)
    folder = claims_folder(ingester_id)
    start_after = claim_path(ingester_id, epoch - 1)
    for info in store.list(folder, start_after):
        claimed = parse_claim(info.path)
        if claimed is not None:
            epoch = max(epoch, claimed + 1)
    while True:
        try:
            store.create(claim_path(ingester_id, epoch), data)
        except AlreadyExists:
            epoch += 1  # somebody was faster, so this ends
        else:
            return epoch


def last_claim(store: ObjectStore, ingester_id: str, at_least: int = 1) -> EpochClaim | None:
    """The newest claim of ``ingester_id``; None where no epoch from ``at_least`` on was claimed.

    Raises:
        StoreUnavailable: Try again.
    """
    epoch = 0
    start_after = claim_path(ingester_id, max(at_least, 1) - 1)
    for info in store.list(claims_folder(ingester_id), start_after):
        epoch = max(epoch, parse_claim(info.path) or 0)
    if epoch == 0:
        return None
    try:
        found = msgspec.json.decode(store.get(claim_path(ingester_id, epoch)), type=EpochClaim)
    except (NotFound, msgspec.DecodeError):
        found = EpochClaim()  # somebody's who writes claims as he likes: it tells nothing
    stopped = store.exists(stopped_path(ingester_id, epoch)) is not None
    return msgspec.structs.replace(found, epoch=epoch, stopped=stopped)


def tell_stop(store: ObjectStore, ingester_id: str, epoch: int, body: Mapping[str, object]) -> None:
    """Say that this epoch has stopped, and that all of its rows are in files. Twice is fine.

    Raises:
        StoreUnavailable: It may or may not have been said.
    """
    store.put(stopped_path(ingester_id, epoch), msgspec.json.encode(body))
