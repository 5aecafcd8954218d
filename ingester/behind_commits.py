"""What is written of a table's version after its commit, in the background.

Law of this file: never on the way of a commit, and never needed: what fails is tried again later,
and keeps no other table's waiting. One is written at a time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import trio

from ingester.buffer import TableBuffer
from ingester.commits import Commits

RETRY_S = 10.0


class BehindCommits(ABC):
    """Something that follows the versions of all tables. Loop only."""

    def __init__(self, commits: Commits) -> None:
        self._commits = commits
        self._due: dict[TableBuffer, None] = {}
        self._changed = trio.Event()
        self._writing = trio.Lock()
        commits.followers.append(self.note)

    def note(self, table: TableBuffer) -> None:
        """The table has a new version, or was opened."""
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
            done = await self._write(table)
        if done:
            self._due.pop(table, None)
            self.note(table)  # it may have gone on meanwhile
        return done

    @abstractmethod
    def _is_due(self, table: TableBuffer) -> bool:
        """Whether something is to be written of the table's version."""

    @abstractmethod
    async def _write(self, table: TableBuffer) -> bool:
        """Write it in a thread; false, and a line in the daemon's log, where that failed."""
