"""Snapshots of the manifests that this daemon commits to, written in the background.

Law of this file: everything can be read without one.
"""

from __future__ import annotations

from functools import partial

import structlog
import trio

from ingester.behind_commits import BehindCommits
from ingester.buffer import TableBuffer
from ingester.commits import Commits
from persist.manifest import snapshot_due, write_snapshot
from persist.store import StoreError

log = structlog.get_logger(__name__)


class Snapshots(BehindCommits):
    """Writes a table's snapshot when one is due. Loop only; the writing runs in a thread."""

    def __init__(self, commits: Commits) -> None:
        super().__init__(commits)
        self.written = 0

    def _is_due(self, table: TableBuffer) -> bool:
        return snapshot_due(table.state)

    async def _write(self, table: TableBuffer) -> bool:
        state = table.state
        write = partial(write_snapshot, self._commits.manifest(table.key), state)
        try:
            await trio.to_thread.run_sync(write)
        except (StoreError, OSError) as exc:
            log.warning(
                "snapshot not written",
                table=table.key,
                version=state.version,
                error=str(exc),
                runbook="store-away",
            )
            return False
        # Newer versions may have come meanwhile: their lineage begins here too from now on.
        table.install(table.state.after_snapshot(state.version, state.uid))
        self.written += 1
        log.info("snapshot written", table=table.key, version=state.version)
        return True
