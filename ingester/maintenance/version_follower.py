"""Something is written of each table's version after its commit, in the background.

Law of this file: never on the way of a commit, and never needed: what fails is tried again later,
and keeps no other table's waiting. One is written at a time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial

import structlog
import trio

from ingester.buffer import TableBuffer
from ingester.tables.commits import Commits
from persist.manifest import Manifest, TableState
from persist.store import StoreError

log = structlog.get_logger(__name__)

RETRY_S = 10.0


class VersionFollower(ABC):
    """Follows the versions of all tables. Loop only."""

    what: str
    """The name in the daemon's log of what is written."""

    def __init__(self, commits: Commits) -> None:
        self._commits = commits
        self._due: dict[TableBuffer, None] = {}
        self._changed = trio.Event()
        self._writing = trio.Lock()
        commits.followers.append(self.note)

    def note(self, table: TableBuffer) -> None:
        """Take note of a table that has a new version, or was opened."""
        if table not in self._due and self._is_due(table):
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
                    failed = not await self._write_one(table) or failed
                if failed:
                    await trio.sleep(RETRY_S)

    async def catch_up(self) -> None:
        """Write what is due now, once."""
        for table in list(self._due):
            await self._write_one(table)

    async def _write_one(self, table: TableBuffer) -> bool:
        async with self._writing:
            state = table.state
            write = partial(self._write, self._commits.manifest(table.key), state)
            try:
                # The store puts an object whole or not at all.
                await trio.to_thread.run_sync(write, abandon_on_cancel=True)
            except (StoreError, OSError) as exc:
                log.warning(
                    f"{self.what} not written",
                    table=table.key,
                    version=state.version,
                    error=str(exc),
                    runbook="store-away",
                )
                return False
            self._written(table, state)
        self._due.pop(table, None)
        self.note(table)  # it may have gone on meanwhile
        return True

    @abstractmethod
    def _is_due(self, table: TableBuffer) -> bool:
        """Say whether something is to be written of the table's version."""

    @abstractmethod
    def _write(self, manifest: Manifest, state: TableState) -> None:
        """Write what is due of this state. In a thread.

        Raises:
            StoreError: it is not written.
        """

    @abstractmethod
    def _written(self, table: TableBuffer, state: TableState) -> None:
        """Take note that this state's is written; the table may have a newer one by now."""
