"""Snapshots of the manifests that this daemon commits to, written in the background.

Law of this file: everything can be read without one.
"""

from __future__ import annotations

import structlog

from ingester.buffer import TableBuffer
from ingester.maintenance.version_follower import VersionFollower
from ingester.tables.commits import Commits
from persist.manifest import Manifest, TableState, snapshot_due, write_snapshot

log = structlog.get_logger(__name__)


class SnapshotWriter(VersionFollower):
    """Writes a table's snapshot when one is due."""

    what = "snapshot"

    def __init__(self, commits: Commits) -> None:
        super().__init__(commits)
        self.written = 0

    def _is_due(self, table: TableBuffer) -> bool:
        return snapshot_due(table.state)

    def _write(self, manifest: Manifest, state: TableState) -> None:
        write_snapshot(manifest, state)

    def _written(self, table: TableBuffer, state: TableState) -> None:
        # Newer versions may have come meanwhile: their lineage begins here too from now on.
        table.install(table.state.after_snapshot(state.version, state.uid))
        self.written += 1
        log.info("snapshot written", table=table.key, version=state.version)
