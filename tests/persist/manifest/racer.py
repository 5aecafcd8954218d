"""A process that commits to one table as fast as it can: ``racer URL WRITER COUNT OPTIONS``.

It prints the versions that were reported as its own. Used by ``test_racing``.
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress

from persist.manifest import (
    CommitUnclear,
    Manifest,
    Proposal,
    TableState,
    WriterIdentity,
    commit,
)
from persist.store import ObjectStore, open_store
from tests.persist.manifest.samples import IMPATIENT, persist


def race(store: ObjectStore, name: str, count: int) -> list[int]:
    """Flush ``count`` operations as ``name``, one per version; returns those versions."""
    manifest = Manifest(store, "ns", "race")
    writer = WriterIdentity(name, "run", 1)
    state: TableState | None = None
    versions = []
    for seq in range(1, count + 1):
        proposal = Proposal(persist(seq, writer=writer))
        state = _commit(manifest, state, proposal, writer)
        versions.append(state.version)
    return versions


def _commit(
    manifest: Manifest, base: TableState | None, proposal: Proposal, writer: WriterIdentity
) -> TableState:
    """Retry the same proposal until its outcome is clear."""
    while True:
        with suppress(CommitUnclear):
            return commit(manifest, base, proposal, writer, patience=IMPATIENT)


if __name__ == "__main__":
    url, name, count, options = sys.argv[1:]
    print(json.dumps(race(open_store(url, **json.loads(options)), name, int(count))))
