"""A daemon's own Iceberg catalogue, read by pyiceberg."""

from __future__ import annotations

from pathlib import Path

import pyarrow.flight as fl
from pyiceberg.catalog import Catalog, load_catalog

from persist.manifest import PUBLISH
from tests.drivers.daemon import Daemon
from tests.drivers.waiting import until
from tests.flush.test_own_ages import set_property
from tests.publishing.test_publishing import QUICK, TABLE, until_published, write


def catalogue(daemon: Daemon) -> Catalog:
    """A new client of the daemon's catalogue."""
    return load_catalog("test", type="rest", uri=f"{daemon.http}/iceberg")


def test_the_catalogue_has_published_tables_that_the_daemon_has_not_opened(tmp_path: Path) -> None:
    with (
        Daemon.start(tmp_path / "a", **QUICK) as writing,
        Daemon.start(tmp_path / "b", id="b", store=f"{tmp_path}/a/store") as other,
        fl.connect(writing.flight) as client,
    ):
        until_published(client, "iceberg", "delta", version=write(client, 0, 3))
        found = catalogue(other)
        assert found.list_namespaces() == [(TABLE[0],)]
        assert found.list_tables(TABLE[0]) == [TABLE]
        table = found.load_table(TABLE)
        assert sorted(table.scan().to_arrow()["i"].to_pylist()) == [0, 1, 2]
        write(client, 3, 1)
        until(lambda: len(table.refresh().scan().to_arrow()) == 4, "the new version")
        set_property(writing, TABLE, PUBLISH, ["delta"])
        until(lambda: not found.table_exists(TABLE), "the table to leave the catalogue")
