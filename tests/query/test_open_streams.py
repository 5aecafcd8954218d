"""The limit on open answers holds when many are opened at the same time."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import trio

from ingester.buffer import BufferTree, FreezeLimits, TreeHooks
from ingester.errors import TooManyStreams
from ingester.memory.ledger import MemoryLedger, Watermarks
from ingester.origins.registry import Origins
from ingester.query.queries import Queries, QueryLimits
from ingester.query.row_group_cache import RowGroupCache
from ingester.query.stream import AnswerStream
from ingester.query.ticket import Ticket
from ingester.tables.catalog import Catalog
from ingester.tables.commits import CommitHooks, Commits
from persist.manifest import WriterIdentity
from persist.partitioning import UNPARTITIONED
from persist.store.local import LocalStore
from persist.table import TableDefinition

WRITER = WriterIdentity("tested", "0" * 16, 1)
MOST, CALLS = 3, 8


async def _queries(folder: Path) -> Queries:
    """Queries of a table that is not open yet, so that each has to read from the store first."""
    store = LocalStore(folder / "store")
    creating, _ = _catalog(store)
    await creating.create("ns", "t", TableDefinition(pa.schema({"n": pa.int64()}), UNPARTITIONED))
    catalog, tree = _catalog(store)
    limits = QueryLimits(max_streams=MOST, client_timeout_s=60, tail_retain_s=60, refresh_s=1)
    return Queries(catalog, tree, limits, RowGroupCache(store))


def _catalog(store: LocalStore) -> tuple[Catalog, BufferTree]:
    tree = BufferTree(MemoryLedger(Watermarks(1, 1, 1)), Origins(), FreezeLimits(1), TreeHooks())
    commits = Commits(store, tree, WRITER, CommitHooks(spill=lambda handle: None))
    return Catalog(commits, tree, WRITER), tree


def test_answers_that_wait_for_the_store_together_are_not_more_than_max_streams(
    tmp_path: Path,
) -> None:
    opened: list[AnswerStream] = []
    refused: list[TooManyStreams] = []

    async def open_one(queries: Queries) -> None:
        try:
            opened.append(await queries.open(Ticket("ns", "t")))
        except TooManyStreams as exc:
            refused.append(exc)

    async def main() -> None:
        queries = await _queries(tmp_path)
        async with trio.open_nursery() as nursery:
            for _ in range(CALLS):
                nursery.start_soon(open_one, queries)
        assert (len(opened), len(refused), queries.statistics().open) == (MOST, CALLS - MOST, MOST)
        opened.pop().close()
        await open_one(queries)
        assert (len(opened), queries.statistics().open) == (MOST, MOST)

    trio.run(main)
