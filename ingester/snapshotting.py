"""Snapshots of the manifests that this daemon commits to, written in the background.

Law of this file: never on the way of a commit, and never needed: a snapshot that fails is tried
again later, keeps no other table's waiting, and everything can be read without it. One is written
at a time.
"""

from __future__ import annotations

from functools import partial

import structlog
import trio

from ingester.buffer import TableBuffer
from ingester.commits import Commits
from persist.manifest import snapshot_due, write_snapshot
from persist.store import StoreError

log = structlog.get_logger(__name__)

RETRY_S = 10.0


class Snapshots:
    """Writes a table's snapshot when one is due. Loop only; the writing runs in a thread."""

    def __init__(self, commits: Commits) -> None:
        self.written = 0
        self._commits = commits
        self._due: dict[TableBuffer, None] = {}
        self._changed = trio.Event()
        commits.on_version = self.note

    def note(self, table: TableBuffer) -> None:
        """The table has a new version, or was opened."""
        if table not in self._due and snapshot_due(table.state):
            self._due[table] = None
            self._changed.set()

    async def run(self) -> None:
        """Write what is due, until cancelled."""
        while True:
            await self._changed.wait()
            self._changed = trio.Event()
            while self._due:
                failed = False
                for table in list(self._due):
                    if await self._write(table):
                        del self._due[table]
                    else:
                        failed = True
                if failed:
                    await trio.sleep(RETRY_S)

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
