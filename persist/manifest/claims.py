"""Epochs: each start of an ingester claims one that is higher than all before.

A claim is an object that only one process can create, so no epoch is given out twice
(tests/persist/manifest/test_claims_and_catalog.py). Epochs may have gaps: a claim whose answer was
lost is never used. A daemon that claims with ``tells_stop`` records here when it has stopped with
all its rows in files; without that record, its log may hold rows that exist nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from persist.manifest.paths import claim_path, claims_folder, parse_claim, stopped_path
from persist.store import AlreadyExists, ObjectNotFound, ObjectStore


class EpochClaim(msgspec.Struct, frozen=True, kw_only=True):
    """An epoch's claim. Older claims, and those of adoptions, have no ``tells_stop``."""

    epoch: int = 0
    incarnation: str = ""
    at: str = ""
    host: str = ""
    tells_stop: bool = False
    diskless: bool = False
    """Whether all that it acknowledged is in files or in log objects of the store."""
    opens: bool = False
    """Whether it takes nothing before its first log object is in the store."""
    stopped: bool = False
    """Whether a clean stop is recorded. Not part of the claim itself."""

    @property
    def left_open(self) -> bool:
        """Whether its log may hold rows that are in no file: the daemon runs, or died."""
        return self.tells_stop and not self.stopped


def claim_epoch(
    store: ObjectStore, ingester_id: str, at_least: int, body: Mapping[str, object]
) -> int:
    """Claim a new epoch of ``ingester_id``, at least ``at_least`` (and 1), above any claimed.

    Args:
        body: Content of the claim, for an operator (incarnation, host, time, …).

    Raises:
        ValueError: The id cannot be part of a path.
        StoreUnavailable: Try again; the next epoch may be one higher.
    """
    data = msgspec.json.encode(body)
    epoch = max(at_least, 1, newest_epoch(store, ingester_id, at_least) + 1)
    while True:
        try:
            store.create(claim_path(ingester_id, epoch), data)
        except AlreadyExists:
            epoch += 1  # another process was faster
        else:
            return epoch


def newest_epoch(store: ObjectStore, ingester_id: str, at_least: int = 1) -> int:
    """The newest claimed epoch of ``ingester_id`` from ``at_least`` on; 0 without one.

    Raises:
        StoreUnavailable: Try again.
    """
    start_after = claim_path(ingester_id, max(at_least, 1) - 1)
    listed = store.list(claims_folder(ingester_id), start_after)
    return max((parse_claim(info.path) or 0 for info in listed), default=0)


def last_claim(store: ObjectStore, ingester_id: str, at_least: int = 1) -> EpochClaim | None:
    """The newest claim of ``ingester_id``; None if no epoch from ``at_least`` on was claimed.

    Raises:
        StoreUnavailable: Try again.
    """
    epoch = newest_epoch(store, ingester_id, at_least)
    return None if epoch == 0 else read_claim(store, ingester_id, epoch)


def read_claim(store: ObjectStore, ingester_id: str, epoch: int) -> EpochClaim:
    """The claim of an epoch; one that says nothing if it does not exist.

    Raises:
        StoreUnavailable: Try again.
    """
    try:
        found = msgspec.json.decode(store.get(claim_path(ingester_id, epoch)), type=EpochClaim)
    except (ObjectNotFound, msgspec.DecodeError):
        found = EpochClaim()  # written by another program: it says nothing
    stopped = store.exists(stopped_path(ingester_id, epoch)) is not None
    return msgspec.structs.replace(found, epoch=epoch, stopped=stopped)


def tell_stop(store: ObjectStore, ingester_id: str, epoch: int, body: Mapping[str, object]) -> None:
    """Record that this epoch has stopped with all its rows in files. May be repeated.

    Raises:
        StoreUnavailable: It may or may not have been recorded.
    """
    store.put(stopped_path(ingester_id, epoch), msgspec.json.encode(body))
