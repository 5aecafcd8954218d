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
    first_s=0.1, cap_s=5.0, away=(StoreUnavailable, CommitUnclear), for_s=120.0
)
"""The time for which a driver asks a store that gives no clear answer."""


def identity(name: str) -> WriterIdentity:
    """The committing writer: one run on Spark. No daemon has such a name; it fences nobody."""
    return WriterIdentity(ingester_id=f"_{name}", incarnation=uuid.uuid4().hex, epoch=0)


def commit_patiently(
    manifest: Manifest,
    base: TableState | None,
    actions: Sequence[Action],
    writer: WriterIdentity,
) -> TableState:
    """The version with the actions, or the one that has them already.

    Raises:
        RewriteVoid, UploadExpired, ProposalConflict: As ``persist.manifest.commit``.
        StoreUnavailable, CommitUnclear: For two minutes. It may be committed all the same.
    """
    return retry(partial(commit, manifest, base, Proposal(actions), writer), COMMIT_RETRY)
