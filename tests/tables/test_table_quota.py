"""A namespace stays within its table limit, under concurrent requests and after a restart."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import trio

from ingester.buffer import BufferTree, FreezeLimits, TreeHooks
from ingester.config.settings import NamespaceQuota, QuotasSettings
from ingester.errors import OverQuota
from ingester.memory.ledger import MemoryLedger, Watermarks
from ingester.origins.registry import Origins
from ingester.quotas.namespaces import Namespaces
from ingester.tables.catalog import Catalog
from ingester.tables.commits import CommitHooks, Commits
from persist.manifest import WriterIdentity
from persist.store.local import LocalStore

SCHEMA = pa.schema({"i": pa.int64()})
QUOTAS = QuotasSettings(namespaces={"few": NamespaceQuota(tables=3)})


def started(folder: Path, epoch: int) -> Catalog:
    """The catalogue of a daemon that has just started, and has opened no table."""
    tree = BufferTree(
        MemoryLedger(Watermarks(1, 1, 1)),
        Origins(),
        FreezeLimits(1),
        TreeHooks(),
        namespaces=Namespaces(QUOTAS),
    )
    writer = WriterIdentity("tested", f"{epoch:016}", epoch)
    return Catalog(
        Commits(LocalStore(folder), tree, writer, CommitHooks(lambda _: None)), tree, writer
    )


def test_tables_asked_for_at_once_and_those_of_before_a_restart_count(tmp_path: Path) -> None:
    refused = list[OverQuota]()

    async def make(catalog: Catalog, namespace: str, name: str) -> None:
        try:
            await catalog.prepare_write(namespace, name, SCHEMA)
        except OverQuota as exc:
            refused.append(exc)

    async def main() -> None:
        catalog = started(tmp_path, 1)
        async with trio.open_nursery() as nursery:
            for number in range(8):
                nursery.start_soon(make, catalog, "few", f"t{number}")
                nursery.start_soon(make, catalog, "other", f"t{number}")
        names = await catalog.names()
        few = sorted(name for namespace, name in names if namespace == "few")
        assert (len(few), len(names), len(refused)) == (3, 11, 5)
        catalog = started(tmp_path, 2)
        await make(catalog, "few", "one_more")
        assert len(refused) == 6
        for name in few:
            await make(catalog, "few", name)  # existing tables can be written
        await make(catalog, "other", "one_more")
        assert len(refused) == 6
        assert len(await catalog.names()) == 12

    trio.run(main)
    assert {exc.details["quota"] for exc in refused} == {"tables"}
    assert 'quotas."few".tables is 3' in refused[-1].message
