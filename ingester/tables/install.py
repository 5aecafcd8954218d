"""A committed version takes the place of the buffers whose files it has.

Law of this file: in one step of the loop, or not at all. What readers still need of a buffer, and
no file alone has, is spilled before; while the disk has no room for that, the rows stay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog
import trio

from ingester.buffer import BufferHandle, BufferTree, PersistedFiles, TableBuffer
from persist.manifest import TableState

log = structlog.get_logger(__name__)

SPILL_RETRY_S = 0.5


class Installation:
    """Installs versions. Loop only; spilling runs in a thread."""

    def __init__(self, tree: BufferTree, spill: Callable[[BufferHandle], object]) -> None:
        self._tree = tree
        self._spill = spill

    async def install(
        self,
        table: TableBuffer,
        state: TableState,
        persisted: Sequence[tuple[BufferHandle, PersistedFiles]],
    ) -> None:
        """Return when the version is installed and the buffers are let go."""
        while blocked := self._tree.install(table, state, persisted):
            for handle in blocked:
                await self._spill_or_wait(handle)

    async def _spill_or_wait(self, handle: BufferHandle) -> None:
        """Without room on the disk the rows stay in memory until their readers end or are ended."""
        try:
            await trio.to_thread.run_sync(self._spill, handle)
        except OSError as exc:
            log.warning("spill failed", error=str(exc), runbook="spill-failed")
            await trio.sleep(SPILL_RETRY_S)
