"""A complete copy becomes the table.

    persist ─▶ write latch ─▶ persist the rest ─▶ the version's first commit
        ─▶ switch ─▶ answer from the new version ─▶ latch released

No writer changes the table from before the switch until its outcome is known: a row laid out for
the old definition would reach the new one. If the store is unreachable during the switch, writers
are refused until it is back. Loop only.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

import structlog
import trio

from ingester.buffer import BufferTree, TableBuffer
from ingester.errors import Saturated, StoreUnreachable, TooSlow
from ingester.tables.catalog import Catalog
from ingester.tables.new_version import WholeTable
from persist.manifest import TableState
from persist.store import StoreRetry, retry_async

log = structlog.get_logger(__name__)

PERSIST_S = 60.0
"""The limit for flushing the table before the latch is requested."""
REST_S = 15.0
"""The limit for flushing the rest, while writers wait."""
WRITERS_WAIT_S = 10.0
"""How long writers wait for an unreachable store during a switch."""
SWITCH_RETRY = StoreRetry(first_s=0.1, cap_s=5.0, unreachable=(StoreUnreachable,))


@dataclass(frozen=True, slots=True)
class Takeover:
    """Turns copies into tables. Loop only.

    Attributes:
        persist: Flushes a table, by namespace, name and a timeout in seconds.
    """

    catalog: Catalog
    tree: BufferTree
    persist: Callable[[str, str, float], Awaitable[object]]

    async def carry_out(self, whole: WholeTable, *, is_new: bool) -> TableState:
        """Create the table, or replace it.

        Raises:
            BadRequest: no longer possible; copy the table again.
            OwnedElsewhere: another daemon owns the table's writes.
            Refused: retryable.
            UnknownTable: the table was dropped meanwhile.
        """
        new_versions = self.catalog.new_versions
        if is_new:
            return (await new_versions.create(whole)).state
        table = await self.catalog.prepare_delete(*whole.key)
        if table.state.table_version == whole.number:
            return table.state  # an earlier attempt succeeded, and its answer was lost
        try:
            await self.persist(*whole.key, PERSIST_S)
        except TooSlow as exc:
            raise _busy(table) from exc
        async with table.write_latch.exclusive():
            await self._persist_rest(table)
            await new_versions.prepare(table, whole)
            return await self._take_over(table, whole)

    async def _persist_rest(self, table: TableBuffer) -> None:
        """Flush the table's buffers; the latch keeps writers out."""
        if not any(True for _ in table.handles()):
            return
        try:
            await self.persist(*table.key, REST_S)
        except TooSlow as exc:
            raise _busy(table) from exc
        assert not any(True for _ in table.handles()), "rows came under an exclusive latch"

    async def _take_over(self, table: TableBuffer, whole: WholeTable) -> TableState:
        began = trio.current_time()

        def note(exc: Exception, wait_s: float) -> None:
            assert isinstance(exc, StoreUnreachable)
            log.warning(
                "switch not made, trying again",
                table=table.key,
                error=exc.message,
                runbook="store-away",
            )
            if trio.current_time() - began > WRITERS_WAIT_S:
                table.write_latch.refuse(
                    StoreUnreachable(
                        f"table {'/'.join(table.key)} is being replaced by a copy, and the"
                        f" object store is unreachable: {exc.message}",
                        retry_after_s=2.0,
                    )
                )

        take_over = partial(self.catalog.new_versions.take_over, table, whole)
        return await retry_async(take_over, SWITCH_RETRY, note, sleep=trio.sleep)


def _busy(table: TableBuffer) -> Saturated:
    return Saturated(
        f"table {'/'.join(table.key)}: its buffered rows are not flushed yet, which a copy"
        " must wait for; finish it again",
        retry_after_s=2.0,
    )
