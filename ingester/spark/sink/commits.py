"""Commits that Spark's driver makes to a table's manifest, beside those of daemons.

One proposal is committed at most once, however often its answer is lost. After a driver has died,
``txn`` (the writer's own version in the manifest) tells whether its commit succeeded
(``tests/spark/test_append_writer.py``).
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from functools import partial

from persist.manifest import (
    Action,
    CommitUnclear,
    Manifest,
    Proposal,
    TableState,
    WriterIdentity,
    commit,
)
from persist.store import StoreRetry, StoreUnavailable, retry

COMMIT_RETRY = StoreRetry(
    first_s=0.1, cap_s=5.0, unreachable=(StoreUnavailable, CommitUnclear), for_s=120.0
)
"""How long a driver retries while the store gives no clear answer."""


def identity(name: str) -> WriterIdentity:
    """The identity of one Spark run. No daemon has such an id, so it fences none."""
    return WriterIdentity(ingester_id=f"_{name}", incarnation=uuid.uuid4().hex, epoch=0)


def commit_patiently(
    manifest: Manifest,
    base: TableState | None,
    actions: Sequence[Action],
    writer: WriterIdentity,
) -> TableState:
    """Commit the actions, retrying transient errors; the version that has them.

    Raises:
        RewriteVoid, UploadExpired, ProposalConflict: As ``persist.manifest.commit``.
        StoreUnavailable, CommitUnclear: After two minutes. The commit may have succeeded.
    """
    return retry(partial(commit, manifest, base, Proposal(actions), writer), COMMIT_RETRY)
