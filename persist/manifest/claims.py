"""Epochs: each start of an ingester claims one that is higher than all before.

Law of this file: a claim is an object that only one process can create, so no epoch is ever given
out twice. Epochs may have gaps: a claim whose answer was lost is simply never used.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from persist.manifest.paths import claim_path, claims_folder, parse_claim
from persist.store import AlreadyExists, ObjectStore


def claim_epoch(
    store: ObjectStore, ingester_id: str, at_least: int, body: Mapping[str, object]
) -> int:
    """Claim a new epoch of ``ingester_id``, at least ``at_least`` (and 1), above any claimed.

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
