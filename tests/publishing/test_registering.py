"""A daemon keeps a catalogue up to date with what it publishes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow.flight as fl
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchTableError

from ingester.config.settings import ConfigError
from ingester.registering import CatalogEntries
from tests.drivers.daemon import Daemon
from tests.drivers.glue_server import glue_options, glue_server
from tests.drivers.memory_store import MemoryStore
from tests.drivers.ports import free_port
from tests.drivers.waiting import until
from tests.publishing.test_publishing import QUICK, TABLE, status_of, write


def test_a_daemon_registers_each_version_also_after_the_catalogue_was_away(tmp_path: Path) -> None:
    port = free_port()
    options: dict[str, Any] = glue_options(f"http://127.0.0.1:{port}") | {"glue.max-retries": 1}
    settings = QUICK | {"catalog_options": json.dumps(options)}

    def seen() -> int:
        try:
            return len(load_catalog("x", **options).load_table(TABLE).scan().to_arrow())
        except NoSuchTableError:
            return 0

    with (
        Daemon.start(tmp_path / "data", **settings) as daemon,
        fl.connect(daemon.flight) as client,
    ):
        write(client, 0, 2)
        until(lambda: "table not registered" in json.dumps(status_of(daemon)["errors"]), "a try")
        with glue_server(port):
            until(lambda: seen() == 2, "both rows in the catalogue")
            write(client, 2, 3)
            until(lambda: seen() == 5, "all rows in the catalogue")
    assert options["client.secret-access-key"] not in daemon.stderr_file.read_text()


def test_a_catalogue_without_pyiceberg_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyiceberg.catalog", None)
    with pytest.raises(ConfigError, match=r"catalog_options: needs the extra iceberg"):
        CatalogEntries(MemoryStore(), {"type": "rest"})
